"""A simulated clock, whose time changes only when a test advances it."""


class SimClock:
    """A `Clock` whose time is set by a test.

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
            raise ValueError(f"the clock cannot move back by {-ms} ms: advance it by 0 or more")
        self._now_ms += ms
