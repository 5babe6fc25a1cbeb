"""The settings of glibc's memory allocator."""

import ctypes

# Parameters of mallopt, from malloc.h.
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8


def use_arenas(count: int) -> None:
    """Let all threads of this process share a number of arenas, the pools from which glibc allocates memory.

    By default there are eight arenas for each processor, and each keeps freed memory for itself. If many threads load
    large ranges, the process keeps more than twice the memory that it uses. Call this function before threads start. It
    has no effect with another C library.
    """
    _set(M_ARENA_MAX, count)


def return_from(size: int) -> None:
    """Let each allocation of `size` bytes or more return its memory to the system when it is freed.

    By default, glibc raises this size after the first such allocation is freed, to 32 MiB at most. It then keeps the
    freed memory of large ranges, in holes that later ranges do not fill. The function has no effect with another C
    library.
    """
    _set(M_MMAP_THRESHOLD, size)


def _set(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)
