"""What time it is. The only door through which the code learns it."""

import time
from typing import Protocol


class Clock(Protocol):
    """The broker's time. Rooms that decide take `now_ms` as an argument; rooms that do ask a Clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC. Never moves back while the process runs."""
        ...


class SystemClock:
    """The machine's wall clock at start, moved on by its monotonic clock.

    A wall clock that an administrator or NTP sets back would expire transactions early or never.
    """

    def __init__(self) -> None:
        self._start_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        return (self._start_ns + time.monotonic_ns()) // 1_000_000
