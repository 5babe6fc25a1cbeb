"""A broker with a socket, in a thread of this process, on a simulated disk that can be filled."""

import asyncio
import contextlib
import threading

from stablelog.broker.server import Server
from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.upkeep import maintenance
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import DATA

RESERVE_SIZE = 1 << 20


class FillableDisk(SimDisk):
    """A disk that can be filled to the last byte, and emptied."""

    def fill(self):
        """Leave no free byte."""
        self.capacity = size = 1 << 40
        self.capacity = size - self.free_size(DATA)

    def grow(self):
        """There is room again."""
        self.capacity = None


class ThreadedBroker:
    """The broker.

    Attributes:
        disk: its disk.
        bootstrap: its address.
    """

    def __init__(self, disk, server, loop, port):
        self.disk = disk
        self.bootstrap = f"127.0.0.1:{port}"
        self._server = server
        self._loop = loop

    def call(self, function):
        """Call a function with the broker, on its event loop. Returns what it returns."""

        async def called():
            return function(self._server.broker)

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(60)

    def fill(self):
        """Leave no free byte."""
        self.call(lambda _broker: self.disk.fill())

    def grow(self):
        """There is room again."""
        self.call(lambda _broker: self.disk.grow())

    @property
    def is_full(self):
        return self._server.broker.reserve.is_full


@contextlib.contextmanager
def served(**settings):
    """The broker, while the block runs; settings with `_` for each `.`."""
    given = {name.replace("_", "."): str(value) for name, value in settings.items()}
    given |= {"listeners": "PLAINTEXT://127.0.0.1:0", "stablelog.disk.reserve.bytes": str(RESERVE_SIZE)}
    disk, ready = FillableDisk(), threading.Event()
    found = {}

    async def serve():
        server = await Server.open(BrokerConfig(given), DATA, disk=disk)
        broker = ThreadedBroker(disk, server, asyncio.get_running_loop(), server.port)
        found.update(broker=broker, server=server)
        ready.set()
        await server.stopping.wait()
        await server.stop()
        assert server.failure is None

    before, maintenance.RESERVE_S = maintenance.RESERVE_S, 0.05
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        assert ready.wait(60)
        yield found["broker"]
    finally:
        found["broker"].grow()
        found["broker"].call(lambda _broker: found["server"].stopping.set())
        thread.join(60)
        maintenance.RESERVE_S = before
    assert found["server"].failure is None
