"""Codec for Fetch, written by hand so that records are not copied.

The records stay in the mapped segment (broker) or in the received frame (client). kio would copy them into and out of
the message. The broker writes responses of versions 4 to 17: it builds the envelope and passes the records to the
socket between the pieces of the envelope. The client writes a request for one partition, without a fetch session, and
reads the response, both in versions 4 to 12; from version 13 on, topics have ids.

What versions add: v5 log start; v7 error and session; v9 leader epoch; v11 rack and preferred replica; v12 flexible;
v13 topic ids.
"""

import struct
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from stablelog.wire.api import ApiKey
from stablelog.wire.envelope import (
    INT32,
    INT64,
    NO_TAGS,
    NULL_SIZE,
    encode_size,
    encode_text,
    read_size,
    read_text,
)
from stablelog.wire.guard import skip_tagged_fields
from stablelog.wire.messages import Buffer, response_header

VERSION_WITH_LOG_START = 5
VERSION_WITH_SESSIONS = 7
VERSION_WITH_LEADER_EPOCH = 9
VERSION_WITH_RACK = 11  # the version that adds the rack and the preferred replica
VERSION_FLEXIBLE = 12
VERSION_WITH_TOPIC_IDS = 13

_PARTITION = struct.Struct(">ihqq")  # index, error, high watermark, last stable offset
_ABORTED = struct.Struct(">qq")  # producer id, first offset
_ERROR_AND_SESSION = struct.Struct(">hi")
_REQUEST_HEAD = struct.Struct(">iiiib")  # replica, wait, minimum and maximum bytes, isolation level
_SESSION = struct.Struct(">ii")  # id, epoch
NO_REPLICA = INT32.pack(-1)
NO_SESSION = _SESSION.pack(0, -1)
NOT_SAID = -1  # leader epoch or log start that the client does not send


@dataclass(slots=True)
class FetchedPartition:
    """The response for one partition.

    Attributes:
        aborted: (producer id, first offset) of each aborted transaction among the records; None for a
            read_uncommitted reader.
        records: whole batches, in pieces; the last batch may be cut off.
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
        """Bytes of records."""
        return sum(map(len, self.records))


@dataclass(slots=True)
class FetchedTopic:
    """The partitions of one topic in a response."""

    name: str
    topic_id: uuid.UUID | None
    partitions: list[FetchedPartition]


def encode_fetch_response(
    version: int, correlation_id: int, error: ErrorCode, session_id: int, topics: Iterable[FetchedTopic]
) -> list[Buffer]:
    """Encode the response as a list of buffers, header first, without the length prefix."""
    flexible = version >= VERSION_FLEXIBLE
    topics = list(topics)
    out: list[Buffer] = []
    envelope = bytearray(response_header(ApiKey.FETCH, version, correlation_id))
    envelope += INT32.pack(0)  # throttle time
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
            if flexible:
                envelope += NO_TAGS
        if flexible:
            envelope += NO_TAGS
    if flexible:
        envelope += NO_TAGS
    out.append(bytes(envelope))
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
        for producer_id, first_offset in partition.aborted:
            envelope += _ABORTED.pack(producer_id, first_offset)
            if flexible:
                envelope += NO_TAGS
    if version >= VERSION_WITH_RACK:
        envelope += NO_REPLICA
    envelope += encode_size(partition.size, INT32, flexible=flexible)


def encode_fetch_request(
    version: int, topic: str, partition: int, offset: int, size_max: int, isolation: int, *, wait_ms: int
) -> bytes:
    """Encode the body of a request for one partition."""
    flexible = version >= VERSION_FLEXIBLE
    one, none = (encode_size(count, INT32, flexible=flexible) for count in (1, 0))
    tags = NO_TAGS if flexible else b""
    out = bytearray(_REQUEST_HEAD.pack(-1, wait_ms, 1, size_max, isolation))
    if version >= VERSION_WITH_SESSIONS:
        out += NO_SESSION
    out += one + encode_text(topic, flexible=flexible) + one + INT32.pack(partition)
    if version >= VERSION_WITH_LEADER_EPOCH:
        out += INT32.pack(NOT_SAID)
    out += INT64.pack(offset)
    if flexible:
        out += INT32.pack(NOT_SAID)  # the last fetched epoch; only followers send it
    if version >= VERSION_WITH_LOG_START:
        out += INT64.pack(NOT_SAID)
    out += INT32.pack(size_max) + tags + tags
    if version >= VERSION_WITH_SESSIONS:
        out += none  # forgotten topics
    if version >= VERSION_WITH_RACK:
        out += encode_text("", flexible=flexible)
    return bytes(out + tags)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The data of one partition in a Fetch response.

    Attributes:
        records: version 2 record batches as they stand in the log; the last one may be cut off.
        aborted: (producer id, first offset) of the aborted transactions among the records; empty for read_uncommitted.
        high_watermark: the first offset that is not durable.
        last_stable_offset: the first offset of the oldest open transaction, or the high watermark.
        start_offset: the first offset of the log; -1 if the broker does not send it.
        error: the broker's error code for this partition.
    """

    records: memoryview
    aborted: list[tuple[int, int]]
    high_watermark: int
    last_stable_offset: int
    start_offset: int
    error: ErrorCode


def read_fetch_response(version: int, body: memoryview) -> Fetched:
    """Decode the response to a request for one partition.

    Raises:
        ValueError, struct.error: the bytes are not a Fetch response for one partition.
    """
    flexible = version >= VERSION_FLEXIBLE
    at = INT32.size  # throttle time
    if version >= VERSION_WITH_SESSIONS:
        code, _ = _ERROR_AND_SESSION.unpack_from(body, at)
        at += _ERROR_AND_SESSION.size
        if code:
            return Fetched(memoryview(b""), [], -1, -1, -1, ErrorCode(code))
    topic_count, at = read_size(body, at, INT32, flexible=flexible)
    if topic_count != 1:
        return Fetched(memoryview(b""), [], -1, -1, -1, ErrorCode.unknown_server_error)
    _, at = read_text(body, at, flexible=flexible)
    _, at = read_size(body, at, INT32, flexible=flexible)
    _, code, high_watermark, last_stable_offset = _PARTITION.unpack_from(body, at)
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
        at += INT32.size  # preferred replica
    size, at = read_size(body, at, INT32, flexible=flexible)
    records = body[at : at + max(size, 0)]
    return Fetched(records, aborted, high_watermark, last_stable_offset, start_offset, ErrorCode(code))
