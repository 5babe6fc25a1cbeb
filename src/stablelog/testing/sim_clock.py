"""A simulated clock. Its time changes only when a test changes it."""


class SimClock:
    """A simulated clock, used in place of `stablelog.env.clock.SystemClock`. Its time changes only when a test sets or
    advances it.

    Args:
        now_ms: the time at the start, in ms since 1970-01-01 UTC.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = self._wall_ms = now_ms

    def now_ms(self) -> int:
        """Broker time in ms: the time by which a broker measures durations, and which never goes back."""
        return self._now_ms

    def wall_ms(self) -> int:
        """The wall clock: milliseconds since 1970-01-01 UTC. A test can set it back, unlike broker time, which never
        goes back.
        """
        return self._wall_ms

    def continue_at(self, now_ms: int) -> None:
        """Set broker time to the last time of an earlier broker process, as a broker does at its start: broker time
        never goes back, not even over a restart.
        """
        self._now_ms = now_ms

    def advance(self, ms: int) -> None:
        """Advance broker time (which never goes back) and the wall clock by `ms` milliseconds, as when the machine runs
        or is suspended.

        Raises:
            ValueError: `ms` is negative. The time is unchanged.
        """
        if ms < 0:
            raise ValueError(f"the clock cannot move back by {-ms} ms: advance it by 0 or more")
        self._now_ms += ms
        self._wall_ms += ms

    def set_wall_clock(self, by_ms: int) -> None:
        """Set the wall clock forward, or back if `by_ms` is negative. Broker time, by which a broker measures
        durations, does not change.
        """
        self._wall_ms += by_ms
