"""The temporary directories of `stablelog.serve()`, which leave nothing behind.

The broker's process makes the directory and removes it. So a program that is killed at any moment leaves no directory:
before its broker runs there is none, and then the broker removes it.

Each process that uses a directory holds a shared lock on it (`flock`), which the operating system releases when the
process ends. The lock tells a directory in use from one that was left: a broker that was killed itself can remove
nothing. The next broker with a temporary directory removes such a directory.

A directory has the name `stablelog-serve-` and 16 hexadecimal digits. The subdirectory `data` is made under the lock: a
directory without it may be new, and nobody may have locked it yet.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final, NoReturn

PREFIX: Final = "stablelog-serve-"
NAME: Final = re.compile(re.escape(PREFIX) + "[0-9a-f]{16}")
DATA: Final = "data"
REMOVAL: Final = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"


def new_path() -> Path:
    """Return the path of a new directory, which does not exist yet."""
    return Path(tempfile.gettempdir()).resolve() / f"{PREFIX}{secrets.token_hex(8)}"


def hold(directory: Path) -> int | None:
    """Take a shared lock on a directory.

    Returns:
        The file descriptor that has the lock, until it is closed; None if there is no directory, or if its file system
        has no locks.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def make(directory: Path) -> None:
    """Make a directory for this user only, if it is missing, and hold it until this process ends.

    Raises:
        OSError: the directory cannot be made.
    """
    with contextlib.suppress(FileExistsError):  # an earlier process of this broker made it
        directory.mkdir(mode=0o700)
    hold(directory)
    (directory / DATA).mkdir(exist_ok=True)


def end_and_remove(directory: Path) -> NoReturn:
    """End this process at once, and remove a directory.

    Another program replaces this one: no other thread of this process runs any more, and none can write a file into the
    directory while it is removed. The other program keeps the process id.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the other program keeps this, too
    with contextlib.suppress(OSError):
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", REMOVAL, str(directory)])  # noqa: S606
    shutil.rmtree(directory, ignore_errors=True)  # Python is not installed any more
    os._exit(1)


def remove_abandoned(place: Path) -> None:
    """Remove the temporary directories that processes of this user have left in a directory."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):  # in use, or removed meanwhile
                    _remove_if_abandoned(Path(entry))


def _remove_if_abandoned(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid == os.getuid() and (directory / DATA).is_dir():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(fd)
