"""Messages of `stablelog produce` and `stablelog consume --group` while the broker refuses them because its disk is
full.

With a full disk, the broker refuses writes and new group members with error codes that librdkafka retries without a
message. So after a while without progress, a thread asks the broker whether its disk is full (DescribeLogDirs: no
usable bytes), and reports it on stderr.
"""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from stablelog.client.connection import Connection
from stablelog.errors import Refused, Unavailable
from stablelog.wire.api import ApiKey

USABLE_SINCE: Final = 4  # the version of DescribeLogDirs that adds usable bytes
SILENCE_S = 2.0  # time without progress before the thread asks the broker, and between two requests


def full_disk(bootstrap: str) -> str | None:
    """Return the broker's data directory whose disk is full; None if there is none or the broker does not say.

    The broker reports 0 usable bytes while the disk counts as full, whatever space is free. Other values say nothing.
    """
    try:
        with Connection(bootstrap) as connection:
            if not connection.speaks(ApiKey.DESCRIBE_LOG_DIRS, USABLE_SINCE):
                return None
            answer = connection.call(connection.request_class(ApiKey.DESCRIBE_LOG_DIRS)(topics=()))
    except (Unavailable, Refused):
        return None
    full: list[str] = [result.log_dir for result in answer.results if result.usable_bytes == 0]
    return full[0] if full else None


class Watch:
    """Reports on stderr what a command waits for, and when it continues. A thread checks after a time without progress.

    A subclass implements `state`, which describes what the command waits for. The thread calls it.

    Args:
        pending: whether the command has work that waits.
        going_on: the text of the message when the command continues.
    """

    def __init__(self, pending: Callable[[], bool], going_on: str) -> None:
        self._pending = pending
        self._going_on = going_on
        self._progress_s = time.monotonic()
        self._told: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def state(self) -> str | None:
        """Describe what the command waits for; None if it does not wait."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        if kind is None:  # after an exception, do not wait for a thread whose broker may be silent
            self._thread.join()

    def progress(self) -> None:
        """Note that a record was written."""
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
        """Report once what the command waits for, and once that it continues."""
        if state == self._told:
            return
        self._told = state
        say(f"waiting: {state}" if state is not None else f"going on: {self._going_on}")


class DiskWatch(Watch):
    """Reports on stderr that the broker's disk is full while a command waits for space, and when the command continues.

    Args:
        bootstrap: the broker's address.
        pending: whether the command has work that waits.
        what: what the command will do when there is space.
        going_on: the text of the message when the command continues; None says that the disk has space.
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
        """Describe the full disk; None if it is not full."""
        full = full_disk(self._bootstrap)
        if full is None:
            return None
        return f"the disk of {self._bootstrap} is full (data directory {full}); {self._what}"


def say(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
