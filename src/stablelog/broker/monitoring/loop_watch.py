"""A thread that asks the event loop once a second, and so knows for how long the loop has not answered."""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from stablelog.broker.loop.threads import ask_loop, start_thread

INTERVAL_S: Final = 1.0
# A tick of the thread counts for at most this time. If the whole process was stopped (SIGSTOP, `docker pause`), the
# thread did not tick either, and the loop was not silent.
TICK_S_MAX: Final = 2.0


class LoopWatch:
    """Knows for how long an event loop has not answered.

    Args:
        ask_loop: lets the event loop call a function soon.
        now_s: a clock that never goes back, in seconds.
    """

    def __init__(
        self,
        ask_loop: Callable[[Callable[[], None]], object],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask_loop = ask_loop
        self._now_s = now_s
        self._is_asked = False  # Whether there is a question that has no answer yet.
        # For how long that question had no answer at the last tick, and when that tick was: one value, because other
        # threads read it.
        self._ticked = (0.0, 0.0)
        self._closed = threading.Event()

    @property
    def silence_s(self) -> float:
        """For how many seconds the last question has had no answer; 0 if it was answered. The time between two ticks of
        the thread counts for at most TICK_S_MAX.
        """
        if not self._is_asked:
            return 0.0
        silent_s, ticked_s = self._ticked
        return silent_s + min(self._now_s() - ticked_s, TICK_S_MAX)

    def ask(self) -> None:
        """Ask the event loop, unless it has not answered the last question yet. The thread does so at each tick."""
        silence_s = self.silence_s
        if self._is_asked:
            self._ticked = (silence_s, self._now_s())
            return
        self._ticked = (0.0, self._now_s())
        self._is_asked = True
        try:
            self._ask_loop(self._answer)
        except RuntimeError:  # The loop is closed: it answers no more.
            return

    def _answer(self) -> None:
        self._is_asked = False

    def start(self) -> None:
        """Start the thread."""
        start_thread("loop watch", self._run)

    def _run(self) -> None:
        while not self._closed.wait(INTERVAL_S):
            self.ask()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()


def watch_loop(loop: asyncio.AbstractEventLoop) -> LoopWatch:
    """Watch an event loop, from now on."""
    watch = LoopWatch(partial(ask_loop, loop))
    watch.start()
    return watch
