"""Extents: the places of a transaction's batches in the log files, in bounded memory.

An extent is a range of bytes in a segment. A batch of ALONE_SIZE bytes or more has an extent of its own, so a reader
knows its end without reading its header. Small batches that are close together share one extent, because an extent for
each of them would be as large as the batches. A reader of a shared extent reads the headers in it and skips the batches
of other producers. The limits GAP_SIZE_MAX and SHARED_SIZE_MAX bound this work.

An open transaction with LONG_COUNT extents moves them to a file of its own, the *spill file*, which is deleted when the
transaction ends. While the disk does not accept them, they stay in memory.

The commit writes the extents into the commit index, together with the bytes that replace the first bytes of each batch
in a response. These bytes take a tenth of a microsecond for each extent. For a long transaction the readers compute
them, because the commit would take too long.

Format: docs/formats.md, "Commit index".
"""

import contextlib
import struct
import sys
from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stablelog.batch.header import LENGTH_AND_OFFSET_SIZE
from stablelog.env.disk import Buffer, File
from stablelog.errors import DiskError

ALONE_SIZE = 512  # from this size on, a batch has an extent of its own, which is a sixteenth of its size
GAP_SIZE_MAX = 512  # between two batches that share an extent: the headers of a few foreign batches
SHARED_SIZE_MAX = (
    16 << 10
)  # of a shared extent: a reader in the middle of a transaction skips at most this much
LONG_COUNT = 2048  # a transaction with this many extents is long: they leave memory while it is open
SEVERAL = 0  # the length of an extent that may hold several batches, whose headers a reader has to read
# The first three fields replace the first 16 bytes of a batch that is alone in its extent: see `batch.header.PREFIX`.
EXTENT = struct.Struct(
    ">"
    "q"  # base_offset: the position of the first batch in commit order
    "i"  # length: batch_length of the batch, or SEVERAL
    "i"  # leader_epoch: of the marker
    "q"  # segment: base offset of the segment
    "I"  # begin: byte of the first batch in the log file
    "I"  # end: byte after the last batch
)
COPY_SIZE = 1 << 20  # bytes of whole extents that are copied from the spill file at a time
assert COPY_SIZE % EXTENT.size == 0


class Extent(NamedTuple):
    """A range of bytes in the log file of a segment. `EXTENT` describes the fields."""

    base_offset: int
    length: int
    leader_epoch: int
    segment: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.begin


class ExtentColumns(NamedTuple):
    """Extents in the log file of one segment, in commit order. All columns have the same length.

    An `Extent` object for each of thousands of extents would cost more than the copy of its batch.

    Attributes:
        segment: the base offset of the segment.
        prefixes: the first 16 bytes of each batch in a response.
        lengths: `batch_length` of each batch; `SEVERAL` if the extent may hold several batches.
        begins: the first byte of each extent.
        ends: the byte after each extent.
    """

    segment: int
    prefixes: list[bytes]
    lengths: list[int]
    begins: list[int]
    ends: list[int]

    @property
    def size(self) -> int:
        """Bytes of all extents."""
        return sum(self.ends) - sum(self.begins)

    def part(self, first: int, end: int) -> "ExtentColumns":
        """Return the extents from number `first` to before number `end`."""
        return ExtentColumns(
            self.segment,
            self.prefixes[first:end],
            self.lengths[first:end],
            self.begins[first:end],
            self.ends[first:end],
        )


class Extents:
    """The extents of one open transaction. Their positions count from 0, and their leader epoch is 0.

    Attributes:
        count: the number of extents.
        record_count: how many positions the batches of the transaction take so far.
    """

    def __init__(self, make_spill: Callable[[], File]) -> None:
        self._make_spill = make_spill
        self._spill: File | None = None
        self._kept = bytearray()
        self._last: Extent | None = None
        self.count = 0
        self.record_count = 0

    def add(self, segment: int, position: int, size: int, record_count: int) -> None:
        """Add a batch of the transaction. It is behind all batches that were added before."""
        last, end = self._last, position + size
        if (
            last is not None
            and last.segment == segment
            and size < ALONE_SIZE
            and (last.size < ALONE_SIZE or last.length == SEVERAL)
            and position - last.end <= GAP_SIZE_MAX
            and end - last.begin <= SHARED_SIZE_MAX
        ):
            self._last = last._replace(length=SEVERAL, end=end)
        else:
            self._keep_last()
            length = size - LENGTH_AND_OFFSET_SIZE
            self._last = Extent(self.record_count, length, 0, segment, position, end)
            self.count += 1
        self.record_count += record_count

    def _keep_last(self) -> None:
        if self._last is None:
            return
        self._kept += EXTENT.pack(*self._last)
        self._last = None
        if len(self._kept) >= LONG_COUNT * EXTENT.size:
            with contextlib.suppress(DiskError):  # the extents stay in memory until the disk accepts them
                if self._spill is None:
                    self._spill = self._make_spill()
                # A copy: an error that a caller keeps would hold a buffer of the extents, which could then not grow.
                self._spill.append(bytes(self._kept))
                self._kept = bytearray()

    def rows(self, start: int, leader_epoch: int) -> Iterator[Buffer]:
        """Yield all extents as rows for the commit index, in pieces.

        Args:
            start: the position of the transaction's first record.
            leader_epoch: the leader epoch of the marker.
        """
        self._keep_last()
        if self.count < LONG_COUNT:
            yield placed(self._kept, start, leader_epoch)
            return
        if self._spill is not None:
            for position in range(0, self._spill.size, COPY_SIZE):
                yield self._spill.view(position, min(COPY_SIZE, self._spill.size - position))
        yield self._kept

    def close(self) -> None:
        """Close the spill file, after the transaction has ended."""
        if self._spill is not None:
            self._spill.close()


def placed(rows: Buffer, start: int, leader_epoch: int) -> bytes:
    """Return rows of extents with the positions of a transaction that starts at `start`, and with its leader epoch."""
    base_offsets = array("q", [start + before_count for before_count in column("q", rows, 0, EXTENT.size)])
    longs = array("q", bytes(rows))
    longs[0::4] = _big_endian(base_offsets)
    ints = array("i", longs.tobytes())
    ints[3::8] = _big_endian(array("i", [leader_epoch])) * (len(rows) // EXTENT.size)
    return ints.tobytes()


def column(typecode: str, rows: Buffer, place: int, row_size: int) -> "array[int]":
    """Return a column of big-endian numbers.

    Args:
        typecode: the type of the numbers, as in `array`.
        rows: the rows.
        place: the place of the column in a row, in numbers of this type.
        row_size: bytes of a row.
    """
    numbers = array(typecode, bytes(rows))
    return _big_endian(numbers[place :: row_size // numbers.itemsize])


def _big_endian(numbers: "array[int]") -> "array[int]":
    """Convert numbers between the machine's byte order and big-endian."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
