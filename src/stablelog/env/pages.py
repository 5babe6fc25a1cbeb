"""Loading of the pages of a memory-mapped file, so that later reads of these pages do not block.

A read of an unmapped page causes a page fault. If the page is not in memory, the reader waits for the disk, and holds
Python's GIL meanwhile. Since Linux 5.14, madvise(2) with MADV_POPULATE_READ loads and maps many pages at once. Python's
`mmap` holds the GIL while it calls madvise, so this module calls madvise by ctypes, which releases the GIL. mincore(2)
reports which pages are in memory.
"""

import ctypes
import errno
import mmap
import os
import sys

MADV_POPULATE_READ = 22
EHWPOISON = 133  # the error number of a memory error of the hardware, which Python's `errno` does not name


class _Buffer(ctypes.Structure):
    """CPython's C structure `Py_buffer`."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def populate(view: memoryview) -> bool:
    """Load the bytes of a view of a mapped file into memory. May run in any thread.

    Returns:
        True if the bytes were loaded. False if the operating system has no call for this; in that case nothing was
        done.

    Raises:
        OSError: the file cannot be read, or has become shorter. The caller must not read the bytes: a signal may end
            the process.
    """
    if madvise is None:
        return False
    if not view.nbytes:
        return True
    begin, size = _pages(view)
    if not madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), MADV_POPULATE_READ):
        return True
    number = ctypes.get_errno()
    if number in (errno.EFAULT, EHWPOISON):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return False  # The kernel does not know MADV_POPULATE_READ (EINVAL), or memory is short.


def is_in_memory(view: memoryview) -> bool:
    """Whether all bytes of a view of a mapped file can be read without waiting for the disk; True if unknown."""
    if _mincore is None or not view.nbytes:
        return True
    begin, size = _pages(view)
    found = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    if _mincore(ctypes.c_void_p(begin), ctypes.c_size_t(size), found):
        return True
    return b"\0" not in found.raw


def _pages(view: memoryview) -> tuple[int, int]:
    """Return a pair: the address of the memory page in which a view begins, and the number of bytes from this address
    to the end of the view.
    """
    address = _address(view)
    begin = address - address % mmap.PAGESIZE
    return begin, address + view.nbytes - begin


def _address(view: memoryview) -> int:
    found = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(found), 0)
    try:
        return int(found.buf or 0)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(found))


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
madvise = None if _libc is None else _libc.madvise
_mincore = None if _libc is None else _libc.mincore
