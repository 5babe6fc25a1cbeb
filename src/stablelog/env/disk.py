"""The file system: the interfaces through which the code reads and writes files.

A crash (power, kernel) may lose whatever was not synced. Of the bytes appended to a file since its last `sync`, any
subset may be lost, torn at any byte. So may names that were created, renamed or removed since the last `sync_dir` of
their directory. `kill -9` of the process loses nothing of a call that has returned.

Every call raises DiskError for a failure of the operating system and FileNotFoundError for a missing path, and no
other exception. `env.local_disk` is the real implementation. `stablelog.testing.sim_disk` is the simulation: it passes
the same contract tests, and in a crash it loses everything that the contract allows to be lost.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Pieces(Protocol):
    """The content of a file in pieces that are made while the file is written. Each iteration starts at the first."""

    def __len__(self) -> int:
        """Bytes of all pieces."""

    def __iter__(self) -> Iterator[bytes]: ...


Content = bytes | Pieces

ZEROS = bytes(1 << 20)


class File(Protocol):
    """One open file. It is written only at its end, except by `truncate`."""

    @property
    def size(self) -> int:
        """Bytes in the file, including those not yet synced."""

    def append(self, *buffers: Buffer) -> int:
        """Write the buffers, in order, at the end of the file. Return the position of the first byte.

        Raises:
            DiskError: nothing of this append is in the file. If `undone` is False, a part of it could not be removed:
                every later append to this file is refused until the file is opened again.
        """

    def read(self, position: int, size: int) -> bytes:
        """Return a copy of up to `size` bytes at `position`; fewer only at the end of the file."""

    def view(self, position: int, size: int) -> memoryview:
        """Return `size` bytes at `position`. They stay readable after the file is closed or removed.

        Large ranges are mapped: this makes no copy, and it uses a file descriptor until the file is closed and the last
        view is released. Small ranges are copied. A range must not be truncated while a view of it exists.
        """

    def will_need(self, position: int, size: int) -> None:
        """Announce that these bytes will be read next. Returns at once and never fails."""

    def populate(self, view: memoryview) -> bool:
        """Load the bytes of a view of this file into memory. Safe to call from any thread.

        Returns:
            False if the system has no call for this; then nothing was done.

        Raises:
            DiskError: the bytes cannot be read. Reading the view may end the process with a signal.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes, or extend it by zeros. Durable after `sync`."""

    def sync(self) -> None:
        """Return when every byte of the file is durable. Safe to call from any thread.

        Raises:
            DiskError: it is unknown which bytes are durable. A later sync that succeeds does not prove that they are.
        """

    def close(self) -> None:
        """Release the descriptor. Does not sync and never fails."""


class Disk(Protocol):
    """One file system. Paths are absolute.

    A call that raises a DiskError with `undone` has changed nothing. If `undone` is False, the change may have
    happened.
    """

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and appending.

        Raises:
            FileNotFoundError: the file is missing and `create` is False, or its directory is missing.
        """

    def exists(self, path: Path) -> bool:
        """Whether a file or directory of this name exists."""

    def is_dir(self, path: Path) -> bool:
        """Whether a directory of this name exists."""

    def size(self, path: Path) -> int:
        """Bytes in a file. Raises FileNotFoundError."""

    def read_bytes(self, path: Path) -> bytes:
        """The whole file. Raises FileNotFoundError."""

    def write_atomic(self, path: Path, content: Content) -> None:
        """Replace the whole file: after a crash it holds the old content or the new. Durable on return."""

    def write_together(self, files: Mapping[Path, Content]) -> None:
        """Replace several files of one directory, each as a whole, with one sync of the directory. Durable on return.

        After a crash, each file on its own holds its old or its new content. If the content of one file cannot be
        written, no file is replaced.

        Args:
            files: contents by path; at least one.
        """

    def write_unsynced(self, path: Path, content: bytes) -> None:
        """Replace the whole file without a sync: after a crash it holds the old content, the new or a part of it."""

    def list_dir(self, path: Path) -> list[str]:
        """The names in a directory, sorted. Raises FileNotFoundError."""

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

        The call refuses a directory that holds a directory (ENOTEMPTY) and a symbolic link (ENOTDIR), and changes
        nothing then. After another error, some of the files are removed.
        """

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable. Raises FileNotFoundError."""

    def allocate(self, path: Path, size: int) -> None:
        """Make a file of `size` zero bytes that occupies its space on the disk. Replaces an existing file."""

    def free_size(self, path: Path) -> int:
        """Return how many bytes may still be written to the file system of this directory."""


def read_if_there(disk: Disk, path: Path) -> bytes | None:
    """Return the whole file; None if it is missing."""
    try:
        return disk.read_bytes(path)
    except FileNotFoundError:
        return None


def pieces_of(content: Content) -> Iterable[bytes]:
    """Return the pieces of a file's content in the order in which they are written."""
    return (content,) if isinstance(content, bytes) else content


def directory_of(files: Iterable[Path]) -> Path:
    """Return the common directory of files that are written together."""
    directories = {path.parent for path in files}
    assert len(directories) == 1, f"files of {len(directories)} directories are not written together"
    return directories.pop()
