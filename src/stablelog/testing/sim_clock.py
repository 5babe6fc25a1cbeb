"""A simulated clock, which only a test advances."""


class SimClock:
    """A Clock whose time a test sets.

    Args:
        now_ms: the time at the start, in ms since 1970-01-01 UTC.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Advance the time.

        Raises:
            ValueError: `ms` is negative. The time is unchanged.
        """
        if ms < 0:
            raise ValueError(f"a clock cannot move back by {-ms} ms: a real one never does")
        self._now_ms += ms
