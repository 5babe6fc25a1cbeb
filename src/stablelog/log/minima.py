"""Find all entries of a growing row that are less than a bound, without looking at the others.

Above the row stand rows of minima: each value of a level is the least of 16 below it. A search goes down only
where there is something to find, so that it costs O((found + 1) log n) however long the row is.
"""

from array import array
from collections.abc import Callable, Iterator

FANOUT = 16


class Minima:
    """The minima over a row that somebody else keeps.

    Args:
        value_at: the value of an entry of the row, by its place.
    """

    def __init__(self, value_at: Callable[[int], int]) -> None:
        self._value_at = value_at
        self._levels: list[array[int]] = []
        self._count = 0

    def extend_to(self, count: int) -> None:
        """Take in the entries that were appended to the row."""
        for place in range(self._count, count):
            value = self._value_at(place)
            at = place // FANOUT
            level = 0
            while True:
                if level == len(self._levels):
                    self._levels.append(array("q"))
                row = self._levels[level]
                if at == len(row):
                    row.append(value)
                elif value < row[at]:
                    row[at] = value
                if at == 0 and len(row) == 1:
                    break
                if level + 1 == len(self._levels):
                    self._levels.append(array("q", [min(row[:FANOUT])]))
                    break
                at //= FANOUT
                level += 1
        self._count = max(self._count, count)

    def below(self, bound: int, begin: int, end: int) -> Iterator[int]:
        """The places in [begin, end) whose value is less than `bound`, in order."""
        assert end <= self._count
        if begin < end:
            yield from self._search(len(self._levels), 0, bound, begin, end)

    def _search(self, level: int, at: int, bound: int, begin: int, end: int) -> Iterator[int]:
        """Search below the node `at` of a level; level 0 is the row itself."""
        span = FANOUT**level
        if at * span >= end or (at + 1) * span <= begin:
            return
        if level == 0:
            if self._value_at(at) < bound:
                yield at
            return
        row = self._levels[level - 1]
        if at >= len(row) or row[at] >= bound:
            return
        for child in range(at * FANOUT, (at + 1) * FANOUT):
            if child * (span // FANOUT) >= end:
                return
            yield from self._search(level - 1, child, bound, begin, end)
