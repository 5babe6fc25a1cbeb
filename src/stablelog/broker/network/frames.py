"""The memory that large requests arrive in: a few frames are kept and used again.

The first write to a new page is expensive: in a profile, a third of the broker's processor time for each produced
megabyte went into new pages. The broker therefore keeps a few frames of requests that leave no reference to them.
"""

import mmap

KEPT_SIZE = (1 << 20) + (64 << 10)  # The largest batch of a client with default settings, and its envelope.
KEPT_COUNT = 8
PRIVATE_MEMORY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Frames:
    """The frames of one broker."""

    def __init__(self) -> None:
        self._kept: list[mmap.mmap] = []

    def __len__(self) -> int:
        """The number of frames that are kept."""
        return len(self._kept)

    def open(self, size: int) -> memoryview:
        """A writable frame of this size. The system allocates a new frame's pages at the first write to them."""
        if size > KEPT_SIZE:
            return memoryview(mmap.mmap(-1, size, flags=PRIVATE_MEMORY))
        memory = self._kept.pop() if self._kept else mmap.mmap(-1, KEPT_SIZE, flags=PRIVATE_MEMORY)
        return memoryview(memory)[:size]

    def give_back(self, frame: memoryview) -> None:
        """Keep a frame for another request. The caller must not use it any more."""
        memory = frame.obj
        if isinstance(memory, mmap.mmap) and len(memory) == KEPT_SIZE and len(self._kept) < KEPT_COUNT:
            self._kept.append(memory)
