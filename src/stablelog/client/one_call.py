"""At most one call of a reader at a time: a second call is refused, because both would use the same connections."""

import threading

from stablelog.errors import UsageError


class OneCall:
    """A lock that a call of a reader holds while it runs, so that a second call can be refused."""

    def __init__(self) -> None:
        self._running = threading.Lock()
        self._thread = 0  # that of the last call

    @property
    def is_running(self) -> bool:
        """Whether a call of the reader is running now."""
        return self._running.locked()

    def lock_if_free(self) -> threading.Lock:
        """Return the lock for a call, if no other call of the reader is running.

        The caller enters it by `with`, which releases it even if a signal handler raises an exception at any line. Two
        threads may pass this check at the same moment; one of them then waits for the other.

        Raises:
            UsageError: another call is running.
        """
        if self._running.locked():
            raise self._in_use()
        self._thread = threading.get_ident()
        return self._running

    def lock_after_call(self) -> threading.Lock:
        """Return the lock for a call, such as `close`, that may begin only after the running call has ended. The caller
        enters the lock by `with`, which waits for that.

        Raises:
            UsageError: the caller is a signal handler that has interrupted the running call. It would wait forever,
                because that call can only go on after it.
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
