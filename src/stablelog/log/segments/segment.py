"""One segment: a file of record batches, and the indexes over it.

The indexes of the growing segment are in memory, see `growing_indexes`. The indexes of a sealed segment are mapped from
their files when they are first used. A sealed segment is opened when it is first read; `open_files` limits how many are
open.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from crc32c import crc32c

from stablelog.batch.header import DELETE_HORIZON, BatchHeader
from stablelog.env.disk import Buffer, Disk, File
from stablelog.errors import Corrupt, DiskError, Unproven
from stablelog.log.files.listing import Listing
from stablelog.log.files.names import LOG, PathOf, segment_path
from stablelog.log.indexes.growing_indexes import GrowingIndexes
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.sealed_indexes import load_indexes, load_txn_index
from stablelog.log.indexes.summary import NOTHING, Summary
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import AbortedTxn, TransactionIndex
from stablelog.log.segments.batch_search import WALK_READ_SIZE, Found, seek, walk
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.proof import DamagedBatch, prove_headers, scrub

INTERVAL_SIZE = 4096  # between two entries of an index that is rebuilt in memory
RELATIVE_OFFSET_MAX = 2**31 - 1


@dataclass(slots=True, eq=False, repr=False)
class Segment:
    """A segment of one partition.

    Attributes:
        disk: where the segment lies.
        directory: the partition's own.
        open_files: counts the segment while it is sealed and open.
        mark: what compaction puts behind the suffixes of a segment that it writes.
        path: gives the path of the segment's file with a suffix.
        base_offset: of its first record, if no compaction has removed it.
        end_offset: where the next segment begins, exclusive.
        size: bytes of the log file.
        created_ms: when it began to grow, by the broker's clock; of a sealed one, the time of its first record.
        least_aborted_offset: the least first offset of the transactions aborted here; None if none was.
        sealed: nothing more is appended.
        durable: it is sealed, and all its files are on disk.
        summary: of a sealed segment, what it holds.
        passed: bytes that lookups by time have walked from its beginning, and the latest time of a record in them; -1: none.
        damage: why no read gets any of the log file; None while no damage is known.
        damaged_batches: batches that the scrub has found damaged, by position. No read gets them.
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
    _growing: GrowingIndexes | None = None  # until the segment is settled
    _offset_index: OffsetIndex | None = None
    _time_index: TimeIndex | None = None
    _txn_index: TransactionIndex | None = None
    _indexed_position: int = 0
    _replayed_from: tuple[int, int, int] = field(
        init=False
    )  # position, greatest timestamp before it, its offset
    _unproven: tuple[int, int] | None = None  # bytes that were taken on trust, and the CRC over their headers

    def __post_init__(self) -> None:
        self.path = partial(segment_path, self.directory, self.base_offset, self.mark)
        self.end_offset = self.max_timestamp_offset = self.base_offset
        self._replayed_from = 0, NOTHING, self.base_offset

    @property
    def stable_offset(self) -> int:
        """The first offset that was undecided when the segment was sealed."""
        assert self.summary is not None
        return self.summary.stable_offset

    @property
    def growing(self) -> GrowingIndexes:
        """The indexes of a segment that is not settled yet."""
        assert self._growing is not None
        return self._growing

    # -- making and opening ------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make the log file of a segment that begins to grow. A sync of the directory makes its name durable.

        Raises:
            DiskError: the file cannot be made; nothing changed.
        """
        self._log = self.disk.open(self.path(LOG), create=True)
        self._grow()

    def _grow(self, contents: Sequence[bytes] = (b"", b"", b"")) -> None:
        self._growing = growing = GrowingIndexes(self.disk, self.path, self.base_offset, contents)
        self._offset_index, self._time_index, self._txn_index = growing.offsets, growing.times, growing.txns

    def open_sealed(self, summary: Summary, *, is_proven: bool = False) -> None:
        """Trust a summary that recovery has checked. No read gets the log file before `prove`.

        Args:
            summary: of the segment.
            is_proven: whether this process has written the log file itself.
        """
        self._take(summary)
        self.sealed = self.durable = True
        if is_proven:
            self._unproven = None

    def open_growing(self, progress: Summary | None = None, indexes: Sequence[bytes] = ()) -> None:
        """Open the log to be replayed: from its beginning, or from where `progress` says that its indexes are known.

        No read gets what lies before that before `prove`.

        Args:
            progress: of a snapshot within the segment.
            indexes: content of the indexes there, in the order of INDEX_SUFFIXES.

        Raises:
            Corrupt: a batch before that is damaged.
        """
        self._log = self.disk.open(self.path(LOG))
        if progress is None:
            self._grow()
            return
        self._grow(indexes)
        self._take(progress)
        self._indexed_position = self.growing.offsets.last_position
        timestamp, self.max_timestamp_offset = self.growing.times.last
        if timestamp < self.max_timestamp:
            # The greatest timestamp is in a batch behind the last one that is in the offset index.
            for position, header in self.walk_unproven(self._indexed_position):
                if not self.base_offset <= header.last_offset < self.end_offset:
                    raise Corrupt(
                        f"{self.path(LOG)}: the batch at byte {position} begins at offset {header.base_offset}; the "
                        f"batches that were synced end at {self.end_offset}. Restore the file"
                    )
                if header.max_timestamp == self.max_timestamp:
                    self.max_timestamp_offset = header.last_offset
                    break
        self._replayed_from = self.size, self.max_timestamp, self.max_timestamp_offset

    def adopt_index_files(self, listing: Listing, *, are_synced: bool) -> bool:
        """Go on with the index files of the growing segment as they are; see `GrowingIndexes.adopt_files`."""
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
        """Whether a batch of this size, up to this offset, still belongs here. An empty segment takes any batch."""
        growing = self._growing
        assert growing is not None
        return (
            self.size + size <= segment_bytes
            and last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and (len(growing.offsets) + 1) * 8 <= index_bytes
            and (len(growing.times) + 2) * 12 <= index_bytes  # one place is for the last entry
        )

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write the bytes of a batch, or of several. Returns their position. `note` takes them into memory."""
        assert self._log is not None
        assert not self.sealed
        assert self._log.size == self.size
        return self._log.append(*buffers)

    def note(self, header: BatchHeader, position: int, head: Buffer, interval: int) -> None:
        """Take a batch that stands at `position` into the indexes and counts.

        Args:
            header: with its own base offset.
            position: where in the log file it begins.
            head: its first 61 bytes as they stand in the file.
            interval: bytes between two entries of the offset index.
        """
        assert position == self.size
        last_offset = header.base_offset + header.last_offset_delta
        if (
            header.max_timestamp > self.max_timestamp and header.record_count
        ):  # compaction may have emptied it
            self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, last_offset
        if position - self._indexed_position > interval:
            self.growing.offsets.append(last_offset, position)
            self.growing.times.append_if_later(self.max_timestamp, self.max_timestamp_offset)
            self._indexed_position = position
        if self.first_timestamp == NOTHING:
            # A delete horizon stands where the first timestamp did.
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
        """Take an aborted transaction into the transaction index, in memory only."""
        self.growing.txns.append(txn)
        if self.least_aborted_offset is None or txn.first_offset < self.least_aborted_offset:
            self.least_aborted_offset = txn.first_offset

    def progress(self, stable_offset: int) -> Summary:
        """What the segment holds by now, in the form of a summary."""
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
        """Whether the last entry of the time index is of the greatest timestamp."""
        return not self.size or self.growing.times.last[0] >= self.max_timestamp

    def complete_time_index(self) -> None:
        """Add an entry of the greatest timestamp to the time index in memory, if the last one is behind it."""
        if self.size:
            self.growing.times.append_if_later(self.max_timestamp, self.max_timestamp_offset)

    def seal(self, stable_offset: int) -> None:
        """End the growth: complete the time index, and write the indexes.

        Raises:
            DiskError: the indexes cannot be written. The segment is not sealed, and goes on growing.
        """
        self.complete_time_index()
        self.growing.write()
        self.summary = self.progress(stable_offset)
        self.sealed = True

    def files_to_sync(self, *, log: bool = True, indexes: bool) -> list[File]:
        """The files to be synced so that what was appended is durable.

        Args:
            log: the log file, because something was appended since it was synced.
            indexes: those of the indexes, too, because something will be written that relies on them.
        """
        assert self._log is not None
        files = [self._log] if log else []
        return files + self.growing.take_dirty_files() if indexes else files

    def settled(self) -> None:
        """Note that a sealed segment is on disk: its files are opened again when they are needed."""
        assert self.sealed
        self.durable = True
        self.give_back()

    def give_back(self) -> None:
        """Close the files of a durable segment, and drop its indexes from memory."""
        assert self.durable
        self._close_files()
        self._growing = self._offset_index = self._time_index = self._txn_index = None

    def cut(self) -> None:
        """Cut the log file behind the last batch that was noted."""
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
        """Whether reads get the log file: this process wrote it, or `prove` has found it whole."""
        return self._unproven is None

    def prove(self, mapped: memoryview | None = None) -> Iterator[None]:
        """Prove the log file that was taken on trust, a piece at a time. May run in any thread.

        Args:
            mapped: the bytes to be proven, as readers will have them mapped.

        Raises:
            Corrupt: it is not what was sealed; no read gets any of it from now on.
            DiskError: it cannot be read.
        """
        unproven = self._unproven  # read once: another thread may prove the file meanwhile
        if unproven is None:
            return
        try:
            yield from prove_headers(self.disk, self.path(LOG), *unproven, mapped)
        except Corrupt as error:
            self.damage = str(error)
            raise
        self._unproven = None

    def scrub(self) -> Iterator[int | DamagedBatch]:
        """Check the bodies of the batches that exist by now; see `proof.scrub`. May run in any thread."""
        return scrub(self.disk, self.path(LOG), self.size)

    def note_damaged(self, batch: DamagedBatch) -> bool:
        """Keep a damaged batch from all reads. Returns whether the damage was not known before."""
        if batch in self.damaged_batches:
            return False
        self.damaged_batches = sorted([*self.damaged_batches, batch], key=lambda known: known.position)
        return True

    def check_undamaged(self, begin: int, end: int) -> None:
        """Raise Corrupt if a batch in these bytes of the log file is known to be damaged."""
        for batch in self.damaged_batches:
            if begin < batch.position + batch.size and batch.position < end:
                raise Corrupt(f"{self.path(LOG)}: {batch}")

    def damaged_behind(self, position: int) -> DamagedBatch | None:
        """The first damaged batch that begins at or behind this position; None if there is none."""
        return next((batch for batch in self.damaged_batches if batch.position >= position), None)

    def prove_now(self) -> None:
        """Prove the log file at once. Raises as `prove` does."""
        for _ in self.prove():
            pass

    def unproven(self) -> Unproven:
        """The error of a read that needs the proof first."""
        mapped, unproven = None, self._unproven
        if unproven is not None:
            with contextlib.suppress(Corrupt, DiskError):  # the proof says what is wrong
                log = self._opened_log()
                if log.size >= unproven[0]:
                    mapped = log.view(0, unproven[0])
        return Unproven(self.path(LOG), partial(self.prove, mapped))

    @property
    def log(self) -> File:
        """The log file, open.

        Raises:
            Corrupt: the file is gone, or damaged.
            Unproven: it was not proven since the start of the broker.
        """
        if self.damage is not None:
            raise Corrupt(self.damage)
        if self._unproven is not None:
            raise self.unproven()
        return self._opened_log()

    @property
    def growing_log(self) -> File:
        """The log file of a segment that is replayed, open, proven or not."""
        assert not self.durable
        return self._opened_log()

    def _opened_log(self) -> File:
        if self.durable:
            self.open_files.used(self)
        if self._log is None:
            try:
                self._log = self.disk.open(self.path(LOG))
            except FileNotFoundError:
                raise Corrupt(f"{self.path(LOG)} is gone, and was durable. Restore it") from None
        return self._log

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index, mapped from its file where it is not in memory."""
        return self._loaded_indexes()[0] if self._offset_index is None else self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The time index, mapped from its file where it is not in memory."""
        return self._loaded_indexes()[1] if self._time_index is None else self._time_index

    @property
    def txn_index(self) -> TransactionIndex:
        """The transaction index, mapped from its file where it is not in memory. Raises as `load_txn_index`."""
        if self._txn_index is None:
            assert self.summary is not None
            self.open_files.used(self)
            self._txn_index = load_txn_index(self.disk, self.path, self.summary)
        return self._txn_index

    def _loaded_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """The offset and the time index of a sealed segment, from their files or rebuilt from the log."""
        assert self.summary is not None
        self.open_files.used(self)
        found = load_indexes(self.disk, self.path, self.summary) or self._rebuilt_indexes()
        self._offset_index, self._time_index = found
        return found

    def _rebuilt_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """The offset and the time index, rebuilt from the batches, proven or not.

        A start looks up headers before they are proven. No read gets a batch by these indexes before that.
        """
        fresh = Segment(self.disk, self.directory, self.base_offset, self.open_files)
        fresh._grow()
        for position, header in self.walk_unproven(0):
            fresh.note(header, position, b"", INTERVAL_SIZE)
        return fresh.growing.offsets, fresh.growing.times

    # -- searching ---------------------------------------------------------------------------------------------

    def walk(self, position: int, read_size: int = WALK_READ_SIZE) -> Iterator[tuple[int, BatchHeader]]:
        """Each batch from the one that begins at `position`, as (position, header). Raises as `log` does."""
        return walk(self.path, lambda: self.log, position, self.size, read_size)

    def walk_unproven(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """As `walk`, for recovery: also where the log file is not proven."""
        return walk(self.path, self._opened_log, position, self.size, WALK_READ_SIZE)

    def find(self, offset: int) -> Found | None:
        """The first batch that ends at `offset` or after it; None if there is none here. Raises as `log` does."""
        return self._seek(self.offset_index.position_before(offset), offset, self.size)

    def header_at(self, offset: int) -> BatchHeader | None:
        """The header of the first batch that ends at `offset` or after it, from the log file, proven or not."""
        position = self.offset_index.position_before(offset)
        return next((h for _, h in self.walk_unproven(position) if h.last_offset >= offset), None)

    def whole_batches(self, first: Found, size: int) -> tuple[int, int]:
        """Where the last batch ends that is whole within `size` bytes from `first`: (position, next offset).

        The result includes at least the first batch.
        """
        end = first.position + size
        if end >= self.size:
            return self.size, self.end_offset
        begin = max(self.offset_index.position_at_or_before(end), first.position)
        cut = self._seek(begin, self.end_offset, end)
        if cut is None:
            return self.size, self.end_offset
        # The batch that is cut off begins where the last whole one ends. Between their offsets there may be a gap.
        return cut.position, cut.base_offset

    def _seek(self, position: int, offset: int, end: int) -> Found | None:
        if position >= self.size:
            return None
        return seek(self.path, self.log, position, self.size, offset=offset, end=end)
