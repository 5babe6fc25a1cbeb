"""Brings the pages of a mapped file into memory and into the map, before somebody reads them.

A page that is not in the map costs its first reader a fault, and one that is not in memory a wait for the disk, with
Python's lock held. Linux does both for many pages at once since 5.14 (madvise(2), MADV_POPULATE_READ). Python's `mmap`
calls madvise with its lock held, so this calls it by ctypes, which does not. mincore(2) tells which pages are in memory.
"""

import ctypes
import errno
import mmap
import os
import sys

MADV_POPULATE_READ = 22
EHWPOISON = 133  # the memory is broken; Python does not name it


class _Buffer(ctypes.Structure):
    """CPython's Py_buffer."""

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
    """Make the bytes of a view of a mapped file ready to be read at once. May run in any thread.

    Returns:
        False where the system cannot; nothing was done.

    Raises:
        OSError: the file cannot be read, or has become shorter. Whoever reads the bytes may end the process.
    """
    if _madvise is None:
        return False
    if not view.nbytes:
        return True
    begin, size = _pages(view)
    if not _madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), MADV_POPULATE_READ):
        return True
    number = ctypes.get_errno()
    if number in (errno.EFAULT, EHWPOISON):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return False  # an older kernel (EINVAL), or no memory


def is_in_memory(view: memoryview) -> bool:
    """Whether all bytes of a view of a mapped file can be read without waiting for the disk; True where that is not known."""
    if _mincore is None or not view.nbytes:
        return True
    begin, size = _pages(view)
    found = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    if _mincore(ctypes.c_void_p(begin), ctypes.c_size_t(size), found):
        return True
    return b"\0" not in found.raw


def _pages(view: memoryview) -> tuple[int, int]:
    """The address of the first page of a view, and the bytes from there to its end."""
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
_madvise = None if _libc is None else _libc.madvise
_mincore = None if _libc is None else _libc.mincore
