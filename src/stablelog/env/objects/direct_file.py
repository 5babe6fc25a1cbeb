"""Writes of new files past the page cache (O_DIRECT).

A large file that is written through the page cache reaches the disk in one burst, when it is synced. Each sync of a log
file then waits for this burst, and the file's pages displace pages that readers need. A direct write goes to the disk
at once. Linux supports it on most file systems, but not on tmpfs. Without support, the page cache is used.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from stablelog.env.disk import Buffer

# The size of one direct write, in bytes. Smaller files are written through the page cache.
DIRECT_SIZE: Final = 1 << 20
# Positions, sizes and addresses of direct writes are multiples of the block size of the file system, at most this one.
BLOCK_SIZE: Final = 4096
DIRECT: Final = getattr(os, "O_DIRECT", 0)


def write_new(path: Path, pieces: Iterable[Buffer]) -> None:
    """Write and sync a new file.

    Raises:
        FileExistsError: the file exists.
        OSError: the file cannot be written. A part of it may exist.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        # The memory of a mapping begins at a page, so at a block. It is not closed here, but freed with its last view:
        # the traceback of an error has views.
        buffer = memoryview(mmap.mmap(-1, DIRECT_SIZE))
        used = 0
        is_direct = False
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                if used == DIRECT_SIZE:
                    is_direct = is_direct or set_direct(descriptor, is_direct=True)
                    _write_all(descriptor, buffer)
                    used = 0
                taken = min(len(rest), DIRECT_SIZE - used)
                buffer[used : used + taken] = rest[:taken]
                used, rest = used + taken, rest[taken:]
        # The rest is not a multiple of the block size.
        set_direct(descriptor, is_direct=False)
        _write_all(descriptor, buffer[:used])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_direct(descriptor: int, *, is_direct: bool) -> bool:
    """Switch the next writes to a file between direct writes and the page cache. Return whether the next writes are
    direct: a file system may not support that.
    """
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~DIRECT
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | (DIRECT if is_direct else 0))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False  # The file system has no direct writes.
    return is_direct


def _write_all(descriptor: int, content: memoryview) -> None:
    """Append a whole buffer to the file, by direct writes (past the page cache). If the file system refuses a direct
    write, or the write ends inside a block of the disk, the rest goes through the page cache.
    """
    while content:
        try:
            written = os.write(descriptor, content)
        except OSError as error:
            if error.errno != errno.EINVAL or not fcntl.fcntl(descriptor, fcntl.F_GETFL) & DIRECT:
                raise
            written = 0
            set_direct(descriptor, is_direct=False)
        content = content[written:]
        if written % BLOCK_SIZE:
            set_direct(descriptor, is_direct=False)
