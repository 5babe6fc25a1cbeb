"""Frames: the buffers into which large requests are received. A few frames are kept and used again.

The first write to a new page of memory is expensive: in a profile, new pages took a third of the broker's processor
time for each produced megabyte. The broker therefore keeps the frames of some completed requests and uses them for
later requests.
"""

import mmap

# The size of a frame that is kept: the largest batch of a client with default settings, and the envelope of its
# request.
KEPT_SIZE = (1 << 20) + (64 << 10)
KEPT_COUNT = 8
PRIVATE_MEMORY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class FrameBuffers:
    """The frames of one broker: the buffers into which large requests are received."""

    def __init__(self) -> None:
        self._kept: list[mmap.mmap] = []

    def __len__(self) -> int:
        """The number of unused frames (buffers for large requests) that are kept for later requests."""
        return len(self._kept)

    def take_frame(self, size: int) -> memoryview:
        """Return a writable frame (buffer) of `size` bytes: one that was kept, or a new one.

        The operating system allocates the pages of a new frame at the first write.
        """
        if size > KEPT_SIZE:
            return memoryview(mmap.mmap(-1, size, flags=PRIVATE_MEMORY))
        memory = self._kept.pop() if self._kept else mmap.mmap(-1, KEPT_SIZE, flags=PRIVATE_MEMORY)
        return memoryview(memory)[:size]

    def keep_frame(self, frame: memoryview) -> None:
        """Keep a frame (buffer) for a later request, unless enough are kept. The caller must not use the frame any
        more.
        """
        memory = frame.obj
        if isinstance(memory, mmap.mmap) and len(memory) == KEPT_SIZE and len(self._kept) < KEPT_COUNT:
            self._kept.append(memory)
