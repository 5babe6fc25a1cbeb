"""A thread that asks the event loop once a second, and so knows for how long the loop has not answered."""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from stablelog.broker.loop.threads import ask_loop, start_thread

INTERVAL_S: Final = 1.0


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
        self._asked_s: float | None = None  # When the question was asked that has no answer yet.
        self._closed = threading.Event()

    @property
    def silence_s(self) -> float:
        """For how many seconds the last question has had no answer; 0 if it was answered."""
        asked_s = self._asked_s
        return 0.0 if asked_s is None else self._now_s() - asked_s

    def ask(self) -> None:
        """Ask the event loop, unless it has not answered the last question yet."""
        if self._asked_s is not None:
            return
        self._asked_s = self._now_s()
        try:
            self._ask_loop(self._answer)
        except RuntimeError:  # The loop is closed: it answers no more.
            return

    def _answer(self) -> None:
        self._asked_s = None

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
