"""Decides which failures of the object store are logged. If the store does not answer, each partition and each reader
fails again and again; one log line is enough.
"""

from stablelog.errors import StablelogError, StoreError


class StoreFailures:
    """Remembers which failures of one kind of work (copies to the store, or reads from it) were logged since this work
    last succeeded. A failure that was logged is not logged again.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def is_new(self, error: StablelogError) -> bool:
        """Return whether to log an error: True at the first call for its kind of failure since the last success. All
        errors of a store that does not answer are one kind, and all rejected requests are another. Other errors are of
        the same kind only if their messages are equal.
        """
        failure = f"rejected: {error.is_rejected}" if isinstance(error, StoreError) else str(error)
        if failure in self._logged:
            return False
        self._logged.add(failure)
        return True

    def clear_logged(self) -> None:
        """Forget the logged failures after a request to the store has succeeded, so that the next failure is logged
        again. May be called in any thread.
        """
        self._logged.clear()
