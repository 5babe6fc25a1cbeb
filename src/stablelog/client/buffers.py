"""Pool of large buffers. A buffer is reused as soon as nothing but the pool refers to it.

The allocation of a megabyte takes longer than filling it: the kernel clears each page and maps it on a page fault. The
pool finds free buffers by their reference count: each user of a buffer, also through a memoryview, holds a reference.
"""

import sys

SIZE_MIN = 64 << 10  # smaller buffers are not kept: a new one costs little


def _references(kept: list[bytearray], place: int) -> int:
    return sys.getrefcount(kept[place])


# The reference count of a buffer to which only the pool's list refers.
UNUSED = _references([bytearray(1)], 0)


class BufferPool:
    """A pool of reusable buffers.

    Args:
        size_max: the maximum of the bytes of all buffers in the pool.

    Attributes:
        kept: the buffers in the pool, in use or not.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self.kept: list[bytearray] = []

    def take_buffer(self, size: int) -> bytearray:
        """Return a buffer of exactly this size. Its content is arbitrary."""
        if size < SIZE_MIN:
            return bytearray(size)
        for place in range(len(self.kept)):
            length = len(self.kept[place])
            if length <= 2 * size <= 4 * length and _references(self.kept, place) == UNUSED:
                buffer = self.kept[place]
                if length > size:
                    del buffer[size:]
                else:
                    buffer.extend(bytes(size - length))
                return buffer
        made = bytearray(size)
        self._keep_buffer(made)
        return made

    def _keep_buffer(self, made: bytearray) -> None:
        """Add a new buffer to the pool. If all buffers of the pool together then have more than `size_max` bytes,
        remove the oldest ones. Python frees a removed buffer after its last use.
        """
        self.kept.append(made)
        while len(self.kept) > 1 and sum(map(len, self.kept)) > self._size_max:
            del self.kept[0]
