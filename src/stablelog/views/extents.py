"""Where the batches of a transaction stand: byte runs of segments, in bounded memory however long it is.

A batch is a run of its own, so that a reader need not look at it to know where it ends; but small ones that lie
nearly side by side share one: rows of their own would be as large as they are. What lies between them and belongs to
others is passed over by its producer id, and a run ends before a reader who wants its end looks at many batches.
Beyond so many runs they go to a file of their own, which lives no longer than the transaction is open, and are copied
into the commit index when it commits.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stablelog.env.disk import Buffer, File

ALONE_SIZE = 512  # a batch of this size has a run of its own, which is a twentieth of it
GAP_SIZE_MAX = 512  # between batches that share one: a few batches of others to look at
RUN_SIZE_MAX = 16 << 10  # a reader in the middle of a transaction passes over no more than this
EXTENTS_KEPT = 2048  # in memory, for each open transaction
# Set in `sized` where there is more than one batch of the transaction, which has to be looked at.
SHARED = 1 << 31
EXTENT = struct.Struct(
    ">"
    "q"  # base offset of the segment
    "I"  # position of the first batch in its log file
    "I"  # sized: bytes up to the end of the last batch; and SHARED
    "q"  # how many of the transaction's records stand before it
)
COPY_SIZE = (1 << 20) // EXTENT.size * EXTENT.size  # whole extents


class Extent(NamedTuple):
    """A byte run of a segment's log. `before_count` is how many of the transaction's records stand before it."""

    segment: int
    position: int
    sized: int
    before_count: int

    @property
    def size(self) -> int:
        """Bytes up to the end of the last batch."""
        return self.sized & ~SHARED


class Extents:
    """The extents of one open transaction.

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
        last = self._last
        if (
            last is not None
            and last.segment == segment
            and size < ALONE_SIZE
            and (last.sized < ALONE_SIZE or last.sized & SHARED)
            and position - (last.position + last.size) <= GAP_SIZE_MAX
            and position + size - last.position <= RUN_SIZE_MAX
        ):
            self._last = last._replace(sized=position + size - last.position | SHARED)
        else:
            self._keep_last()
            self._last = Extent(segment, position, size, self.record_count)
            self.count += 1
        self.record_count += record_count

    def _keep_last(self) -> None:
        if self._last is None:
            return
        self._kept += EXTENT.pack(*self._last)
        self._last = None
        if len(self._kept) >= EXTENTS_KEPT * EXTENT.size:
            if self._spill is None:
                self._spill = self._make_spill()
            self._spill.append(self._kept)
            self._kept = bytearray()

    def rows(self) -> Iterator[Buffer]:
        """All extents, as they stand in the commit index, in pieces."""
        self._keep_last()
        if self._spill is not None:
            for position in range(0, self._spill.size, COPY_SIZE):
                yield self._spill.view(position, min(COPY_SIZE, self._spill.size - position))
        if self._kept:
            yield self._kept

    def close(self) -> None:
        """The transaction has ended, and its extents are where they belong."""
        if self._spill is not None:
            self._spill.close()
