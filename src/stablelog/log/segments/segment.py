"""One segment: a log file of record batches, and its indexes.

The indexes of the growing segment are in memory (see `growing_indexes`). The indexes of a sealed segment are mapped
from their files when they are first used. The log file of a sealed segment is opened when it is first read;
`open_files` limits how many segments are open.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from crc32c import crc32c

from stablelog.batch.header import DELETE_HORIZON, BatchHeader
from stablelog.env.disk import Buffer, Disk, File
from stablelog.errors import DamageError, DiskError, UnprovenError
from stablelog.log.files.listing import Listing
from stablelog.log.files.names import LOG, PathOf, segment_path
from stablelog.log.indexes.growing_indexes import GrowingIndexes
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.sealed_indexes import load_indexes, load_txn_index
from stablelog.log.indexes.summary import NOTHING, Summary
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import AbortedTxn, TransactionIndex
from stablelog.log.search.batches import WALK_READ_SIZE, seek, walk
from stablelog.log.search.source import Found
from stablelog.log.segments.log_file import LogFile, ReadLogFile
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.proof import DamagedBatch, prove_headers, scrub

INTERVAL_SIZE = 4096  # bytes of the log between two entries of an index that is rebuilt in memory
RELATIVE_OFFSET_MAX = 2**31 - 1


@dataclass(slots=True, eq=False, repr=False)
class Segment(LogFile):
    """A segment of one partition.

    Attributes:
        disk: the disk of the segment.
        directory: the partition's directory.
        open_files: limits the open sealed segments, and counts this one among them.
        mark: a second suffix of all file names: `.cleaned` for a segment that compaction is writing, otherwise empty.
        path: returns the path of the segment's file with a suffix.
        base_offset: the offset of its first record, unless compaction has removed this record.
        end_offset: the end of its offsets, exclusive. The next segment begins there.
        size: the size of the log file in bytes.
        created_ms: when it began to grow, by the broker's clock; if it was opened sealed, its first timestamp.
        least_aborted_offset: the least first offset of the transactions aborted here; None if none was.
        sealed: whether the segment gets no more batches.
        durable: whether the segment is sealed, and all its files are durable.
        summary: the summary of a sealed segment; None while it grows.
        passed: (size, greatest timestamp or -1) of the log file's first part, whose headers lookups by time have read.
        damage: the reason why all reads of the log file are refused; None while no such damage is known.
        damaged_batches: the damaged batches that the scrub has found, by position. Reads of them are refused.
    """

    disk: Disk
    directory: Path
    base_offset: int
    open_files: OpenFiles
    mark: str = ""
    path: PathOf = field(init=False)
    end_offset: int = field(init=False)
    size: int = 0
    created_ms: int = -1
    first_timestamp: int = NOTHING
    max_timestamp: int = NOTHING
    max_timestamp_offset: int = field(init=False)
    log_crc: int = 0
    record_count: int = 0
    committed_count: int = 0
    least_aborted_offset: int | None = None
    sealed: bool = False
    durable: bool = False
    summary: Summary | None = None
    passed: tuple[int, int] = (0, NOTHING)
    damage: str | None = None
    damaged_batches: list[DamagedBatch] = field(default_factory=list)
    _log: File | None = None
    _growing: GrowingIndexes | None = None  # None after the segment is sealed and durable
    _offset_index: OffsetIndex | None = None
    _time_index: TimeIndex | None = None
    _txn_index: TransactionIndex | None = None
    _indexed_position: int = 0
    _replayed_from: tuple[int, int, int] = field(
        init=False
    )  # where replay began: position, greatest timestamp before this position, offset of this timestamp
    _unproven: tuple[int, int] | None = None  # how many bytes need a proof, and the CRC over their headers

    def __post_init__(self) -> None:
        self.path = partial(segment_path, self.directory, self.base_offset, self.mark)
        self.end_offset = self.max_timestamp_offset = self.base_offset
        self._replayed_from = 0, NOTHING, self.base_offset

    @property
    def stable_offset(self) -> int | None:
        """The least first offset of the transactions open at the segment's end, or its end. None while it grows."""
        return self.summary.stable_offset if self.sealed and self.summary is not None else None

    @property
    def growing(self) -> GrowingIndexes:
        """The indexes in memory of a segment that is growing, or sealed and not durable yet."""
        assert self._growing is not None
        return self._growing

    # -- making and opening ------------------------------------------------------------------------------------

    def create(self) -> None:
        """Create the log file of a new growing segment. It is durable in the directory after a sync of the directory.

        Raises:
            DiskError: the file cannot be created; nothing changed.
        """
        self._log = self.disk.open(self.path(LOG), create=True)
        self.grow()

    def grow(self, contents: Sequence[bytes] = (b"", b"", b"")) -> None:
        """Begin a growing segment in memory, with these contents of its indexes. No file is created."""
        self._growing = growing = GrowingIndexes(self.disk, self.path, self.base_offset, contents)
        self._offset_index, self._time_index, self._txn_index = growing.offsets, growing.times, growing.txns

    def open_sealed(self, summary: Summary, *, is_proven: bool = False) -> None:
        """Open a sealed segment by its checked summary. Reads of the log file are refused until `prove` has succeeded.

        Args:
            summary: the summary of the segment.
            is_proven: whether this process has written the log file itself, so that no proof is needed.
        """
        self._take(summary)
        self.sealed = self.durable = True
        if is_proven:
            self._unproven = None

    def open_growing(self, progress: Summary | None = None, indexes: Sequence[bytes] = ()) -> None:
        """Open the growing segment for replay, from its beginning or from the end of `progress`.

        If `progress` is given, reads of the part that it describes are refused until `prove` has succeeded.

        Args:
            progress: the summary of the segment up to a snapshot; None to replay all of it.
            indexes: the content of the indexes up to this snapshot, in the order of INDEX_SUFFIXES.

        Raises:
            DamageError: a batch before the snapshot is damaged.
        """
        self._log = self.disk.open(self.path(LOG))
        if progress is None:
            self.grow()
            return
        self.grow(indexes)
        self._take(progress)
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
        self._replayed_from = self.size, self.max_timestamp, self.max_timestamp_offset

    def adopt_index_files(self, listing: Listing, *, are_synced: bool) -> bool:
        """Use the existing index files of the growing segment. Return whether the files match the log."""
        position, timestamp, offset = self._replayed_from
        is_short = self.size - position <= WALK_READ_SIZE
        tail = partial(self.walk_unproven, position) if is_short else None
        is_adopted = self.growing.adopt_files(listing, tail, (timestamp, offset), are_synced=are_synced)
        self._time_index = self.growing.times
        return is_adopted

    def _take(self, summary: Summary) -> None:
        self.summary = summary
        self.end_offset = summary.end_offset
        self.size, self.log_crc = summary.log_size, summary.log_crc
        self.first_timestamp, self.max_timestamp = summary.first_timestamp, summary.max_timestamp
        self.record_count, self.committed_count = summary.record_count, summary.committed_count
        self.least_aborted_offset = None if summary.least_aborted_offset < 0 else summary.least_aborted_offset
        self.created_ms = summary.first_timestamp
        self._unproven = (self.size, self.log_crc) if self.size else None

    # -- growing -----------------------------------------------------------------------------------------------

    def has_room(self, size: int, last_offset: int, segment_bytes: int, index_bytes: int) -> bool:
        """Whether a batch with this size and last offset fits into the segment. An empty segment accepts any batch."""
        growing = self._growing
        assert growing is not None
        return (
            self.size + size <= segment_bytes
            and last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and (len(growing.offsets) + 1) * 8 <= index_bytes
            and (len(growing.times) + 2) * 12 <= index_bytes  # one for this batch, one at the sealing
        )

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Append batches to the log file, and return their position. The caller then calls `note` for each batch."""
        assert self._log is not None
        assert not self.sealed
        assert self._log.size == self.size
        return self._log.append(*buffers)

    def note(self, header: BatchHeader, position: int, head: Buffer, interval: int) -> None:
        """Add a batch that was written at `position` to the indexes and counts.

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

    def note_aborted(self, txn: AbortedTxn) -> None:
        """Add an aborted transaction to the transaction index in memory."""
        self.growing.txns.append(txn)
        if self.least_aborted_offset is None or txn.first_offset < self.least_aborted_offset:
            self.least_aborted_offset = txn.first_offset

    def progress(self, stable_offset: int) -> Summary:
        """Return the summary of the segment up to now."""
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
        """Whether the last entry of the time index has the greatest timestamp of the segment."""
        return not self.size or self.growing.times.last[0] >= self.max_timestamp

    def complete_time_index(self) -> None:
        """Add an entry with the greatest timestamp to the time index in memory, unless it is there."""
        if self.size:
            self.growing.times.append_if_later(self.max_timestamp, self.max_timestamp_offset)

    def seal(self, stable_offset: int) -> None:
        """Seal the segment: complete the time index, and write the indexes to their files.

        Raises:
            DiskError: the indexes cannot be written. The segment is not sealed, and continues to grow.
        """
        self.complete_time_index()
        self.growing.write()
        self.summary = self.progress(stable_offset)
        self.sealed = True

    def files_to_sync(self, *, log: bool = True, indexes: bool) -> list[File]:
        """Return the files that must be synced to make the appended batches durable.

        Args:
            log: whether to include the log file, because batches were appended since its last sync.
            indexes: whether to include the index files, because a summary or snapshot of them will be written.
        """
        assert self._log is not None
        files = [self._log] if log else []
        return files + self.growing.take_dirty_files() if indexes else files

    def settled(self) -> None:
        """Note that a sealed segment is durable, and close its files. They are opened again when they are needed."""
        assert self.sealed
        self.durable = True
        self.give_back()

    def give_back(self) -> None:
        """Close the files of a durable segment, and drop its indexes from memory."""
        assert self.durable
        self._close_files()
        self._growing = self._offset_index = self._time_index = self._txn_index = None

    def cut(self) -> None:
        """Truncate the log file after the last batch for which `note` was called."""
        assert self._log is not None
        self._log.truncate(self.size)
        self._log.sync()

    def close(self) -> None:
        """Close every file."""
        self._close_files()
        self.open_files.forget(self)

    def _close_files(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._growing is not None:
            self._growing.close()

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def is_proven(self) -> bool:
        """Whether reads of the log file are allowed: this process has written it, or `prove` has found it whole."""
        return self._unproven is None

    def prove(self, mapped: memoryview | None = None) -> Iterator[None]:
        """Check the batch headers of the log file by their recorded CRC, unless this is done. May run in any thread.

        Args:
            mapped: these bytes of the memory-mapped file, from which readers will read.

        Raises:
            DamageError: the log file has changed since it was written. All reads of it are refused from now on.
            DiskError: the log file cannot be read.
        """
        unproven = self._unproven  # a local copy, because another thread may finish the proof meanwhile
        if unproven is None:
            return
        try:
            yield from prove_headers(self.disk, self.path(LOG), *unproven, mapped)
        except DamageError as error:
            self.damage = str(error)
            raise
        self._unproven = None

    def scrub(self) -> Iterator[int | DamagedBatch]:
        """Check the CRCs of all batches that the segment has now, as `proof.scrub` does. May run in any thread."""
        return scrub(self.disk, self.path(LOG), self.size)

    def note_damaged(self, batch: DamagedBatch) -> bool:
        """Refuse all reads of a damaged batch from now on. Return whether the damage was unknown before."""
        if batch in self.damaged_batches:
            return False
        self.damaged_batches = sorted([*self.damaged_batches, batch], key=lambda known: known.position)
        return True

    def check_undamaged(self, begin: int, end: int) -> None:
        """Raise DamageError if a batch in the bytes [begin, end) of the log file is known to be damaged."""
        for batch in self.damaged_batches:
            if begin < batch.position + batch.size and batch.position < end:
                raise DamageError(f"{self.path(LOG)} has a damaged batch: {batch}")

    def damaged_behind(self, position: int) -> DamagedBatch | None:
        """Return the first damaged batch that begins at or after this position; None if there is none."""
        return next((batch for batch in self.damaged_batches if batch.position >= position), None)

    def prove_now(self) -> None:
        """Run all steps of `prove` at once. Raises DamageError and DiskError, as `prove` does."""
        for _ in self.prove():
            pass

    def unproven(self) -> UnprovenError:
        """Return the error for a read before the log file is proven. It carries the proof for the caller to run."""
        mapped, unproven = None, self._unproven
        if unproven is not None:
            with contextlib.suppress(DamageError, DiskError):  # the proof will report the reason
                log = self._opened_log()
                if log.size >= unproven[0]:
                    mapped = log.view(0, unproven[0])
        return UnprovenError(self.path(LOG), partial(self.prove, mapped))

    @property
    def log(self) -> File:
        """The open log file.

        Raises:
            DamageError: the file is missing or damaged.
            UnprovenError: the file has not been proven since the start of the broker.
        """
        if self.damage is not None:
            raise DamageError(self.damage)
        if self._unproven is not None:
            raise self.unproven()
        return self._opened_log()

    @property
    def growing_log(self) -> File:
        """The open log file of a segment that is being replayed. It need not be proven."""
        assert not self.durable
        return self._opened_log()

    def _opened_log(self) -> File:
        if self.durable:
            self.open_files.used(self)
        if self._log is None:
            try:
                self._log = self.disk.open(self.path(LOG))
            except FileNotFoundError:
                raise DamageError(f"{self.path(LOG)} is missing, and was durable. Restore it") from None
        return self._log

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index. For a durable segment, it is mapped from its file."""
        return self._loaded_indexes()[0] if self._offset_index is None else self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The time index. For a durable segment, it is mapped from its file."""
        return self._loaded_indexes()[1] if self._time_index is None else self._time_index

    @property
    def txn_index(self) -> TransactionIndex:
        """The transaction index, mapped from its file if the segment is durable. Raises DamageError."""
        if self._txn_index is None:
            assert self.summary is not None
            self.open_files.used(self)
            self._txn_index = load_txn_index(self.disk, self.path, self.summary)
        return self._txn_index

    def _loaded_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """The offset index and the time index of a sealed segment, mapped from their files or rebuilt from the log."""
        assert self.summary is not None
        self.open_files.used(self)
        found = load_indexes(self.disk, self.path, self.summary) or self._rebuilt_indexes()
        self._offset_index, self._time_index = found
        return found

    def _rebuilt_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """The offset index and the time index, rebuilt from the batch headers. The log file need not be proven.

        Recovery uses these indexes before the proof. A read uses them only after the proof.
        """
        fresh = Segment(self.disk, self.directory, self.base_offset, self.open_files)
        fresh.grow()
        for position, header in self.walk_unproven(0):
            fresh.note(header, position, b"", INTERVAL_SIZE)
        return fresh.growing.offsets, fresh.growing.times

    # -- searching ---------------------------------------------------------------------------------------------

    def piece(self, position: int, size: int) -> Buffer:
        """Map bytes of the log file. Raises the errors of `log`."""
        return self.log.view(position, min(size, self.size - position))

    def walk(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch from `position` on. Raises the errors of `log`."""
        return walk(ReadLogFile(self.path, lambda: self.log, self.size), position)

    def walk_unproven(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) as `walk` does, even if the log file is not proven. Only recovery uses this."""
        return walk(ReadLogFile(self.path, self._opened_log, self.size), position)

    def batch_at(self, position: int, size: int) -> bytes:
        """Read the bytes of a batch. Raises the errors of `log`."""
        return self.log.read(position, size)

    def find(self, offset: int) -> Found | None:
        """Return the first batch whose last offset is at least `offset`; None if there is none. Raises as `log` does."""
        return seek(self, self.offset_index.position_before(offset), offset=offset)

    def header_at(self, offset: int) -> BatchHeader | None:
        """Return the header of the first batch whose last offset is at least `offset`. The file need not be proven."""
        position = self.offset_index.position_before(offset)
        return next((h for _, h in self.walk_unproven(position) if h.last_offset >= offset), None)

    def whole_batches(self, first: Found, size: int) -> tuple[int, int]:
        """Return the end (position, offset) of the last whole batch within `size` bytes from `first` on. The result
        includes at least the first batch.
        """
        end = first.position + size
        if end >= self.size:
            return self.size, self.end_offset
        begin = max(self.offset_index.position_at_or_before(end), first.position)
        cut = seek(self, begin, offset=self.end_offset, end=end)
        if cut is None:
            return self.size, self.end_offset
        # `cut` is the first batch that does not fit. It begins at the end of the last whole batch, or after a gap.
        return cut.position, cut.base_offset
