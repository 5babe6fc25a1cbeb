"""A thread that aborts the client's transactions at their deadlines. The futures of a transaction therefore fail at its
deadline even if the program makes no call.
"""

import threading
import time
from typing import Final, Protocol

from stablelog.client.processes import watch

AGAIN_S: Final = 0.1  # pause before the next attempt to abort a transaction that another thread is using


class Expiring(Protocol):
    """A transaction that is aborted at its deadline."""

    @property
    def deadline(self) -> float:
        """The time (`time.monotonic`) at which to call `expire`."""

    def expire(self) -> bool:
        """Abort the transaction if it is open. Return False, without an abort, if another thread is using it."""


class Deadlines:
    """The open transactions of a client, and a thread that waits for their deadlines. The thread runs while a
    transaction is open.
    """

    def __init__(self) -> None:
        self.after_fork()
        watch(self)

    def after_fork(self) -> None:
        """Forget the transactions of the parent process, and its thread, which a forked process does not have."""
        self._changed = threading.Condition()
        self._due: dict[Expiring, float] = {}
        self._next = 0.0  # the time (`time.monotonic`) at which the thread wakes up
        self._is_watched = False

    def add(self, transaction: Expiring) -> None:
        """Abort this open transaction at its deadline."""
        self._add(transaction, transaction.deadline)

    def hurry(self, transaction: Expiring) -> None:
        """Call `expire` of this transaction at once, in the thread."""
        self._add(transaction, 0.0)

    def _add(self, transaction: Expiring, due: float) -> None:
        with self._changed:
            self._due[transaction] = due
            if not self._is_watched:
                threading.Thread(target=self._watch, name="stablelog-deadlines", daemon=True).start()
                self._is_watched = True
            elif due < self._next:
                self._changed.notify()

    def remove(self, transaction: Expiring) -> None:
        """Remove a transaction that has ended, so that it is not aborted at its deadline."""
        with self._changed:
            self._due.pop(transaction, None)

    def wake(self) -> None:
        """Wake the thread, so that it ends if no transaction is open, instead of sleeping until an old deadline."""
        with self._changed:
            self._changed.notify()

    def _watch(self) -> None:
        while (overdue := self._wait()) is not None:
            for transaction in overdue:
                is_settled = transaction.expire()
                with self._changed:
                    if is_settled:
                        self._due.pop(transaction, None)
                    elif transaction in self._due:
                        self._due[transaction] = time.monotonic() + AGAIN_S

    def _wait(self) -> list[Expiring] | None:
        """Wait until transactions are overdue, and return them; return None if no transaction is open."""
        with self._changed:
            while self._due:
                now = time.monotonic()
                overdue = [transaction for transaction, due in self._due.items() if due <= now]
                if overdue:
                    return overdue
                self._next = min(self._due.values())
                self._changed.wait(self._next - now)
            self._is_watched = False
            return None
