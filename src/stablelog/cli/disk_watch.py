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


class Watch:
    """Says on stderr what a command waits for, and when it goes on. A thread asks after each silence.

    A subclass says in `state` what is waited for, in words; None if nothing is. It is called in the thread.

    Args:
        pending: whether something waits.
        going_on: what is so when it goes on.
    """

    def __init__(self, pending: Callable[[], bool], going_on: str) -> None:
        self._pending = pending
        self._going_on = going_on
        self._progress_s = time.monotonic()
        self._told: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def state(self) -> str | None:
        """What is waited for."""
        raise NotImplementedError

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
            self._tell(self.state())

    def _tell(self, state: str | None) -> None:
        """Say what is waited for, once, and once that it is not any more."""
        if state == self._told:
            return
        self._told = state
        say(f"waiting: {state}" if state is not None else f"going on: {self._going_on}")


class DiskWatch(Watch):
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
        super().__init__(pending, going_on or f"the disk of {bootstrap} has room")
        self._bootstrap = bootstrap
        self._what = what

    def state(self) -> str | None:
        """That the disk is full."""
        full = full_disk(self._bootstrap)
        if full is None:
            return None
        return f"the disk of {self._bootstrap} is full (data directory {full}); {self._what}"


def say(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
