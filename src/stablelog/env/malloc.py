"""Settings of glibc's memory allocator: how much freed memory it keeps in the process."""

import ctypes

# Parameters of mallopt, from malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8


def use_arenas(count: int) -> None:
    """Limit the number of arenas, the pools from which glibc allocates memory for threads.

    The default is eight arenas for each processor, and each keeps freed memory for itself. If many threads load large
    parts of files, the process then keeps more than twice the memory that it uses. Call this function before threads
    start. With another C library it has no effect.
    """
    _set(M_ARENA_MAX, count)


def keep_freed(size: int) -> None:
    """Keep up to `size` bytes of freed memory in the process, for new allocations of up to 32 MiB, the most that glibc
    allows.

    By default, glibc returns the memory of large allocations to the kernel. Each new one then costs page faults, which
    take about as long as decoding what is loaded into the memory. With another C library the function has no effect.
    """
    _set(M_MMAP_THRESHOLD, 32 << 20)
    _set(M_TRIM_THRESHOLD, size)


def _set(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)
