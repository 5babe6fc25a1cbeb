"""Search for all values of a growing list that are less than a bound, without reading the other values.

The values are the lowest level of a tree. Each value of a higher level is the minimum of 16 values of the level below
it. A search descends only below values that are less than the bound, so it costs O((found + 1) log n) for a list of n
values.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator

FANOUT = 16


class Minima:
    """The tree of minima over a list of values. The caller keeps the list and only appends to it.

    The tree has no reference to the list: an owner of both would be part of a reference cycle (`broker.loop.garbage`).
    """

    def __init__(self) -> None:
        self._levels: list[array[int]] = [array("q")]

    def __len__(self) -> int:
        """The number of values that the tree covers."""
        return len(self._levels[0])

    def extend_to(self, count: int, values_in: Callable[[int, int], Iterable[int]]) -> None:
        """Add the values that were appended to the list, so that the tree covers `count` values.

        Args:
            count: the number of values.
            values_in: returns the values of the list at the indexes [begin, end).
        """
        row = self._levels[0]
        if len(row) >= count:
            return
        changed = len(row)
        row.extend(values_in(changed, count))
        assert len(row) == count
        level = 0
        while len(row) > 1:
            level += 1
            if level == len(self._levels):
                self._levels.append(array("q"))
            above = self._levels[level]
            # Of the existing values in the level above, only the last one can have changed. This value is computed
            # again, and the new values follow it.
            changed //= FANOUT
            del above[changed:]
            for begin in range(changed * FANOUT, len(row), FANOUT):
                above.append(min(row[begin : begin + FANOUT]))
            row = above

    def below(self, bound: int, begin: int, end: int) -> Iterator[int]:
        """Yield the indexes in [begin, end) whose value is less than `bound`, ascending."""
        assert begin >= 0
        assert end <= len(self._levels[0])
        if begin < end:
            yield from self._search(len(self._levels) - 1, 0, bound, begin, end)

    def _search(self, level: int, at: int, bound: int, begin: int, end: int) -> Iterator[int]:
        """Search one subtree: yield the indexes in [begin, end) of the list's values that are less than `bound`.

        Args:
            level: the level of the subtree's root. Level 0 is the list of values itself.
            at: the index of the subtree's root in its level.
            bound: the values to be found are less than this.
            begin: the first index of the range. The subtree must contain at least one value of the list in the range.
            end: the end of the range, exclusive.
        """
        if self._levels[level][at] >= bound:
            return
        if level == 0:
            yield at
            return
        span = FANOUT ** (level - 1)  # how many values of the list each value of the level below covers
        first, last = max(at * FANOUT, begin // span), min((at + 1) * FANOUT, (end - 1) // span + 1)
        if level == 1:
            below = self._levels[0]
            for place in range(first, last):
                if below[place] < bound:
                    yield place
            return
        for child in range(first, last):
            yield from self._search(level - 1, child, bound, begin, end)
