"""Files of the operating system: the real implementation of `env.disk`."""

import contextlib
import errno
import functools
import mmap
import os
import stat
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

from stablelog.env.disk import ZEROS, Buffer, Content, File, directory_of, pieces_of
from stablelog.env.pages import populate
from stablelog.errors import DiskError

try:
    BUFFERS_MAX = os.sysconf("SC_IOV_MAX")  # the greatest number of buffers that one system call takes
except (AttributeError, ValueError, OSError):
    BUFFERS_MAX = 1024
# Ranges up to this size are copied: that takes less time than mapping them, and needs no file descriptor. Copies of
# larger ranges would take much memory, because a response to a fetch of 10,000 partitions stays in memory until the
# client has read it.
COPIED_SIZE_MAX = 1 << 10
# The modes of new files, from which the umask is subtracted; a private file is for its owner only.
MODE, PRIVATE_MODE = 0o644, 0o600
Call = TypeVar("Call", bound=Callable[..., Any])


def _disk_call(what: str, *, undone: bool = True, writes: bool = False) -> Callable[[Call], Call]:
    """Decorate a method of LocalDisk: errors of the operating system are raised as DiskError.

    Args:
        what: the verb that names the call in error messages, such as `listing`.
        undone: whether the call leaves everything as it was if it fails. The DiskError gets this as its attribute
            `undone`.
        writes: whether the call writes, so that a read-only disk refuses the call.
    """

    def decorate(call: Call) -> Call:
        @functools.wraps(call)
        def converted(disk: "LocalDisk", path: Path, *rest: Any, **named: Any) -> Any:
            if writes and disk.read_only:
                raise DiskError(f"{what} {path} failed", errno.EROFS)
            try:
                return call(disk, path, *rest, **named)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise _disk_error(f"{what} {path}", error, undone=undone) from error

        return cast("Call", converted)

    return decorate


def _disk_error(what: str, error: OSError, *, undone: bool = True, size: int = 0) -> DiskError:
    return DiskError(f"{what} failed", error.errno or errno.EIO, undone=undone, size=size)


class LocalFile:
    """An open file of the operating system."""

    def __init__(self, path: Path, *, create: bool, read_only: bool) -> None:
        flags = os.O_RDONLY if read_only else os.O_RDWR | (os.O_CREAT if create else 0)
        self._path = path
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._fd).st_size
        self._map: memoryview | None = None
        self._failed: DiskError | None = None

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._size

    def append(self, *buffers: Buffer) -> int:
        """Write at the end of the file. If a write fails, truncate the file to remove the part that was written."""
        if self._failed is not None:
            raise DiskError(
                f"{self._path} accepts no writes, because an earlier write failed and could not be undone: open it again",
                self._failed.number,
                undone=False,
            )
        position = self._size
        wanted = sum(map(len, buffers))
        try:
            if len(buffers) > BUFFERS_MAX or os.pwritev(self._fd, buffers, position) != wanted:
                self._write_all(buffers, position)
        except OSError as error:
            what = f"writing {wanted} bytes to {self._path}"
            try:
                os.ftruncate(self._fd, position)
            except OSError:
                self._failed = _disk_error(
                    f"{what}, and removing what was written in part,", error, undone=False, size=wanted
                )
                raise self._failed from error
            raise _disk_error(what, error, size=wanted) from error
        self._size = position + wanted
        return position

    def _write_all(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers. One system call takes at most BUFFERS_MAX buffers, and may write only a part of them, so
        several calls may be needed.
        """
        pending = deque(memoryview(buffer) for buffer in buffers if len(buffer))
        while pending:
            count = os.pwritev(self._fd, list(islice(pending, BUFFERS_MAX)), position)
            if count == 0:
                raise OSError(errno.EIO, "the operating system wrote no bytes")
            position += count
            while pending and count >= len(pending[0]):
                count -= len(pending.popleft())
            if count:
                pending[0] = pending[0][count:]

    def read(self, position: int, size: int) -> bytes:
        """Return a copy of `size` bytes at `position`; fewer bytes only if the file ends before."""
        try:
            content = os.pread(self._fd, size, position)
            while len(content) < min(size, self._size - position):
                more = os.pread(self._fd, size - len(content), position + len(content))
                if not more:
                    break
                content += more
        except OSError as error:
            raise _disk_error(f"reading {self._path}", error) from error
        return content

    def view(self, position: int, size: int) -> memoryview:
        """Return a slice of the memory-mapped file, or a copy if the range is small. Map the file again if it has grown
        since it was mapped.
        """
        end = position + size
        assert end <= self._size, f"view past the end of {self._path}"
        if size == 0:
            return memoryview(b"")
        if self._map is None or len(self._map) < end:
            if size <= COPIED_SIZE_MAX:
                copied = self.read(position, size)
                if len(copied) < size:
                    raise DiskError(
                        f"reading {self._path} failed, because the file has become shorter", errno.EIO
                    )
                return memoryview(copied)
            if self._fd < 0:
                # The file is closed. With -1 as the descriptor, mmap would return memory without a file instead of an
                # error.
                raise DiskError(f"mapping {self._path} failed", errno.EBADF)
            try:
                self._map = memoryview(mmap.mmap(self._fd, self._size, prot=mmap.PROT_READ))
            except (OSError, ValueError) as error:  # `mmap` raises ValueError if the file has become shorter
                number = error.errno if isinstance(error, OSError) else None
                raise DiskError(f"mapping {self._path} failed", number or errno.EIO) from error
        return self._map[position:end]

    def will_need(self, position: int, size: int) -> None:
        """Ask the kernel to read exactly these bytes into the page cache. Without this call, the first access would
        cause a page fault, which reads megabytes around these bytes, too.
        """
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_WILLNEED)

    def populate(self, view: memoryview) -> bool:
        """Load the pages of the view into memory, and map them into the process, so that a read does not block.

        Returns:
            True if the pages were loaded. False if the operating system has no call for this; in that case nothing was
            done.
        """
        try:
            return populate(view)
        except OSError as error:
            raise _disk_error(f"reading {self._path}", error) from error

    def truncate(self, size: int) -> None:
        """Truncate the file, or extend it by zeros."""
        self._map = None
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise _disk_error(f"truncating {self._path} to {size} bytes", error) from error
        self._size = size

    def sync(self) -> None:
        """Sync with fdatasync(2): it makes the bytes and the size of the file durable, but not its times."""
        if self._fd < 0:
            raise DiskError(f"syncing {self._path} failed", errno.EBADF, undone=False)
        try:
            getattr(os, "fdatasync", os.fsync)(self._fd)
        except OSError as error:
            raise _disk_error(f"syncing {self._path}", error, undone=False) from error

    def close(self) -> None:
        """Release the file descriptor; existing views of the file stay readable. Errors are ignored, because they
        concern only bytes that were not synced.
        """
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1
            self._map = None


class LocalDisk:
    """The file system of the machine.

    Args:
        read_only: files are opened only for reading, and every call that writes is refused (EROFS). Programs use this
            to read the directory of another user, or a file system that is mounted read-only.
    """

    def __init__(self, *, read_only: bool = False) -> None:
        self.read_only = read_only

    @_disk_call("opening")
    def open(self, path: Path, *, create: bool = False) -> File:
        """Open a file for reading and appending, or only for reading if the disk is `read_only`.

        If `create` is True, a missing file is created; otherwise a missing file raises FileNotFoundError.
        """
        if create and self.read_only:
            raise OSError(errno.EROFS, "this disk is open for reading only", str(path))
        return LocalFile(path, create=create, read_only=self.read_only)

    @_disk_call("looking for")
    def exists(self, path: Path) -> bool:
        """Whether a file or directory of this name exists."""
        return _mode(path) is not None

    @_disk_call("looking for")
    def is_dir(self, path: Path) -> bool:
        """Whether a directory of this name exists."""
        mode = _mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    @_disk_call("looking at the size of")
    def size(self, path: Path) -> int:
        """Return the size of a file in bytes."""
        return os.stat(path).st_size

    @_disk_call("reading")
    def read_bytes(self, path: Path) -> bytes:
        """Return the content of a file."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            while piece := os.read(fd, 1 << 20):
                pieces.append(piece)
        finally:
            os.close(fd)
        return b"".join(pieces)

    def write_atomic(self, path: Path, content: Content, *, is_private: bool = False) -> None:
        """Write a temporary file beside the target, sync it, rename it over the target, and sync the directory.

        If `is_private` is True, only the owner of the file may read it, from its first byte on.
        """
        self._write_together({path: content}, mode=PRIVATE_MODE if is_private else MODE)

    def write_together(self, files: Mapping[Path, Content]) -> None:
        """Write the content of each file to a temporary file and sync it, rename all over their targets, and sync the
        directory.
        """
        self._write_together(files, mode=MODE)

    def _write_together(self, files: Mapping[Path, Content], *, mode: int) -> None:
        directory = directory_of(files)
        self._replace(files, sync=True, mode=mode)
        try:
            self.sync_dir(directory)
        except DiskError as error:
            names = ", ".join(map(str, files))
            raise DiskError(f"writing {names} failed", error.number, undone=False) from error

    def write_unsynced(self, path: Path, content: bytes) -> None:
        """Write a temporary file beside the target and rename it over the target."""
        self._replace({path: content}, sync=False, mode=MODE)

    def _replace(self, files: Mapping[Path, Content], *, sync: bool, mode: int) -> None:
        """Write all temporary files, then rename each over its target. If a temporary file cannot be written, none of
        the targets is replaced.

        Args:
            files: contents by path.
            sync: whether each temporary file is synced before it is renamed.
            mode: the permissions of the new files.
        """
        if self.read_only:
            raise DiskError(f"writing {', '.join(map(str, files))} failed", errno.EROFS)
        size = sum(map(len, files.values()))
        beside: dict[Path, str] = {}  # by target path: the temporary file that is not renamed yet
        is_replaced = False
        path = Path()
        try:
            for path, content in files.items():
                beside[path] = f"{path}.tmp"
                _write(beside[path], content, sync=sync, mode=mode)
            for path in files:
                os.replace(beside[path], path)
                del beside[path]
                is_replaced = True
        except OSError as error:
            for left in beside.values():
                with contextlib.suppress(OSError):
                    os.unlink(left)  # a leftover temporary file would take space on a full disk
            if isinstance(error, FileNotFoundError):
                raise
            raise _disk_error(f"writing {path}", error, undone=not is_replaced, size=size) from error

    @_disk_call("listing")
    def list_dir(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(os.listdir(path))

    @_disk_call("making", undone=False, writes=True)
    def make_dir(self, path: Path) -> None:
        """Make a directory, its missing parents first, and sync each parent that got a new name."""
        missing = []
        at = path
        while (mode := _mode(at)) is None:
            missing.append(at)
            at = at.parent
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, "a file with the name of the directory exists", str(at))
        for directory in reversed(missing):
            try:
                os.mkdir(directory)
            except FileExistsError:
                if not os.path.isdir(directory):  # if the path is a directory now, another thread has made it
                    what = f"making {path} failed, because {directory} is a symbolic link to nothing"
                    raise DiskError(what, errno.ENOTDIR) from None
            self.sync_dir(directory.parent)

    @_disk_call("renaming", writes=True)
    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory, replacing a target file."""
        os.rename(source, target)

    @_disk_call("removing", writes=True)
    def remove(self, path: Path) -> None:
        """Remove a file; no error if it is missing."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    @_disk_call("removing", undone=False, writes=True)
    def remove_dir(self, path: Path) -> None:
        """Remove a directory with the files in it."""
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
        entries = list(os.scandir(path))
        if any(entry.is_dir(follow_symlinks=False) for entry in entries):
            raise OSError(
                errno.ENOTEMPTY,
                "the directory is not removed, because it contains another directory",
                str(path),
            )
        for entry in entries:
            os.unlink(path / entry.name)
        os.rmdir(path)

    @_disk_call("syncing the directory", undone=False, writes=True)
    def sync_dir(self, path: Path) -> None:
        """Make all changes of names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @_disk_call("allocating", writes=True)
    def allocate(self, path: Path, size: int) -> None:
        """Make a file whose blocks are allocated: by fallocate(2) if the file system supports it, otherwise by writing
        zeros.
        """
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            try:
                if size and not _allocated(fd, size):
                    while size:
                        size -= os.write(fd, ZEROS[:size])
            finally:
                os.close(fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise

    @_disk_call("looking at the free space of")
    def free_size(self, path: Path) -> int:
        """Return how many bytes the user of this process may still write to the file system, by statvfs(2)."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize


def _write(path: str, content: Content, *, sync: bool, mode: int) -> None:
    """Write a temporary file, which no reader uses yet.

    Args:
        path: the file.
        content: its content.
        sync: whether the file is durable on return.
        mode: its permissions.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        if mode == PRIVATE_MODE:
            os.fchmod(fd, mode)  # A temporary file that a crash has left may have another mode.
        for piece in pieces_of(content):
            written = os.write(fd, piece)
            while written < len(piece):
                written += os.write(fd, memoryview(piece)[written:])
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def _mode(path: Path) -> int | None:
    """Return the mode of a file, its permissions; None if the file is missing."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _allocated(fd: int, size: int) -> bool:
    """Allocate the blocks of a file without writing them. Return whether that was possible: the operating system or the
    file system may not support it.
    """
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return False
        raise
    return True
