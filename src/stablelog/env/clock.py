"""The broker's clock: the only source of the current time.

Invariant: `now_ms` never moves back while the process runs, and it also advances while the machine is suspended.
"""

import time
from collections.abc import Callable
from typing import Protocol

# On Linux, CLOCK_MONOTONIC stops while the machine is suspended and CLOCK_BOOTTIME does not. Systems without
# CLOCK_BOOTTIME (macOS) have a CLOCK_MONOTONIC that does not stop.
STEADY_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """The broker's clock. Packages with I/O call the clock. Packages without I/O get the current time as an argument
    `now_ms`.
    """

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC. Never moves back while the process runs."""


class SystemClock:
    """The machine's wall clock, read once at the start and then advanced by a clock that cannot be set.

    A broker that used the wall clock itself would expire transactions at the wrong time or never when an administrator
    or NTP sets that clock back. A clock that stopped while the machine is suspended would be slow compared with the
    wall clock afterwards, and the broker would refuse batches with current client times as being in the future.

    Args:
        read_ns: returns the time of the clock with the given id, in nanoseconds.
    """

    def __init__(self, read_ns: Callable[[int], int] = time.clock_gettime_ns) -> None:
        self._read_ns = read_ns
        self._start_ns = read_ns(time.CLOCK_REALTIME) - read_ns(STEADY_CLOCK)

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        return (self._start_ns + self._read_ns(STEADY_CLOCK)) // 1_000_000
