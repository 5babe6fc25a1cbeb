"""A segment of a partition: a log file of record batches, and its indexes. This module has the base class of
`GrowingSegment` and `SealedSegment`, with all that readers need.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from stablelog.batch.header import BatchHeader
from stablelog.env.disk import Buffer, Disk, File
from stablelog.errors import DamageError, DiskError, UnprovenError
from stablelog.log.files.names import LOG, SegmentName
from stablelog.log.indexes.growing_indexes import GrowingIndexes
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.summary import NOTHING, Summary
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import TransactionIndex
from stablelog.log.search.batches import seek, walk
from stablelog.log.search.source import FoundBatch
from stablelog.log.segments.log_file import LogFile, ReadLogFile
from stablelog.log.segments.proof import DamagedBatch, prove_headers, scrub

RELATIVE_OFFSET_MAX = 2**31 - 1


@dataclass(slots=True, eq=False)
class LogProof:
    """Whether a segment's log file may be read: whether its batch headers are proven (compared with the CRC in a
    summary or snapshot), and which damage is known. A growing segment hands this object on to the sealed segment that
    it becomes.

    Attributes:
        unproven: how many bytes of the file, from its beginning, are not proven yet, and the expected CRC over their
            batch headers; None if there are none, because this process has written or proven all of them.
        damage: the reason why all reads of the log file are refused; None if no such damage is known.
        damaged_batches: the damaged batches that the scrub (a background task that reads all segments) has found, by
            position. Reads of them are refused.
    """

    unproven: tuple[int, int] | None = None
    damage: str | None = None
    damaged_batches: list[DamagedBatch] = field(default_factory=list)


class Segment(LogFile, ABC):
    """A segment of one partition, as its readers see it.

    Args:
        disk: the disk of the segment.
        name: names the files of the segment.
        summary: the summary of the segment so far: its offsets, timestamps, counts, file sizes and checksums.
        proof: whether the log file may be read; None if none of its batch headers are proven (compared with a known
            CRC).
        log: the open log file; None if it is not open.

    Attributes:
        path: returns the path of the segment's file with a suffix.
        base_offset: the offset of its first record, unless compaction has removed this record.
        end_offset: the end of its offsets, exclusive. The next segment begins there.
        size: the size of the log file in bytes.
        created_ms: when it began to grow, in broker time (a clock that never goes back, even if the machine's clock is
            set back); if it was opened sealed, its first timestamp.
        first_timestamp: the first timestamp of the first batch; NOTHING (-1) if the segment has none.
        max_timestamp: the greatest timestamp; NOTHING (-1) if the segment has none.
        record_count: the number of records.
        committed_count: the number of records outside transactions, and of those whose commit marker is here.
        least_aborted_offset: the least first offset of the transactions aborted here; None if none was.
        passed: the part of the log file, from its beginning, that lookups by time have read: its size in bytes, and its
            greatest timestamp or -1.
        sealed: whether the segment is a `SealedSegment`.
        durable: whether the segment is sealed, and all its files are durable.
        summary: the summary of a sealed segment; None while it grows.
        stable_offset: the first offset of the oldest transaction that was open at the segment's end; `end_offset` if
            none was. None while it grows.
    """

    __slots__ = (
        "_log",
        "base_offset",
        "committed_count",
        "created_ms",
        "disk",
        "end_offset",
        "first_timestamp",
        "least_aborted_offset",
        "max_timestamp",
        "passed",
        "path",
        "proof",
        "record_count",
        "size",
    )
    sealed: bool
    durable: bool
    summary: Summary | None
    stable_offset: int | None

    def __init__(
        self,
        disk: Disk,
        name: SegmentName,
        summary: Summary,
        proof: LogProof | None,
        log: File | None,
    ) -> None:
        self.disk = disk
        self.base_offset, self.path = name
        self.end_offset = summary.end_offset
        self.size = summary.log_size
        self.created_ms = self.first_timestamp = summary.first_timestamp
        self.max_timestamp = summary.max_timestamp
        self.record_count = summary.record_count
        self.committed_count = summary.committed_count
        self.least_aborted_offset = None if summary.least_aborted_offset < 0 else summary.least_aborted_offset
        self.passed = 0, NOTHING
        unproven = (summary.log_size, summary.log_crc) if summary.log_size else None
        self.proof = LogProof(unproven) if proof is None else proof
        self._log = log

    # -- files -------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def growing(self) -> GrowingIndexes:
        """The indexes in memory of a growing segment, or of a sealed one that is not durable yet."""

    def files_to_sync(self, *, log: bool = True, indexes: bool) -> list[File]:
        """Return the files to sync so that the appended batches are durable.

        Args:
            log: whether to include the log file, because batches were appended since its last sync.
            indexes: whether to include the index files, because a summary or a snapshot will be written that records
                their sizes and CRCs.
        """
        assert self._log is not None
        files = [self._log] if log else []
        return files + self.growing.take_dirty_files() if indexes else files

    @abstractmethod
    def close(self) -> None:
        """Close every file."""

    # -- proof and damage --------------------------------------------------------------------------------------

    def is_same(self, other: "Segment") -> bool:
        """Whether two objects stand for the same segment: they also do if this one is the growing segment and the other
        one is the sealed segment that it has become, or the other way round.
        """
        return self.proof is other.proof

    @property
    def is_proven(self) -> bool:
        """Whether reads of the log file are allowed: this process has written it, or `prove` has compared its batch
        headers with their recorded CRC.
        """
        return self.proof.unproven is None

    def prove(self, mapped: memoryview | None = None) -> Iterator[None]:
        """Prove the log file, if this was not done yet: compare its batch headers with the CRC that the summary or a
        snapshot records.

        Args:
            mapped: the bytes of the log file in the memory map from which readers will read, so that this call also
                loads them from the disk; None if they need not be loaded.

        Yields:
            None after each step, as `proof.prove_headers` does. Any thread may run a step.

        Raises:
            DamageError: the log file has changed since it was written. All reads of it are refused from now on.
            DiskError: the log file cannot be read.
        """
        unproven = self.proof.unproven  # a local copy, because another thread may finish the proof meanwhile
        if unproven is None:
            return
        try:
            yield from prove_headers(self.disk, self.path(LOG), *unproven, mapped)
        except DamageError as error:
            self.proof.damage = str(error)
            raise
        self.proof.unproven = None

    def scrub(self) -> Iterator[int | DamagedBatch]:
        """Scrub the log file: check the CRCs of all batches that the segment has now. Any thread may run the steps.

        Yields:
            Each damaged batch and, from time to time, the number of bytes that were read since the last such number.
        """
        return scrub(self.disk, self.path(LOG), self.size)

    def add_damaged_batch(self, batch: DamagedBatch) -> bool:
        """Add a batch to the known damaged batches: all reads of it are refused from now on. Return True if its damage
        was not known before.
        """
        if batch in self.proof.damaged_batches:
            return False
        self.proof.damaged_batches = sorted(
            [*self.proof.damaged_batches, batch], key=lambda known: known.position
        )
        return True

    def check_undamaged(self, begin: int, end: int) -> None:
        """Raise DamageError if a batch in the bytes [begin, end) of the log file is known to be damaged. The scrub, a
        background task that reads all segments, finds such batches.
        """
        for batch in self.proof.damaged_batches:
            if begin < batch.position + batch.size and batch.position < end:
                raise DamageError(f"{self.path(LOG)} has a damaged batch: {batch}")

    def damaged_behind(self, position: int) -> DamagedBatch | None:
        """Return the first batch, at or after this position in the log file, that is known to be damaged; None if there
        is none.
        """
        return next((batch for batch in self.proof.damaged_batches if batch.position >= position), None)

    def prove_now(self) -> None:
        """Run all steps of `prove` at once: compare the batch headers of the log file with their recorded CRC. Raises
        DamageError if they differ, and DiskError if the file cannot be read.
        """
        for _ in self.prove():
            pass

    def unproven_error(self) -> UnprovenError:
        """Return the error for a read of the log file before its batch headers are proven (compared with their recorded
        CRC). The error has a function that proves them, for the caller to run.
        """
        mapped, unproven = None, self.proof.unproven
        if unproven is not None:
            with suppress(DamageError, DiskError):  # the proof will report the reason
                log = self.opened_log()
                if log.size >= unproven[0]:
                    mapped = log.view(0, unproven[0])
        return UnprovenError(self.path(LOG), partial(self.prove, mapped))

    @property
    def log(self) -> File:
        """The open log file.

        Raises:
            DamageError: the file is missing or damaged.
            UnprovenError: since the start of the broker, `prove` has not compared the batch headers of the file with
                their recorded CRC.
        """
        proof = self.proof
        if proof.damage is not None:
            raise DamageError(proof.damage)
        if proof.unproven is not None:
            raise self.unproven_error()
        return self.opened_log()

    @abstractmethod
    def opened_log(self) -> File:
        """Return the open log file, even if its batch headers are not proven (compared with their recorded CRC). Raises
        DamageError if the file is missing.
        """

    @property
    @abstractmethod
    def offset_index(self) -> OffsetIndex:
        """The offset index."""

    @property
    @abstractmethod
    def time_index(self) -> TimeIndex:
        """The time index."""

    @property
    @abstractmethod
    def txn_index(self) -> TransactionIndex:
        """The transaction index. Raises DamageError if its file is damaged."""

    # -- searching ---------------------------------------------------------------------------------------------

    def piece(self, position: int, size: int) -> Buffer:
        """Return the `size` bytes of the log file from `position` on, or fewer if the segment ends before, without a
        copy. Raises DamageError if the file is missing or damaged, and UnprovenError if its batch headers were not yet
        compared with their recorded CRC.
        """
        return self.log.view(position, min(size, self.size - position))

    def walk(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch from `position` on. Raises DamageError if the log file is missing or
        damaged, and UnprovenError if its batch headers were not yet compared with their recorded CRC.
        """
        return walk(ReadLogFile(self.path, lambda: self.log, self.size), position)

    def walk_unproven(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch from `position` on, even if the headers are not proven (compared with
        their recorded CRC). Only recovery uses this.
        """
        return walk(ReadLogFile(self.path, self.opened_log, self.size), position)

    def batch_at(self, position: int, size: int) -> bytes:
        """Return the bytes of the batch with this position and size in the log file. Raises DamageError if the log file
        is missing or damaged, and UnprovenError if its batch headers were not yet compared with their recorded CRC.
        """
        return self.log.read(position, size)

    def find(self, offset: int) -> FoundBatch | None:
        """Return the first batch that contains or follows an offset; None if there is none. Raises DamageError if the
        log file is missing or damaged, and UnprovenError if its batch headers were not yet compared with their recorded
        CRC.
        """
        return seek(self, self.offset_index.position_before(offset), offset=offset)

    def header_at(self, offset: int) -> BatchHeader | None:
        """Return the header of the first batch that contains or follows an offset; None if there is no such batch. The
        headers of the log file need not be proven (compared with their recorded CRC).
        """
        batches = self.walk_unproven(self.offset_index.position_before(offset))
        return next((header for _, header in batches if header.last_offset >= offset), None)

    def whole_batches(self, first: FoundBatch, size: int) -> tuple[int, int]:
        """Find the last whole batch within `size` bytes of the log file.

        Args:
            first: the batch with which these bytes begin.
            size: the number of bytes, at least the size of `first`.

        Returns:
            The end of the batch that was found, as (position in the log file, offset).
        """
        end = first.position + size
        if end >= self.size:
            return self.size, self.end_offset
        cut = seek(
            self,
            max(self.offset_index.position_at_or_before(end), first.position),
            offset=self.end_offset,
            end=end,
        )
        if cut is None:
            return self.size, self.end_offset
        # `cut` is the first batch that does not fit. It begins at the end of the last whole batch, or after a gap.
        return cut.position, cut.base_offset
