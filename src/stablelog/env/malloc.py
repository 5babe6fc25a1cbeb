"""The settings of glibc's memory allocator."""

import ctypes

# Parameters of mallopt, from malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8


def use_arenas(count: int) -> None:
    """Let all threads of this process share a number of arenas, the pools from which glibc allocates memory.

    By default there are eight arenas for each processor, and each keeps freed memory for itself. If many threads load
    large ranges, the process keeps more than twice the memory that it uses. Call this function before threads start. It
    has no effect with another C library.
    """
    _set(M_ARENA_MAX, count)


def keep_freed(size: int) -> None:
    """Let this process keep up to `size` bytes of freed memory at the end of an arena, and use it again for allocations
    of up to 32 MiB, the most that glibc allows.

    By default, glibc maps and unmaps large allocations. Their memory then costs page faults each time, about as much as
    to decode what is loaded into it. The function has no effect with another C library.
    """
    _set(M_MMAP_THRESHOLD, 32 << 20)
    _set(M_TRIM_THRESHOLD, size)


def _set(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)
