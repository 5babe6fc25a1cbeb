"""The limits of a client's calls: their deadline, and their cancellation."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from stablelog.client.core.connection import BrokerConnection
from stablelog.client.core.steps import NOW, Result, Steps
from stablelog.errors import UnavailableError

DEADLINE_S: Final = 30.0
LATE_MAX_S: Final = 0.5  # how long after its deadline a call may end
GRACE_S: Final = LATE_MAX_S - 0.1  # how long after the deadline of a call its last attempt may wait


class CallLimits:
    """How long the steps (a generator of I/O operations) of a client's present call may wait for brokers and retry.

    Args:
        deadline_s: how long a call is retried before it fails.

    Attributes:
        deadline_s: for how many seconds a call is retried before it fails.
        until: until when steps may wait for a broker, by the client's monotonic clock (`steps.Now`); None if no call is
            in progress.
        are_retries_cancelled: whether `cancel_retries` was called, and `allow_retries` was not called since.
        waiting_on: the connections on which a long poll (a fetch that the broker answers when a record arrives) waits.
            `cancel_retries` closes them, and thus ends the long poll.
    """

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.until: float | None = None
        self.are_retries_cancelled = False
        self.waiting_on: list[BrokerConnection] = []

    @contextmanager
    def limit_waits_until(self, until: float) -> Iterator[None]:
        """Context manager: inside the `with` block, no step waits for a broker after this time, by the client's
        monotonic clock (`steps.Now`). It has no value.
        """
        before = self.until
        self.until = until if before is None else min(before, until)
        try:
            yield
        finally:
            self.until = before

    def run_until_deadline(self, steps: Steps[Result], limit_s: float | None = None) -> Steps[Result]:
        """Run the steps (a generator of I/O operations) of one call of the program, with all its retries, and return
        their result. The call fails `limit_s` seconds from now; if that is None, after `deadline_s` seconds.
        """
        with self.limit_waits_until(
            (yield NOW) + (self.deadline_s + GRACE_S if limit_s is None else limit_s)
        ):
            return (yield from steps)

    def time_left_s(self, now: float) -> float:
        """Return how many seconds the present call may still retry."""
        left_s = self.deadline_s if self.until is None else self.until - GRACE_S - now
        return max(0.0, min(self.deadline_s, left_s))

    def cancel_retries(self) -> None:
        """Cancel all retries, until `allow_retries` is called: a call whose attempt fails raises its error at once. A
        long poll (a fetch that waits for a record) ends.
        """
        self.are_retries_cancelled = True
        for connection in self.waiting_on:
            connection.close()

    def check_cancelled(self, what: str) -> None:
        """Raise UnavailableError if retries are cancelled. `what` names the work in the message."""
        if self.are_retries_cancelled:
            raise UnavailableError(f"{what} did not succeed: the call was cancelled")

    def allow_retries(self) -> None:
        """End the effect of `cancel_retries`: each call retries until its deadline again."""
        self.are_retries_cancelled = False
