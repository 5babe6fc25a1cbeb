"""Pace of the threads that copy segments: a limit of bytes per second for all of them, and pauses between the steps of
long work.
"""

import threading
import time
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from stablelog.errors import UnavailableError

Result = TypeVar("Result")
SLEEP_S_MAX: Final = 0.1  # A thread notices after this time that its work was cancelled.


class CopyThrottle:
    """Limits the rate of copies: all copying threads together process at most a number of bytes per second.

    Args:
        rate: returns the limit in bytes per second.
        now_s: returns the time in seconds, from a clock that is never set back.
        sleep: waits for the given number of seconds.
    """

    def __init__(
        self,
        rate: Callable[[], int],
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._now_s = now_s
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_s = 0.0  # The time before which no further bytes may be processed.

    def wait_for_bytes(self, size: int, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Block the thread until `size` further bytes of a copy may be processed without exceeding the rate, or until
        `is_cancelled` returns True.
        """
        with self._lock:
            now_s = self._now_s()
            until_s = max(self._free_s, now_s)
            self._free_s = until_s + size / self._rate()
        while (wait_s := until_s - self._now_s()) > 0 and not is_cancelled():
            self._sleep(min(wait_s, SLEEP_S_MAX))


def run_at_half_speed(steps: Generator[None, None, Result], is_cancelled: Callable[[], bool]) -> Result:
    """Run the steps of a generator in this thread, and sleep after each step for as long as the step took. During the
    pauses the event loop gets the interpreter lock, so that requests are not delayed. Return the result of the
    generator.

    Raises:
        UnavailableError: the work was cancelled.
    """
    while True:
        began_s = time.perf_counter()
        try:
            next(steps)
        except StopIteration as end:
            found: Result = end.value
            return found
        if is_cancelled():
            steps.close()
            raise UnavailableError(
                "the copy of a segment was cancelled, because its topic is deleted or the broker stops"
            )
        time.sleep(time.perf_counter() - began_s)
