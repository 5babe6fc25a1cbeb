"""The limit of sealed segments that have open files or indexes in memory."""

import resource
from collections import OrderedDict
from typing import Final, Protocol

# File descriptors of a sealed segment in use: the log file, its memory map, and the maps of three indexes.
DESCRIPTORS_PER_SEGMENT: Final = 5
OPEN_SEGMENTS_MIN: Final = 64
# The maximum number of open sealed segments: their memory maps are a quarter of the number that Linux allows a process.
OPEN_SEGMENTS_MAX: Final = 4096


class Evictable(Protocol):
    """The interface of a sealed segment whose files `OpenFiles` can close."""

    def give_back(self) -> None:
        """Close the files of the segment, and drop its indexes from memory."""


class OpenFiles:
    """Cache of open sealed segments. It evicts the least recently used segment, which closes its files.

    While a partition is being opened, perhaps in a thread, it has its own `OpenFiles`. Afterwards, the partition's
    `OpenFiles` joins the `OpenFiles` of the broker.

    Args:
        count_max: how many segments may be open, including those of all `OpenFiles` that have joined this one.
    """

    def __init__(self, count_max: int = 256) -> None:
        self._count_max = count_max
        self._segments: OrderedDict[Evictable, None] = OrderedDict()
        self._shared: OpenFiles | None = None

    def __len__(self) -> int:
        return len(self._segments)

    def join(self, shared: "OpenFiles") -> None:
        """From now on, count the open segments of this cache as segments of `shared`. After this call, only one thread
        may use the two caches.
        """
        segments, self._segments, self._shared = self._segments, OrderedDict(), shared
        for segment in segments:
            shared.used(segment)

    def used(self, segment: Evictable) -> None:
        """Note that the segment is being read, and evict the least recently used one if too many are open."""
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
        """Note that the segment has no open file and no index in memory."""
        if self._shared is not None:
            self._shared.forget(segment)
        else:
            self._segments.pop(segment, None)


def open_segments_max() -> int:
    """Return how many sealed segments may be open: they use at most a quarter of the process's file descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max(descriptors // 4 // DESCRIPTORS_PER_SEGMENT, OPEN_SEGMENTS_MIN), OPEN_SEGMENTS_MAX)
