"""Pool of large buffers, which are reused when no code refers to them any more.

A new buffer of a megabyte costs more than its use: the kernel provides it page by page, each with a page fault and
zeroed. The reference count tells whether a buffer is free, because every user of it, also through a memoryview, holds a
reference.
"""

import sys

SIZE_MIN = 64 << 10  # smaller ones are cheap to make


def _references(kept: list[bytearray], place: int) -> int:
    return sys.getrefcount(kept[place])


UNUSED = _references([bytearray(1)], 0)  # the reference count of a buffer that only the list refers to


class Buffers:
    """A pool of reusable buffers.

    Args:
        size_max: bytes of all buffers in the pool.

    Attributes:
        kept: the buffers in the pool, in use or not.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self.kept: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """Return a buffer of exactly this size with arbitrary content."""
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
        """Add a buffer to the pool; drop the oldest ones to make space. A dropped buffer lives until its last use."""
        self.kept.append(made)
        while len(self.kept) > 1 and sum(map(len, self.kept)) > self._size_max:
            del self.kept[0]
