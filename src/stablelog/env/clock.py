"""The broker's clock: the only source of the current time.

The broker needs two times:

- *Broker time* measures durations: timeouts, sessions, delays, and the age of what the broker keeps. It never moves back
  while the process runs, it does not jump when the machine's wall clock is set, and it also advances while the machine
  is suspended. It belongs to the data directory: `broker.directory.broker_time` continues it at each start.
- The *wall clock* is for timestamps and for comparisons with them: timestamps of records, their limits, retention by
  time, the validity of tokens. It jumps, forward or back, when the machine's clock is set.

docs/decisions/0032-broker-time.md, "Uses of the clocks" lists each use.
"""

import time
from collections.abc import Callable
from typing import Protocol

# On Linux, CLOCK_MONOTONIC stops while the machine is suspended and CLOCK_BOOTTIME does not. Systems without
# CLOCK_BOOTTIME (macOS) have a CLOCK_MONOTONIC that does not stop.
STEADY_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """The interface of the broker's clock. Only packages that do I/O read it. All others get the time as an argument:
    `now_ms` for broker time, which never goes back, and `wall_ms` for the wall clock, which may be set.
    """

    def now_ms(self) -> int:
        """Return broker time in ms. It begins at the time of the wall clock, and never moves back while the process
        runs.
        """

    def wall_ms(self) -> int:
        """Return the time of the wall clock: ms since 1970-01-01 UTC. It may move back when the machine's clock is
        set.
        """

    def continue_at(self, now_ms: int) -> None:
        """Set broker time (the clock for durations, which never goes back) to `now_ms`, so that it continues the broker
        time of an earlier process. Call this before anything else reads the clock.
        """


class SystemClock:
    """The machine's clocks. Broker time begins at the time that the wall clock shows when the process starts, and then
    advances by a clock of the machine that nobody can set.

    Neither clock can replace the other. By the wall clock, transactions would expire at the wrong time or never when an
    administrator or NTP sets it, so broker time measures durations. Broker time may be wrong until the next start if
    the wall clock was wrong when the broker started: compared with it, all batches with correct timestamps could be
    refused. So the timestamps of records are compared with the wall clock.

    Args:
        read_ns: returns the time of the clock with the given id, in nanoseconds.
    """

    def __init__(self, read_ns: Callable[[int], int] = time.clock_gettime_ns) -> None:
        self._read_ns = read_ns
        self._start_ns = read_ns(time.CLOCK_REALTIME) - read_ns(STEADY_CLOCK)

    def now_ms(self) -> int:
        """Return broker time in ms: it begins at the time of the wall clock, and never moves back."""
        return (self._start_ns + self._read_ns(STEADY_CLOCK)) // 1_000_000

    def wall_ms(self) -> int:
        """Return the time of the wall clock, which may be set, in ms since 1970-01-01 UTC."""
        return self._read_ns(time.CLOCK_REALTIME) // 1_000_000

    def continue_at(self, now_ms: int) -> None:
        """Set broker time (the clock for durations, which never goes back) to `now_ms`, so that it continues that of an
        earlier process.
        """
        self._start_ns = now_ms * 1_000_000 - self._read_ns(STEADY_CLOCK)
