"""A thread that aborts the transactions of all clients at their deadlines. The futures of a transaction therefore fail at its
deadline even if the program makes no call.

The thread runs no code of the program. The callbacks of futures run in threads of their own, so that a callback that waits
delays no other transaction.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from stablelog.client.core.settings import EXPIRE_RETRY_S
from stablelog.processes import watch

_log = logging.getLogger("stablelog.client")


# Aborts a transaction at its deadline if it is open. Returns False, without an abort, if another thread is using it.
Expire = Callable[[], bool]


class TransactionDeadlines:
    """The open transactions of several clients, and a thread that waits for their deadlines. The thread runs while a
    transaction is open. After the last one, it ends at the deadline that it waits for, or when a client is closed.
    """

    def __init__(self) -> None:
        self.after_fork()
        watch(self)

    def after_fork(self) -> None:
        """Forget the transactions of the parent process, and its thread, which a forked process does not have."""
        self._changed = threading.Condition()
        self._due: dict[Expire, float] = {}
        self._next = 0.0  # the time (`time.monotonic`) at which the thread wakes up
        self._is_watched = False

    def add(self, expire: Expire, deadline: float) -> None:
        """Call a function of an open transaction, in the thread, at its deadline (`time.monotonic`)."""
        with self._changed:
            self._due[expire] = deadline
            if not self._is_watched:
                threading.Thread(target=self._watch, name="stablelog-deadlines", daemon=True).start()
                self._is_watched = True
            elif deadline < self._next:
                self._changed.notify()

    def hurry(self, expire: Expire) -> None:
        """Call the function at once, in the thread."""
        self.add(expire, 0.0)

    def remove(self, expire: Expire) -> None:
        """Remove the function of a transaction that has ended."""
        with self._changed:
            self._due.pop(expire, None)

    def wake(self) -> None:
        """Wake the thread, so that it ends if no transaction is open, instead of sleeping until an old deadline."""
        with self._changed:
            self._changed.notify()

    def _watch(self) -> None:
        while (overdue := self._wait()) is not None:
            for expire in overdue:
                with self._changed:
                    if self._due.pop(expire, None) is None:
                        continue  # it was removed meanwhile
                try:
                    is_settled = expire()
                except BaseException:  # noqa: BLE001 - the thread belongs to other transactions, too
                    _log.exception("a transaction could not be aborted at its deadline")
                    continue
                if not is_settled:
                    with self._changed:
                        self._due.setdefault(expire, time.monotonic() + EXPIRE_RETRY_S)

    def _wait(self) -> list[Expire] | None:
        """Wait until transactions are overdue, and return them; return None if no transaction is open."""
        with self._changed:
            while self._due:
                now = time.monotonic()
                overdue = [expire for expire, due in self._due.items() if due <= now]
                if overdue:
                    return overdue
                self._next = min(self._due.values())
                self._changed.wait(self._next - now)
            self._is_watched = False
            return None


def call_aside(settle: Callable[[], None]) -> bool:
    """Call the callbacks of one transaction in a thread of their own, which ends after them.

    Args:
        settle: calls the callbacks.

    Returns:
        Whether the thread was started. The operating system may refuse it.
    """

    def run() -> None:
        try:
            settle()
        except BaseException:  # noqa: BLE001 - such as SystemExit, which would end this thread without a word
            _log.exception("a callback of a future has failed")

    try:
        threading.Thread(target=run, name="stablelog-callbacks", daemon=True).start()
    except RuntimeError:
        return False
    return True


# Of all clients of this process, so that clients that are not closed leave one thread at most.
SHARED: Final = TransactionDeadlines()
