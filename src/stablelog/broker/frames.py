"""Where do large requests arrive? In memory of the system's, of which a little is kept and used again.

A page costs when it is touched for the first time: of all that the broker did for a produced megabyte, a third went into
new pages. So frames of requests that leave nothing behind are kept for the next, a few of them.
"""

import mmap

KEPT_SIZE = (1 << 20) + (64 << 10)  # a client's largest batch, by the clients' defaults, and its envelope
KEPT_COUNT = 8
PRIVATE_MEMORY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Frames:
    """The frames of one broker."""

    def __init__(self) -> None:
        self._kept: list[mmap.mmap] = []

    def open(self, size: int) -> memoryview:
        """A frame of this size, for writing. A new one's pages are the system's until something is written to them."""
        if size > KEPT_SIZE:
            return memoryview(mmap.mmap(-1, size, flags=PRIVATE_MEMORY))
        memory = self._kept.pop() if self._kept else mmap.mmap(-1, KEPT_SIZE, flags=PRIVATE_MEMORY)
        return memoryview(memory)[:size]

    def give_back(self, frame: memoryview) -> None:
        """Nobody will look at the frame any more."""
        memory = frame.obj
        if isinstance(memory, mmap.mmap) and len(memory) == KEPT_SIZE and len(self._kept) < KEPT_COUNT:
            self._kept.append(memory)
