"""The interfaces through which the code reads and writes files.

The rules that the code may rely on: What was synced survives a crash of the machine. Of the bytes that were appended to
a file since its last `sync`, a crash may lose any part, and keep any other. A creation, renaming or removal of a file
since the last `sync_dir` of its directory may be undone. `kill -9` of the process loses nothing of a call that has
returned.

Every call raises DiskError for a failure of the operating system and FileNotFoundError for a missing path, and no other
exception. `env.local_disk` is the real implementation. `stablelog.testing.sim_disk` is a simulation that passes the
same contract tests. In a simulated crash, the simulation loses everything that these rules allow to be lost.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Pieces(Protocol):
    """The content of a file, in pieces that are produced while the file is written. Each iteration over this object
    produces all pieces again.
    """

    def __len__(self) -> int:
        """Return the total size of the pieces in bytes."""

    def __iter__(self) -> Iterator[bytes]: ...


Content = bytes | Pieces

ZEROS = bytes(1 << 20)


class File(Protocol):
    """One open file. Writes append to it; only `truncate` changes existing bytes."""

    @property
    def size(self) -> int:
        """The size of the file in bytes, including bytes that are not synced yet."""

    def append(self, *buffers: Buffer) -> int:
        """Write the buffers one after the other at the end of the file. Return the position of the first byte.

        Raises:
            DiskError: the write failed. If the error's `undone` is True, the file is as before. If it is False, a part
                of the buffers may be left at the end of the file, because it could not be removed: every later append
                is refused until the file is opened again.
        """

    def read(self, position: int, size: int) -> bytes:
        """Return a copy of `size` bytes at `position`; fewer bytes only if the file ends before that."""

    def view(self, position: int, size: int) -> memoryview:
        """Return a view of `size` bytes at `position`. The view stays readable after the file is closed or removed.

        A large range is mapped into memory: this makes no copy, and it uses a file descriptor until the file is closed
        and the last view is released. A small range is copied. The file must not be truncated within a range of which a
        view exists.
        """

    def will_need(self, position: int, size: int) -> None:
        """Tell the operating system that these bytes will be read next. Returns at once and never fails."""

    def populate(self, view: memoryview) -> bool:
        """Load the bytes of a view of this file into memory. Safe to call from any thread.

        Returns:
            True if the bytes were loaded. False if the operating system has no call for this; in that case nothing was
            done.

        Raises:
            DiskError: the bytes cannot be read. The caller must not read the view: a signal may end the process.
        """

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes, or extend it by zeros. Durable after `sync`."""

    def sync(self) -> None:
        """Make all bytes of the file durable. Safe to call from any thread.

        Raises:
            DiskError: it is unknown which bytes are durable. Even if a later sync succeeds, they may be lost.
        """

    def close(self) -> None:
        """Release the file descriptor. Does not sync and never fails."""


class FileWriter(Protocol):
    """Replaces small files: a `Disk`, or the broker's disk reserve, which frees space for the file if the disk is full."""

    def write_atomic(self, path: Path, content: bytes, *, is_private: bool = False) -> None:
        """Replace the file as a whole: after a crash it has the old content or the new one. Durable on return.
        `is_private` says whether only the owner of the file may read it.
        """

    def write_unsynced(self, path: Path, content: bytes) -> None:
        """Replace the file as a whole without a sync: after a crash it may have only a part of the new content."""


class Disk(Protocol):
    """One file system. Paths are absolute.

    If a call raises a DiskError whose attribute `undone` is True, it has changed nothing. If `undone` is False, the
    change may have happened.
    """

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open a file for reading and appending.

        Raises:
            FileNotFoundError: the file is missing and `create` is False, or its directory is missing.
        """

    def exists(self, path: Path) -> bool:
        """Whether a file or directory of this name exists."""

    def is_dir(self, path: Path) -> bool:
        """Whether a directory of this name exists."""

    def size(self, path: Path) -> int:
        """Return the size of a file in bytes. Raises FileNotFoundError."""

    def read_bytes(self, path: Path) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""

    def write_atomic(self, path: Path, content: Content, *, is_private: bool = False) -> None:
        """Replace the whole file: after a crash, the file holds the old content or the new one, and no mixture. Durable
        on return.

        Args:
            path: the file.
            content: its new content.
            is_private: whether only the owner of the file may read it, from its first byte on.
        """

    def write_together(self, files: Mapping[Path, Content]) -> None:
        """Replace several files of one directory, each as a whole, with one sync of the directory. Durable on return.

        After a crash, each file holds its old or its new content, independently of the others. If the content of one
        file cannot be written, no file is replaced.

        Args:
            files: contents by path; at least one.
        """

    def write_unsynced(self, path: Path, content: bytes) -> None:
        """Replace the whole file without a sync: after a crash, the file holds the old content, the new content or a
        part of the new content.
        """

    def list_dir(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted. Raises FileNotFoundError."""

    def make_dir(self, path: Path) -> None:
        """Make a directory and its missing parents; no error if it exists. Durable on return."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory, replacing a target file. Durable after `sync_dir` of both parents.

        Raises:
            FileNotFoundError: the source or the target's directory is missing.
        """

    def remove(self, path: Path) -> None:
        """Remove a file; no error if it is missing. Durable after `sync_dir` of its parent."""

    def remove_dir(self, path: Path) -> None:
        """Remove a directory and its files; no error if it is missing. Durable after `sync_dir` of its parent.

        The call refuses a directory that holds a directory (ENOTEMPTY), and a path that is a symbolic link (ENOTDIR);
        in both cases it changes nothing. After another error, some of the files may be removed.
        """

    def sync_dir(self, path: Path) -> None:
        """Make all changes of names in a directory durable: created, renamed and removed files. Raises
        FileNotFoundError.
        """

    def allocate(self, path: Path, size: int) -> None:
        """Make a file of `size` zero bytes whose blocks are allocated on the disk. Replaces an existing file."""

    def free_size(self, path: Path) -> int:
        """Return how many bytes may still be written to the file system of this directory."""


def read_if_there(disk: Disk, path: Path) -> bytes | None:
    """Return the whole file; None if it is missing."""
    try:
        return disk.read_bytes(path)
    except FileNotFoundError:
        return None


def pieces_of(content: Content) -> Iterable[bytes]:
    """Return the pieces of a file's content, in the order in which they are written. A byte string is one piece."""
    return (content,) if isinstance(content, bytes) else content


def directory_of(files: Iterable[Path]) -> Path:
    """Return the directory in which all these files are: files that are written together are in one directory."""
    directories = {path.parent for path in files}
    assert len(directories) == 1, f"files of {len(directories)} directories are not written together"
    return directories.pop()
