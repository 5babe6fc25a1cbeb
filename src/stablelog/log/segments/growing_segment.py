"""The growing segment of a partition: the last one, to which batches are appended. Its indexes are in memory.

To seal it is to make a `SealedSegment` from it, which gets no more batches, and which takes over its open files.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from stablelog.batch.header import DELETE_HORIZON, BatchHeader
from stablelog.crc32c import crc32c
from stablelog.env.disk import Buffer, Disk, File
from stablelog.errors import DamageError
from stablelog.log.files.listing import Listing
from stablelog.log.files.names import LOG, SegmentName
from stablelog.log.indexes.growing_indexes import GrowingIndexes
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.summary import NOTHING, Summary
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import AbortedTxn, TransactionIndex
from stablelog.log.search.batches import WALK_READ_SIZE
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.sealed_segment import SealedSegment
from stablelog.log.segments.segment import RELATIVE_OFFSET_MAX, Segment

NO_CONTENTS: Final = (b"", b"", b"")


class GrowingSegment(Segment):
    """The last segment of a partition, to which batches are appended.

    Args:
        disk: the disk of the segment.
        name: names the files of the segment.
        log: the open log file; None for a segment that is only described in memory.
        contents: the contents of the indexes so far, in the order offset index, time index, transaction index. No file
            is created for them.
        progress: the summary (sizes, counts and checksums) of the segment up to these contents; None if it is empty.

    Attributes:
        growing: the indexes in memory, and their files.
        log_crc: the CRC over the batch headers.
        max_timestamp_offset: the offset of the greatest timestamp; the base offset if there is none.
    """

    __slots__ = (
        "_indexed_position",
        "_replayed_from",
        "growing",
        "log_crc",
        "max_timestamp_offset",
    )
    sealed = durable = False
    summary = stable_offset = None
    growing: GrowingIndexes

    def __init__(
        self,
        disk: Disk,
        name: SegmentName,
        log: File | None = None,
        *,
        contents: Sequence[bytes] = NO_CONTENTS,
        progress: Summary | None = None,
    ) -> None:
        summary = Summary(name.base_offset, name.base_offset) if progress is None else progress
        super().__init__(disk, name, summary, None, log)
        self.growing = GrowingIndexes(disk, name.path, name.base_offset, contents)
        self.log_crc = summary.log_crc
        self.max_timestamp_offset = name.base_offset
        self._indexed_position = 0
        # Where replay began: the position, the greatest timestamp before this position, and the offset of this timestamp.
        self._replayed_from = 0, NOTHING, name.base_offset

    @classmethod
    def create(cls, disk: Disk, name: SegmentName) -> "GrowingSegment":
        """Create the log file of a new segment. Its directory entry is durable after a sync of the directory.

        Raises:
            DiskError: the file cannot be created; nothing changed.
        """
        return cls(disk, name, disk.open(name.path(LOG), create=True))

    @classmethod
    def open_for_replay(
        cls,
        disk: Disk,
        name: SegmentName,
        progress: Summary | None = None,
        indexes: Sequence[bytes] = NO_CONTENTS,
    ) -> "GrowingSegment":
        """Open the last segment for recovery, which replays its batches from the beginning or from a snapshot on.

        With a snapshot, reads of the part before the snapshot are refused until `prove` has compared the batch headers
        of this part with the CRC in the snapshot.

        Args:
            disk: the disk of the segment.
            name: names the files of the segment.
            progress: the summary (sizes, counts and checksums) of the segment up to the snapshot; None to replay all of
                it.
            indexes: the contents of the indexes up to the snapshot, in the order offset index, time index, transaction
                index.

        Raises:
            DamageError: a batch before the snapshot is damaged.
        """
        segment = cls(disk, name, disk.open(name.path(LOG)), contents=indexes, progress=progress)
        if progress is not None:
            segment._begin_after(progress)
        return segment

    def _begin_after(self, progress: Summary) -> None:
        self._indexed_position = self.growing.offsets.last_position
        timestamp, self.max_timestamp_offset = self.growing.times.last
        if timestamp < self.max_timestamp:
            # The batch with the greatest timestamp comes after the last indexed batch, so the headers are read.
            for position, header in self.walk_unproven(self._indexed_position):
                if not self.base_offset <= header.last_offset < self.end_offset:
                    raise DamageError(
                        f"{self.path(LOG)}: the batch at byte {position} begins at offset {header.base_offset}, but the "
                        f"batches that were synced end at {self.end_offset}. Restore the file"
                    )
                if header.max_timestamp == self.max_timestamp:
                    self.max_timestamp_offset = header.last_offset
                    break
        self._replayed_from = progress.log_size, self.max_timestamp, self.max_timestamp_offset

    def adopt_index_files(self, listing: Listing, *, are_synced: bool) -> bool:
        """Adopt the existing index files: if they match the log, write further entries into them. Return True if they
        match.

        Args:
            listing: the names of the files in the partition's directory, with a cache of their contents.
            are_synced: whether the last broker has synced the files before it closed the partition.
        """
        position, timestamp, offset = self._replayed_from
        tail = partial(self.walk_unproven, position) if self.size - position <= WALK_READ_SIZE else None
        return self.growing.adopt_files(listing, tail, (timestamp, offset), are_synced=are_synced)

    # -- appends -----------------------------------------------------------------------------------------------

    def has_room(self, size: int, last_offset: int, segment_bytes: int, index_bytes: int) -> bool:
        """Whether the segment has room for a batch with this size and last offset, by the topic's `segment.bytes` and
        `segment.index.bytes`. An empty segment accepts any batch.
        """
        growing = self.growing
        return (
            self.size + size <= segment_bytes
            and last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and (len(growing.offsets) + 1) * 8 <= index_bytes
            and (len(growing.times) + 2) * 12 <= index_bytes  # one for this batch, one at the sealing
        )

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Append batches to the log file with one write, and return the position in the file where they begin. The
        caller then calls `index_batch` for each batch.
        """
        assert self._log is not None
        assert self._log.size == self.size
        return self._log.append(*buffers)

    def index_batch(self, header: BatchHeader, position: int, head: Buffer, interval: int) -> None:
        """Add a batch that was written to the log file to the indexes and counts.

        Args:
            header: the header of the batch, with its offset in the log.
            position: the position of the batch in the log file.
            head: the 61 bytes of the header in the file.
            interval: the number of bytes between two entries of the offset index.
        """
        assert position == self.size
        last_offset = header.base_offset + header.last_offset_delta
        # A batch that compaction has emptied does not count.
        if header.max_timestamp > self.max_timestamp and header.record_count:
            self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, last_offset
        if position - self._indexed_position > interval:
            self.growing.offsets.append(last_offset, position)
            self.growing.times.append_if_later(self.max_timestamp, self.max_timestamp_offset)
            self._indexed_position = position
        if self.first_timestamp == NOTHING:
            # A batch with a delete horizon stores the horizon in place of the base timestamp.
            self.first_timestamp = (
                header.max_timestamp if header.attributes & DELETE_HORIZON else header.base_timestamp
            )
        self.size = position + header.size
        self.end_offset = last_offset + 1
        self.log_crc = crc32c(head, self.log_crc)
        if not header.is_control:
            self.record_count += header.record_count
            if not header.is_transactional:
                self.committed_count += header.record_count

    def index_aborted(self, txn: AbortedTxn) -> None:
        """Add an aborted transaction to the transaction index in memory."""
        self.growing.txns.append(txn)
        if self.least_aborted_offset is None or txn.first_offset < self.least_aborted_offset:
            self.least_aborted_offset = txn.first_offset

    def truncate_after_last(self) -> None:
        """Truncate the log file after its last whole batch, the last one for which `index_batch` was called."""
        self.opened_log().truncate(self.size)
        self.opened_log().sync()

    # -- sealing -----------------------------------------------------------------------------------------------

    def make_summary(self, stable_offset: int) -> Summary:
        """Make the summary of the segment in its present state: its offsets, timestamps, counts, file sizes and
        checksums.
        """
        index, timeindex, txnindex = self.growing.contents()
        return Summary(
            self.base_offset,
            self.end_offset,
            self.first_timestamp,
            self.max_timestamp,
            log_size=self.size,
            log_crc=self.log_crc,
            index_size=len(index),
            index_crc=crc32c(index),
            timeindex_size=len(timeindex),
            timeindex_crc=crc32c(timeindex),
            txnindex_size=len(txnindex),
            txnindex_crc=crc32c(txnindex),
            record_count=self.record_count,
            committed_count=self.committed_count,
            stable_offset=stable_offset,
            least_aborted_offset=NOTHING if self.least_aborted_offset is None else self.least_aborted_offset,
        )

    @property
    def is_time_index_complete(self) -> bool:
        """Whether the time index ends with an entry for the greatest timestamp of the segment."""
        return not self.size or self.growing.times.last[0] >= self.max_timestamp

    def complete_time_index(self) -> None:
        """Add an entry for the greatest timestamp to the time index in memory, if it is missing."""
        if self.size:
            self.growing.times.append_if_later(self.max_timestamp, self.max_timestamp_offset)

    def write_complete_indexes(self) -> None:
        """Complete the time index, and write the entries that the index files lack. Raises DiskError if a file cannot
        be written.
        """
        self.complete_time_index()
        self.growing.write_files()

    def seal(
        self, stable_offset: int, open_files: OpenFiles, *, end_offset: int | None = None
    ) -> SealedSegment:
        """Seal the segment: complete the time index, and write the indexes to their files.

        Args:
            stable_offset: the first offset of the oldest open transaction; the end of the segment if none is open.
            open_files: the cache that limits how many sealed segments have open files.
            end_offset: the end of the segment's offsets, if compaction has removed the last batches; None if it ends
                with its last batch.

        Returns:
            The sealed segment, which is not durable yet. It has taken over the open files; this object must not be used
            any more.

        Raises:
            DiskError: the indexes cannot be written. The segment continues to grow.
        """
        self.write_complete_indexes()
        if end_offset is not None:
            self.end_offset = end_offset
        return SealedSegment(
            self.disk,
            SegmentName(self.base_offset, self.path),
            self.make_summary(stable_offset),
            open_files,
            proof=self.proof,
            created_ms=self.created_ms,
            passed=self.passed,
            unsynced=(self.opened_log(), self.growing),
        )

    # -- reading -----------------------------------------------------------------------------------------------

    def opened_log(self) -> File:
        """Return the open log file, for writes, and for reads before its batch headers are proven (compared with their
        known CRC).
        """
        assert self._log is not None
        return self._log

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index."""
        return self.growing.offsets

    @property
    def time_index(self) -> TimeIndex:
        """The time index."""
        return self.growing.times

    @property
    def txn_index(self) -> TransactionIndex:
        """The transaction index."""
        return self.growing.txns

    def close(self) -> None:
        """Close every file."""
        if self._log is not None:
            self._log.close()
            self._log = None
        self.growing.close()
