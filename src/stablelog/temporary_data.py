"""The temporary data directories of brokers of `stablelog.serve()`. They are removed even if processes are killed.

The broker's process makes its directory and removes it at its end. If the program that has started it is killed, the
broker notices this and removes the directory.

Each process that uses a directory holds a shared lock on it (`flock`), which the operating system releases when the
process ends. A broker that is killed cannot remove its directory; the next broker with a temporary directory removes
it. The lock shows which directories are still in use.

The name of a directory is `stablelog-serve-` and 16 hexadecimal digits. The subdirectory `data` is made only after the
directory is locked. A directory without `data` may therefore be new and not locked yet, and is not removed.

Other users may write to the system's directory for temporary files, in which these directories are made. So the
broker's process gets the path of its directory by its standard input, because every user can read the arguments of a
process. It uses the directory only if no other user has access to it. No other user can replace the directory, because
the system's directory for temporary files has the sticky bit.
"""

import contextlib
import errno
import fcntl
import os
import re
import signal
import stat
import sys
from pathlib import Path
from typing import Final, NoReturn

PREFIX: Final = "stablelog-serve-"
NAME: Final = re.compile(re.escape(PREFIX) + "[0-9a-f]{16}")
DATA: Final = "data"
MODE: Final = 0o700
REMOVAL: Final = """
import os, shutil, sys
try:
    is_own = os.lstat(sys.argv[1]).st_uid == os.getuid()
except OSError:
    is_own = False
if is_own:
    shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


def new_path() -> Path:
    """Return the path of a temporary data directory that does not exist yet."""
    import tempfile  # imported here, as shutil below: the broker's process gets the path from the program

    return Path(tempfile.gettempdir()).resolve() / f"{PREFIX}{os.urandom(8).hex()}"


def hold_directory(directory: Path) -> int | None:
    """Take a shared lock on a temporary data directory. It shows other brokers that the directory is in use.

    Returns:
        The file descriptor that has the lock, until it is closed; None if there is no directory (a symbolic link does
        not count), or if its file system has no locks.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def make_directory(directory: Path) -> None:
    """Make a directory that only this user can access, if it is missing. Lock it until this process ends.

    Raises:
        OSError: the directory cannot be made, or exists and is not one that a process of this user has made.
    """
    import shutil  # noqa: F401 - loaded for `remove_directory`, which may be called when Python is not installed any more

    with contextlib.suppress(FileExistsError):  # an earlier process of this broker made it
        directory.mkdir(mode=MODE)
    _check_made_here(directory)
    hold_directory(directory)
    data = directory / DATA
    with contextlib.suppress(FileExistsError):
        data.mkdir()
    if not stat.S_ISDIR(data.lstat().st_mode):
        raise FileExistsError(
            errno.EEXIST, "the entry `data` of the directory is a link or a file, not a directory", data
        )


def _check_made_here(directory: Path) -> None:
    """Raise FileExistsError if there is something at the path of a directory that `make_directory` of this user has not
    made: a file or link, a directory of another user, or one that other users may access.
    """
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise FileExistsError(errno.EEXIST, "a link or a file with this name exists", directory)
    if found.st_uid != os.getuid():
        raise FileExistsError(errno.EEXIST, "a directory of another user has this name", directory)
    if stat.S_IMODE(found.st_mode) & 0o777 != MODE:
        raise FileExistsError(
            errno.EEXIST, "the directory exists, but other users have access to it", directory
        )


def remove_directory(directory: Path) -> None:
    """Remove a directory with its files, if it belongs to this user and is not a symbolic link. Ignore errors."""
    with contextlib.suppress(OSError):
        found = directory.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            _remove_tree(directory)


def end_and_remove(directory: Path) -> NoReturn:
    """End this process, a broker's, at once, and remove its temporary data directory.

    The process replaces its program (`exec`) by one that removes the directory. This ends all other threads, which
    could otherwise still write files into the directory. The process id stays the same.
    """
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the other program keeps this, too
        with contextlib.suppress(OSError):
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", REMOVAL, str(directory)])  # noqa: S606
        remove_directory(directory)  # Python is not installed any more
    finally:
        os._exit(1)


def remove_abandoned(place: Path) -> None:
    """Remove all temporary data directories of this user under `place` on which no process has a lock any more."""
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
            _remove_tree(directory)
    finally:
        os.close(fd)


def _remove_tree(directory: Path) -> None:
    import shutil

    shutil.rmtree(directory, ignore_errors=True)  # works with file descriptors, and follows no link
