"""The list of stored segments, oldest first: finds the segment of an offset, and the segments whose transaction indexes
a range of offsets needs.

The search for aborted transactions uses two numbers of each segment. The *stable offset* is the first offset of the
oldest transaction that was open at the segment's end; it never decreases from segment to segment. The *least aborted
offset* is the least first offset of the transactions whose abort markers are in the segment.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Generic, Protocol, TypeVar

from stablelog.log.indexes.minima import Minima


class SegmentRow(Protocol):
    """The facts about a segment that are known before any of its files is read, such as from a manifest (the list of
    the segments in the object store) or a summary.
    """

    @property
    def base_offset(self) -> int:
        """The first offset of the segment."""

    @property
    def end_offset(self) -> int:
        """The end of the segment's offsets, exclusive; a greater offset if the end is unknown."""

    @property
    def stable_offset(self) -> int | None:
        """The stable offset at the end of the segment: all transactions that began before it have ended by then. None
        if unknown.
        """

    @property
    def least_aborted_offset(self) -> int | None:
        """The least first offset of the transactions whose abort markers are in the segment, or a lower bound; None if
        there are none.
        """


Row = TypeVar("Row", bound=SegmentRow)


class SegmentRows(Generic[Row]):
    """The list of the segments of one partition, oldest first, with searches by offset.

    Args:
        rows: the segments, without overlaps.
        grows: whether the last segment is growing. Its offsets change with each append, so each search reads them
            again.

    Attributes:
        bases: the base offsets of the segments. Other modules only read them.
    """

    # A broker has one of these objects for each partition, and reads thousands of them in one callback.
    __slots__ = (
        "_dropped_count",
        "_grows",
        "_indexed_count",
        "_minima",
        "_numbers",
        "_row",
        "_stable",
        "_stable_offset",
        "bases",
    )

    def __init__(self, rows: Iterable[Row], *, grows: bool = False) -> None:
        self._row = list(rows)
        self.bases = [row.base_offset for row in self._row]
        self._grows = grows
        # How many segments were dropped from the beginning. The index of abort markers numbers the segments as if these
        # were still there.
        self._dropped_count = 0
        # The index of the segments that may have abort markers; those without abort markers are left out.
        self._indexed_count = 0  # how many segments were added to the index
        # The stable offset at the end of the last of these. If it is unknown, that of the segment before counts.
        self._stable_offset = 0
        self._numbers = array("q")
        self._stable = array("q")  # for each number, the stable offset at the begin of the segment
        self._minima = Minima()

    def __len__(self) -> int:
        return len(self._row)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._row)

    def __getitem__(self, place: int) -> Row:
        return self._row[place]

    def place_of(self, offset: int) -> int:
        """Return the index of the segment that contains an offset; 0 if the offset is before all segments."""
        return max(bisect_right(self.bases, offset) - 1, 0)

    def place_behind(self, offset: int) -> int:
        """Return the index of the first segment that ends after an offset."""
        place = self.place_of(offset)
        return place + (place < len(self._row) and self._row[place].end_offset <= offset)

    def ending_behind(self, offset: int) -> Iterator[Row]:
        """Yield the segments that end after an offset: the one that contains it, and all later ones."""
        return map(self._row.__getitem__, range(self.place_behind(offset), len(self._row)))

    def index_aborts(self) -> None:
        """Add the segments that were sealed since the last call to the index in memory that finds the segments with
        abort markers. For a long list of new segments, this takes long.
        """
        known_count, final_count = self._indexed_count - self._dropped_count, len(self._row) - self._grows
        if known_count >= final_count:
            return
        least_offsets: list[int] = []
        for row in self._row[known_count:final_count]:
            if row.least_aborted_offset is not None:
                least_offsets.append(row.least_aborted_offset)
                self._numbers.append(self._indexed_count)
                self._stable.append(self._stable_offset)
            if row.stable_offset is not None:
                self._stable_offset = row.stable_offset
            self._indexed_count += 1
        self._minima.extend_to(len(self._numbers), lambda _begin, _end: least_offsets)

    def with_aborts(self, start: int, end: int) -> tuple[list[Row], bool]:
        """Find the segments whose transaction indexes a reader of the offsets [start, end) needs (KIP-1058).

        A transaction with records in the range may be aborted in a later segment. The search ends with the first
        segment whose stable offset reaches `end`: all transactions that began before this offset have ended by the end
        of the segment. It costs O(found + log n).

        Returns:
            The segments, and whether the search has ended. If it has not, later segments may have further aborted
            transactions of the range.
        """
        self.index_aborts()
        dropped = self._dropped_count
        begin = bisect_left(self._numbers, dropped + self.place_behind(start))
        # What was aborted in the segments [begin, after) began before `end`, because these segments end before it.
        after = bisect_left(self._numbers, dropped + self.place_of(end), begin)
        later = self._minima.below(end, after, bisect_left(self._stable, end, after))
        found = [self._row[self._numbers[at] - dropped] for at in chain(range(begin, after), later)]
        if self._stable_offset >= end or not self._grows:
            return found, self._stable_offset >= end
        last = self._row[-1]
        if (
            last.end_offset > start
            and last.least_aborted_offset is not None
            and last.least_aborted_offset < end
        ):
            found.append(last)
        return found, False
