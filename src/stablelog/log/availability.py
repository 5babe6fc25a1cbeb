"""Whether a partition can be used: it is open, has failed, or is closed."""

from collections.abc import Callable

from stablelog.errors import UnavailableError


class Availability:
    """Whether one partition accepts calls. The partition stops accepting them when the disk fails, when an append stops
    half-way, and when the partition is closed.

    Args:
        name: the partition's name, for messages.

    Attributes:
        is_writing: whether an append has written to the log file, and has not updated the state in memory yet. If the
            append stops there, file and memory differ, and the partition fails.
        is_closed: whether the partition was closed. Its directory may then belong to a new topic of the same name.
        on_failure: called once with the reason when the partition fails. It is not called when the partition is closed.
    """

    def __init__(self, name: str) -> None:
        self.is_writing = False
        self.is_closed = False
        self.on_failure: Callable[[UnavailableError], None] = _ignore
        self._name = name
        self._failed: UnavailableError | None = None

    @property
    def failure(self) -> UnavailableError | None:
        """The error that calls of the partition raise: its failure, or that it is closed. None if the partition can be
        used.
        """
        if self._failed is None and self.is_writing:
            self.mark_failed(
                UnavailableError("an append was written and not completed because of an unexpected error")
            )
        if self._failed is None and self.is_closed:
            return UnavailableError(f"partition {self._name} is closed")
        return self._failed

    def mark_failed(self, why: UnavailableError) -> None:
        """Mark the partition as failed, and call `on_failure`. If it has failed before, keep the first reason and do
        nothing.
        """
        if self._failed is None:
            self._failed = why
            self.on_failure(why)

    def mark_closed(self) -> None:
        """Mark the partition as closed. Also drop the callback `on_failure`, which could keep the closed partition in
        memory, in a reference cycle.
        """
        self.is_closed = True
        self.on_failure = _ignore

    def check_usable(self) -> None:
        """Raise UnavailableError if the partition has failed or is closed."""
        if self.is_writing or self._failed is not None:
            raise UnavailableError(f"partition {self._name} has failed and needs a restart: {self.failure}")
        if self.is_closed:
            self.check_open()

    def check_open(self) -> None:
        """Raise UnavailableError if the partition is closed, because its directory may then belong to a new topic of
        the same name. A partition that has failed passes this check.
        """
        if self.is_closed:
            raise UnavailableError(f"partition {self._name} is closed")


def _ignore(_why: UnavailableError) -> None:
    pass
