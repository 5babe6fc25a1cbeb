"""The list of stored segments, oldest first: finds the segment of an offset, and the segments whose transaction indexes
a range of offsets needs.

The search for aborted transactions uses two numbers of each segment. The *stable offset* is the first offset of the
oldest transaction that was open at the segment's end; it never decreases from segment to segment. The *least aborted
offset* is the least first offset of the transactions whose abort markers are in the segment.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from stablelog.log.indexes.minima import Minima


class SegmentRow(Protocol):
    """The facts about a segment that are known before any of its files is read."""

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


class AbortRows:
    """Index of the segments that may have abort markers. Segments are numbered in their order; those without abort
    markers are left out.

    Attributes:
        count: how many segments were added.
        stable_offset: the stable offset at the end of the last segment. If it is unknown, that of the segment before
            counts.
    """

    def __init__(self) -> None:
        self.count = 0
        self.stable_offset = 0
        self._numbers = array("q")
        self._stable = array("q")  # for each number, the stable offset at the begin of the segment
        self._minima = Minima()

    def extend(self, rows: Iterable[SegmentRow]) -> None:
        """Add the segments that follow the last one."""
        least_offsets: list[int] = []
        for row in rows:
            least = row.least_aborted_offset
            if least is not None:
                least_offsets.append(least)
                self._numbers.append(self.count)
                self._stable.append(self.stable_offset)
            known = row.stable_offset
            self.stable_offset = self.stable_offset if known is None else known
            self.count += 1
        self._minima.extend_to(len(self._numbers), lambda _begin, _end: least_offsets)

    def search(self, first: int, inner_end: int, end: int) -> Iterator[int]:
        """Yield the numbers of the segments whose transaction indexes a reader up to offset `end` needs.

        Args:
            first: the number of the first segment.
            inner_end: the segments before this number end at or before `end`.
            end: the end of the reader's offsets, exclusive. The search ends with the first segment whose stable offset
                reaches it.
        """
        begin = bisect_left(self._numbers, first)
        # What was aborted in the segments [begin, after) began before `end`, because these segments end before it.
        after = bisect_left(self._numbers, inner_end, begin)
        last = bisect_left(self._stable, end, after)
        yield from self._numbers[begin:after]
        for place in self._minima.below(end, after, last):
            yield self._numbers[place]


class SegmentRows(Generic[Row]):
    """The segments of one partition, oldest first.

    Args:
        rows: the segments, without overlaps.
        grows: whether the last segment is growing. Its facts change, so each search reads them again.

    Attributes:
        bases: the base offsets of the segments. Other modules only read them.
    """

    # A broker has one of these objects for each partition, and reads thousands of them in one callback.
    __slots__ = ("_aborts", "_dropped_count", "_grows", "_row", "bases")

    def __init__(self, rows: Iterable[Row], *, grows: bool = False) -> None:
        self._row = list(rows)
        self.bases = [row.base_offset for row in self._row]
        self._grows = grows
        # How many segments were dropped from the beginning. `_aborts` numbers the segments as if these were still
        # there.
        self._dropped_count = 0
        self._aborts = AbortRows()

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

    def index_aborts(self) -> AbortRows:
        """Bring the index of abort markers up to date, and return it. For a long list of new segments, this takes long."""
        known_count, final_count = self._aborts.count - self._dropped_count, len(self._row) - self._grows
        if known_count < final_count:
            self._aborts.extend(self._row[known_count:final_count])
        return self._aborts

    def with_aborts(self, start: int, end: int) -> tuple[list[Row], bool]:
        """Find the segments whose transaction indexes a reader of the offsets [start, end) needs (KIP-1058).

        A transaction with records in the range may be aborted in a later segment. The search ends with the first
        segment whose stable offset reaches `end`, because all transactions that began before `end` have ended by then.
        It costs O(found + log n).

        Returns:
            The segments, and whether the search has ended. If it has not, later segments may have further aborted
            transactions of the range.
        """
        row, aborts = self._row, self.index_aborts()
        dropped = self._dropped_count
        numbers = aborts.search(dropped + self.place_behind(start), dropped + self.place_of(end), end)
        found = [row[number - dropped] for number in numbers]
        if aborts.stable_offset >= end or not self._grows:
            return found, aborts.stable_offset >= end
        last = row[-1]
        if (
            last.end_offset > start
            and last.least_aborted_offset is not None
            and last.least_aborted_offset < end
        ):
            found.append(last)
        return found, False

    def _drop_first(self, count: int) -> list[Row]:
        """Remove the oldest segments from the list, and return them."""
        self.index_aborts()  # so that all segments have numbers
        dropped = self._row[:count]
        del self._row[:count]
        del self.bases[:count]
        self._dropped_count += count
        return dropped
