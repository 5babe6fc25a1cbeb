"""Limits how many sealed segments hold files open or indexes in memory."""

from collections import OrderedDict
from typing import Protocol


class Evictable(Protocol):
    """A sealed segment, as `OpenFiles` sees it."""

    def give_back(self) -> None:
        """Close its files, and drop from memory what its files hold."""


class OpenFiles:
    """Cache of open sealed segments. It evicts the segment that was used least recently.

    While a partition is opened, perhaps in a thread, it has an `OpenFiles` of its own. Later this one joins that of the
    broker.

    Args:
        count_max: how many segments may be open, over all `OpenFiles` that have joined.
    """

    def __init__(self, count_max: int = 256) -> None:
        self._count_max = count_max
        self._segments: OrderedDict[Evictable, None] = OrderedDict()
        self._shared: OpenFiles | None = None

    def __len__(self) -> int:
        return len(self._segments)

    def join(self, shared: "OpenFiles") -> None:
        """Count the segments together with those of `shared` from now on. One thread uses both then."""
        segments, self._segments, self._shared = self._segments, OrderedDict(), shared
        for segment in segments:
            shared.used(segment)

    def used(self, segment: Evictable) -> None:
        """Note that the segment is read now."""
        if self._shared is not None:
            self._shared.used(segment)
            return
        if segment in self._segments:
            self._segments.move_to_end(segment)
            return
        self._segments[segment] = None
        while len(self._segments) > self._count_max:
            self._segments.popitem(last=False)[0].give_back()

    def forget(self, segment: Evictable) -> None:
        """Note that the segment holds nothing open."""
        if self._shared is not None:
            self._shared.forget(segment)
        else:
            self._segments.pop(segment, None)
