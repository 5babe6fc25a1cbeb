"""An object store in a local directory: each object is a file.

`create` writes and syncs a temporary file, and then makes a hard link to this file under the name of the key. The link
fails if the key exists. obstore has such a store, too, but it does not sync files. A crash leaves only temporary files
in the directory `.unfinished`. The next opening removes those that are more than a day old; a newer one may belong to
another process.
"""

import contextlib
import errno
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from stablelog.env.disk import Buffer
from stablelog.env.objects.attempts import (
    ExistsError,
    MissingError,
    RejectedError,
    StoredObject,
    TooShortError,
    UnclearError,
    UploadPace,
)
from stablelog.env.objects.direct_file import write_new
from stablelog.errors import NothingStoredError

UNFINISHED = ".unfinished"
UNFINISHED_S_MAX = 24 * 3600
# Errors of a write that a retry cannot remove: the permissions, the file system or the name must be changed first.
REJECTED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTSUP)

Answer = TypeVar("Answer")


class DirectoryRequests:
    """An object store in a local directory. Each call makes one attempt of a request.

    Args:
        root: the directory.
        creates: whether the directory is created if it is missing. A program that only reads does not create it.

    Raises:
        ValueError: the directory cannot be made or read.
        NothingStoredError: the directory does not exist, and the program does not create it.
    """

    def __init__(self, root: Path, *, creates: bool = True) -> None:
        self._root = root.absolute()
        self._unfinished = self._root / UNFINISHED
        if not creates:
            self._check_directory()
            return
        try:
            self._make_directory(self._unfinished)
        except OSError as error:
            raise ValueError(f"{self._root} cannot hold objects: {error.strerror}") from error
        with contextlib.suppress(OSError):  # A file that cannot be removed now is removed by a later opening.
            self._remove_unfinished()

    @property
    def url(self) -> str:
        """The address of the store."""
        return self._root.as_uri()

    def create(self, key: str, content: Buffer) -> None:
        """Create an object: write and sync a temporary file, and link it under the name of the key."""

        def work() -> None:
            with self._temporary_file([content]) as finished:
                path = self._path(key)
                os.link(finished, path)
                try:
                    _sync_directory(path.parent)
                except OSError as error:
                    # A crash may still lose the object. Raise RejectedError and not UnclearError: after UnclearError,
                    # the caller would read the object back and take it for durable.
                    raise RejectedError(f"syncing {path.parent} failed: {error.strerror}") from error

        _asked(work)

    def upload(self, key: str, pieces: Iterable[Buffer], pace: UploadPace) -> None:
        """Write an object: write and sync a temporary file, and rename it to the name of the key."""

        def work() -> None:
            with self._temporary_file(pieces) as finished:
                path = self._path(key)
                finished.rename(path)
                _sync_directory(path.parent)

        _asked(work)

    def get(self, key: str) -> bytes:
        """Return a whole object."""
        return _asked((self._root / key).read_bytes)

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return `size` bytes of an object, from byte `start` on."""

        def work() -> bytes:
            with (self._root / key).open("rb") as file:
                file.seek(start)
                return file.read(size)

        found = _asked(work)
        if len(found) < size:
            raise TooShortError
        return found

    def list_after(self, directory: str, after: str) -> Iterator[StoredObject]:
        """Yield the objects whose keys begin with `directory/` and are greater than `after`, in the order of keys."""
        return iter(_asked(lambda: sorted(self._objects_in(self._root / directory, after))))

    def directories(self, directory: str) -> Iterator[str]:
        """Yield the names of the directories in a directory. Directories without objects are left out, because cloud
        stores have none.
        """
        path = self._root / directory

        def work() -> list[str]:
            names = [one.name for one in os.scandir(path) if one.is_dir() and not one.name.startswith(".")]
            return [name for name in names if any(self._objects_in(path / name, ""))]

        try:
            return iter(_asked(work))
        except MissingError:
            return iter(())

    def delete(self, key: str) -> None:
        """Delete an object. Directories that become empty stay."""

        def work() -> None:
            path = self._root / key
            path.unlink()
            _sync_directory(path.parent)

        with contextlib.suppress(MissingError):
            _asked(work)

    def _check_directory(self) -> None:
        try:
            mode = self._root.stat().st_mode
        except FileNotFoundError:
            raise NothingStoredError(f"there is no directory {self._root}") from None
        except OSError as error:
            raise ValueError(f"{self._root} cannot be read: {error.strerror}") from error
        if not stat.S_ISDIR(mode):
            raise ValueError(f"{self._root} is no directory")

    def _remove_unfinished(self) -> None:
        for left in self._unfinished.iterdir():
            with contextlib.suppress(OSError):  # Another process may have removed the file.
                if time.time() - left.stat().st_mtime > UNFINISHED_S_MAX:
                    left.unlink()

    # -- files -------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> Path:
        """Return the path of the file that contains the object of a key. Missing directories of this path are
        created.
        """
        path = self._root / key
        if not path.parent.is_dir():
            self._make_directory(path.parent)
        return path

    def _make_directory(self, directory: Path) -> None:
        made = [directory, *directory.parents][: len(directory.parts)]
        new = [one for one in made if not one.is_dir()]
        directory.mkdir(parents=True, exist_ok=True)
        for one in reversed(new):
            _sync_directory(one.parent)

    @contextlib.contextmanager
    def _temporary_file(self, pieces: Iterable[Buffer]) -> Iterator[Path]:
        """Yield the path of a new synced file with this content. When the caller has used it, remove the file, unless
        the caller has renamed it.
        """
        path = self._unfinished / uuid.uuid4().hex
        try:
            write_new(path, pieces)
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _objects_in(self, directory: Path, after: str) -> Iterator[StoredObject]:
        if not directory.is_dir():
            if not self._unfinished.is_dir():
                raise OSError(errno.ENXIO, f"the directory {self._root} does not exist any more")
            return
        for parent, directories, names in os.walk(directory, onerror=_raise_unless_missing):
            directories[:] = [name for name in directories if not name.startswith(".")]
            for name in names:
                path = Path(parent) / name
                key = path.relative_to(self._root).as_posix()
                if key > after and not name.startswith(
                    "."
                ):  # Network file systems keep hidden files of their own.
                    with contextlib.suppress(FileNotFoundError):  # The file was deleted meanwhile.
                        found = path.stat()
                        yield StoredObject(key, found.st_size, found.st_mtime_ns // 1_000_000)


def _raise_unless_missing(error: OSError) -> None:
    """Handle the error of a directory that cannot be read during a listing: raise it again, unless the directory was
    removed.

    A listing that leaves out the directory's objects would be wrong. A directory that was removed meanwhile has no
    objects, so its error is ignored.
    """
    if not isinstance(error, FileNotFoundError):
        raise error


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _asked(work: Callable[[], Answer]) -> Answer:
    try:
        return work()
    except FileExistsError as error:
        raise ExistsError(str(error)) from error
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise MissingError(str(error)) from error
    except OSError as error:
        kind = RejectedError if error.errno in REJECTED else UnclearError
        raise kind(error.strerror or str(error)) from error
