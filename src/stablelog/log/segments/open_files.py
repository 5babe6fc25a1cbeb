"""The cache that limits how many sealed segments have open files and indexes in memory."""

import resource
from collections import OrderedDict
from typing import Final, Protocol

# File descriptors of a sealed segment in use: the log file, its memory map, and the maps of three indexes.
DESCRIPTORS_PER_SEGMENT: Final = 5
OPEN_SEGMENTS_MIN: Final = 64
# The maximum number of open sealed segments: their memory maps are a quarter of the number that Linux allows a process.
OPEN_SEGMENTS_MAX: Final = 4096


class Evictable(Protocol):
    """A sealed segment that `OpenFiles`, the cache of open segments, can evict: it then closes its files."""

    def evict(self) -> None:
        """Close the files of the segment, and drop its indexes from memory. The next read opens them again."""


class OpenFiles:
    """Cache of the sealed segments with open files. It evicts the least recently used segment, which then closes its
    files.

    While a partition is opened, perhaps in a thread, it has a cache of its own. Afterwards this cache joins the shared
    one of the broker: the broker's cache then has its segments, and limits their number.

    Args:
        count_max: how many segments may be open, including those of all caches that have joined this one.
    """

    def __init__(self, count_max: int = 256) -> None:
        self._count_max = count_max
        self._segments: OrderedDict[Evictable, None] = OrderedDict()
        self._shared: OpenFiles | None = None

    def __len__(self) -> int:
        return len(self._segments)

    def join_shared(self, shared: "OpenFiles") -> None:
        """Move the open segments into the cache `shared`, and use that cache from now on. Only one thread may use the
        two caches afterwards.
        """
        segments, self._segments, self._shared = self._segments, OrderedDict(), shared
        for segment in segments:
            shared.mark_used(segment)

    def mark_used(self, segment: Evictable) -> None:
        """Count a segment as the most recently used one. If too many segments are open, evict the least recently used."""
        if self._shared is not None:
            self._shared.mark_used(segment)
            return
        if segment in self._segments:
            self._segments.move_to_end(segment)
            return
        self._segments[segment] = None
        while len(self._segments) > self._count_max:
            self._segments.popitem(last=False)[0].evict()

    def forget_segment(self, segment: Evictable) -> None:
        """Remove a segment from the cache, because it has no open file and no index in memory any more."""
        if self._shared is not None:
            self._shared.forget_segment(segment)
        else:
            self._segments.pop(segment, None)


def open_segments_max() -> int:
    """Return how many sealed segments may be open, so that they use at most a quarter of the process's file
    descriptors.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max(descriptors // 4 // DESCRIPTORS_PER_SEGMENT, OPEN_SEGMENTS_MIN), OPEN_SEGMENTS_MAX)
