"""The lock of a data directory: only one process holds it at a time.

The lock is an advisory file lock (flock). The operating system releases it when the process ends in any way. On a
network file system, processes on other machines may not see the lock.
"""

import errno
import fcntl
import logging
import os
import time
from enum import Enum
from pathlib import Path

from stablelog.errors import DiskError, UnavailableError

log = logging.getLogger(__name__)

LOCK_FILE = ".lock"
TRIES, PAUSE_S = 5, 0.01


class DirectoryLock:
    """The lock of one data directory, from the constructor until `release`.

    Args:
        directory: the data directory.
        create: whether to create the lock file if it is missing. If False, and the file is missing because no broker
            has ever used the directory, the directory is not locked, and nothing is written.

    Raises:
        UnavailableError: another process holds the lock.
        DiskError: the lock file cannot be opened.
    """

    def __init__(self, directory: Path, *, create: bool = True) -> None:
        self._fd = -1
        path = directory / LOCK_FILE
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        except FileNotFoundError:
            if create:
                raise
            return
        except OSError as error:
            raise DiskError(f"opening {path} failed", error.errno or errno.EIO) from error
        for tried in range(TRIES):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                # A program that only checks whether a broker is running holds the lock for a moment, so one failure is
                # no proof of another broker.
                time.sleep(PAUSE_S * tried)
        self.release()
        raise UnavailableError(
            f"another broker is running on {directory}: it holds the lock {path}. Stop that broker, or use another "
            "data directory"
        )

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_locked(directory: Path) -> bool:
    """Whether a broker has a data directory open. stablelog locks the file `.lock` by `flock`, Apache Kafka by `lockf`.

    The function does not keep the lock, so the answer may be outdated at once. The lock of a broker on another machine
    may not be visible. If the file system has no locks, a warning is logged, and the result is False. A directory
    without the lock file, such as a copy of partitions, counts as not open.

    Raises:
        UnavailableError: the lock file cannot be read.
    """
    try:
        return lock_state(directory) is LockState.HELD
    except LocksUnsupportedError as unsupported:
        log.warning("%s, so it is unknown whether a broker uses the directory", unsupported)
        return False


class LockState(Enum):
    """Whether a process holds the lock of a data directory."""

    MISSING = "missing"  # No broker has ever used the directory.
    FREE = "free"
    HELD = "held"


class LocksUnsupportedError(UnavailableError):
    """The file system of a lock file has no locks."""


def lock_state(directory: Path) -> LockState:
    """Return whether a process holds the lock of a data directory, of a broker of stablelog or of Apache Kafka. The lock
    is not kept, so the answer may be outdated at once.

    Raises:
        LocksUnsupportedError: the file system has no locks.
        UnavailableError: the lock file cannot be read.
    """
    path = directory / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return LockState.MISSING
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read: {error.strerror}") from error
    try:
        for lock in (fcntl.flock, fcntl.lockf):
            lock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return LockState.HELD
    except OSError as error:
        raise LocksUnsupportedError(f"{path} cannot be locked ({error.strerror})") from error
    finally:
        os.close(descriptor)
    return LockState.FREE
