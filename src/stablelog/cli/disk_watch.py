"""Reports on stderr while `stablelog produce` or `stablelog consume --group` waits because the broker's disk is full.

A broker with a full disk refuses writes and new group members with error codes that the client retries silently. So
after some time without progress, a thread asks the broker whether its disk is full: whether DescribeLogDirs reports 0
usable bytes. If so, the thread writes a message to stderr.
"""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest

from stablelog.cli.broker import connect
from stablelog.cli.output import fail
from stablelog.errors import RefusedError, UnavailableError
from stablelog.wire.api import ApiKey

USABLE_SINCE: Final = 4  # the first version of DescribeLogDirs with usable bytes
# Time without progress before the thread asks the broker, and pause between two such requests.
SILENCE_S = 2.0


def full_disk(bootstrap: str) -> str | None:
    """Return the data directory of a broker whose disk is full; None if no disk is full, or if the broker does not
    report usable bytes.

    The broker reports 0 usable bytes while it treats the disk as full, even if some space is free.
    """
    try:
        with connect(bootstrap) as connection:
            if not connection.supports_api(ApiKey.DESCRIBE_LOG_DIRS, USABLE_SINCE):
                return None
            answer = connection.request(DescribeLogDirsRequest(topics=()))
    except (UnavailableError, RefusedError):
        return None
    return next((result.log_dir for result in answer.results if result.usable_bytes == 0), None)


def fail_if_full(bootstrap: str, what: str) -> None:
    """End the command with an error if the broker's disk is full.

    Args:
        bootstrap: the broker's address.
        what: what has failed, as the beginning of the message.

    Raises:
        UnavailableError: the disk is full.
    """
    full = full_disk(bootstrap)
    if full is not None:
        fail(f"{what}: the disk of {bootstrap} is full ({full})")


class WaitReporter:
    """Reports on stderr what a command waits for, and later that it continues. After some time without progress, a
    thread finds out the reason of the wait.

    Args:
        state: returns what the command waits for, as text; None if the command does not wait. The thread calls this
            function.
        pending: returns whether the command has pending work, such as records that are not acknowledged yet.
        going_on: the text of the message when the command continues.

    Attributes:
        reported: the last reported text.
    """

    def __init__(self, state: Callable[[], str | None], pending: Callable[[], bool], going_on: str) -> None:
        self._state = state
        self._pending = pending
        self._going_on = going_on
        self._progress_s = time.monotonic()
        self.reported: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        # After an exception, do not wait for the thread: the broker that it asks may not respond.
        if kind is None:
            self._thread.join()

    def mark_progress(self) -> None:
        """Note that the command makes progress, for example that the broker has acknowledged a record. The time without
        progress, after which a wait is reported, begins again.
        """
        self._progress_s = time.monotonic()

    def _watch(self) -> None:
        while not self._ended.wait(SILENCE_S / 4):
            if not self._is_silent:
                self._report(None)
            elif self._pending():
                self._report(self._state())
        if not self._is_silent:
            self._report(None)

    @property
    def _is_silent(self) -> bool:
        return time.monotonic() - self._progress_s >= SILENCE_S

    def _report(self, state: str | None) -> None:
        """Report what the command waits for (`state`), or with None that it continues. Each state is reported once."""
        if state == self.reported:
            return
        self.reported = state
        print_to_stderr(
            f"waiting: {state}" if state is not None else f"the command continues: {self._going_on}"
        )


def disk_watch(
    bootstrap: str,
    pending: Callable[[], bool],
    what: str = "records are sent when the disk has space",
    going_on: str | None = None,
) -> WaitReporter:
    """Return a reporter for a command that may wait because the broker's disk is full.

    Args:
        bootstrap: the broker's address.
        pending: returns whether the command has pending work, such as records that are not acknowledged yet.
        what: what the command will do when there is space, for the message.
        going_on: the text of the message when the command continues; None for "the disk has space".
    """

    def state() -> str | None:
        full = full_disk(bootstrap)
        return full and f"the disk of {bootstrap} is full (data directory {full}); {what}"

    return WaitReporter(state, pending, going_on or f"the disk of {bootstrap} has space")


def print_to_stderr(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
