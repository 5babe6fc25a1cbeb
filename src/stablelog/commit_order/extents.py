"""Extents: the ranges of bytes in the log files that hold a transaction's batches, kept in bounded memory.

An extent is a range of bytes in a segment. A batch of ALONE_SIZE bytes or more has an extent of its own, so a reader
knows the end of the batch without reading the batch's header. Small batches that are close together share one extent:
an extent takes 32 bytes, which is too much for a batch of a hundred bytes. A reader of a shared extent reads the
headers in it and skips the batches of other producers. The limits GAP_SIZE_MAX and SHARED_SIZE_MAX bound this work.

The extents of an open transaction are in memory. When there are LONG_COUNT extents, they are moved to a file of the
transaction, the *spill file*, which is deleted when the transaction ends. While the spill file cannot be written, as on
a full disk, the extents stay in memory.

When a transaction commits, its extents are written into the commit index, together with the bytes that replace the
first bytes of each batch in a response. Computing these bytes takes a tenth of a microsecond for each extent. For a
transaction with LONG_COUNT extents or more, this would delay the commit for too long. So the extents of such a
transaction are written without these bytes, and each reader computes the bytes itself.

Format: docs/reference/formats.md, "Commit index".
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

# A batch of this size or more has an extent of its own. The row of the extent has a sixteenth of this size.
ALONE_SIZE = 512
# Greatest distance in bytes between two batches of a transaction that share an extent. A reader has to skip the batches
# of other producers between them.
GAP_SIZE_MAX = 512
SHARED_SIZE_MAX = 16 << 10  # greatest size of a shared extent; a reader may have to read all headers in it
# A transaction with at least this many extents is long: while it is open, its extents are in a spill file.
LONG_COUNT = 2048
# The value of `length` in an extent that may hold several batches, whose headers a reader must read.
SEVERAL = 0
# A row of the file of extents. A batch has another base offset and leader epoch in commit order than in the log. If a
# batch is alone in its extent, the first three fields of the row are the first 16 bytes that this batch has in a Fetch
# response (`batch.header.PREFIX`).
EXTENT = struct.Struct(
    ">"
    "q"  # base_offset: the first batch's base offset in commit order
    "i"  # length: the batch_length of the batch, or SEVERAL
    "i"  # leader_epoch: the leader epoch of the commit marker
    "q"  # segment: the base offset of the segment
    "I"  # begin: the byte of the log file at which the first batch begins
    "I"  # end: the byte of the log file at which the last batch ends, exclusive
)
COPY_SIZE = 1 << 20  # about how many bytes are copied from the spill file at a time, in whole extents
assert COPY_SIZE % EXTENT.size == 0


class BatchExtent(NamedTuple):
    """A range of bytes in the log file of a segment, with one or several batches of a transaction. `EXTENT` describes
    the fields.
    """

    base_offset: int
    length: int
    leader_epoch: int
    segment: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """The size of the extent, a range of bytes in a log file, in bytes."""
        return self.end - self.begin


class ExtentColumns(NamedTuple):
    """Extents, byte ranges of batches in the log file of one segment, in commit order, as columns: for each field a
    list, all of the same length.

    A response may contain thousands of small batches. A `BatchExtent` object for each would cost more time than the
    copy of the batch.

    Attributes:
        segment: the base offset of the segment.
        prefixes: the first 16 bytes of each batch in a response.
        lengths: `batch_length` of each batch; `SEVERAL` if the extent may have several batches.
        begins: the position of the first byte of each extent in the log file.
        ends: the position after the last byte of each extent.
    """

    segment: int
    prefixes: list[bytes]
    lengths: list[int]
    begins: list[int]
    ends: list[int]

    @property
    def size(self) -> int:
        """The size in bytes of all extents, ranges of bytes in a log file, together."""
        return sum(self.ends) - sum(self.begins)

    def part(self, first: int, end: int) -> "ExtentColumns":
        """Return the extents (byte ranges of batches) with the numbers [first, end), as columns too."""
        return ExtentColumns(
            self.segment,
            self.prefixes[first:end],
            self.lengths[first:end],
            self.begins[first:end],
            self.ends[first:end],
        )


class Extents:
    """The extents of one open transaction: the byte ranges of its batches.

    The positions of its records in commit order are unknown before the commit. Until then, positions in the extents
    count from 0, and the leader epoch is 0.

    Args:
        first_offset: the first offset of the transaction in the log.
        make_spill: creates the spill file, the temporary file for the extents of a transaction with many of them.

    Attributes:
        first_offset: the first offset of the transaction in the log.
        count: the number of extents.
        record_count: how many positions in commit order the batches of the transaction take so far.
    """

    def __init__(self, first_offset: int, make_spill: Callable[[], File]) -> None:
        self.first_offset = first_offset
        self._make_spill = make_spill
        self._spill: File | None = None
        self._kept = bytearray()
        self._last: BatchExtent | None = None
        self.count = 0
        self.record_count = 0

    def add_batch(self, segment: int, position: int, size: int, record_count: int) -> None:
        """Add a batch of the transaction to its extents (byte ranges of batches). The caller passes the batches in the
        order of the log.

        Args:
            segment: the base offset of the batch's segment.
            position: the position of the batch in the log file.
            size: the size of the batch in bytes.
            record_count: how many offsets the batch takes.
        """
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
            self._last = BatchExtent(
                self.record_count, size - LENGTH_AND_OFFSET_SIZE, 0, segment, position, end
            )
            self.count += 1
        self.record_count += record_count

    def _keep_last(self) -> None:
        if self._last is None:
            return
        self._kept += EXTENT.pack(*self._last)
        self._last = None
        if len(self._kept) >= LONG_COUNT * EXTENT.size:
            with contextlib.suppress(DiskError):  # if the write fails, the extents stay in memory
                if self._spill is None:
                    self._spill = self._make_spill()
                # Pass a copy of the bytes, not a view of `_kept`. If the write fails, the traceback of the error may
                # keep the view alive, and a bytearray cannot grow while a view of it exists.
                self._spill.append(bytes(self._kept))
                self._kept = bytearray()

    def rows(self, start: int, leader_epoch: int) -> Iterator[Buffer]:
        """Yield all extents (byte ranges of the transaction's batches), encoded as in the commit index (`EXTENT`), the
        list of the committed transactions and their extents, in one or more buffers.

        For a transaction with LONG_COUNT extents or more, the arguments are not used, because encoding all its extents
        again would take too long. Its positions then count from 0, and each reader adds the values of the arguments
        itself.

        Args:
            start: the position of the transaction's first record in commit order.
            leader_epoch: the leader epoch of the commit marker.
        """
        self._keep_last()
        if self.count < LONG_COUNT:
            yield with_positions(self._kept, start, leader_epoch)
            return
        if self._spill is not None:
            for position in range(0, self._spill.size, COPY_SIZE):
                yield self._spill.view(position, min(COPY_SIZE, self._spill.size - position))
        yield self._kept

    def close(self) -> None:
        """Close the spill file, the temporary file with the byte ranges of the batches of a long transaction, after the
        transaction has ended.
        """
        if self._spill is not None:
            self._spill.close()


def with_positions(rows: Buffer, start: int, leader_epoch: int) -> bytes:
    """Return a copy of encoded extents (byte ranges of a transaction's batches), with the positions and the leader
    epoch that are known since the commit of their transaction.

    Args:
        rows: the encoded extents. Their positions count from 0, because they were encoded before the commit.
        start: the position of the transaction's first record in commit order, which is added to each position.
        leader_epoch: the leader epoch of the commit marker, which replaces that of each extent.
    """
    longs = array("q", bytes(rows))
    longs[0::4] = _big_endian(
        array("q", [start + before_count for before_count in column("q", rows, 0, EXTENT.size)])
    )
    ints = array("i", longs.tobytes())
    ints[3::8] = _big_endian(array("i", [leader_epoch])) * (len(rows) // EXTENT.size)
    return ints.tobytes()


def column(typecode: str, rows: Buffer, place: int, row_size: int) -> "array[int]":
    """Return one field of all rows of a file, as an array of numbers in the machine's byte order. In the rows, the
    numbers have big-endian byte order.

    Args:
        typecode: the type of the numbers, as in `array`.
        rows: the bytes of the rows.
        place: the position of the field in a row, counted in values of this type.
        row_size: the size of a row in bytes.
    """
    numbers = array(typecode, bytes(rows))
    return _big_endian(numbers[place :: row_size // numbers.itemsize])


def _big_endian(numbers: "array[int]") -> "array[int]":
    """Convert an array from the machine's byte order to big-endian, or back: both are the same swap of bytes. The array
    itself is changed, and returned.
    """
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
