"""How long does each callback hold the broker's event loop?

The broker runs on asyncio's own loop, whose callbacks can be timed; its callbacks are those that run on uvloop. Each is timed
by the processor time of the loop's thread, which does not count what other threads and processes take, and by the clock.
The broker writes those that took long into a file, from which `LoopWatch` reads them.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import stablelog
from stablelog import embedded
from stablelog.embedded import EmbeddedBroker

# The broker's process, as `stablelog.embedded.PROCESS` has it, with a clock around each callback.
PROCESS = """
import os, sys, time
sys.modules.setdefault("hypothesis", None)
sys.modules["uvloop"] = None
from asyncio.events import Handle
from stablelog.cli.serve import run_process

file = os.open(sys.argv[2] + ".holds", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
run, processor_s, clock_s = Handle._run, time.thread_time, time.monotonic

def name_of(callback):
    owner = getattr(callback, "__self__", None)
    coroutine = getattr(owner, "get_coro", lambda: None)()
    return getattr(coroutine or callback, "__qualname__", repr(callback))

def timed(handle):
    callback = handle._callback
    begun, processor_begun = clock_s(), processor_s()
    try:
        run(handle)
    finally:
        processor, ended = processor_s() - processor_begun, clock_s()
        if ended - begun > 0.001:
            line = f"{ended} {processor} {ended - begun} {name_of(callback)}\\n"
            os.write(file, line.encode())

Handle._run = timed
run_process(sys.argv[1:])
"""


class Hold(NamedTuple):
    """What a callback took. `ended_s` is by `time.monotonic`, which all processes of a machine share."""

    ended_s: float
    processor_ms: float
    wall_ms: float
    callback: str


class LoopWatch:
    """The callbacks of a broker that took more than a millisecond.

    Args:
        broker: a broker that `serve` has started.
    """

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self._path = broker.data.with_name(f"{broker.data.name}.holds")

    def during(self, work: Callable[[], object]) -> list[Hold]:
        """The callbacks that have ended while `work` ran."""
        begun = time.monotonic()
        work()
        return [hold for hold in self._holds() if hold.ended_s >= begun]

    def _holds(self) -> Iterator[Hold]:
        for line in self._path.read_text().splitlines():
            ended, processor, wall, callback = line.split(" ", 3)
            yield Hold(float(ended), float(processor) * 1000, float(wall) * 1000, callback)


@contextlib.contextmanager
def serve(directory: Path, **settings: object) -> Iterator[LoopWatch]:
    """A broker on a data directory, whose callbacks are timed."""
    before = embedded.PROCESS
    embedded.PROCESS = PROCESS
    try:
        with stablelog.serve(directory, **settings) as broker:
            yield LoopWatch(broker)
    finally:
        embedded.PROCESS = before
