"""What `stablelog produce` and `stablelog consume --group` say while the broker refuses them because the disk is full.

The broker refuses writes and new members with codes that the client retries in silence. So a thread asks it, when there
was no progress for a while, whether its disk is full (DescribeLogDirs: no usable bytes), and tells it on stderr.
"""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from stablelog.client.connection import Connection
from stablelog.errors import Refused, Unavailable

DESCRIBE_LOG_DIRS: Final = 35
USABLE_SINCE: Final = 4  # the version of DescribeLogDirs that tells usable bytes
SILENCE_S = 2.0  # without progress, after which the broker is asked; and between two questions


def full_disk(bootstrap: str) -> str | None:
    """The broker's data directory whose disk is full; None if there is none, or the broker does not say.

    The usable bytes are 0 while the disk counts as full, whatever is free: they say nothing else.
    """
    try:
        with Connection(bootstrap) as connection:
            if not connection.speaks(DESCRIBE_LOG_DIRS, USABLE_SINCE):
                return None
            answer = connection.call(connection.request_class(DESCRIBE_LOG_DIRS)(topics=()))
    except (Unavailable, Refused):
        return None
    full: list[str] = [result.log_dir for result in answer.results if result.usable_bytes == 0]
    return full[0] if full else None


class DiskWatch:
    """Says on stderr that the broker's disk is full while something waits for that, and when it goes on.

    Args:
        bootstrap: the broker's address.
        pending: whether something waits.
        what: what happens when there is room.
        going_on: what is so when it goes on; that the disk has room, unless given.
    """

    def __init__(
        self,
        bootstrap: str,
        pending: Callable[[], bool],
        what: str = "records are sent when there is room",
        going_on: str | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._pending = pending
        self._what = what
        self._going_on = going_on or f"the disk of {bootstrap} has room"
        self._progress_s = time.monotonic()
        self._told = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="disk watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        if kind is None:  # else the command ends now, also while the broker does not answer the thread
            self._thread.join()

    def progress(self) -> None:
        """Something was written."""
        self._progress_s = time.monotonic()

    def _watch(self) -> None:
        while not self._ended.wait(SILENCE_S / 4):
            self._look()
        if not self._is_silent:
            self._tell(None)

    @property
    def _is_silent(self) -> bool:
        return time.monotonic() - self._progress_s >= SILENCE_S

    def _look(self) -> None:
        if not self._is_silent:
            self._tell(None)
        elif self._pending():
            self._tell(full_disk(self._bootstrap))

    def _tell(self, full: str | None) -> None:
        """Say that the disk is full, and once that it is not any more."""
        if (full is not None) is self._told:
            return
        self._told = full is not None
        if self._told:
            say(f"waiting: the disk of {self._bootstrap} is full (data directory {full}); {self._what}")
        else:
            say(f"going on: {self._going_on}")


def say(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
