"""The settings of glibc's memory allocator."""

import ctypes

M_ARENA_MAX = -8  # from malloc.h


def use_arenas(count: int) -> None:
    """Let all threads of this process share a number of arenas, the pools from which glibc allocates memory.

    By default there are eight arenas for each processor, and each keeps freed memory for itself. If many threads load
    large ranges, the process keeps more than twice the memory that it uses. Call this function before threads start. It
    has no effect with another C library.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, count)
