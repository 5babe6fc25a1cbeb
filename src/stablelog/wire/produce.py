"""The Produce request and its answer, read and written by hand: batches stay where they have arrived.

kio would copy every batch out of its request. Here the envelope is read, and each batch is a view into the frame.
Versions 3 to 12. What is read goes by the schema of the request's own version; counts and sizes that cannot be true
are refused as `wire.guard` refuses them for all other requests.

Version notes: v5 log start; v8 error messages; v9 flexible.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.wire.envelope import (
    INT32,
    INT64,
    NO_TAGS,
    encode_size,
    encode_text,
    read_size,
    read_text,
)
from stablelog.wire.guard import Buffer, Items, skip_tagged_fields
from stablelog.wire.shapes import PRODUCE, error_for

VERSION_WITH_LOG_START = 5
VERSION_WITH_MESSAGES = 8
VERSION_FLEXIBLE = 9

_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_PARTITION = struct.Struct(">ihqq")  # index, error, base offset, log append time


@dataclass(slots=True)
class PartitionRecords:
    """What is to be appended to one partition: a view into the request, or None where it says null."""

    index: int
    records: memoryview | None


class TopicRecords(NamedTuple):
    """What is to be appended to one topic."""

    name: str
    partitions: Sequence[PartitionRecords]


class ProduceRequest(NamedTuple):
    """A Produce request of any version.

    Attributes:
        transactional_id: of the transaction that its transactional batches are of.
        acks: 0 for no answer, 1 or -1 for one.
    """

    transactional_id: str | None
    acks: int
    topics: Sequence[TopicRecords]


@dataclass(slots=True)
class ProducedPartition:
    """What became of the records of one partition.

    Attributes:
        base_offset: of the batch; -1 if it was refused.
        append_time_ms: the broker's, where the topic takes that; else -1.
        log_start_offset: of the partition, as far as it is known.
        message: why it was refused.
    """

    index: int
    error: ErrorCode = ErrorCode.none
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None


class ProducedTopic(NamedTuple):
    """What became of the records of one topic."""

    name: str
    partitions: Sequence[ProducedPartition]


def decode_produce_request(version: int, frame: Buffer, at: int) -> ProduceRequest:
    """Read the body of a request that begins at `at`. What stands behind it is passed over.

    Raises:
        ValueError: a count or size cannot be true, a text is none, or a null stands where there may be none.
        struct.error: the frame ends too early.
    """
    data = memoryview(frame)
    items = Items()
    flexible = version >= VERSION_FLEXIBLE
    transactional_id, at = read_text(data, at, flexible=flexible)
    acks, _timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(data, at)
    topics = []
    topic_count, at = _read_count(data, at + _ACKS_AND_TIMEOUT.size, "topics", items, flexible=flexible)
    for _ in range(topic_count):
        name, at = read_text(data, at, flexible=flexible)
        if name is None:
            raise ValueError("the name of a topic is null")
        partitions = []
        partition_count, at = _read_count(data, at, "partitions", items, flexible=flexible)
        for _ in range(partition_count):
            (index,) = INT32.unpack_from(data, at)
            size, at = read_size(data, at + INT32.size, INT32, flexible=flexible)
            partitions.append(PartitionRecords(index, None if size < 0 else data[at : at + size]))
            at += max(size, 0)
            if flexible:
                at = skip_tagged_fields(data, at)
        topics.append(TopicRecords(name, partitions))
        if flexible:
            at = skip_tagged_fields(data, at)
    if flexible:
        skip_tagged_fields(data, at)
    return ProduceRequest(transactional_id, acks, topics)


def _read_count(data: memoryview, at: int, what: str, items: Items, *, flexible: bool) -> tuple[int, int]:
    count, at = read_size(data, at, INT32, flexible=flexible)
    if count < 0:
        raise ValueError(f"{what} is null")
    items.take(count)
    return count, at


def encode_produce_response(
    version: int, correlation_id: int, topics: Iterable[ProducedTopic]
) -> list[Buffer]:
    """The response, header and body, without its length."""
    flexible = version >= VERSION_FLEXIBLE
    topics = list(topics)
    out = bytearray(INT32.pack(correlation_id))
    if flexible:
        out += NO_TAGS
    out += encode_size(len(topics), INT32, flexible=flexible)
    for topic in topics:
        out += encode_text(topic.name, flexible=flexible)
        out += encode_size(len(topic.partitions), INT32, flexible=flexible)
        for partition in topic.partitions:
            _write_partition(out, version, partition)
        if flexible:
            out += NO_TAGS
    out += INT32.pack(0)  # throttle time
    if flexible:
        out += NO_TAGS
    return [bytes(out)]


def _write_partition(out: bytearray, version: int, partition: ProducedPartition) -> None:
    flexible = version >= VERSION_FLEXIBLE
    error = partition.error
    if error is not ErrorCode.none:
        error = error_for(PRODUCE, version, error)
    out += _PARTITION.pack(partition.index, error.value, partition.base_offset, partition.append_time_ms)
    if version >= VERSION_WITH_LOG_START:
        out += INT64.pack(partition.log_start_offset)
    if version >= VERSION_WITH_MESSAGES:
        out += encode_size(0, INT32, flexible=flexible)  # no errors of single records
        out += encode_text(partition.message, flexible=flexible)
    if flexible:
        out += NO_TAGS
