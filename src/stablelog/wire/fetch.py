"""The answer to a fetch, written by hand: the records stay where they are, in the mapped segment.

kio would join an answer into one piece, records and all. Here only the envelope is made, and the records are
handed to the socket between its pieces. Versions 4 to 17.

Version notes: v5 log start; v7 error and session; v11 preferred replica; v12 flexible; v13 topic ids.
"""

import struct
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from stablelog.wire.envelope import INT32, INT64, NO_TAGS, NULL_SIZE, encode_size, encode_text
from stablelog.wire.messages import FETCH_KEY, Buffer, response_header

VERSION_WITH_LOG_START = 5
VERSION_WITH_SESSIONS = 7
VERSION_WITH_PREFERRED_REPLICA = 11
VERSION_FLEXIBLE = 12
VERSION_WITH_TOPIC_IDS = 13

_PARTITION = struct.Struct(">ihqq")  # index, error, high watermark, last stable offset
_ABORTED = struct.Struct(">qq")  # producer id, first offset
_ERROR_AND_SESSION = struct.Struct(">hi")
NO_REPLICA = INT32.pack(-1)


@dataclass(slots=True)
class FetchedPartition:
    """What one partition's fetch is answered with.

    Attributes:
        aborted: (producer id, first offset) of each aborted transaction among the records; None for a reader
            that did not ask for committed records only.
        records: whole batches, but for the last which may be cut off; in pieces.
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
    """The partitions of one topic in an answer."""

    name: str
    topic_id: uuid.UUID | None
    partitions: list[FetchedPartition]


def encode_fetch_response(
    version: int, correlation_id: int, error: ErrorCode, session_id: int, topics: Iterable[FetchedTopic]
) -> list[Buffer]:
    """The response as a list of buffers, header first, without its length."""
    flexible = version >= VERSION_FLEXIBLE
    topics = list(topics)
    out: list[Buffer] = []
    envelope = bytearray(response_header(FETCH_KEY, version, correlation_id))
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
    """Everything of a partition that stands before its records' bytes."""
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
    if version >= VERSION_WITH_PREFERRED_REPLICA:
        envelope += NO_REPLICA
    envelope += encode_size(partition.size, INT32, flexible=flexible)
