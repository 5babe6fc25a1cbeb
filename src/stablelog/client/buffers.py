"""Where large buffers come from: from those that were given out before and that nobody looks at any more.

A fresh buffer of a megabyte costs more than what is done with it: the kernel hands it over page by page, each with a
fault and zeroed. Whether a buffer is free is told by its reference count: whoever uses it, also through a memoryview,
counts in it.
"""

import sys

SIZE_MIN = 64 << 10  # smaller ones are cheap to make


def _references(kept: list[bytearray], place: int) -> int:
    return sys.getrefcount(kept[place])


UNUSED = _references([bytearray(1)], 0)  # what is counted where nobody but the list knows the buffer


class Buffers:
    """Buffers that go round.

    Args:
        size_max: bytes of all buffers that are kept.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._kept: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """A buffer of exactly this size, with anything in it."""
        if size < SIZE_MIN:
            return bytearray(size)
        for place in range(len(self._kept)):
            length = len(self._kept[place])
            if length <= 2 * size <= 4 * length and _references(self._kept, place) == UNUSED:
                buffer = self._kept[place]
                if length > size:
                    del buffer[size:]
                else:
                    buffer.extend(bytes(size - length))
                return buffer
        made = bytearray(size)
        self._keep(made)
        return made

    def _keep(self, made: bytearray) -> None:
        """Keep a buffer; let go of the oldest for it. What is let go lives as long as it is used."""
        self._kept.append(made)
        while len(self._kept) > 1 and sum(map(len, self._kept)) > self._size_max:
            del self._kept[0]
