"""A sealed segment of a partition: no batch is appended to it, and it has a summary (a file with its offsets, sizes and
checksums).

The log file is opened at the first read, and the indexes are then mapped from their files. `open_files` limits how many
sealed segments are open. From the sealing to the next sync, the segment uses the open files and the indexes of the
growing segment that it was.
"""

from stablelog.env.disk import Disk, File
from stablelog.errors import DamageError
from stablelog.log.files.names import LOG, SegmentName
from stablelog.log.indexes.growing_indexes import GrowingIndexes
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.sealed_indexes import load_indexes, load_txn_index
from stablelog.log.indexes.summary import NOTHING, Summary
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import TransactionIndex
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.segment import LogProof, Segment

INTERVAL_SIZE = 4096  # bytes of the log between two entries of an index that is rebuilt in memory


class SealedSegment(Segment):
    """A segment to which no batch is appended any more.

    Reads of the log file are refused until `prove` has compared its batch headers with the CRC in the summary, unless
    this process has written the file.

    Args:
        disk: the disk of the segment.
        name: names the files of the segment.
        summary: the summary of the segment (its offsets, timestamps, counts, file sizes and checksums), which its files
            match.
        open_files: the cache that limits how many sealed segments are open.
        proof: how many bytes of the log file are still to be proven (their batch headers compared with a known CRC),
            and its known damage; None if nothing is proven.
        created_ms: when the segment began to grow, in broker time (a clock that never goes back, even if the machine's
            clock is set back); None if this is unknown, so that the first timestamp counts in its place.
        passed: the part of the log file, from its beginning, that lookups by time have read: its size in bytes, and its
            greatest timestamp or -1.
        unsynced: the open log file and the indexes of a segment that was just sealed; None if the segment is durable.

    Attributes:
        summary: the summary of the segment.
        stable_offset: the first offset of the oldest transaction that was open at the segment's end; `end_offset` if
            none was.
        durable: whether all files of the segment are durable.
    """

    __slots__ = (
        "_growing",
        "_indexes",
        "_open_files",
        "_txn_index",
        "durable",
        "stable_offset",
        "summary",
    )
    sealed = True

    def __init__(
        self,
        disk: Disk,
        name: SegmentName,
        summary: Summary,
        open_files: OpenFiles,
        *,
        proof: LogProof | None = None,
        created_ms: int | None = None,
        passed: tuple[int, int] = (0, NOTHING),
        unsynced: tuple[File, GrowingIndexes] | None = None,
    ) -> None:
        super().__init__(disk, name, summary, proof, None)
        self.summary: Summary = summary
        self.stable_offset: int = summary.stable_offset
        self.created_ms = summary.first_timestamp if created_ms is None else created_ms
        self.passed = passed
        self._open_files = open_files
        self._growing: GrowingIndexes | None = None
        self._indexes: tuple[OffsetIndex, TimeIndex] | None = None
        self._txn_index: TransactionIndex | None = None
        self.durable: bool = unsynced is None
        if unsynced is not None:
            self._log, self._growing = unsynced
            self._indexes = self._growing.offsets, self._growing.times
            self._txn_index = self._growing.txns

    # -- durability --------------------------------------------------------------------------------------------

    @property
    def growing(self) -> GrowingIndexes:
        """The indexes in memory, and their open files, of a segment that was sealed just now and is not durable yet."""
        assert self._growing is not None
        return self._growing

    def mark_durable(self) -> None:
        """Mark the segment as durable, and close its files. A read opens them again."""
        self.durable = True
        self.evict()

    def evict(self) -> None:
        """Close the files of a durable segment, and drop its indexes from memory."""
        assert self.durable
        self._close_files()
        self._growing = self._indexes = self._txn_index = None

    def close(self) -> None:
        """Close every file."""
        self._close_files()
        self._open_files.forget_segment(self)

    def _close_files(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._growing is not None:
            self._growing.close()

    # -- reading -----------------------------------------------------------------------------------------------

    def opened_log(self) -> File:
        """Return the open log file, even if its batch headers are not proven (compared with the CRC in the summary).
        Raises DamageError if the file is missing.
        """
        if self.durable:
            self._open_files.mark_used(self)
        if self._log is None:
            try:
                self._log = self.disk.open(self.path(LOG))
            except FileNotFoundError:
                raise DamageError(f"{self.path(LOG)} is missing, and was durable. Restore the file") from None
        return self._log

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index. For a durable segment, it is mapped from its file."""
        return (self._indexes or self._loaded_indexes())[0]

    @property
    def time_index(self) -> TimeIndex:
        """The time index. For a durable segment, it is mapped from its file."""
        return (self._indexes or self._loaded_indexes())[1]

    @property
    def txn_index(self) -> TransactionIndex:
        """The transaction index, mapped from its file if the segment is durable. Raises DamageError if this file is
        damaged.
        """
        if self._txn_index is None:
            self._open_files.mark_used(self)
            self._txn_index = load_txn_index(self.disk, self.path, self.summary)
        return self._txn_index

    def _loaded_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Return the offset index and the time index. They are mapped from their files, or rebuilt from the log if the
        files do not have the sizes and CRCs that the segment's summary records.
        """
        self._open_files.mark_used(self)
        self._indexes = load_indexes(self.disk, self.path, self.summary) or self._rebuilt_indexes()
        return self._indexes

    def _rebuilt_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Return the offset index and the time index, rebuilt from the batch headers. These headers need not be proven
        (compared with the CRC in the summary), because recovery uses the indexes before that.
        """
        offsets, times = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        indexed, greatest, greatest_offset = 0, NOTHING, self.base_offset
        for position, header in self.walk_unproven(0):
            if header.max_timestamp > greatest and header.record_count:
                greatest, greatest_offset = header.max_timestamp, header.last_offset
            if position - indexed > INTERVAL_SIZE:
                offsets.append(header.last_offset, position)
                times.append_if_later(greatest, greatest_offset)
                indexed = position
        return offsets, times
