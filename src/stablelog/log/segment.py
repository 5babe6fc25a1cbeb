"""One segment: a file of record batches, and the indexes over it.

The growing segment keeps its indexes in memory and writes them out when it is sealed or a snapshot is taken; an
abort goes into the file of the transaction index at once. Whatever of them a crash takes is made anew from the log.
A sealed segment is opened when it is first read, and only so many are open at a time.
"""

import contextlib
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from stablelog.batch.header import DELETE_HORIZON, HEADER, LENGTH_AND_OFFSET_SIZE, BatchHeader, read_header
from stablelog.env.disk import Buffer, Disk, File
from stablelog.errors import Corrupt, DiskError, Unproven
from stablelog.log.listing import Listing
from stablelog.log.names import INDEX, LOG, TIMEINDEX, TXNINDEX
from stablelog.log.offset_index import OffsetIndex
from stablelog.log.proof import DamagedBatch, prove_headers, scrub
from stablelog.log.summary import NOTHING, Summary
from stablelog.log.time_index import ENTRY, TimeIndex
from stablelog.log.transaction_index import AbortedTxn, TransactionIndex

WALK_READ_SIZE = 64 << 10
INTERVAL_SIZE = 4096  # between two entries of an index that is made anew in memory
FIND_READ_SIZE = 5 << 10  # an index interval and a header
RELATIVE_OFFSET_MAX = 2**31 - 1
OFFSETS = struct.Struct(
    ">"  # the fields of a batch's header that a search looks at
    "q"  # base_offset
    "i"  # batch_length
    "11x"
    "i"  # last_offset_delta
)


class Found(NamedTuple):
    """Where a batch stands. `last_offset` is inclusive."""

    position: int
    size: int
    base_offset: int
    last_offset: int


class OpenFiles:
    """Sealed segments that hold files open or indexes in memory: the one not used for longest gives all back.

    A partition has one of its own while it is opened, perhaps in a thread; then it joins that of the broker.

    Args:
        count_max: how many segments there are at a time, over all that have joined.
    """

    def __init__(self, count_max: int = 256) -> None:
        self._count_max = count_max
        self._segments: OrderedDict[Segment, None] = OrderedDict()
        self._shared: OpenFiles | None = None

    def __len__(self) -> int:
        return len(self._segments)

    def join(self, shared: "OpenFiles") -> None:
        """Count with others from now on. Both are used by one thread then."""
        segments, self._segments, self._shared = self._segments, OrderedDict(), shared
        for segment in segments:
            shared.used(segment)

    def used(self, segment: "Segment") -> None:
        """The segment is being read."""
        if self._shared is not None:
            self._shared.used(segment)
            return
        if segment in self._segments:
            self._segments.move_to_end(segment)
            return
        self._segments[segment] = None
        while len(self._segments) > self._count_max:
            self._segments.popitem(last=False)[0].give_back()

    def forget(self, segment: "Segment") -> None:
        """The segment holds nothing any more."""
        if self._shared is not None:
            self._shared.forget(segment)
        else:
            self._segments.pop(segment, None)


class Segment:
    """A segment of one partition.

    Attributes:
        base_offset: of its first record, if no compaction has removed it.
        end_offset: where the next segment begins, exclusive.
        size: bytes of the log file.
        created_ms: when it began to grow, by the broker's clock; of a sealed one, the time of its first record.
        least_aborted_offset: the least first offset of the transactions aborted here; None if none was.
        sealed: nothing more is appended.
        durable: it is sealed, and all its files are on disk.
        summary: of a sealed segment, what it holds.
        passed: how many bytes from its beginning lookups by time have walked, and the latest time of a record in them, in
            ms; -1 if there is no record.
        damage: why nothing of the log file is handed out; None while no damage is known.
        damaged_batches: batches that the scrub has found damaged, by position; none of them is handed out.
    """

    __slots__ = (
        "_broken_files",
        "_directory",
        "_dirty",
        "_disk",
        "_index_files",
        "_indexed_position",
        "_lacks_aborted",
        "_log",
        "_offset_index",
        "_open_files",
        "_replayed_from",
        "_synced_sizes",
        "_time_index",
        "_txn_index",
        "_unproven",
        "_written_sizes",
        "base_offset",
        "committed_count",
        "created_ms",
        "damage",
        "damaged_batches",
        "durable",
        "end_offset",
        "first_timestamp",
        "least_aborted_offset",
        "log_crc",
        "max_timestamp",
        "max_timestamp_offset",
        "names_changed",
        "passed",
        "record_count",
        "sealed",
        "size",
        "summary",
    )

    def __init__(self, disk: Disk, directory: Path, base_offset: int, open_files: OpenFiles) -> None:
        self._disk = disk
        self._directory = directory
        self._open_files = open_files
        self._log: File | None = None
        self._index_files: dict[str, File] = {}  # of the growing segment, those that were written to
        self._dirty: set[str] = set()  # and are not synced since
        self._written_sizes: dict[str, int] = {}  # bytes of index files that are known to begin the index
        self._replayed_from = 0, NOTHING, base_offset  # position, greatest timestamp before it, its offset
        self._synced_sizes: list[int] = []  # of the index files, if the last owner has synced them
        self._broken_files: list[File] = []  # index files that take no more writes; a sync may have them
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TransactionIndex | None = None
        self._indexed_position = 0
        self._lacks_aborted = False  # the file of the transaction index is behind memory
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = 0
        self.first_timestamp = NOTHING
        self.max_timestamp = NOTHING
        self.max_timestamp_offset = base_offset
        self.log_crc = 0
        self.record_count = 0
        self.committed_count = 0
        self.least_aborted_offset: int | None = None
        self.created_ms = -1
        self.names_changed = False
        self.sealed = False
        self.durable = False
        self.summary: Summary | None = None
        self.passed = 0, NOTHING
        self.damage: str | None = None
        self.damaged_batches: list[DamagedBatch] = []
        self._unproven: tuple[int, int] | None = (
            None  # bytes that were taken on trust, CRC over their headers
        )

    def path(self, suffix: str) -> Path:
        """The segment's file of this kind."""
        return self._directory / f"{self.base_offset:020d}{suffix}"

    @property
    def stable_offset(self) -> int:
        """The first offset that was undecided when the segment was sealed."""
        assert self.summary is not None
        return self.summary.stable_offset

    # -- making and opening ------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make the log file of a segment that begins to grow; its name is durable when the directory is synced.

        Raises:
            DiskError: it cannot be made; nothing changed.
        """
        self._log = self._disk.open(self.path(LOG), create=True)
        self._begin_indexes()

    def _begin_indexes(self) -> None:
        self._offset_index, self._time_index = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self._txn_index = TransactionIndex()

    def open_sealed(self, summary: Summary, *, is_proven: bool = False) -> None:
        """Trust a summary that recovery has checked; the log file is not handed out before `prove`.

        Args:
            summary: of the segment.
            is_proven: whether this process has written the log file itself.
        """
        self._take(summary)
        self.sealed = self.durable = True
        if not is_proven and self.size:
            self._unproven = self.size, self.log_crc

    def open_growing(self, progress: Summary | None = None, indexes: Sequence[bytes] = ()) -> None:
        """Open the log to be replayed: from its beginning, or from where `progress` says that its indexes are known.

        What lies before that is not handed out before `prove`.

        Args:
            progress: of a snapshot within the segment.
            indexes: content of the indexes there, in the order of INDEX_SUFFIXES.

        Raises:
            Corrupt: a batch before that is damaged.
        """
        self._log = self._disk.open(self.path(LOG))
        self._begin_indexes()
        if progress is None:
            return
        contents = [bytearray(index) for index in indexes]
        self._offset_index = OffsetIndex(self.base_offset, contents[0])
        self._time_index = TimeIndex(self.base_offset, contents[1])
        self._txn_index = TransactionIndex(contents[2])
        self._take(progress)
        if self.size:
            self._unproven = self.size, self.log_crc
        if len(self._offset_index):
            self._indexed_position = self._offset_index[len(self._offset_index) - 1][1]
        timestamp, self.max_timestamp_offset = (
            self._time_index[len(self._time_index) - 1]
            if len(self._time_index)
            else (NOTHING, self.base_offset)
        )
        if timestamp < self.max_timestamp:
            # It is in a batch behind the last one that is in the offset index.
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
        """Go on with the index files of the growing segment as they are. Returns whether they need no repair.

        The transaction index has to be what memory holds. The others may be behind it: `write_indexes` goes on from there.
        Entries that closes have added to the time index are taken over.

        Args:
            listing: of the directory.
            are_synced: whether the files are as their last owner has synced them.
        """
        sizes = []
        for suffix, index in self._indexes():
            name = f"{self.base_offset:020d}{suffix}"
            found = listing.read(name) if name in listing else b""
            sizes.append(len(found) if name in listing or suffix == TXNINDEX else -1)
            with index.content() as content:
                is_held = found == (content if suffix == TXNINDEX else content[: len(found)])
            if not is_held and not (suffix == TIMEINDEX and self._adopt_time_entries(found)):
                return False
        if are_synced:
            self._synced_sizes = sizes
        else:  # a kill may have left files whose names no sync has made durable
            self.names_changed = True
        return True

    def _adopt_time_entries(self, found: bytes) -> bool:
        """Take over the entries of the time index's file, if the log says the same of each. Returns whether it does.

        A close completes the time index, and a replay does not make such an entry. Only a few batches are looked at.
        """
        position, newest, newest_offset = self._replayed_from
        if self.size - position > WALK_READ_SIZE:
            return False
        assert self._time_index is not None
        adopted = TimeIndex(self.base_offset, found)
        known = [self._time_index[at] for at in range(len(self._time_index))]
        maxima = {
            newest: newest_offset,
            **dict(known),
        }  # the offset at which each greatest timestamp was reached
        for _, header in self.walk_unproven(position):
            if header.max_timestamp > newest and header.record_count:
                newest, maxima[header.max_timestamp] = header.max_timestamp, header.last_offset
        entries = [adopted[at] for at in range(len(adopted))]
        timestamps = [timestamp for timestamp, _ in entries]
        if (
            len(found) != len(adopted) * ENTRY.size
            or any(maxima.get(timestamp) != offset for timestamp, offset in entries)
            or any(former >= latter for former, latter in pairwise([NOTHING, *timestamps]))
        ):
            return False
        for timestamp, offset in known:
            adopted.append_if_later(timestamp, offset)
        self._time_index = adopted
        return True

    @property
    def are_index_files_complete(self) -> bool:
        """Whether the index files are synced and hold all that a clean close leaves in them, as far as is known."""
        return self.is_time_index_complete and self._synced_sizes == [len(one) for one in self._contents()]

    def _take(self, summary: Summary) -> None:
        self.summary = summary
        self.end_offset = summary.end_offset
        self.size = summary.log_size
        self.first_timestamp, self.max_timestamp = summary.first_timestamp, summary.max_timestamp
        self.log_crc = summary.log_crc
        self.record_count, self.committed_count = summary.record_count, summary.committed_count
        self.least_aborted_offset = None if summary.least_aborted_offset < 0 else summary.least_aborted_offset
        self.created_ms = summary.first_timestamp

    def matches(self, summary: Summary) -> bool:
        """Whether the segment's files are those that the summary tells of, as far as that costs little to say.

        Sizes and the transaction index are looked at here; the other indexes when they are first used.
        """
        try:
            if summary.base_offset != self.base_offset or self._disk.size(self.path(LOG)) != summary.log_size:
                return False
            for suffix, size in ((INDEX, summary.index_size), (TIMEINDEX, summary.timeindex_size)):
                if self._disk.size(self.path(suffix)) != size:
                    return False
            if summary.txnindex_size == 0:
                return not self._disk.exists(self.path(TXNINDEX)) or self._disk.size(self.path(TXNINDEX)) == 0
            content = self._disk.read_bytes(self.path(TXNINDEX))
            return len(content) == summary.txnindex_size and crc32c(content) == summary.txnindex_crc
        except FileNotFoundError:
            return False

    # -- growing -----------------------------------------------------------------------------------------------

    def has_room(self, size: int, last_offset: int, segment_bytes: int, index_bytes: int) -> bool:
        """Whether a batch of this size, up to this offset, still belongs here. An empty segment takes any batch."""
        assert self._offset_index is not None
        assert self._time_index is not None
        return (
            self.size + size <= segment_bytes
            and last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and (len(self._offset_index) + 1) * 8 <= index_bytes
            and (len(self._time_index) + 2) * 12 <= index_bytes  # one place is for the last entry
        )

    def append(self, buffers: tuple[Buffer, ...]) -> int:
        """Write the bytes of a batch, or of several. Returns their position. Nothing is noted yet: see `note`."""
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
        assert self._offset_index is not None
        assert self._time_index is not None
        assert position == self.size
        last_offset = header.base_offset + header.last_offset_delta
        if (
            header.max_timestamp > self.max_timestamp and header.record_count
        ):  # compaction may have emptied it
            self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, last_offset
        if position - self._indexed_position > interval:
            self._offset_index.append(last_offset, position)
            self._time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset)
            self._indexed_position = position
        if self.first_timestamp == NOTHING:
            # With a delete horizon, it stands where the first timestamp did.
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
        assert self._txn_index is not None
        self._txn_index.append(txn)
        if self.least_aborted_offset is None or txn.first_offset < self.least_aborted_offset:
            self.least_aborted_offset = txn.first_offset

    def append_aborted(self, txn: AbortedTxn) -> None:
        """Take an aborted transaction into the transaction index. If its file cannot be written, it is behind memory."""
        self.note_aborted(txn)
        self._lacks_aborted = True
        with contextlib.suppress(DiskError):
            self.write_aborted()

    def write_aborted(self) -> None:
        """Write to the file of the transaction index what it lacks.

        Raises:
            DiskError: it is behind memory. Readers of the files must not see the markers of what it lacks.
        """
        if self._lacks_aborted:
            assert self._txn_index is not None
            self._write_index(TXNINDEX, self._txn_index)
            self._lacks_aborted = False

    def progress(self, stable_offset: int) -> Summary:
        """What the segment holds by now, in the form of a summary."""
        index, timeindex, txnindex = self._contents()
        return Summary(
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            first_timestamp=self.first_timestamp,
            max_timestamp=self.max_timestamp,
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

    def _indexes(self) -> tuple[tuple[str, OffsetIndex | TimeIndex | TransactionIndex], ...]:
        """The indexes that memory holds, with the suffixes of their files."""
        assert self._offset_index is not None
        assert self._time_index is not None
        assert self._txn_index is not None
        return (INDEX, self._offset_index), (TIMEINDEX, self._time_index), (TXNINDEX, self._txn_index)

    def _contents(self) -> tuple[Buffer, Buffer, Buffer]:
        assert self._offset_index is not None
        assert self._time_index is not None
        assert self._txn_index is not None
        return self._offset_index.content(), self._time_index.content(), self._txn_index.content()

    def write_indexes(self) -> None:
        """Bring the files of the indexes up to what memory holds. They are durable when synced.

        Raises:
            DiskError: the files are behind memory, which does no harm.
        """
        for suffix, index in self._indexes():
            if suffix != TXNINDEX or len(index):  # Kafka makes this file with the first abort
                self._write_index(suffix, index)

    def _write_index(self, suffix: str, index: OffsetIndex | TimeIndex | TransactionIndex) -> None:
        with (
            index.content() as content
        ):  # an error that is kept must not keep the view: the index could not grow
            file = self._index_file(suffix, content)
            missing = bytes(content[file.size :])
        if not missing:
            return
        self._dirty.add(suffix)
        try:
            file.append(missing)
            self._written_sizes[suffix] = file.size
        except DiskError as error:
            if not error.undone:
                self._written_sizes.pop(suffix, None)
                # It takes no more writes: it is opened again, and compared, when the index is written next.
                self._broken_files.append(self._index_files.pop(suffix))
                self._dirty.discard(suffix)
            raise

    def _index_file(self, suffix: str, content: Buffer) -> File:
        """The file of an index, holding the beginning of `content` and nothing else."""
        file = self._index_files.get(suffix)
        if file is not None:
            return file
        path, written_size = self.path(suffix), self._written_sizes.get(suffix)
        if written_size is None:
            self.names_changed = self.names_changed or not self._disk.exists(path)
        file = self._disk.open(path, create=True)
        try:
            # It may hold zeros of a preallocation, or entries of a log that was cut: begin anew if it is not a prefix.
            if file.size != written_size and (
                file.size > len(content) or file.read(0, file.size) != content[: file.size]
            ):
                file.truncate(0)
                self._dirty.add(suffix)
            self._written_sizes[suffix] = file.size
        except DiskError:
            file.close()
            raise
        if file.size:  # it may have been closed before it was synced
            self._dirty.add(suffix)
        self._index_files[suffix] = file
        return file

    @property
    def is_time_index_complete(self) -> bool:
        """Whether the last entry of the time index is of the greatest timestamp."""
        assert self._time_index is not None
        return not self.size or self._time_index.last_timestamp >= self.max_timestamp

    def complete_time_index(self) -> None:
        """Add an entry of the greatest timestamp to the time index, if the last one is behind it. In memory only."""
        assert self._time_index is not None
        if self.size:
            self._time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset)

    def seal(self, stable_offset: int) -> None:
        """Nothing more is appended: complete the time index, and write the indexes.

        Raises:
            DiskError: the indexes cannot be written. It is not sealed, and goes on growing.
        """
        self.complete_time_index()
        self.write_indexes()
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
        if indexes:
            files += [self._index_files[suffix] for suffix in sorted(self._dirty)]
            self._dirty.clear()
        return files

    def settled(self) -> None:
        """A sealed segment is on disk: hold no file open, and load the indexes again when they are needed."""
        assert self.sealed
        self.durable = True
        self.give_back()

    def give_back(self) -> None:
        """Close what is open, and forget what can be loaded again."""
        assert self.durable
        self._close_files()
        self._offset_index = self._time_index = None
        self._txn_index = None

    def cut(self) -> None:
        """Cut the log file behind the last batch that was noted."""
        assert self._log is not None
        self._log.truncate(self.size)
        self._log.sync()

    def close(self) -> None:
        """Close every file."""
        self._close_files()
        self._open_files.forget(self)

    def close_index_files(self) -> None:
        """Give back the descriptors of the index files, synced or not.

        What will rely on a file writes and syncs it first, and for that it is opened again.
        """
        self._dirty.clear()
        while self._index_files:
            self._index_files.popitem()[1].close()

    def _close_files(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
        self.close_index_files()
        while self._broken_files:
            self._broken_files.pop().close()

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def is_proven(self) -> bool:
        """Whether the log file may be handed out: it is what this process wrote, or `prove` has found it whole."""
        return self._unproven is None

    def prove(self, mapped: memoryview | None = None) -> Iterator[None]:
        """Prove the log file that was taken on trust, a piece at a time. May run in any thread.

        Args:
            mapped: what is proven, as readers will have it mapped.

        Raises:
            Corrupt: it is not what was sealed; nothing of it is handed out any more.
            DiskError: it cannot be read.
        """
        unproven = self._unproven  # once: another thread may have proven it meanwhile
        if unproven is None:
            return
        try:
            yield from prove_headers(self._disk, self.path(LOG), *unproven, mapped)
        except Corrupt as error:
            self.damage = str(error)
            raise
        self._unproven = None

    def scrub(self) -> Iterator[int | DamagedBatch]:
        """Check the bodies of the batches there are by now; see `proof.scrub`. May run in any thread."""
        return scrub(self._disk, self.path(LOG), self.size)

    def note_damaged(self, batch: DamagedBatch) -> bool:
        """Hand out a batch no more. Returns whether it was not known to be damaged."""
        if batch in self.damaged_batches:
            return False
        self.damaged_batches = sorted([*self.damaged_batches, batch], key=lambda known: known.position)
        return True

    def check_undamaged(self, begin: int, end: int) -> None:
        """Raise Corrupt if a batch in these bytes of the log file is known to be damaged."""
        for batch in self.damaged_batches:
            if begin < batch.position + batch.size and batch.position < end:
                raise Corrupt(f"{self.path(LOG)}: {batch}")

    def damaged_behind(self, position: int) -> "DamagedBatch | None":
        """The first damaged batch that begins at this position or behind it; None if there is none."""
        return next((batch for batch in self.damaged_batches if batch.position >= position), None)

    def prove_now(self) -> None:
        """Prove the log file at once. Raises as `prove` does."""
        for _ in self.prove():
            pass

    def unproven(self) -> Unproven:
        """What a read raises that needs the proof first."""
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
            self._open_files.used(self)
        if self._log is None:
            try:
                self._log = self._disk.open(self.path(LOG))
            except FileNotFoundError:
                raise Corrupt(f"{self.path(LOG)} is gone, and was durable. Restore it") from None
        return self._log

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index, mapped from its file where it is not in memory."""
        if self._offset_index is None:
            self._load_offset_and_time_index()
        assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The time index, mapped from its file where it is not in memory."""
        if self._time_index is None:
            self._load_offset_and_time_index()
        assert self._time_index is not None
        return self._time_index

    @property
    def txn_index(self) -> TransactionIndex:
        """The transaction index, mapped from its file where it is not in memory.

        Raises:
            Corrupt: it is not what the summary tells of. What was aborted is then not known, and nothing is served.
        """
        if self._txn_index is None:
            assert self.summary is not None
            self._open_files.used(self)
            content: Buffer | None = b""
            if self.summary.txnindex_size:
                content = self._mapped(TXNINDEX, self.summary.txnindex_size, self.summary.txnindex_crc)
            if content is None:
                raise Corrupt(
                    f"{self.path(TXNINDEX)} is damaged; restart the broker to have it made anew from the log"
                )
            self._txn_index = TransactionIndex(content)
        return self._txn_index

    def _load_offset_and_time_index(self) -> None:
        assert self.summary is not None
        self._open_files.used(self)
        index = self._mapped(INDEX, self.summary.index_size, self.summary.index_crc)
        timeindex = self._mapped(TIMEINDEX, self.summary.timeindex_size, self.summary.timeindex_crc)
        if index is None or timeindex is None:
            self._offset_index, self._time_index = self._rebuilt_indexes()
        else:
            self._offset_index = OffsetIndex(self.base_offset, index)
            self._time_index = TimeIndex(self.base_offset, timeindex)

    def _mapped(self, suffix: str, size: int, crc: int) -> Buffer | None:
        """The content of an index file; None if it is not what the summary tells of."""
        try:
            file = self._disk.open(self.path(suffix))
        except FileNotFoundError:
            return None
        try:
            if file.size != size:
                return None
            content = file.view(0, size)
        finally:
            file.close()
        return content if crc32c(content) == crc else None

    def _rebuilt_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """The offset and time index of a sealed segment, rebuilt from its batches, proven or not.

        A start looks up headers before they are proven. No batch is handed out by them before that.
        """
        fresh = Segment(self._disk, self._directory, self.base_offset, self._open_files)
        fresh._begin_indexes()
        for position, header in self.walk_unproven(0):
            fresh.note(header, position, b"", INTERVAL_SIZE)
        assert fresh._offset_index is not None
        assert fresh._time_index is not None
        return fresh._offset_index, fresh._time_index

    def walk(self, position: int, read_size: int = WALK_READ_SIZE) -> Iterator[tuple[int, BatchHeader]]:
        """Each batch from the one that begins at `position`, as (position, header). Raises as `log` does."""
        return self._walk(lambda: self.log, position, read_size)

    def walk_unproven(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """As `walk`, for recovery: also where the log file is not proven."""
        return self._walk(self._opened_log, position, WALK_READ_SIZE)

    def _walk(
        self, log: Callable[[], File], position: int, read_size: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        while position < self.size:
            chunk = log().read(position, min(read_size, self.size - position))
            reached = position
            at = 0
            while len(chunk) - at >= HEADER.size:
                header = read_header(chunk, at)
                yield position + at, header
                at += header.size
                reached = position + at
            if reached == position:
                raise Corrupt(f"{self.path(LOG)}: {self.size - position} bytes at {position} are no batch")
            position = reached

    def find(self, offset: int) -> Found | None:
        """The first batch that ends at `offset` or after it; None if there is none here. Raises as `log` does."""
        return self._seek(self.offset_index.position_before(offset), offset, self.size)

    def header_at(self, offset: int) -> BatchHeader | None:
        """The header of the first batch that ends at `offset` or after it, from the log file, proven or not."""
        position = self.offset_index.position_before(offset)
        return next((h for _, h in self.walk_unproven(position) if h.last_offset >= offset), None)

    def whole_batches(self, first: Found, size: int) -> tuple[int, int]:
        """Where the last batch ends that is whole within `size` bytes from `first`: (position, next offset).

        The first one is, at least.
        """
        end = first.position + size
        if end >= self.size:
            return self.size, self.end_offset
        begin = max(self.offset_index.position_at_or_before(end), first.position)
        cut = self._seek(begin, self.end_offset, end)
        if cut is None:
            return self.size, self.end_offset
        # The batch that is cut off begins where the last whole one ends; between their offsets there may be a gap.
        return cut.position, cut.base_offset

    def _seek(self, position: int, offset: int, end: int) -> Found | None:
        """The first batch, from the one at `position` on, that ends at `offset` or after it, or else past byte `end`."""
        unpack = OFFSETS.unpack_from
        while position < self.size:
            view = self.log.view(position, min(FIND_READ_SIZE, self.size - position))
            at = 0
            while len(view) - at >= OFFSETS.size:
                base_offset, batch_length, last_offset_delta = unpack(view, at)
                size = batch_length + LENGTH_AND_OFFSET_SIZE
                if size < HEADER.size or last_offset_delta < 0:
                    raise Corrupt(f"{self.path(LOG)}: what stands at byte {position + at} is no batch")
                if base_offset + last_offset_delta >= offset or position + at + size > end:
                    return Found(position + at, size, base_offset, base_offset + last_offset_delta)
                at += size
            if at == 0:
                raise Corrupt(f"{self.path(LOG)}: {self.size - position} bytes at {position} are no batch")
            position += at
        return None
