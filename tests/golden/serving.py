"""A broker of today's code whose clock begins at a given time: what a directory says of time is as when it was written.

It runs in a thread of this process. A directory that is opened years after it was written has to be what it was: no
transaction is overdue, no offset, producer or segment too old.
"""

import asyncio
import logging
import queue
import threading
import time

from stablelog.broker.server import Server
from stablelog.broker.settings.config import BrokerConfig

LONG_MAX = 2**63 - 1
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "log.cleaner.backoff.ms": str(LONG_MAX // 2),  # a pass would change what is compared
    "log.message.timestamp.after.max.ms": str(LONG_MAX),  # clients have today's clock
    "transaction.max.timeout.ms": str(2**31 - 1),
    "group.initial.rebalance.delay.ms": "0",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "stablelog.disk.reserve.bytes": "65536",  # tests copy and compare whole directories
}


class ClockFrom:
    """A clock that says `begin_ms` when it is made, and goes on from there."""

    def __init__(self, begin_ms):
        self._begin_ms = begin_ms - time.monotonic_ns() // 1_000_000

    def now_ms(self):
        """Milliseconds since 1970-01-01 UTC."""
        return self._begin_ms + time.monotonic_ns() // 1_000_000

    wall_ms = now_ms

    def continue_at(self, now_ms):
        """The time of the directory is that of the clock."""


class Faults(logging.Handler):
    """What the broker logs as an error."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


class BrokerAt:
    """A broker on a directory; starts and stops with the block.

    Args:
        data: its directory.
        begin_ms: what its clock says at the first start.
        settings: any of the broker's, by their names.

    Attributes:
        bootstrap: where it listens, from `start` on; another port after each.
        faults: what it has logged as a warning or an error.
    """

    def __init__(self, data, begin_ms, **settings):
        self.bootstrap = None
        self.faults = Faults()
        self._data = data
        self._clock = ClockFrom(begin_ms)
        self._settings = SETTINGS | {name.replace("_", "."): str(given) for name, given in settings.items()}
        self._thread = None

    def start(self):
        """Start it; raises what the broker raises where it refuses to."""
        logging.getLogger("stablelog").addHandler(self.faults)
        answers = queue.Queue()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(answers)))
        self._thread.start()
        answer = answers.get()
        if isinstance(answer, Exception):
            self.stop()
            raise answer
        self.bootstrap, self._loop, self._server = answer

    async def _serve(self, answers):
        try:
            server = await Server.open(BrokerConfig(self._settings), self._data, clock=self._clock)
        except Exception as error:
            answers.put(error)
            return
        answers.put(
            (f"{server.listeners[0].advertised[0]}:{server.port}", asyncio.get_running_loop(), server)
        )
        await server.stopping.wait()
        await server.stop()
        assert server.failure is None, server.failure

    def stop(self):
        """Stop it in order."""
        if self._thread is None:
            return
        if self._thread.is_alive() and self.bootstrap is not None:
            self._loop.call_soon_threadsafe(self._server.stopping.set)
        self._thread.join()
        self._thread = self.bootstrap = None
        logging.getLogger("stablelog").removeHandler(self.faults)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *failure):
        self.stop()
