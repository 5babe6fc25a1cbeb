"""The commit index of one segment: the transactions whose commit marker lies in it, and the records outside of any.

An entry stands for a slice of the view: a committed transaction, or a run of batches outside transactions. Entries
are in the order of the view, and say in which extents of the log the slice is found. The index is a cache: all of it
is made from the log, and made anew where a file is missing or is not the one that its summary tells of. What cannot be
written, as on a full disk, stays in memory and is served from there.

Three files, all of our own: `.commitindex` (entries), `.commitextents` (extents), `.commitsummary` (sealed: sizes,
CRCs, and which transactions were open at the end, so that the walk can go on from there).

Format: docs/formats.md, "Commit index".  Source: the DistributedLog paper, "commit record plus local sequence number".
"""

import contextlib
import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from stablelog.env.disk import Buffer, Disk, File
from stablelog.errors import Corrupt, DiskError, refuse_newer
from stablelog.log.names import COMMIT_SUFFIXES
from stablelog.views.extents import EXTENT, LONG_COUNT, Extent, column, placed

ENTRIES_SUFFIX, EXTENTS_SUFFIX, SUMMARY_SUFFIX = COMMIT_SUFFIXES
NO_PRODUCER = -1  # of a run of batches outside transactions
NOTHING = 2**63 - 1  # greater than any offset
TAIL_SIZE = 64 << 10  # bytes of new rows that are kept in memory before they go to the file
ENTRY = struct.Struct(
    ">"
    "q"  # start: of the slice in the view
    "q"  # record_count: of positions that it takes
    "q"  # latest_ms: the latest commit time of this entry and all before it in the segment
    "q"  # first_offset: of the transaction's first batch, where it was appended
    "q"  # producer_id; -1 outside transactions
    "q"  # latest_sequence: the greatest commit sequence of this entry and all before it in the partition; -1 none
    "q"  # extent_first: the place of its first extent
    "i"  # extent_count
    "i"  # leader_epoch: of the marker
)
SUMMARY = struct.Struct(
    ">"
    "h"  # version: 3
    "q"  # base_offset: of the segment
    "q"  # end_offset: of the segment
    "I"  # log_crc: of the segment's summary
    "q"  # view_end: where the last slice of the view ends, up to here
    "q"  # least_first_offset: over the transactions; 2^63-1 none
    "q"  # latest_sequence: the greatest commit sequence up to the segment's end; -1 none
    "q"  # latest_ms: the latest commit time in the segment; -1 none
    "q"  # entries_size
    "I"  # entries_crc
    "q"  # extents_size
    "I"  # extents_crc
    "i"  # open_count: transactions that are open at the end; (producer id, first offset) of each follow
)
OPEN = struct.Struct(">qq")
VERSION = 3
CRC = struct.Struct(">I")


class ExtentColumns(NamedTuple):
    """Extents side by side in the index. See `EXTENT` for the columns.

    Attributes:
        prefixes: the first sixteen bytes of a batch that stands alone, as a reader gets them.
    """

    segments: "array[int]"
    prefixes: tuple[bytes, ...]
    lengths: list[int]
    begins: list[int]
    ends: list[int]


class EarlierForm(Corrupt):
    """A whole index of an earlier version. Nothing is wrong with its log: it is made anew when the partition is opened."""


class Entry(NamedTuple):
    """A slice of the view: [start, start + record_count). See `ENTRY` for the fields."""

    start: int
    record_count: int
    latest_ms: int
    first_offset: int
    producer_id: int
    latest_sequence: int
    extent_first: int
    extent_count: int
    leader_epoch: int

    @property
    def end(self) -> int:
        """The position behind it, exclusive."""
        return self.start + self.record_count

    @property
    def is_long(self) -> bool:
        """Whether its extents are those of a transaction that begins at 0: they have to be placed."""
        return self.extent_count >= LONG_COUNT


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """What a sealed commit index holds. `open` are (producer id, first offset)."""

    base_offset: int
    end_offset: int
    log_crc: int
    view_end: int
    least_first_offset: int
    latest_sequence: int
    latest_ms: int
    entries_size: int
    entries_crc: int
    extents_size: int
    extents_crc: int
    open: tuple[tuple[int, int], ...]

    def encode(self) -> bytes:
        """The file's content."""
        head = SUMMARY.pack(
            VERSION,
            self.base_offset,
            self.end_offset,
            self.log_crc,
            self.view_end,
            self.least_first_offset,
            self.latest_sequence,
            self.latest_ms,
            self.entries_size,
            self.entries_crc,
            self.extents_size,
            self.extents_crc,
            len(self.open),
        )
        content = head + b"".join(OPEN.pack(*one) for one in self.open)
        return content + CRC.pack(crc32c(content))

    @classmethod
    def decode(cls, content: bytes) -> "CommitSummary":
        """Read a file's content.

        Raises:
            EarlierForm: it is one of an earlier version.
            NewerFormat: a later release has written it.
            Corrupt: it is none.
        """
        if (
            len(content) < SUMMARY.size + CRC.size
            or crc32c(content[: -CRC.size]) != CRC.unpack(content[-CRC.size :])[0]
        ):
            raise Corrupt("a commit summary that is damaged")
        fields = SUMMARY.unpack_from(content)
        version, open_count = fields[0], fields[-1]
        refuse_newer("a commit summary", version, VERSION)
        if 0 < version < VERSION:
            raise EarlierForm(f"a commit summary of version {version}")
        if version != VERSION or len(content) != SUMMARY.size + open_count * OPEN.size + CRC.size:
            raise Corrupt(f"a commit summary of version {version} with {len(content)} bytes")
        opened = tuple(OPEN.iter_unpack(content[SUMMARY.size : -CRC.size]))
        return cls(*[*fields[1:-1], opened])


class Rows:
    """Rows of one size in a file that grows, the newest of them in memory.

    Args:
        disk: where the file lies.
        path: its name.
        row: of one row.
    """

    def __init__(self, disk: Disk, path: Path, row: struct.Struct) -> None:
        self._disk = disk
        self._path = path
        self._file: File | None = None
        self._is_broken = False  # a failed write of the file could not be undone: it takes no more
        self._row = row
        self._tail = bytearray()
        self.crc = 0

    def open(self) -> None:
        """Open the file with the rows that are in it."""
        self._file = self._disk.open(self._path)

    def make(self) -> None:
        """Open the file for new rows, with nothing in it, whatever was there.

        Raises:
            DiskError: it cannot be opened. New rows are kept in memory, and it is tried again when they are written.
        """
        self._file = self._cut(0, create=True)

    def _cut(self, size: int, *, create: bool = False) -> File:
        file = self._disk.open(self._path, create=create)
        try:
            file.truncate(size)
        except DiskError:
            file.close()
            raise
        return file

    @property
    def _written(self) -> int:
        """Bytes in the file."""
        return 0 if self._file is None else self._file.size

    @property
    def size(self) -> int:
        """Bytes, those in memory included."""
        return self._written + len(self._tail)

    def __len__(self) -> int:
        return self.size // self._row.size

    def append(self, rows: Buffer) -> None:
        """Add rows. They stay in memory as long as the file cannot be written."""
        assert len(rows) % self._row.size == 0, "a row stands in the file or in memory as a whole"
        self._tail += rows
        self.crc = crc32c(rows, self.crc)
        if len(self._tail) >= TAIL_SIZE:
            with contextlib.suppress(DiskError):
                self.write()

    def write(self) -> None:
        """Bring the file up to date.

        Raises:
            DiskError: it is behind, and the rest stays in memory.
        """
        if self._file is None:
            self.make()
        assert self._file is not None
        if self._is_broken:
            fresh = self._cut(self._file.size)
            self._file.close()
            self._file, self._is_broken = fresh, False
        if self._tail:
            try:
                self._file.append(
                    bytes(self._tail)
                )  # an error that is kept must not keep the tail from growing
            except DiskError as error:
                self._is_broken = not error.undone
                raise
            self._tail = bytearray()

    def __getitem__(self, place: int) -> tuple[int, ...]:
        at = place * self._row.size
        if at >= self._written:
            return self._row.unpack_from(self._tail, at - self._written)
        return self._row.unpack(self._view(at, self._row.size))

    def _view(self, at: int, size: int) -> memoryview:
        assert self._file is not None
        return self._file.view(at, size)

    def between(self, first: int, end: int) -> Buffer:
        """The bytes of the rows from one place up to another."""
        begin, end = first * self._row.size, end * self._row.size
        written = self._written
        if end <= written:
            return self._view(begin, end - begin)
        new = self._tail[max(begin - written, 0) : end - written]
        return new if begin >= written else b"".join((self._view(begin, written - begin), new))

    def close(self) -> None:
        """Give the descriptor back."""
        if self._file is not None:
            self._file.close()


class CommitIndex:
    """The commit index of one segment, growing or sealed.

    Attributes:
        base_offset: of the segment.
        view_end: where the last slice of the view ends that is in it or before it.
        least_first_offset: over its transactions.
        latest_sequence: the greatest commit sequence up to here in the partition; -1 none.
        latest_ms: the latest commit time in it; -1 none.
        sealed: the segment is in it as a whole.
        is_written: it is sealed, and all of it is in its files.
    """

    def __init__(self, disk: Disk, directory: Path, base_offset: int) -> None:
        self._disk = disk
        self._directory = directory
        self.base_offset = base_offset
        self.view_end = base_offset
        self.least_first_offset = NOTHING
        self.latest_sequence = -1
        self.latest_ms = -1
        self.sealed = False
        self.is_written = False
        self._entries: Rows | None = None
        self._extents: Rows | None = None
        self.summary: CommitSummary | None = None

    def path(self, suffix: str) -> Path:
        """The file of this kind."""
        return self._directory / f"{self.base_offset:020d}{suffix}"

    # -- growing -----------------------------------------------------------------------------------------------

    def create(self, before: "CommitIndex | None") -> None:
        """Begin with nothing, whatever files there are.

        Args:
            before: the index of the segment before this one.
        """
        if before is not None:
            self.latest_sequence, self.view_end = before.latest_sequence, before.view_end
        self._entries = Rows(self._disk, self.path(ENTRIES_SUFFIX), ENTRY)
        self._extents = Rows(self._disk, self.path(EXTENTS_SUFFIX), EXTENT)
        with contextlib.suppress(DiskError):  # all of it stays in memory until the disk takes it
            self._disk.remove(self.path(SUMMARY_SUFFIX))
            self._entries.make()
            self._extents.make()

    def add(
        self,
        start: int,
        record_count: int,
        *,
        time_ms: int,
        first_offset: int,
        producer_id: int,
        commit_sequence: int,
        leader_epoch: int,
        extents: Iterable[Buffer],
    ) -> None:
        """Add a slice at the end of the view."""
        assert start >= self.view_end
        assert not self.sealed
        extent_first = len(self.extents)
        for rows in extents:
            self.extents.append(rows)
        self.latest_ms = max(self.latest_ms, time_ms)
        self.latest_sequence = max(self.latest_sequence, commit_sequence)
        entry = Entry(
            start,
            record_count,
            self.latest_ms,
            first_offset,
            producer_id,
            self.latest_sequence,
            extent_first,
            len(self.extents) - extent_first,
            leader_epoch,
        )
        self.entries.append(ENTRY.pack(*entry))
        self.view_end = entry.end
        if producer_id != NO_PRODUCER:
            self.least_first_offset = min(self.least_first_offset, first_offset)

    def seal(self, end_offset: int, log_crc: int, opened: Sequence[tuple[int, int]]) -> None:
        """The segment is in it as a whole, and these transactions were open at its end.

        Args:
            end_offset: of the segment.
            log_crc: of the segment's summary, by which the index is known to be its own.
            opened: (producer id, first offset).
        """
        self.summary = CommitSummary(
            self.base_offset,
            end_offset,
            log_crc,
            self.view_end,
            self.least_first_offset,
            self.latest_sequence,
            self.latest_ms,
            self.entries.size,
            self.entries.crc,
            self.extents.size,
            self.extents.crc,
            tuple(opened),
        )
        self.sealed = True

    def write(self) -> None:
        """Write a sealed index to its files, and close them. Until then it is read from memory.

        Raises:
            DiskError: a part is still in memory only.
        """
        assert self.summary is not None
        self.entries.write()
        self.extents.write()
        # Nothing is synced: what a crash takes or tears is told by the CRCs, and made anew.
        self._disk.write_unsynced(self.path(SUMMARY_SUFFIX), self.summary.encode())
        self.is_written = True
        self.give_back()

    # -- sealed ------------------------------------------------------------------------------------------------

    def open_sealed(self, end_offset: int, log_crc: int) -> bool:
        """Take the files of a segment with this end and CRC. Returns False if they have to be made anew."""
        try:
            summary = CommitSummary.decode(self._disk.read_bytes(self.path(SUMMARY_SUFFIX)))
            known = (summary.base_offset, summary.end_offset, summary.log_crc)
            if known != (self.base_offset, end_offset, log_crc):
                return False
            for suffix, size, crc in (
                (ENTRIES_SUFFIX, summary.entries_size, summary.entries_crc),
                (EXTENTS_SUFFIX, summary.extents_size, summary.extents_crc),
            ):
                content = self._disk.read_bytes(self.path(suffix))
                if len(content) != size or crc32c(content) != crc:
                    return False
        except (FileNotFoundError, Corrupt):
            return False
        self.summary = summary
        self.view_end = summary.view_end
        self.least_first_offset = summary.least_first_offset
        self.latest_sequence, self.latest_ms = summary.latest_sequence, summary.latest_ms
        self.sealed = self.is_written = True
        return True

    def give_back(self) -> None:
        """Close the files of an index that is written; they are opened again when it is read."""
        for rows in (self._entries, self._extents):
            if rows is not None:
                rows.close()
        self._entries = self._extents = None

    def close(self) -> None:
        """Close every file."""
        self.give_back()

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def entries(self) -> Rows:
        """The entries, in the order of the view."""
        if self._entries is None:
            self._entries = self._opened(ENTRIES_SUFFIX, ENTRY)
        return self._entries

    @property
    def extents(self) -> Rows:
        """The extents of all entries."""
        if self._extents is None:
            self._extents = self._opened(EXTENTS_SUFFIX, EXTENT)
        return self._extents

    def _opened(self, suffix: str, row: struct.Struct) -> Rows:
        rows = Rows(self._disk, self.path(suffix), row)
        rows.open()
        return rows

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, place: int) -> Entry:
        return Entry(*self.entries[place])

    def entries_between(self, first: int, end: int) -> tuple[list[int], list[int], list[int], list[int]]:
        """The slices from one place up to another, as columns: first_offset, producer_id, extent_first, extent_count.

        An `Entry` of each would cost more than all that is done with it.
        """
        rows = self.entries.between(first, end)
        return (
            column("q", rows, 3, ENTRY.size).tolist(),
            column("q", rows, 4, ENTRY.size).tolist(),
            column("q", rows, 6, ENTRY.size).tolist(),
            column("i", rows, 14, ENTRY.size).tolist(),
        )

    def extent(self, place: int) -> Extent:
        """One extent."""
        return Extent(*self.extents[place])

    def extents_between(self, first: int, end: int, long: Entry | None = None) -> ExtentColumns:
        """The extents from one place up to another, as columns: a tuple of each would cost more than its batch.

        Args:
            first: the first place.
            end: behind the last.
            long: the long transaction whose extents they are, if they are of one.
        """
        rows = self.extents.between(first, end)
        if long is not None:
            rows = placed(rows, long.start, long.leader_epoch)
        return ExtentColumns(
            column("q", rows, 2, EXTENT.size),
            struct.unpack("16s16x" * (end - first), rows),
            column("i", rows, 2, EXTENT.size).tolist(),
            column("I", rows, 6, EXTENT.size).tolist(),
            column("I", rows, 7, EXTENT.size).tolist(),
        )

    def place_of(self, position: int) -> int:
        """The place of the first slice that ends behind this position of the view; `len` if there is none."""
        return self._first(lambda entry: entry[0] + entry[1] > position)

    def place_at_time(self, time_ms: int) -> int:
        """The place of the first slice that was committed at this time or later; `len` if there is none."""
        return self._first(lambda entry: entry[2] >= time_ms)

    def place_after(self, commit_sequence: int) -> int:
        """The place of the first transaction that was committed after this one; `len` if there is none.

        Those of one transaction group stand in a partition in the order of their commit sequences.
        """
        return self._first(lambda entry: entry[5] > commit_sequence)

    def _first(self, holds: Callable[[tuple[int, ...]], bool]) -> int:
        entries = self.entries
        low, high = 0, len(entries)
        while low < high:
            middle = (low + high) // 2
            if holds(entries[middle]):
                high = middle
            else:
                low = middle + 1
        return low

    def extent_with(self, entry: Entry, position: int) -> int:
        """The place of the slice's extent in which the record stands that has this position of the view."""
        low, high = entry.extent_first, entry.extent_first + entry.extent_count
        base_offset = position - entry.start if entry.is_long else position
        while high - low > 1:
            middle = (low + high) // 2
            if self.extents[middle][0] <= base_offset:
                low = middle
            else:
                high = middle
        return low
