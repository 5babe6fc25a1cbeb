"""Where may this user keep what is run: compiled kernels, the way to a bundled Java?

Only where nobody else may write, for whoever can write there can have anything run by this user. In the order of
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
    """The places, best first; they need not be there."""
    if "STABLELOG_CACHE_DIR" in os.environ:
        yield Path(os.environ["STABLELOG_CACHE_DIR"])
    if "XDG_CACHE_HOME" in os.environ:
        yield Path(os.environ["XDG_CACHE_HOME"]) / "stablelog"
    with contextlib.suppress(RuntimeError):  # there is no home
        yield Path.home() / ".cache" / "stablelog"
    yield Path(tempfile.gettempdir()) / f"stablelog-{os.getuid()}"


def own_directory(name: str) -> Path | None:
    """A directory of this name that this user, and only this user, may write to; it is made if it is not there.

    Returns:
        None if there is nowhere to have one.
    """
    for candidate in candidates():
        path = candidate / name
        with contextlib.suppress(OSError):
            candidate.mkdir(parents=True, exist_ok=True, mode=0o755)
            path.mkdir(exist_ok=True, mode=0o755)
            if candidate.parent == Path(tempfile.gettempdir()) and not _is_whose(candidate, os.getuid()):
                continue  # somebody else made it, and may put another directory in the place of this one
            if _is_whose(path, os.getuid()) and os.access(path, os.W_OK | os.X_OK):
                return path
    return None


def images_directories(name: str) -> Iterator[Path]:
    """Directories of this name that are root's alone: made with a machine's image, for whoever runs there.

    Root may have anything run as it is; others have to be kept out of the directory and of the one that it lies in.
    """
    for candidate in candidates():
        with contextlib.suppress(OSError, RuntimeError):
            place = candidate.resolve(strict=True)
            if _is_whose(place, ROOT_UID) and _is_whose(place / name, ROOT_UID):
                yield place / name


def _is_whose(path: Path, uid: int) -> bool:
    """Whether it is a directory of this user's, to which nobody else may write."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o022
