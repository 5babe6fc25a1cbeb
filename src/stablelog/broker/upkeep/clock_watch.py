"""Watch of the machine's wall clock: logs each time that the clock was set.

A clock may be set while the broker runs: by NTP shortly after the machine's start, by an administrator, or by a
hypervisor. docs/guides/troubleshoot.md, "A clock that is wrong" says what the broker does then.
"""

import logging

from stablelog.broker.directory.broker_time import BrokerTime
from stablelog.broker.loop.tasks import Tasks
from stablelog.env.clock import Clock

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
# The least difference between the two clocks' progress that counts as a step. NTP slews a clock by at most 0.5 ms/s.
STEP_MS_MIN = 500
# If reading both clocks took longer than this, the process was stopped between the two calls.
READ_MS_MAX = 100
RECORD_EVERY = 60  # The number of looks at the clock between two writes of `broker-time`.


class ClockWatch:
    """Compares the wall clock once a second with broker time, which never goes back and does not jump when the clock is
    set.

    Args:
        clock: the broker's clock.
        time: keeps broker time in a file of the data directory. When the wall clock was set, broker time and the new
            wall clock are written to this file at once.
    """

    def __init__(self, clock: Clock, time: BrokerTime) -> None:
        self._clock = clock
        self._time = time
        self._ahead_ms = clock.wall_ms() - clock.now_ms()
        self._look_count = 0

    def start(self, tasks: Tasks) -> None:
        """Start the task that compares the wall clock once a second with broker time, which does not jump when the
        clock is set.
        """
        tasks.every("clock", INTERVAL_S, self.check_clock)

    async def check_clock(self) -> None:
        """Log a warning if the wall clock was set since the last call."""
        began_ms = self._clock.now_ms()
        wall_ms = self._clock.wall_ms()
        now_ms = self._clock.now_ms()
        if now_ms - began_ms > READ_MS_MAX:
            return
        step_ms = wall_ms - now_ms - self._ahead_ms
        self._ahead_ms += step_ms
        self._look_count += 1
        if abs(step_ms) >= STEP_MS_MIN:
            self._time.clock_was_set()
            log.warning(
                "the machine's clock was set %s by %.1f s: timestamps, their limits, retention by time and tokens "
                "follow it from now on; timeouts and sessions do not depend on it",
                "forward" if step_ms > 0 else "back",
                abs(step_ms) / 1000,
            )
        if abs(step_ms) >= STEP_MS_MIN or self._look_count % RECORD_EVERY == 0:
            await self._time.record_in_thread()
