"""Which failures of the object store are logged. If the store does not answer, every partition and every reader fails, again
and again; one line tells it.
"""

from stablelog.errors import StablelogError, StoreError


class StoreFailures:
    """The failures of one kind of work with the object store, which is copies or reads, since its last success."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def is_new(self, error: StablelogError) -> bool:
        """Whether an error is to be logged. A store that does not answer is one failure, and so is one that rejects
        requests; every other error is a failure of its own.
        """
        failure = f"rejected: {error.is_rejected}" if isinstance(error, StoreError) else str(error)
        if failure in self._logged:
            return False
        self._logged.add(failure)
        return True

    def clear_logged(self) -> None:
        """Note a success: the next failure is logged again. May be called in any thread."""
        self._logged.clear()
