"""Codec for Fetch, written by hand so that records are not copied.

The records stay in the mapped segment (broker) or in the received frame (client). The message library kio would copy
them into and out of the message. The broker reads requests of versions 4 to 17 into one class, `FetchRequest`. It
writes responses of the same versions: it builds the envelope (all fields but the records), and passes the records to
the socket between the parts of the envelope. The client writes a request without a fetch session, and reads the
response, both in versions 4 to 12; from version 13 on, topics have ids.

What versions add: v5 log start; v7 error and session; v9 leader epoch; v11 rack and preferred replica; v12 flexible;
v13 topic ids; v15 without the replica id.
"""

import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.types import TopicPartition
from stablelog.wire.envelope import (
    INT32,
    INT64,
    NO_TAGS,
    NULL_SIZE,
    encode_size,
    encode_text,
    read_count,
    read_size,
    read_text,
)
from stablelog.wire.guard import Buffer, Items, skip_tagged_fields

VERSION_WITH_LOG_START = 5
VERSION_WITH_SESSIONS = 7
VERSION_WITH_LEADER_EPOCH = 9
VERSION_WITH_RACK = 11  # The version that adds the rack and the preferred replica.
VERSION_FLEXIBLE = 12
VERSION_WITH_TOPIC_IDS = 13
VERSION_WITHOUT_REPLICA = 15

# A partition in a Fetch response: index, error, high watermark, last stable offset.
_PARTITION = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")  # An aborted transaction in a response: producer id, first offset.
_ERROR_AND_SESSION = struct.Struct(">hi")
_REQUEST_HEAD = struct.Struct(">iiiib")  # Replica id, max wait, minimum and maximum bytes, isolation level.
# The same fields without the replica id: max wait, minimum and maximum bytes, isolation level.
_LIMITS = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")  # The fetch session of a request: its id and epoch.
UUID_SIZE = 16
NO_REPLICA = INT32.pack(-1)
NO_SESSION_ID, FINAL_EPOCH = 0, -1
NO_SESSION = _SESSION.pack(NO_SESSION_ID, FINAL_EPOCH)
NOT_SAID = -1  # Stands for a leader epoch or a log start that the client does not send.


class WantedPartition(NamedTuple):
    """A partition in a Fetch request.

    Attributes:
        size_max: the maximum number of bytes to return.
        current_leader_epoch: -1 if the client does not send it.
    """

    partition: int
    fetch_offset: int
    size_max: int
    current_leader_epoch: int


class WantedTopic(NamedTuple):
    """A topic in a Fetch request, with its partitions. It has a name; from version 13 on, it has an id instead."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[WantedPartition]


class ForgottenTopic(NamedTuple):
    """A topic in a Fetch request. The fetch session must no longer contain the partitions that are listed here."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: tuple[int, ...]


class FetchRequest(NamedTuple):
    """A Fetch request of any version.

    Attributes:
        is_committed: whether the isolation level of the request is read_committed.
        session_id: 0 without a session.
        session_epoch: 0 for a full fetch that begins a session, -1 for a full fetch without a session; otherwise the
            number of an incremental fetch in its session.
    """

    wait_ms_max: int
    size_min: int
    size_max: int
    is_committed: bool
    session_id: int
    session_epoch: int
    topics: list[WantedTopic]
    forgotten: list[ForgottenTopic]


def decode_fetch_request(version: int, frame: Buffer, at: int) -> FetchRequest:
    """Decode the body of a request that begins at `at`. Bytes after the end of the request are ignored.

    Raises:
        ValueError: a count or size is greater than the bytes that are left, a text is not UTF-8, or a field that must
            not be null is null.
        struct.error: the frame ends too early.
    """
    data, items, flexible = memoryview(frame), Items(), version >= VERSION_FLEXIBLE
    if version < VERSION_WITHOUT_REPLICA:
        at += INT32.size
    wait_ms_max, size_min, size_max, isolation = _LIMITS.unpack_from(data, at)
    at += _LIMITS.size
    session = NO_SESSION_ID, FINAL_EPOCH
    if version >= VERSION_WITH_SESSIONS:
        session = _SESSION.unpack_from(data, at)
        at += _SESSION.size
    topics: list[WantedTopic] = []
    count, at = read_count(data, at, "topics", items, flexible=flexible)
    for _ in range(count):
        name, topic_id, at = _read_topic(version, data, at)
        partitions, at = _read_partitions(version, data, at, items)
        topics.append(WantedTopic(name, topic_id, partitions))
    forgotten: list[ForgottenTopic] = []
    if version >= VERSION_WITH_SESSIONS:
        count, at = read_count(data, at, "forgotten topics", items, flexible=flexible)
        for _ in range(count):
            name, topic_id, at = _read_topic(version, data, at)
            index_count, at = read_count(data, at, "partitions", items, flexible=flexible)
            forgotten.append(ForgottenTopic(name, topic_id, struct.unpack_from(f">{index_count}i", data, at)))
            at += index_count * INT32.size
            if flexible:
                at = skip_tagged_fields(data, at)
    if version >= VERSION_WITH_RACK:
        _, at = read_text(data, at, flexible=flexible)
    if flexible:
        skip_tagged_fields(data, at)
    return FetchRequest(wait_ms_max, size_min, size_max, isolation == 1, *session, topics, forgotten)


def _read_topic(version: int, data: memoryview, at: int) -> tuple[str | None, uuid.UUID | None, int]:
    """Read the name of a topic, or its id in versions from 13 on.

    Returns:
        A tuple: the name, or None if the version has ids; the id, or None if the version has names or the id is zero;
        and the position of the next field.
    """
    if version >= VERSION_WITH_TOPIC_IDS:
        content = bytes(data[at : at + UUID_SIZE])
        topic_id = uuid.UUID(bytes=content)  # This raises ValueError if the data ends inside the topic id.
        return None, topic_id if any(content) else None, at + UUID_SIZE
    name, at = read_text(data, at, flexible=version >= VERSION_FLEXIBLE)
    if name is None:
        raise ValueError("the name of a topic is null, which is not allowed")
    return name, None, at


@cache
def _partition_fields(version: int) -> tuple[struct.Struct, int, int]:
    """Return the layout of a partition's fields in a Fetch request of this version.

    Returns:
        A tuple: the struct, the index of the leader epoch among its fields, and the index of the fetch offset. The two
        indexes are equal if the version has no leader epoch.
    """
    has_epoch = version >= VERSION_WITH_LEADER_EPOCH
    text = ">i" + "i" * has_epoch + "q" + "i" * (version >= VERSION_FLEXIBLE)
    return struct.Struct(text + "q" * (version >= VERSION_WITH_LOG_START) + "i"), 1, 1 + has_epoch


def _read_partitions(
    version: int, data: memoryview, at: int, items: Items
) -> tuple[list[WantedPartition], int]:
    """Read the partitions of a topic in a Fetch request, and skip the tagged fields of the topic.

    Returns:
        A pair: the partitions, and the position after the topic. The partitions are counted in `items`, which refuses
        too many.
    """
    flexible = version >= VERSION_FLEXIBLE
    form, epoch_at, offset_at = _partition_fields(version)
    partitions = []
    count, at = read_count(data, at, "partitions", items, flexible=flexible)
    for _ in range(count):
        fields = form.unpack_from(data, at)
        at += form.size
        epoch = fields[epoch_at] if offset_at > epoch_at else NOT_SAID
        partitions.append(WantedPartition(fields[0], fields[offset_at], fields[-1], epoch))
        if flexible:
            at = skip_tagged_fields(data, at)
    return partitions, skip_tagged_fields(data, at) if flexible else at


@dataclass(slots=True)
class FetchedPartition:
    """A partition in a Fetch response, as the broker writes it.

    Attributes:
        aborted: (producer id, first offset) of each aborted transaction among the records; None for a read_uncommitted
            reader.
        records: record batches as a list of buffers; the last batch may be incomplete.
    """

    index: int
    error: ErrorCode = ErrorCode.none
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    records: Sequence[Buffer] = field(default_factory=tuple)

    @property
    def size(self) -> int:
        """The size of the records in bytes."""
        return sum(map(len, self.records))


@dataclass(slots=True)
class FetchedTopic:
    """A topic in a Fetch response, with its partitions."""

    name: str
    topic_id: uuid.UUID | None
    partitions: list[FetchedPartition]


def encode_fetch_response(
    version: int,
    correlation_id: int,
    error: ErrorCode,
    session_id: int,
    topics: Iterable[FetchedTopic],
    throttle_ms: int = 0,
) -> list[Buffer]:
    """Encode a Fetch response as a list of buffers, header first, without the length prefix."""
    flexible = version >= VERSION_FLEXIBLE
    topics = list(topics)
    out: list[Buffer] = []
    tags = NO_TAGS if flexible else b""
    envelope = bytearray(INT32.pack(correlation_id) + tags + INT32.pack(throttle_ms))
    if version >= VERSION_WITH_SESSIONS:
        envelope += _ERROR_AND_SESSION.pack(error.value, session_id)
    envelope += encode_size(len(topics), INT32, flexible=flexible)
    for topic in topics:
        if version >= VERSION_WITH_TOPIC_IDS:
            envelope += topic.topic_id.bytes if topic.topic_id is not None else bytes(16)
        else:
            envelope += encode_text(topic.name, flexible=flexible)
        envelope += encode_size(len(topic.partitions), INT32, flexible=flexible)
        for partition in topic.partitions:
            _write_partition(envelope, version, partition)
            if partition.records:
                out.append(bytes(envelope))
                out.extend(partition.records)
                envelope = bytearray()
            envelope += tags
        envelope += tags
    out.append(bytes(envelope + tags))
    return out


def _write_partition(envelope: bytearray, version: int, partition: FetchedPartition) -> None:
    """Write all fields of a partition that precede the bytes of its records."""
    flexible = version >= VERSION_FLEXIBLE
    envelope += _PARTITION.pack(
        partition.index, partition.error.value, partition.high_watermark, partition.last_stable_offset
    )
    if version >= VERSION_WITH_LOG_START:
        envelope += INT64.pack(partition.log_start_offset)
    if partition.aborted is None:
        envelope += encode_size(NULL_SIZE, INT32, flexible=flexible)
    else:
        envelope += encode_size(len(partition.aborted), INT32, flexible=flexible)
        tags = NO_TAGS if flexible else b""
        for producer_id, first_offset in partition.aborted:
            envelope += _ABORTED.pack(producer_id, first_offset) + tags
    if version >= VERSION_WITH_RACK:
        envelope += NO_REPLICA
    envelope += encode_size(partition.size, INT32, flexible=flexible)


def encode_fetch_request(
    version: int, offsets: Mapping[TopicPartition, int], size_max: int, isolation: int, *, wait_ms: int
) -> bytes:
    """Encode the body of a Fetch request. The broker responds as soon as one of the partitions has at least one byte.

    Args:
        version: 4 to 12.
        offsets: the first offset to read in each partition.
        size_max: the maximum number of bytes to return, of one partition and of all.
        isolation: 1 for read_committed, 0 for read_uncommitted.
        wait_ms: how long the broker may wait for a record if there is none.
    """
    flexible = version >= VERSION_FLEXIBLE
    tags = NO_TAGS if flexible else b""
    has_sessions = version >= VERSION_WITH_SESSIONS
    # The last fetched epoch, which only followers send, is added in the flexible version.
    before = INT32.pack(NOT_SAID) if version >= VERSION_WITH_LEADER_EPOCH else b""
    after = (INT32.pack(NOT_SAID) if flexible else b"") + (
        INT64.pack(NOT_SAID) if version >= VERSION_WITH_LOG_START else b""
    )
    after += INT32.pack(size_max) + tags
    topics: dict[str, list[bytes]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append(INT32.pack(partition) + before + INT64.pack(offset) + after)
    out = bytearray(_REQUEST_HEAD.pack(-1, wait_ms, 1, size_max, isolation))
    if has_sessions:
        out += NO_SESSION
    out += encode_size(len(topics), INT32, flexible=flexible)
    for topic, partitions in topics.items():
        out += encode_text(topic, flexible=flexible) + encode_size(len(partitions), INT32, flexible=flexible)
        out += b"".join(partitions) + tags
    if has_sessions:
        out += encode_size(0, INT32, flexible=flexible)  # An empty list of forgotten topics.
    if version >= VERSION_WITH_RACK:
        out += encode_text("", flexible=flexible)
    return bytes(out + tags)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A partition in a Fetch response, as the client reads it.

    Attributes:
        records: version 2 record batches as they are in the log; the last one may be incomplete.
        aborted: (producer id, first offset) of the aborted transactions among the records; empty for read_uncommitted.
        high_watermark: the first offset that is not durable.
        last_stable_offset: the first offset of the oldest open transaction, or the high watermark.
        start_offset: the first offset of the log; -1 if the broker does not send it.
        error: the error code in the broker's response for this partition.
    """

    records: memoryview
    aborted: list[tuple[int, int]]
    high_watermark: int
    last_stable_offset: int
    start_offset: int
    error: ErrorCode


class FetchResponse(NamedTuple):
    """A Fetch response, as the client reads it.

    Attributes:
        error: the error code of the whole request.
        partitions: the data of each partition; empty if the client is above a quota.
        throttle_ms: how long the client has to wait before its next request to this broker.
    """

    error: ErrorCode
    partitions: dict[TopicPartition, Fetched]
    throttle_ms: int


def read_fetch_response(version: int, body: memoryview) -> FetchResponse:
    """Decode a Fetch response.

    Raises:
        ValueError, struct.error: the bytes are not a Fetch response.
    """
    flexible = version >= VERSION_FLEXIBLE
    (throttle_ms,) = INT32.unpack_from(body)
    at = INT32.size
    error = ErrorCode.none
    if version >= VERSION_WITH_SESSIONS:
        code, _ = _ERROR_AND_SESSION.unpack_from(body, at)
        at += _ERROR_AND_SESSION.size
        error = ErrorCode(code)
    found: dict[TopicPartition, Fetched] = {}
    topic_count, at = read_size(body, at, INT32, flexible=flexible)
    for _ in range(topic_count):
        name, at = read_text(body, at, flexible=flexible)
        partition_count, at = read_size(body, at, INT32, flexible=flexible)
        for _ in range(partition_count):
            partition, fetched, at = _read_partition(version, body, at)
            found[name or "", partition] = fetched
        if flexible:
            at = skip_tagged_fields(body, at)
    return FetchResponse(error, found, throttle_ms)


def _read_partition(version: int, body: memoryview, at: int) -> tuple[int, Fetched, int]:
    """Read one partition of a Fetch response.

    Returns:
        The index of the partition, its data, and the position of the next field.
    """
    flexible = version >= VERSION_FLEXIBLE
    index, code, high_watermark, last_stable_offset = _PARTITION.unpack_from(body, at)
    at += _PARTITION.size
    start_offset = -1
    if version >= VERSION_WITH_LOG_START:
        (start_offset,) = INT64.unpack_from(body, at)
        at += INT64.size
    aborted = []
    aborted_count, at = read_size(body, at, INT32, flexible=flexible)
    for _ in range(aborted_count):
        aborted.append(_ABORTED.unpack_from(body, at))
        at += _ABORTED.size
        if flexible:
            at = skip_tagged_fields(body, at)
    if version >= VERSION_WITH_RACK:
        at += INT32.size  # Skip the preferred replica.
    size, at = read_size(body, at, INT32, flexible=flexible)
    records = body[at : at + max(size, 0)]
    at += len(records)
    if flexible:
        at = skip_tagged_fields(body, at)
    fetched = Fetched(records, aborted, high_watermark, last_stable_offset, start_offset, ErrorCode(code))
    return index, fetched, at
