"""Whether a partition takes calls: it is open, it has not failed, and no append was left half-way."""

from collections.abc import Callable

from stablelog.errors import Unavailable


class Usability:
    """The state of one partition that decides whether it takes calls.

    Args:
        name: of the partition, in messages.

    Attributes:
        is_writing: the log file has bytes that are not noted in memory yet.
        is_closed: the directory may have been deleted, and made again for another topic of the name.
        on_failure: called once, with the reason, when the partition fails; not when it is closed.
    """

    def __init__(self, name: str) -> None:
        self.is_writing = False
        self.is_closed = False
        self.on_failure: Callable[[Unavailable], None] = _ignore
        self._name = name
        self._failed: Unavailable | None = None

    @property
    def failure(self) -> Unavailable | None:
        """Why the partition takes no calls; None while it does."""
        if self._failed is None and self.is_writing:
            self.fail(Unavailable("an append was written and not completed by an unexpected error"))
        if self._failed is None and self.is_closed:
            return Unavailable(f"{self._name} is closed")
        return self._failed

    def fail(self, why: Unavailable) -> None:
        """Take no calls from now on. The first reason holds."""
        if self._failed is None:
            self._failed = why
            self.on_failure(why)

    def close(self) -> None:
        """Take no calls from now on, and drop `on_failure`, so that a closed partition is in no reference cycle."""
        self.is_closed = True
        self.on_failure = _ignore

    def check(self) -> None:
        """Raise Unavailable if the partition has failed or is closed."""
        if self.is_writing or self._failed is not None:
            raise Unavailable(f"{self._name} has failed and needs a restart: {self.failure}")
        if self.is_closed:
            self.check_open()

    def check_open(self) -> None:
        """Raise Unavailable if the partition is closed: its paths may belong to a later partition of its name."""
        if self.is_closed:
            raise Unavailable(f"{self._name} is closed")


def _ignore(_why: Unavailable) -> None:
    pass
