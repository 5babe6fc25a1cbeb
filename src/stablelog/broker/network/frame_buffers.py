"""Buffers (*frames*) into which large requests are received: a few frames are kept and used again.

The first write to a new page is expensive: in a profile, a third of the broker's processor time for each produced
megabyte went into new pages. The broker therefore uses frames of completed requests again, and keeps a few of them.
"""

import mmap

# The size of a frame that is kept: the largest batch of a client with default settings, and the envelope of its
# request.
KEPT_SIZE = (1 << 20) + (64 << 10)
KEPT_COUNT = 8
PRIVATE_MEMORY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class FrameBuffers:
    """The buffers (frames) of one broker into which large requests are received."""

    def __init__(self) -> None:
        self._kept: list[mmap.mmap] = []

    def __len__(self) -> int:
        """The number of frames (buffers) that are kept for later requests."""
        return len(self._kept)

    def take_frame(self, size: int) -> memoryview:
        """Return a writable frame (buffer) of this size.

        The operating system allocates the pages of a new frame at the first write.
        """
        if size > KEPT_SIZE:
            return memoryview(mmap.mmap(-1, size, flags=PRIVATE_MEMORY))
        memory = self._kept.pop() if self._kept else mmap.mmap(-1, KEPT_SIZE, flags=PRIVATE_MEMORY)
        return memoryview(memory)[:size]

    def keep_frame(self, frame: memoryview) -> None:
        """Keep a frame (buffer) for another request. The caller must not use the frame any more."""
        memory = frame.obj
        if isinstance(memory, mmap.mmap) and len(memory) == KEPT_SIZE and len(self._kept) < KEPT_COUNT:
            self._kept.append(memory)
