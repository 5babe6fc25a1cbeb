"""The broker's clock: the only source of the current time.

Invariant: `now_ms` never moves back while the process runs, and does not stand still while the machine is suspended.
"""

import time
from collections.abc import Callable
from typing import Protocol

# Linux: CLOCK_MONOTONIC stops while the machine is suspended, CLOCK_BOOTTIME does not. On systems without the latter
# (macOS) CLOCK_MONOTONIC goes on.
STEADY_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """The broker's time. Rooms that decide take `now_ms` as an argument; rooms that do ask a Clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC. Never moves back while the process runs."""
        ...


class SystemClock:
    """The machine's wall clock at start, moved on by a clock that cannot be set.

    A wall clock that an administrator or NTP sets back would expire transactions early or never. A steady clock that
    stops while the machine is suspended would stay behind the wall clock by that time, and batches with the time of a
    client would be refused as ahead of the broker.

    Args:
        read_ns: reads a clock of the machine by its id.
    """

    def __init__(self, read_ns: Callable[[int], int] = time.clock_gettime_ns) -> None:
        self._read_ns = read_ns
        self._start_ns = read_ns(time.CLOCK_REALTIME) - read_ns(STEADY_CLOCK)

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        return (self._start_ns + self._read_ns(STEADY_CLOCK)) // 1_000_000
