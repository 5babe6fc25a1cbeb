"""Files. The only door through which the code reads and writes them.

A crash (power, kernel) may lose anything that was not synced: bytes appended to a file since its last `sync`,
in any legal subset and torn at any byte, and names created, renamed or removed since the last `sync_dir` of
their directory. `kill -9` of the process loses nothing that a call has returned from.
`stablelog.testing.sim_disk` keeps the same promises and breaks everything else.
"""

import contextlib
import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from stablelog.errors import Unavailable

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """One open file. Only its end is written, but for `truncate`."""

    @property
    def size(self) -> int:
        """Bytes in the file, those not yet synced included."""
        ...

    def append(self, *buffers: Buffer) -> int:
        """Write the buffers, in order, at the end. Returns the position of the first byte.

        Raises:
            Unavailable: nothing of this append is in the file.
        """
        ...

    def read(self, position: int, size: int) -> bytes:
        """A copy of up to `size` bytes at `position`; fewer only at the end of the file."""
        ...

    def view(self, position: int, size: int) -> memoryview:
        """`size` bytes at `position` without a copy; they stay readable after the file was closed or removed.

        Only ranges that are not truncated while the view lives may be viewed.
        """
        ...

    def will_need(self, position: int, size: int) -> None:
        """These bytes are wanted next, and not what lies around them. Returns at once; nothing depends on it."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes, or extend it by zeros. Durable after `sync`."""
        ...

    def sync(self) -> None:
        """Return when every byte of the file will survive a crash. Safe to call from a thread of its own."""
        ...

    def close(self) -> None:
        """Give the descriptor back. Does not sync."""
        ...


class Disk(Protocol):
    """One file system. Paths are absolute; directories are made with their parents."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and appending. Raises FileNotFoundError if it is not there and `create` is False."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether a file or directory of this name is there."""
        ...

    def is_dir(self, path: Path) -> bool:
        """Whether a directory of this name is there."""
        ...

    def size(self, path: Path) -> int:
        """Bytes in a file. Raises FileNotFoundError."""
        ...

    def read_bytes(self, path: Path) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        ...

    def write_atomic(self, path: Path, content: bytes) -> None:
        """Replace the file as a whole: after a crash it holds the old content or the new. Durable on return."""
        ...

    def list_dir(self, path: Path) -> list[str]:
        """The names in a directory, sorted. Raises FileNotFoundError."""
        ...

    def make_dir(self, path: Path) -> None:
        """Make a directory and its parents; fine if it is there. Durable on return."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory, replacing a target file. Durable after `sync_dir` of both parents."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; fine if it is gone. Durable after `sync_dir` of its parent."""
        ...

    def remove_dir(self, path: Path) -> None:
        """Remove a directory with all that is in it; fine if it is gone."""
        ...

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable."""
        ...


class LocalFile:
    """A file of the operating system."""

    def __init__(self, path: Path, *, create: bool) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._path = path
        self._fd = os.open(path, flags, 0o644)
        self._size = os.fstat(self._fd).st_size
        self._map: memoryview | None = None

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._size

    def append(self, *buffers: Buffer) -> int:
        """Write at the end; on failure cut back what was written in part."""
        position = self._size
        wanted = sum(len(buffer) for buffer in buffers)
        try:
            written = os.pwritev(self._fd, buffers, position)
            if written < wanted:
                self._write_rest(buffers, written, position)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, position)
            raise Unavailable(f"writing {wanted} bytes to {self._path} failed: {error.strerror}") from error
        self._size = position + wanted
        return position

    def _write_rest(self, buffers: Sequence[Buffer], written: int, position: int) -> None:
        rest = b"".join(buffers)[written:]
        while rest:
            count = os.pwrite(self._fd, rest, position + written)
            if count == 0:
                raise OSError(errno.EIO, "the file takes no more bytes")
            written += count
            rest = rest[count:]

    def read(self, position: int, size: int) -> bytes:
        """A copy of up to `size` bytes."""
        return os.pread(self._fd, size, position)

    def view(self, position: int, size: int) -> memoryview:
        """A slice of the mapped file. The map is made anew when the file has outgrown it."""
        end = position + size
        assert end <= self._size, f"view past the end of {self._path}"
        if size == 0:
            return memoryview(b"")
        if self._map is None or len(self._map) < end:
            self._map = memoryview(mmap.mmap(self._fd, self._size, prot=mmap.PROT_READ))
        return self._map[position:end]

    def will_need(self, position: int, size: int) -> None:
        """Have the bytes read where they are not in the page cache: a fault would bring in megabytes around them."""
        if _advise is not None:
            _advise(self._fd, position, size, os.POSIX_FADV_WILLNEED)

    def truncate(self, size: int) -> None:
        """Cut or extend."""
        self._map = None
        os.ftruncate(self._fd, size)
        self._size = size

    def sync(self) -> None:
        """fdatasync: the bytes and the size, not the times."""
        try:
            _sync_data(self._fd)
        except OSError as error:
            raise Unavailable(f"syncing {self._path} failed: {error.strerror}") from error

    def close(self) -> None:
        """Give the descriptor back; views stay readable."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._map = None


_sync_data = getattr(os, "fdatasync", os.fsync)
_advise = getattr(os, "posix_fadvise", None)


class LocalDisk:
    """The file system of the machine."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and appending."""
        return LocalFile(path, create=create)

    def exists(self, path: Path) -> bool:
        """Whether a file or directory of this name is there."""
        return path.exists()

    def is_dir(self, path: Path) -> bool:
        """Whether a directory of this name is there."""
        return path.is_dir()

    def size(self, path: Path) -> int:
        """Bytes in a file."""
        return path.stat().st_size

    def read_bytes(self, path: Path) -> bytes:
        """The whole file."""
        return path.read_bytes()

    def write_atomic(self, path: Path, content: bytes) -> None:
        """Write beside, sync, rename over, sync the directory."""
        beside = path.with_name(path.name + ".tmp")
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        beside.replace(path)
        self.sync_dir(path.parent)

    def list_dir(self, path: Path) -> list[str]:
        """The names in a directory, sorted."""
        return sorted(os.listdir(path))

    def make_dir(self, path: Path) -> None:
        """Make a directory, its missing parents first, and sync each parent that got a new name."""
        missing = []
        at = path
        while not at.exists():
            missing.append(at)
            at = at.parent
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
            self.sync_dir(directory.parent)

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing a target file."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file; fine if it is gone."""
        path.unlink(missing_ok=True)

    def remove_dir(self, path: Path) -> None:
        """Remove a directory with all that is in it."""
        if not path.exists():
            return
        for name in os.listdir(path):
            child = path / name
            if child.is_dir() and not child.is_symlink():
                self.remove_dir(child)
            else:
                child.unlink(missing_ok=True)
        path.rmdir()

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
