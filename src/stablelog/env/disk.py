"""The file system: the interface through which the code reads and writes files, and the real implementation.

A crash (power, kernel) may lose anything that was not synced: bytes appended to a file since its last `sync`, in any
legal subset and torn at any byte, and names created, renamed or removed since the last `sync_dir` of their directory.
`kill -9` of the process loses nothing that a call has returned from.

Every call raises DiskError for a failure of the operating system and FileNotFoundError for a missing path, and
nothing else. `stablelog.testing.sim_disk` keeps the same promises under one contract test, and breaks everything
else.
"""

import contextlib
import errno
import functools
import mmap
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from stablelog.env.pages import populate
from stablelog.errors import DiskError

Buffer = bytes | bytearray | memoryview


class Pieces(Protocol):
    """The content of a file in pieces that are made while it is written. Each iteration begins again."""

    def __len__(self) -> int:
        """Bytes of all pieces."""
        ...

    def __iter__(self) -> Iterator[bytes]: ...


Content = bytes | Pieces

try:
    BUFFERS_MAX = os.sysconf("SC_IOV_MAX")  # of one system call
except (AttributeError, ValueError, OSError):
    BUFFERS_MAX = 1024
ZEROS = bytes(1 << 20)
# A copy of so many bytes takes less time than a new map, and no descriptor. More would count as memory: the answers of a
# fetch of 10,000 partitions wait until the client reads them.
COPIED_SIZE_MAX = 1 << 10
Call = TypeVar("Call", bound=Callable[..., Any])


class File(Protocol):
    """One open file. Only its end is written, except by `truncate`."""

    @property
    def size(self) -> int:
        """Bytes in the file, including those not yet synced."""
        ...

    def append(self, *buffers: Buffer) -> int:
        """Write any number of buffers, in order, at the end. Returns the position of the first byte.

        Raises:
            DiskError: nothing of this append is in the file. If `undone` is False, a part of it could not be
                removed: every later append to this file is refused until the file is opened again.
        """
        ...

    def read(self, position: int, size: int) -> bytes:
        """A copy of up to `size` bytes at `position`; fewer only at the end of the file."""
        ...

    def view(self, position: int, size: int) -> memoryview:
        """`size` bytes at `position`; they stay readable after the file was closed or removed.

        Many bytes are mapped, which makes no copy, and takes a descriptor until the file is closed and the last view is
        gone. A few bytes are copied. Only ranges that are not truncated while the view lives may be viewed.
        """
        ...

    def will_need(self, position: int, size: int) -> None:
        """Announce that these bytes are read next. Returns at once and never fails."""
        ...

    def populate(self, view: memoryview) -> bool:
        """Make the bytes of a view of this file ready to be read at once. Safe to call from any thread.

        Returns:
            False where the system cannot; nothing was done.

        Raises:
            DiskError: they cannot be read. Reading the view may end the process.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes, or extend it by zeros. Durable after `sync`."""
        ...

    def sync(self) -> None:
        """Return when every byte of the file survives a crash. Safe to call from any thread.

        Raises:
            DiskError: which bytes are durable is not known, and a later sync that succeeds does not tell.
        """
        ...

    def close(self) -> None:
        """Release the descriptor. Does not sync and never fails."""
        ...


class Disk(Protocol):
    """One file system. Paths are absolute.

    A call that raises DiskError with `undone` changed nothing. Without it, the change may or may not be there.
    """

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and appending.

        Raises:
            FileNotFoundError: the file is missing and `create` is False, or its directory is missing.
        """
        ...

    def exists(self, path: Path) -> bool:
        """Whether a file or directory of this name exists."""
        ...

    def is_dir(self, path: Path) -> bool:
        """Whether a directory of this name exists."""
        ...

    def size(self, path: Path) -> int:
        """Bytes in a file. Raises FileNotFoundError."""
        ...

    def read_bytes(self, path: Path) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        ...

    def write_atomic(self, path: Path, content: Content) -> None:
        """Replace the file as a whole: after a crash it holds the old content or the new. Durable on return."""
        ...

    def write_together(self, files: Mapping[Path, Content]) -> None:
        """Replace files of one directory, each as a whole, with one sync of the directory. Durable on return.

        After a crash each file, by itself, holds its old content or its new one. If the content of one file cannot be
        written, no file is replaced.

        Args:
            files: contents by path; at least one.
        """
        ...

    def write_unsynced(self, path: Path, content: bytes) -> None:
        """Replace the file as a whole without a sync: after a crash it holds the old content, the new, or a part."""
        ...

    def list_dir(self, path: Path) -> list[str]:
        """The names in a directory, sorted. Raises FileNotFoundError."""
        ...

    def make_dir(self, path: Path) -> None:
        """Make a directory and its missing parents; no error if it exists. Durable on return."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory, replacing a target file. Durable after `sync_dir` of both parents.

        Raises:
            FileNotFoundError: the source or the target's directory is missing.
        """
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; no error if it is missing. Durable after `sync_dir` of its parent."""
        ...

    def remove_dir(self, path: Path) -> None:
        """Remove a directory with the files in it; no error if it is missing. Durable after `sync_dir` of its parent.

        A directory that holds a directory is refused (ENOTEMPTY), and so is a symbolic link (ENOTDIR): nothing
        changed then. After another error, a part of the files is gone.
        """
        ...

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable. Raises FileNotFoundError."""
        ...

    def allocate(self, path: Path, size: int) -> None:
        """Make a file of `size` zero bytes that takes up that room on the disk; one that exists is replaced."""
        ...

    def free_size(self, path: Path) -> int:
        """Bytes that may still be written to the file system on which this directory lies."""
        ...


def pieces_of(content: Content) -> Iterable[bytes]:
    """The pieces of a file's content, to be written one behind the other."""
    return (content,) if isinstance(content, bytes) else content


def directory_of(files: Iterable[Path]) -> Path:
    """The directory of files that are written together: they have the same one."""
    directories = {path.parent for path in files}
    assert len(directories) == 1, f"files of {len(directories)} directories are not written together"
    return directories.pop()


def _disk_call(what: str, *, undone: bool = True, writes: bool = False) -> Callable[[Call], Call]:
    """Convert the operating system's errors of a LocalDisk method.

    Args:
        what: names the call in messages.
        undone: whether an error means that nothing changed.
        writes: whether a disk that is opened to be read refuses the call.
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
    """A file of the operating system."""

    def __init__(self, path: Path, *, create: bool, read_only: bool) -> None:
        flags = os.O_RDONLY if read_only else os.O_RDWR | (os.O_CREAT if create else 0)
        self._path = path
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._fd).st_size
        self._map: memoryview | None = None
        self._failed: DiskError | None = None

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._size

    def append(self, *buffers: Buffer) -> int:
        """Write at the end; on failure, cut back what was written in part."""
        if self._failed is not None:
            raise DiskError(
                f"{self._path} takes no writes after a failed one", self._failed.number, undone=False
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
        """Write with as many calls as it takes: a call takes BUFFERS_MAX buffers at most, and may write a part."""
        pending = deque(memoryview(buffer) for buffer in buffers if len(buffer))
        while pending:
            count = os.pwritev(self._fd, list(islice(pending, BUFFERS_MAX)), position)
            if count == 0:
                raise OSError(errno.EIO, "the file takes no more bytes")
            position += count
            while pending and count >= len(pending[0]):
                count -= len(pending.popleft())
            if count:
                pending[0] = pending[0][count:]

    def read(self, position: int, size: int) -> bytes:
        """A copy of up to `size` bytes."""
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
        """A slice of the mapped file, which is mapped again when it has outgrown the map; or a copy of a few bytes."""
        end = position + size
        assert end <= self._size, f"view past the end of {self._path}"
        if size == 0:
            return memoryview(b"")
        if self._map is None or len(self._map) < end:
            if size <= COPIED_SIZE_MAX:
                copied = self.read(position, size)
                if len(copied) < size:
                    raise DiskError(f"reading {self._path}, which is shorter than it was,", errno.EIO)
                return memoryview(copied)
            if self._fd < 0:  # for mmap, -1 means memory without a file
                raise DiskError(f"mapping {self._path} failed", errno.EBADF)
            try:
                self._map = memoryview(mmap.mmap(self._fd, self._size, prot=mmap.PROT_READ))
            except (OSError, ValueError) as error:  # ValueError: the file is shorter than it was
                number = error.errno if isinstance(error, OSError) else None
                raise DiskError(f"mapping {self._path} failed", number or errno.EIO) from error
        return self._map[position:end]

    def will_need(self, position: int, size: int) -> None:
        """Read these bytes into the page cache: a page fault would bring in megabytes around them."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_WILLNEED)

    def populate(self, view: memoryview) -> bool:
        """Bring the pages into memory and into the map; see `env.pages`."""
        try:
            return populate(view)
        except OSError as error:
            raise _disk_error(f"reading {self._path}", error) from error

    def truncate(self, size: int) -> None:
        """Cut or extend."""
        self._map = None
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise _disk_error(f"truncating {self._path} to {size} bytes", error) from error
        self._size = size

    def sync(self) -> None:
        """fdatasync: the bytes and the size, not the times."""
        if self._fd < 0:
            raise DiskError(f"syncing {self._path} failed", errno.EBADF, undone=False)
        try:
            if hasattr(os, "fdatasync"):
                os.fdatasync(self._fd)
            else:
                os.fsync(self._fd)
        except OSError as error:
            raise _disk_error(f"syncing {self._path}", error, undone=False) from error

    def close(self) -> None:
        """Release the descriptor; views stay readable. An error of close concerns bytes that no sync covered."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1
            self._map = None


class LocalDisk:
    """The file system of the machine.

    Args:
        read_only: files are opened for reading alone, and every call that writes is refused (EROFS): for programs that
            look into the directory of another user, or on a file system that is mounted read-only.
    """

    def __init__(self, *, read_only: bool = False) -> None:
        self.read_only = read_only

    @_disk_call("opening")
    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and appending."""
        if create and self.read_only:
            raise OSError(errno.EROFS, "opened to be read", str(path))
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
        """Bytes in a file."""
        return os.stat(path).st_size

    @_disk_call("reading")
    def read_bytes(self, path: Path) -> bytes:
        """The whole file."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            while piece := os.read(fd, 1 << 20):
                pieces.append(piece)
        finally:
            os.close(fd)
        return b"".join(pieces)

    @_disk_call("writing", writes=True)
    def write_atomic(self, path: Path, content: Content) -> None:
        """Write beside, sync, rename over, sync the directory."""
        self._replace({path: content}, sync=True)
        self._sync_replaced(path.parent, path)

    def write_together(self, files: Mapping[Path, Content]) -> None:
        """Write all beside and sync each, rename them over, sync the directory."""
        self._write_together(directory_of(files), files)

    @_disk_call("writing files of", writes=True)
    def _write_together(self, directory: Path, files: Mapping[Path, Content]) -> None:
        self._replace(files, sync=True)
        self._sync_replaced(directory, *files)

    def _sync_replaced(self, directory: Path, *paths: Path) -> None:
        """Make the names of replaced files durable."""
        try:
            self.sync_dir(directory)
        except DiskError as error:
            names = ", ".join(map(str, paths))
            raise DiskError(f"writing {names} failed", error.number, undone=False) from error

    @_disk_call("writing", writes=True)
    def write_unsynced(self, path: Path, content: bytes) -> None:
        """Write beside, and rename over."""
        self._replace({path: content}, sync=False)

    def _replace(self, files: Mapping[Path, Content], *, sync: bool) -> None:
        """Write all files beside, then rename each over. If one cannot be written, none is replaced."""
        size = sum(map(len, files.values()))
        beside: dict[Path, str] = {}  # what is not renamed yet
        is_replaced = False
        path = Path()
        try:
            for path, content in files.items():
                beside[path] = f"{path}.tmp"
                _write(beside[path], content, sync=sync)
            for path in files:
                os.replace(beside[path], path)
                del beside[path]
                is_replaced = True
        except OSError as error:
            for left in beside.values():
                with contextlib.suppress(OSError):
                    os.unlink(left)  # it would take room on a full disk
            if isinstance(error, FileNotFoundError):
                raise
            raise _disk_error(f"writing {path}", error, undone=not is_replaced, size=size) from error

    @_disk_call("listing")
    def list_dir(self, path: Path) -> list[str]:
        """The names in a directory, sorted."""
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
            raise NotADirectoryError(errno.ENOTDIR, "a file of this name exists", str(at))
        for directory in reversed(missing):
            try:
                os.mkdir(directory)
            except FileExistsError:
                if not os.path.isdir(directory):  # otherwise another thread has made it
                    what = f"making {path} failed, because {directory} is a symbolic link to nothing"
                    raise DiskError(what, errno.ENOTDIR) from None
            self.sync_dir(directory.parent)

    @_disk_call("renaming", writes=True)
    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing a target file."""
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
            raise NotADirectoryError(errno.ENOTDIR, "no directory", str(path))
        entries = list(os.scandir(path))
        if any(entry.is_dir(follow_symlinks=False) for entry in entries):
            raise OSError(errno.ENOTEMPTY, "a directory is in it", str(path))
        for entry in entries:
            os.unlink(path / entry.name)
        os.rmdir(path)

    @_disk_call("syncing the directory", undone=False, writes=True)
    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @_disk_call("allocating", writes=True)
    def allocate(self, path: Path, size: int) -> None:
        """Allocate the blocks, by fallocate(2) where there is one."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            try:
                if not size:
                    return
                if not _allocated(fd, size):
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
        """Bytes that this user may still write, by statvfs(2)."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize


def _write(path: str, content: Content, *, sync: bool) -> None:
    """Write a file that belongs to nobody yet."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        for piece in pieces_of(content):
            written = os.write(fd, piece)
            while written < len(piece):
                written += os.write(fd, memoryview(piece)[written:])
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def _mode(path: Path) -> int | None:
    """The mode of what has this name; None if there is nothing."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _allocated(fd: int, size: int) -> bool:
    """Allocate the blocks of a file without writing them; False where the system has no call for that."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return False
        raise
    return True
