"""Find all entries of a growing row that are less than a bound, without looking at the others.

Above the row stand rows of minima: each value of a level is the least of 16 below it. A search goes down only
where there is something to find, so that it costs O((found + 1) log n) however long the row is.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator

FANOUT = 16


class Minima:
    """The minima over a row that somebody else keeps and only adds to.

    Args:
        values_in: the row's values at the places [begin, end).
    """

    def __init__(self, values_in: Callable[[int, int], Iterable[int]]) -> None:
        self._levels: list[array[int]] = [array("q")]
        self._values_in = values_in

    def extend_to(self, count: int) -> None:
        """Take in the entries that were appended to the row."""
        row = self._levels[0]
        if len(row) >= count:
            return
        changed = len(row)
        row.extend(self._values_in(changed, count))
        assert len(row) == count
        level = 0
        while len(row) > 1:
            level += 1
            if level == len(self._levels):
                self._levels.append(array("q"))
            above = self._levels[level]
            # Only the last of the values above that were there can have changed, and what is new comes after it.
            changed //= FANOUT
            del above[changed:]
            for begin in range(changed * FANOUT, len(row), FANOUT):
                above.append(min(row[begin : begin + FANOUT]))
            row = above

    def below(self, bound: int, begin: int, end: int) -> Iterator[int]:
        """The places in [begin, end) whose value is less than `bound`, in order."""
        assert begin >= 0
        assert end <= len(self._levels[0])
        if begin < end:
            yield from self._search(len(self._levels) - 1, 0, bound, begin, end)

    def _search(self, level: int, at: int, bound: int, begin: int, end: int) -> Iterator[int]:
        """Search below the value `at` of a level, whose part of the row has a place in [begin, end)."""
        if self._levels[level][at] >= bound:
            return
        if level == 0:
            yield at
            return
        span = FANOUT ** (level - 1)  # of the row, for each value of the level below
        first, last = max(at * FANOUT, begin // span), min((at + 1) * FANOUT, (end - 1) // span + 1)
        if level == 1:
            below = self._levels[0]
            for place in range(first, last):
                if below[place] < bound:
                    yield place
            return
        for child in range(first, last):
            yield from self._search(level - 1, child, bound, begin, end)
