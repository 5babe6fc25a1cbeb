"""A clock that goes when it is told to."""


class SimClock:
    """A Clock whose time a test sets."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """The time that was set."""
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Let time pass."""
        assert ms >= 0
        self._now_ms += ms
