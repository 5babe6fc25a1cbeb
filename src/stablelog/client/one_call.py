"""One call of a reader at a time: a second one is refused, because both would use the same connections."""

import threading

from stablelog.errors import UsageError


class OneCall:
    """Whether a call of a reader is running. Enter the lock that `free` returns for the time of a call."""

    def __init__(self) -> None:
        self._running = threading.Lock()
        self._thread = 0  # that of the last call

    @property
    def is_running(self) -> bool:
        """Whether a call is running now."""
        return self._running.locked()

    def free(self) -> threading.Lock:
        """Return the lock of the calls.

        A signal handler may raise an exception at any line. A lock that is entered by `with` itself is left then, too.
        If two threads pass this check at the same moment, one waits for the other.

        Raises:
            UsageError: another call is running.
        """
        if self._running.locked():
            raise self._in_use()
        self._thread = threading.get_ident()
        return self._running

    def after(self) -> threading.Lock:
        """Return the lock of the calls, for a call that waits for the end of the one that is running.

        Raises:
            UsageError: a signal handler has interrupted the running call, which cannot end before it.
        """
        if self._running.locked() and self._thread == threading.get_ident():
            raise self._in_use()
        return self._running

    @staticmethod
    def _in_use() -> UsageError:
        return UsageError(
            "the reader is in use by another thread or task, or by the call that a signal handler has interrupted: "
            "call it when that call has ended, or use a reader for each"
        )
