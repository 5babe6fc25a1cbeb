"""A segment in the object store, as a manifest, the list of a partition's segments there, describes it."""

import uuid
from dataclasses import dataclass

from stablelog.env.disk import Buffer
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.indexes.summary import Summary
from stablelog.tier.index_object import (
    COMMIT_FILES,
    INDEXES_CRC,
    CommitFiles,
    IndexKind,
    index_range,
    proven_indexes,
)
from stablelog.tier.names import INDEXES, LOG, RemotePartition
from stablelog.tier.records import MESSAGE_VERSION, SegmentLeaderEpoch, SegmentSnapshotRecord, SegmentState
from stablelog.types import ObjectRange, RangeProof


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    """A segment in the object store.

    Attributes:
        segment_id: the id of this copy. Another copy of the same segment has another id.
        base_offset: the first offset of the segment.
        end_offset: the offset after the last one of the segment.
        size: the size of the log file in bytes.
        max_timestamp_ms: the greatest timestamp of its records; -1 if there is none.
        leader_epochs: pairs of a leader epoch and its first offset in the segment.
        event_ms: the time of the last change of `state`.
        broker_id: the id of the broker that last changed `state`.
        state: COPY_FINISHED if the segment is copied, DELETE_STARTED if it is being deleted.
        summary: the summary of the segment, with its sizes, times and checksums; None if Apache Kafka has copied it.
        is_txn_index_empty: whether it is known that no transaction was aborted in the segment.
        cut_points: encoded positions at which the log file can be divided between two batches (`tier.cut_points`).
        header_crcs: for each cut point, the encoded CRC-32C of the batch headers before it; empty if unknown.
        commit: sizes and checksums of the segment's commit index, which lists the transactions that commit in it; None
            if the topic is not commit-ordered.
        indexes_crc: the CRC-32C of the directory in the object of indexes, a row with the checksum of each of its
            files; None if it is unknown.
    """

    segment_id: uuid.UUID
    base_offset: int
    end_offset: int
    size: int
    max_timestamp_ms: int
    leader_epochs: tuple[tuple[int, int], ...]
    event_ms: int = 0
    broker_id: int = 0
    state: SegmentState = SegmentState.COPY_FINISHED
    summary: Summary | None = None
    is_txn_index_empty: bool = False
    cut_points: bytes = b""
    header_crcs: bytes = b""
    commit: CommitFiles | None = None
    indexes_crc: int | None = None

    @property
    def may_have_aborts(self) -> bool:
        """Whether the segment has, or may have, entries of aborted transactions in its transaction index. True also if
        it is not known, as of some segments that Apache Kafka has copied.
        """
        return self.summary.txnindex_size > 0 if self.summary is not None else not self.is_txn_index_empty

    @property
    def stable_offset(self) -> int | None:
        """The first offset of the oldest transaction that was open at the end of the segment. All transactions that
        began before this offset have their markers in this segment or earlier ones. None if it is unknown.
        """
        return None if self.summary is None else self.summary.stable_offset

    @property
    def least_aborted_offset(self) -> int | None:
        """The least offset at which a transaction whose abort marker is in the segment may have begun; None if the
        segment has no abort marker.
        """
        if not self.may_have_aborts:
            return None
        return 0 if self.summary is None else self.summary.least_aborted_offset

    def log_key(self, partition: RemotePartition) -> str:
        """Return the key of the segment's log file in the object store."""
        return partition.segment_key(self.base_offset, self.segment_id, LOG)

    def index_place(self, partition: RemotePartition, kind: IndexKind) -> ObjectRange | None:
        """Return the byte range of an index in the segment's object of indexes, which has all its files except the log
        file; None if the index is empty. If the manifest (list of the partition's segments) does not say where the
        index is, the returned range has size 0, by which the reader of the range knows that it must load the whole
        object.
        """
        key = partition.segment_key(self.base_offset, self.segment_id, INDEXES)
        if self.summary is None:
            return ObjectRange(key, 0, 0)
        start, size, crc = index_range(self.summary, self.commit, kind)
        return ObjectRange(key, start, size, RangeProof(crc)) if size else None

    def indexes_in(self, content: Buffer, key: str) -> dict[IndexKind, Buffer]:
        """Decode the object of indexes of this segment, which has all its files except the log file. Check it against
        the checksums in the manifest, the list of the partition's segments. Return its files by kind. Raises
        DamageError.
        """
        return proven_indexes(content, key, self.summary, self.commit, self.indexes_crc)

    def to_record(self) -> SegmentSnapshotRecord:
        """Return the record of this segment for a manifest (list of a partition's segments in the store): the record
        that Kafka writes for a segment in a snapshot.
        """
        return SegmentSnapshotRecord(
            segment=self.segment_id,
            start_offset=self.base_offset,  # type: ignore[arg-type]
            end_offset=self.end_offset - 1,  # type: ignore[arg-type]
            broker_id=self.broker_id,  # type: ignore[arg-type]
            max_timestamp_ms=self.max_timestamp_ms,  # type: ignore[arg-type]
            event_timestamp_ms=self.event_ms,  # type: ignore[arg-type]
            leader_epochs=tuple(
                SegmentLeaderEpoch(leader_epoch=epoch, offset=offset)  # type: ignore[arg-type]
                for epoch, offset in self.leader_epochs
            ),
            size=self.size,  # type: ignore[arg-type]
            custom_metadata=None if self.summary is None else self.summary.encode(),
            state=self.state,  # type: ignore[arg-type]
            is_txn_index_empty=not self.may_have_aborts,
            cut_points=self.cut_points,
            header_crcs=self.header_crcs,
            commit_index=b"" if self.commit is None else COMMIT_FILES.pack(*self.commit),
            indexes_crc=b"" if self.indexes_crc is None else INDEXES_CRC.pack(self.indexes_crc),
        )

    @classmethod
    def from_record(cls, record: SegmentSnapshotRecord) -> "RemoteSegment":
        """Decode a segment from its record in a manifest, the list of a partition's segments in the store.

        Raises:
            UnknownFormatError: this release does not read the form of the record.
            DamageError: two fields of the record contradict each other.
        """
        if record.end_offset < record.start_offset or record.start_offset < 0 or record.size < 0:
            raise DamageError(
                f"the remote segment {record.segment} has impossible offsets or an impossible size"
            )
        summary = None if record.custom_metadata is None else Summary.decode(record.custom_metadata)
        for field, found, form in (
            ("the description of the commit index", record.commit_index, COMMIT_FILES),
            ("the CRC of the indexes", record.indexes_crc, INDEXES_CRC),
        ):
            if len(found) not in (0, form.size):
                raise DamageError(
                    f"the remote segment {record.segment} is damaged: {field} has {len(found)} bytes instead of "
                    f"{form.size}"
                )
        if summary is not None and not (record.indexes_crc and (record.header_crcs or not record.cut_points)):
            raise UnknownFormatError(
                f"the remote segment {record.segment} without CRCs of its indexes and of its headers",
                None,
                MESSAGE_VERSION,
            )
        segment = cls(
            record.segment or uuid.UUID(int=0),
            record.start_offset,
            record.end_offset + 1,
            record.size,
            record.max_timestamp_ms,
            tuple((epoch.leader_epoch, epoch.offset) for epoch in record.leader_epochs),
            record.event_timestamp_ms,
            record.broker_id,
            SegmentState(record.state),
            summary,
            record.is_txn_index_empty,
            record.cut_points,
            record.header_crcs,
            CommitFiles(*COMMIT_FILES.unpack(record.commit_index)) if record.commit_index else None,
            INDEXES_CRC.unpack(record.indexes_crc)[0] if record.indexes_crc else None,
        )
        if summary is not None and (summary.base_offset, summary.end_offset, summary.log_size) != (
            segment.base_offset,
            segment.end_offset,
            segment.size,
        ):
            raise DamageError(f"the summary of the remote segment {segment.segment_id} is of another segment")
        return segment
