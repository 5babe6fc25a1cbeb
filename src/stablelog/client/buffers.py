"""Pool of large buffers. A buffer is used again when no other object refers to it any more.

To allocate a buffer of a megabyte takes longer than to fill it: the kernel provides each page after a page fault, and
clears it first. The pool reads from a buffer's reference count whether the buffer is free: every user of a buffer, also
through a memoryview, holds a reference to it.
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

    def take(self, size: int) -> bytearray:
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
        self._keep(made)
        return made

    def _keep(self, made: bytearray) -> None:
        """Add a buffer to the pool. Remove the oldest ones if the pool is too large; Python frees these after their
        last use.
        """
        self.kept.append(made)
        while len(self.kept) > 1 and sum(map(len, self.kept)) > self._size_max:
            del self.kept[0]
