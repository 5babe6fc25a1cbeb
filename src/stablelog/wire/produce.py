"""Codec for Produce, written by hand so that batches are not copied.

The message library kio would copy every batch into and out of a request. Here the broker decodes the envelope (all
fields but the records), and each batch is a memoryview of the received frame. The client passes each batch to the
socket between the parts of the envelope. The module knows versions 3 to 12, and reads a request by the schema of its
own version. It refuses a count or size that is greater than the number of bytes left, as `wire.guard` does for all
other requests.

What versions add: v5 log start; v8 error messages; v9 flexible.
"""

import struct
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.errors import RefusedError
from stablelog.types import InvalidRecord, TopicPartition
from stablelog.wire.api import ApiKey
from stablelog.wire.envelope import (
    INT32,
    INT64,
    NO_TAGS,
    encode_size,
    encode_text,
    read_count,
    read_size,
    read_text,
)
from stablelog.wire.guard import Buffer, Items, skip_tagged_fields
from stablelog.wire.shapes import error_for

VERSION_MIN = 3  # the first version for record batches of version 2
VERSION_WITH_LOG_START = 5
VERSION_WITH_MESSAGES = 8
VERSION_FLEXIBLE = 9
# The maximum number of topics and partitions of a request, all together. A request is decoded on the event loop, and
# the partitions of one topic in one step. The default of `stablelog.max.partitions` is 10,000.
ITEMS_MAX = 12_000
STEP_COUNT = 300  # A request with more topics is decoded in steps of this many topics, of about 1 ms each.

_ACKS_AND_TIMEOUT = struct.Struct(">hi")
ACKS_ALL = -1
# A partition in a Produce response: index, error, base offset, log append time.
_PARTITION = struct.Struct(">ihqq")


@dataclass(slots=True)
class PartitionProduceData:
    """The records for one partition in a Produce request: a memoryview of the received frame; None if the request has
    null in their place.
    """

    index: int
    records: memoryview | None


class TopicProduceData(NamedTuple):
    """The records for one topic in a Produce request."""

    name: str
    partitions: Sequence[PartitionProduceData]


class ProduceRequest(NamedTuple):
    """A Produce request of any version.

    Attributes:
        transactional_id: the transactional id of the transactional batches; None if there are none.
        acks: 0 for no response; 1 and -1 for a response.
    """

    transactional_id: str | None
    acks: int
    topics: Sequence[TopicProduceData]


@dataclass(slots=True)
class ProducedPartition:
    """A partition in a Produce response: the result for its records.

    Attributes:
        base_offset: the base offset of the appended batch; -1 if it was refused.
        append_time_ms: the broker's time if the topic uses LogAppendTime; otherwise -1.
        log_start_offset: the first offset of the partition's log; -1 if it is not known.
        message: why the batch was refused.
        record_errors: the records because of which the batch was refused (KIP-467).
    """

    index: int
    error: ErrorCode = ErrorCode.none
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None
    record_errors: Sequence[InvalidRecord] = ()


class ProducedTopic(NamedTuple):
    """A topic in a Produce response: the results for its partitions."""

    name: str
    partitions: Sequence[ProducedPartition]


def has_many_topics(version: int, frame: Buffer, at: int) -> bool:
    """Return whether the body of a Produce request has so many topics that it is decoded in steps.

    Args:
        version: the version of the request.
        frame: the request.
        at: the position of the body.

    Raises:
        ValueError, struct.error: the bytes are not a Produce request: see `decode_produce_request`.
    """
    flexible = version >= VERSION_FLEXIBLE
    _, at = read_text(frame, at, flexible=flexible)
    count, _ = read_size(frame, at + _ACKS_AND_TIMEOUT.size, INT32, flexible=flexible)
    return count > STEP_COUNT


def decode_produce_request(version: int, frame: Buffer, at: int) -> ProduceRequest:
    """Decode the body of a request that begins at `at`. Bytes after the end of the request are ignored.

    Raises:
        ValueError: a count or size is greater than the bytes that are left, the request has too many items, a text is
            not UTF-8, or a field that must not be null is null.
        struct.error: the frame ends too early.
        RefusedError: the version is older than VERSION_MIN.
    """
    steps = decode_in_steps(version, frame, at)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            request: ProduceRequest = end.value
            return request


def decode_in_steps(version: int, frame: Buffer, at: int) -> Generator[None, None, ProduceRequest]:
    """Decode the body of a Produce request, which begins at position `at` of the frame, in several steps, so that the
    broker can serve other requests between two steps. The result is that of `decode_produce_request`.

    Yields:
        None after each STEP_COUNT topics, and after each STEP_COUNT partitions of a topic.
    """
    if version < VERSION_MIN:
        raise RefusedError(
            ErrorCode.unsupported_version,
            f"produce version {version} is not supported: it is older than record batches of version 2",
        )
    data = memoryview(frame)
    items = Items(ITEMS_MAX)
    flexible = version >= VERSION_FLEXIBLE
    transactional_id, at = read_text(data, at, flexible=flexible)
    acks, _timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(data, at)
    topics = []
    topic_count, at = read_count(data, at + _ACKS_AND_TIMEOUT.size, "topics", items, flexible=flexible)
    for number in range(topic_count):
        if number and number % STEP_COUNT == 0:
            yield
        name, at = read_text(data, at, flexible=flexible)
        if name is None:
            raise ValueError("the name of a topic is null, which is not allowed")
        partitions = []
        partition_count, at = read_count(data, at, "partitions", items, flexible=flexible)
        for place in range(partition_count):
            if place and place % STEP_COUNT == 0:
                yield
            (index,) = INT32.unpack_from(data, at)
            size, at = read_size(data, at + INT32.size, INT32, flexible=flexible)
            partitions.append(PartitionProduceData(index, None if size < 0 else data[at : at + size]))
            at += max(size, 0)
            if flexible:
                at = skip_tagged_fields(data, at)
        topics.append(TopicProduceData(name, partitions))
        if flexible:
            at = skip_tagged_fields(data, at)
    if flexible:
        skip_tagged_fields(data, at)
    return ProduceRequest(transactional_id, acks, topics)


def encode_produce_response(
    version: int, correlation_id: int, topics: Iterable[ProducedTopic], throttle_ms: int = 0
) -> list[Buffer]:
    """Encode a Produce response as a list of buffers, header first, without the length prefix."""
    flexible = version >= VERSION_FLEXIBLE
    tags = NO_TAGS if flexible else b""
    topics = list(topics)
    out = bytearray(INT32.pack(correlation_id) + tags)
    out += encode_size(len(topics), INT32, flexible=flexible)
    for topic in topics:
        out += encode_text(topic.name, flexible=flexible)
        out += encode_size(len(topic.partitions), INT32, flexible=flexible)
        for partition in topic.partitions:
            _write_partition(out, version, partition)
        out += tags
    return [bytes(out + INT32.pack(throttle_ms) + tags)]


def _write_partition(out: bytearray, version: int, partition: ProducedPartition) -> None:
    flexible = version >= VERSION_FLEXIBLE
    error = partition.error
    if error is not ErrorCode.none:
        error = error_for(ApiKey.PRODUCE, version, error)
    out += _PARTITION.pack(partition.index, error.value, partition.base_offset, partition.append_time_ms)
    if version >= VERSION_WITH_LOG_START:
        out += INT64.pack(partition.log_start_offset)
    if version >= VERSION_WITH_MESSAGES:
        out += encode_size(len(partition.record_errors), INT32, flexible=flexible)
        tags = NO_TAGS if flexible else b""
        for record in partition.record_errors:
            out += INT32.pack(record.number) + encode_text(record.why, flexible=flexible) + tags
        out += encode_text(partition.message, flexible=flexible)
    if flexible:
        out += NO_TAGS


def encode_produce_request(
    version: int,
    transactional_id: str | None,
    timeout_ms: int,
    batches: Iterable[tuple[TopicPartition, Buffer]],
) -> list[Buffer]:
    """Encode the body of a request with acks=-1 (the broker responds when the records are durable), without copying
    the batches.

    Args:
        version: the version of the request.
        transactional_id: None for batches without a transaction.
        timeout_ms: how long the broker may wait before it responds.
        batches: at most one batch for each partition.

    Returns:
        Buffers that together are the body, in their order.
    """
    flexible = version >= VERSION_FLEXIBLE
    tags = NO_TAGS if flexible else b""
    topics: dict[str, dict[int, Buffer]] = {}
    for (topic, index), batch in batches:
        partitions = topics.setdefault(topic, {})
        assert index not in partitions
        partitions[index] = batch
    envelope = bytearray(encode_text(transactional_id, flexible=flexible))
    envelope += _ACKS_AND_TIMEOUT.pack(ACKS_ALL, timeout_ms)
    envelope += encode_size(len(topics), INT32, flexible=flexible)
    pieces: list[Buffer] = []
    for topic, partitions in topics.items():
        envelope += encode_text(topic, flexible=flexible)
        envelope += encode_size(len(partitions), INT32, flexible=flexible)
        for index, batch in partitions.items():
            envelope += INT32.pack(index) + encode_size(len(batch), INT32, flexible=flexible)
            pieces += [envelope, batch]
            envelope = bytearray(tags)
        envelope += tags
    envelope += tags
    return [*pieces, envelope]
