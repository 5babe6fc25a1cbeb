"""Search in a growing list for all values less than a bound, without reading the other values.

The values are the lowest level of a tree of minima: each value of a higher level is the minimum of 16 values of the
level below. A search descends only below values less than the bound. So it costs O((found + 1) log n) for n values.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator

FANOUT = 16


class Minima:
    """A tree of minima over a list of numbers. The caller owns the list, and only appends to it.

    The tree does not refer to the list. So the owner of both is in no reference cycle, and is freed without the garbage
    collector, which would stop the broker for a while (`broker.loop.garbage`).
    """

    def __init__(self) -> None:
        self._levels: list[array[int]] = [array("q")]

    def __len__(self) -> int:
        """The number of values that the tree covers."""
        return len(self._levels[0])

    def extend_to(self, count: int, values_in: Callable[[int, int], Iterable[int]]) -> None:
        """Extend the tree over values that were appended to the list.

        Args:
            count: how many values the tree covers afterwards.
            values_in: called as `values_in(begin, end)`; returns the values of the list at the indexes [begin, end).
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
        """Search one subtree: yield the list indexes in [begin, end) whose values are less than `bound`.

        Args:
            level: the level of the subtree's root. Level 0 is the list itself.
            at: the index of the subtree's root in its level.
            bound: the upper bound of the values, exclusive.
            begin: the first list index of the range. The subtree must cover at least one value of the range.
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
