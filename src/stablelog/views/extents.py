"""Where the batches of a transaction stand: byte runs of segments, in bounded memory however long it is.

A batch is a run of its own, so that a reader need not look at it to know where it ends; but small ones that lie
nearly side by side share one: rows of their own would be as large as they are. What lies between them and belongs to
others is passed over by its producer id, and a run ends before a reader who wants its end looks at many batches.
Beyond so many runs they go to a file of their own, which lives no longer than the transaction is open. While the disk
does not take them, they stay in memory.

When it commits they go to the commit index, and say there what its readers get in place of each batch's first bytes.
To work that out takes a tenth of a microsecond for each: of a long transaction it is left to those who read it.
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

ALONE_SIZE = 512  # a batch of this size has a run of its own, which is a sixteenth of it
GAP_SIZE_MAX = 512  # between batches that share one: a few batches of others to look at
RUN_SIZE_MAX = 16 << 10  # a reader in the middle of a transaction passes over no more than this
LONG_COUNT = 2048  # a transaction of so many is long: no more are kept in memory as long as it is open
SEVERAL = 0  # stands for the length where there may be more than one batch, which have to be looked at
# The first three fields are what a reader gets in place of the first bytes of a batch that stands alone: `PREFIX`.
EXTENT = struct.Struct(
    ">"
    "q"  # base_offset: of the first batch, in the view
    "i"  # length: of the batch, as in its header; SEVERAL
    "i"  # leader_epoch: of the marker
    "q"  # segment: its base offset
    "I"  # begin: position of the first batch in its log file
    "I"  # end: position behind the last batch
)
COPY_SIZE = 1 << 20  # of whole extents
assert COPY_SIZE % EXTENT.size == 0


class Extent(NamedTuple):
    """A byte run of a segment's log. See `EXTENT` for the fields."""

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


class Extents:
    """The extents of one open transaction. Where it will stand is not known: it begins at 0, in epoch 0.

    Attributes:
        count: how many there are.
        record_count: of the transaction so far.
    """

    def __init__(self, make_spill: Callable[[], File]) -> None:
        self._make_spill = make_spill
        self._spill: File | None = None
        self._kept = bytearray()
        self._last: Extent | None = None
        self.count = 0
        self.record_count = 0

    def add(self, segment: int, position: int, size: int, record_count: int) -> None:
        """A batch of the transaction, behind all that were added."""
        last, end = self._last, position + size
        if (
            last is not None
            and last.segment == segment
            and size < ALONE_SIZE
            and (last.size < ALONE_SIZE or last.length == SEVERAL)
            and position - last.end <= GAP_SIZE_MAX
            and end - last.begin <= RUN_SIZE_MAX
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
            with contextlib.suppress(DiskError):  # they are kept in memory until the disk takes them
                if self._spill is None:
                    self._spill = self._make_spill()
                self._spill.append(bytes(self._kept))  # an error that is kept must not keep it from growing
                self._kept = bytearray()

    def rows(self, start: int, leader_epoch: int) -> Iterator[Buffer]:
        """All extents, as they stand in the commit index, in pieces.

        Args:
            start: the position of the transaction's first record.
            leader_epoch: of its marker.
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
        """The transaction has ended, and its extents are where they belong."""
        if self._spill is not None:
            self._spill.close()


def placed(rows: Buffer, start: int, leader_epoch: int) -> bytes:
    """Rows of a transaction that begins at this position, with what was not known before its commit."""
    base_offsets = array("q", [start + before_count for before_count in column("q", rows, 0, EXTENT.size)])
    longs = array("q", bytes(rows))
    longs[0::4] = _big_endian(base_offsets)
    ints = array("i", longs.tobytes())
    ints[3::8] = _big_endian(array("i", [leader_epoch])) * (len(rows) // EXTENT.size)
    return ints.tobytes()


def column(typecode: str, rows: Buffer, place: int, row_size: int) -> "array[int]":
    """Column of big-endian numbers. `place` counts numbers of this size from the beginning of a row."""
    numbers = array(typecode, bytes(rows))
    return _big_endian(numbers[place :: row_size // numbers.itemsize])


def _big_endian(numbers: "array[int]") -> "array[int]":
    """Numbers in the other order of bytes, if the machine's is not that of the rows."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
