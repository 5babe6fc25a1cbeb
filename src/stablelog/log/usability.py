"""Whether a partition can be used: it is open, it has not failed, and no append has stopped half-way."""

from collections.abc import Callable

from stablelog.errors import UnavailableError


class Usability:
    """The state that decides whether a partition can be used.

    Args:
        name: the partition's name, for messages.

    Attributes:
        is_writing: whether an append has written to the log file, and has not finished its changes in memory.
        is_closed: whether the partition was closed. Since then its directory may have been deleted and made again for a
            new topic of the same name.
        on_failure: called once, with the reason, when the partition fails; not when it is closed.
    """

    def __init__(self, name: str) -> None:
        self.is_writing = False
        self.is_closed = False
        self.on_failure: Callable[[UnavailableError], None] = _ignore
        self._name = name
        self._failed: UnavailableError | None = None

    @property
    def failure(self) -> UnavailableError | None:
        """The reason why the partition cannot be used; None if it can be used."""
        if self._failed is None and self.is_writing:
            self.fail(
                UnavailableError("an append was written and not completed because of an unexpected error")
            )
        if self._failed is None and self.is_closed:
            return UnavailableError(f"partition {self._name} is closed")
        return self._failed

    def fail(self, why: UnavailableError) -> None:
        """Mark the partition as failed. A second call does not replace the reason."""
        if self._failed is None:
            self._failed = why
            self.on_failure(why)

    def close(self) -> None:
        """Mark the partition as closed, and drop `on_failure`, which could hold the closed partition in a reference
        cycle.
        """
        self.is_closed = True
        self.on_failure = _ignore

    def check(self) -> None:
        """Raise UnavailableError if the partition has failed or is closed."""
        if self.is_writing or self._failed is not None:
            raise UnavailableError(f"partition {self._name} has failed and needs a restart: {self.failure}")
        if self.is_closed:
            self.check_open()

    def check_open(self) -> None:
        """Raise UnavailableError if the partition is closed: its directory may belong to a later partition of the same
        name.
        """
        if self.is_closed:
            raise UnavailableError(f"partition {self._name} is closed")


def _ignore(_why: UnavailableError) -> None:
    pass
