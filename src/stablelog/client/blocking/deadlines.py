"""One thread that aborts the transactions of all clients of this process at their deadlines. So the futures of a
transaction fail at its deadline, even if the program makes no call.

The thread runs no code of the program. The callbacks of futures run in threads of their own, so that a slow callback
delays no other transaction.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from stablelog.client.core.settings import EXPIRE_RETRY_S
from stablelog.processes import watch_forks

_log = logging.getLogger("stablelog.client")


# Aborts a transaction at its deadline if it is open. Returns False, without an abort, if another thread is using it.
Expire = Callable[[], bool]


class TransactionDeadlines:
    """The deadlines of the open transactions of several clients, and the thread that waits for the next deadline. The
    thread runs while a transaction is open. After the last transaction has ended, the thread stops when the deadline
    comes for which it sleeps, or when a client is closed.
    """

    def __init__(self) -> None:
        self.after_fork()
        watch_forks(self)

    def after_fork(self) -> None:
        """In a forked process, forget the transactions and the thread of the parent process."""
        self._changed = threading.Condition()
        self._due: dict[Expire, float] = {}
        self._next = 0.0  # the time (`time.monotonic`) at which the thread wakes up
        self._is_watched = False

    def add_transaction(self, expire: Expire, deadline: float) -> None:
        """Let the thread call `expire`, which aborts a transaction, when the deadline of the transaction
        (`time.monotonic`) has come.
        """
        with self._changed:
            self._due[expire] = deadline
            if not self._is_watched:
                threading.Thread(target=self._run_thread, name="stablelog-deadlines", daemon=True).start()
                self._is_watched = True
            elif deadline < self._next:
                self._changed.notify()

    def expire_now(self, expire: Expire) -> None:
        """Let the thread call `expire`, which aborts a transaction, at once and not only at the deadline."""
        self.add_transaction(expire, 0.0)

    def remove_transaction(self, expire: Expire) -> None:
        """Remove the deadline of a transaction that has ended. `expire` is the function with which it was added."""
        with self._changed:
            self._due.pop(expire, None)

    def wake_thread(self) -> None:
        """Wake the thread. If no transaction is open, the thread then ends, and does not sleep until the deadline of a
        transaction that has ended.
        """
        with self._changed:
            self._changed.notify()

    def _run_thread(self) -> None:
        while (overdue := self._wait_for_overdue()) is not None:
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

    def _wait_for_overdue(self) -> list[Expire] | None:
        """Wait until the deadline of at least one transaction has passed, and return the functions that abort these
        transactions. Return None if no transaction is open, so that the thread can end.
        """
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


def call_in_thread(settle: Callable[[], None]) -> bool:
    """Call the callbacks of one transaction in a new thread, which ends after them.

    Args:
        settle: the function that the thread runs; it calls the callbacks.

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
