"""Kafka's records of remote segments, in the bytes that Kafka writes (KIP-405; KIP-1058 for `TxnIndexEmpty`).

A record's value is a *frame*: three unsigned varints (1, the kind of message and its version 0) and the message. Kafka
writes these records to the topic `__remote_log_metadata`; stablelog's manifests, the lists of a partition's segments in
the store, are made of the same records.

The name of a class is that of Kafka's message, without `Remote`, `Log` and `Metadata`. Kafka writes the field
`TxnIndexEmpty` only if it is true. A record of an earlier release of Kafka lacks the field, too, even if the segment
has no aborted transactions.

Format: docs/reference/formats.md, "Records of remote segments".
"""

import io
import struct
import uuid
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any, ClassVar, Final

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.primitive import i8, i32, i64

from stablelog.errors import DamageError, refuse_unknown_version
from stablelog.varint import encode_uvarint, read_uvarint
from stablelog.wire.guard import checked
from stablelog.wire.partitioning import partition_for

FRAME_VERSION: Final = 1
MESSAGE_VERSION: Final = 0
METADATA_PARTITION_COUNT: Final = 50  # Partitions of `__remote_log_metadata`: Kafka's default.
CUT_POINTS_TAG: Final = 10_000  # The tag of the cut points, far from Kafka's own tags, which are small.
COMMIT_INDEX_TAG: Final = 10_001  # The tag of the description of a segment's commit index.
HEADER_CRCS_TAG: Final = 10_002  # The tag of the CRCs of the batch headers before each cut point.
INDEXES_CRC_TAG: Final = 10_003  # The tag of the CRC that proves the object of indexes.


class SegmentState(IntEnum):
    """The state of a remote segment. The numbers are Kafka's."""

    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


class DeletionState(IntEnum):
    """The state of the deletion of a partition's remote segments. The numbers are Kafka's."""

    MARKED = 0
    STARTED = 1
    FINISHED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """Base class of Kafka's records of remote segments, and of the structures in them. `__flexible__` tells the library
    `kio`, which encodes them, that they have tagged fields.
    """

    __flexible__: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdPartition(_Message):
    """A partition, with the name and the id of its topic, as it stands in Kafka's records of remote segments."""

    name: str = field(metadata={"kafka_type": "string"})
    topic_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})
    partition: i32 = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentId(_Message):
    """The id of a remote segment, with its partition. Each attempt to copy a segment has an id of its own."""

    topic_partition: TopicIdPartition
    segment_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLeaderEpoch(_Message):
    """A leader epoch, and the first offset of that epoch in the segment."""

    leader_epoch: i32 = field(metadata={"kafka_type": "int32"})
    offset: i64 = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _SegmentData(_Message):
    """The fields that two records of a remote segment have in common: the event and the record in a snapshot. Each of
    the two begins with a field of its own, the segment's id.
    """

    segment: Any
    start_offset: i64 = field(metadata={"kafka_type": "int64"})
    end_offset: i64 = field(metadata={"kafka_type": "int64"})  # inclusive
    broker_id: i32 = field(metadata={"kafka_type": "int32"})
    max_timestamp_ms: i64 = field(metadata={"kafka_type": "int64"})
    event_timestamp_ms: i64 = field(metadata={"kafka_type": "int64"})
    leader_epochs: tuple[SegmentLeaderEpoch, ...]
    size: i32 = field(metadata={"kafka_type": "int32"})
    custom_metadata: bytes | None = field(metadata={"kafka_type": "bytes"})
    state: i8 = field(metadata={"kafka_type": "int8"})
    is_txn_index_empty: bool = field(metadata={"kafka_type": "bool", "tag": 0}, default=False)
    cut_points: bytes = field(metadata={"kafka_type": "bytes", "tag": CUT_POINTS_TAG}, default=b"")
    commit_index: bytes = field(metadata={"kafka_type": "bytes", "tag": COMMIT_INDEX_TAG}, default=b"")
    header_crcs: bytes = field(metadata={"kafka_type": "bytes", "tag": HEADER_CRCS_TAG}, default=b"")
    indexes_crc: bytes = field(metadata={"kafka_type": "bytes", "tag": INDEXES_CRC_TAG}, default=b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord(_SegmentData):
    """All data of a remote segment (Kafka's RemoteLogSegmentMetadataRecord)."""

    segment: SegmentId


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentUpdateRecord(_Message):
    """A change of a remote segment's state, such as that its copy is finished (Kafka's
    RemoteLogSegmentMetadataUpdateRecord).
    """

    segment: SegmentId
    broker_id: i32 = field(metadata={"kafka_type": "int32"})
    event_timestamp_ms: i64 = field(metadata={"kafka_type": "int64"})
    custom_metadata: bytes | None = field(metadata={"kafka_type": "bytes"})
    state: i8 = field(metadata={"kafka_type": "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDeleteRecord(_Message):
    """The deletion of all remote segments of a partition (Kafka's RemotePartitionDeleteMetadataRecord)."""

    topic_partition: TopicIdPartition
    broker_id: i32 = field(metadata={"kafka_type": "int32"})
    event_timestamp_ms: i64 = field(metadata={"kafka_type": "int64"})
    state: i8 = field(metadata={"kafka_type": "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSnapshotRecord(_SegmentData):
    """A remote segment in a snapshot of one partition (Kafka's RemoteLogSegmentMetadataSnapshotRecord)."""

    segment: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})


MetadataRecord = SegmentRecord | SegmentUpdateRecord | PartitionDeleteRecord | SegmentSnapshotRecord
# The kind of a message is its place in this list.
KINDS: Final[list[Any]] = [SegmentRecord, SegmentUpdateRecord, PartitionDeleteRecord, SegmentSnapshotRecord]

_reader = cache(entity_reader)  # `kio` itself keeps the writers.


def encode_record(record: MetadataRecord) -> bytes:
    """Return the bytes of a record as the value of a record of `__remote_log_metadata`."""
    content, kind = io.BytesIO(), KINDS.index(type(record))
    content.write(b"".join(map(encode_uvarint, (FRAME_VERSION, kind, MESSAGE_VERSION))))
    entity_writer(KINDS[kind])(content, record)
    return content.getvalue()


def decode_record(value: bytes) -> MetadataRecord:
    """Decode the value of a record of `__remote_log_metadata`.

    Raises:
        UnknownFormatError: a later release has written the record.
        DamageError: the bytes are not a value of such a record, or are incomplete.
    """
    try:
        frame_version, at = read_uvarint(value, 0)
        kind, at = read_uvarint(value, at)
        version, at = read_uvarint(value, at)
    except ValueError as error:
        raise DamageError(f"a record of remote segments is damaged: {error}") from error
    refuse_unknown_version("a frame of remote segments", frame_version, FRAME_VERSION)
    if frame_version != FRAME_VERSION or kind >= len(KINDS):
        raise DamageError(
            f"a record of remote segments is damaged: it says that it has frame version {frame_version} and "
            f"kind {kind}, which is not possible"
        )
    refuse_unknown_version(f"a record of remote segments of kind {kind}", version, MESSAGE_VERSION)
    if version != MESSAGE_VERSION:
        raise DamageError(
            f"a record of a remote segment is damaged: it says that it has version {version}, and only version "
            f"{MESSAGE_VERSION} is possible"
        )
    try:
        content = bytes(
            checked(KINDS[kind], value, at)
        )  # `checked` checks all sizes, and removes unknown tags.
        record, size = _reader(KINDS[kind])(content, at)
    except (SerialError, ValueError) as error:
        raise DamageError(f"a record of a remote segment cannot be decoded: {error}") from error
    if at + size != len(content):
        raise DamageError(f"a record of remote segments has {len(content) - at - size} bytes too many")
    return record  # type: ignore[no-any-return]


def metadata_partition(topic_id: uuid.UUID, partition: int, count: int = METADATA_PARTITION_COUNT) -> int:
    """Return the partition of `__remote_log_metadata` that has the records of a topic's partition.

    As in Kafka, it follows from Java's hash of the topic id and the partition index, hashed again by murmur2.
    """
    number = 1
    for half in struct.unpack(">QQ", topic_id.bytes)[::-1]:
        number = number * 31 + (half >> 32 ^ half & 0xFFFFFFFF)
    number = number * 31 + partition & 0xFFFFFFFF
    return partition_for(struct.pack(">I", number), count)
