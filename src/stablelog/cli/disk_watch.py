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

from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest

from stablelog.cli.output import fail
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
            answer = connection.ask(DescribeLogDirsRequest(topics=()))
    except (Unavailable, Refused):
        return None
    return next((result.log_dir for result in answer.results if result.usable_bytes == 0), None)


def fail_if_full(bootstrap: str, what: str) -> None:
    """End the command if the broker's disk is full.

    Args:
        bootstrap: the broker's address.
        what: what the command could not do, for the message.

    Raises:
        Unavailable: the disk is full.
    """
    full = full_disk(bootstrap)
    if full is not None:
        fail(f"{what}: the disk of {bootstrap} is full ({full})")


class Watch:
    """Reports on stderr what a command waits for, and when it continues. A thread checks after a time without progress.

    Args:
        state: describes what the command waits for; None if it does not wait. The thread calls it.
        pending: whether the command has work that waits.
        going_on: the text of the message when the command continues.

    Attributes:
        told: the state that was reported last.
    """

    def __init__(self, state: Callable[[], str | None], pending: Callable[[], bool], going_on: str) -> None:
        self._state = state
        self._pending = pending
        self._going_on = going_on
        self._progress_s = time.monotonic()
        self.told: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

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
            if not self._is_silent:
                self._tell(None)
            elif self._pending():
                self._tell(self._state())
        if not self._is_silent:
            self._tell(None)

    @property
    def _is_silent(self) -> bool:
        return time.monotonic() - self._progress_s >= SILENCE_S

    def _tell(self, state: str | None) -> None:
        """Report once what the command waits for, and once that it continues."""
        if state == self.told:
            return
        self.told = state
        say(f"waiting: {state}" if state is not None else f"going on: {self._going_on}")


def disk_watch(
    bootstrap: str,
    pending: Callable[[], bool],
    what: str = "records are sent when there is room",
    going_on: str | None = None,
) -> Watch:
    """Make a watch that reports on stderr that the broker's disk is full while a command waits for space.

    Args:
        bootstrap: the broker's address.
        pending: whether the command has work that waits.
        what: what the command will do when there is space.
        going_on: the text of the message when the command continues; None says that the disk has space.
    """

    def state() -> str | None:
        full = full_disk(bootstrap)
        return full and f"the disk of {bootstrap} is full (data directory {full}); {what}"

    return Watch(state, pending, going_on or f"the disk of {bootstrap} has room")


def say(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
