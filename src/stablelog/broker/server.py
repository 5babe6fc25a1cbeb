"""The server process: its listeners, its broker, and the handling of signals."""

import asyncio
import contextlib
import logging
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from stablelog.broker.broker import Broker
from stablelog.broker.listeners.open_listeners import (
    OpenListeners,
    check_address,
    load_certificates,
    prefix_os_errors,
)
from stablelog.broker.loop.garbage import collect_often
from stablelog.broker.monitoring.health import HealthFacts
from stablelog.broker.monitoring.metrics import Sample
from stablelog.broker.network.connection_limits import OpenConnection
from stablelog.broker.requests.router import Router
from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.settings.listeners import Listener
from stablelog.env.clock import Clock, SystemClock
from stablelog.env.disk import Disk
from stablelog.env.local_disk import LocalDisk
from stablelog.env.malloc import use_arenas
from stablelog.errors import DiskError, UnavailableError, in_words

log = logging.getLogger(__name__)

DRAIN_S = 5.0
SWITCH_INTERVAL_S = 0.0002
ARENA_COUNT = 2  # The number of arenas of the memory allocator.


class Server:
    """A broker and its listeners. `Server.open` returns a server that accepts connections.

    Args:
        config: the broker's settings.
        directory: the data directory.
        disk: the disk of the data directory.
        clock: the broker's clock.
        stopping: an event that the server sets when a failure forces it to stop. The caller waits for the event, and
            then stops the server.

    Attributes:
        connections: the open connections.
        open_listeners: the listeners that accept connections.
        failure: the error that has stopped the server; None while it runs, and if a signal has stopped it.

    Raises:
        StablelogError: the broker cannot start. The errors are those of `Broker`.
    """

    def __init__(
        self, config: BrokerConfig, directory: Path, *, disk: Disk, clock: Clock, stopping: asyncio.Event
    ) -> None:
        self.failure: BaseException | None = None
        self.stopping = stopping
        self._is_stopping = False
        self.broker = Broker(config, directory, disk=disk, clock=clock, on_failure=self._fail)
        self.connections: set[OpenConnection] = set()
        self.open_listeners = OpenListeners(
            self.broker.runtime,
            Router(self.broker),
            self.broker.logins,
            self.broker.quotas.count_connection,
            self.connections,
        )
        self.broker.metrics.register_source(
            lambda: [Sample("stablelog_connections", (), len(self.connections))]
        )

    def _fail(self, error: BaseException) -> None:
        """Stop the server, because something has failed on which the whole broker depends, such as the disk."""
        log.critical("%sthe broker stops: %s", "the disk failed, " * isinstance(error, DiskError), error)
        self.failure = error
        self.stopping.set()

    @classmethod
    async def open(
        cls,
        config: BrokerConfig,
        directory: Path,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        stopping: asyncio.Event | None = None,
    ) -> "Server":
        """Open the data directory, start the broker, and accept connections on all listeners.

        The addresses are checked before a missing data directory is created. If another process binds an address
        between the check and the start of the listener, the data directory exists after the error.

        Raises:
            UsageError: the certificates of a listener cannot be used.
            UnavailableError: the address of a listener or of the metrics cannot be bound.
            StablelogError: the broker cannot start. The errors are those of `Broker`.
        """
        metrics_host: str = config["stablelog.metrics.host"]
        metrics_port: int = config["stablelog.metrics.port"]
        # Made before the data directory, because a listener without a valid certificate ends the start.
        tls = load_certificates(config)
        for listener in config.listeners:
            with prefix_os_errors(f"cannot listen on {listener.address}"):
                await check_address(listener.host, listener.port)
        if metrics_port >= 0:
            with prefix_os_errors(f"cannot serve metrics on {metrics_host}:{metrics_port}"):
                await check_address(metrics_host, metrics_port)
        server = cls(
            config,
            directory,
            disk=disk or LocalDisk(),
            clock=clock or SystemClock(),
            stopping=stopping or asyncio.Event(),
        )
        try:
            await server.broker.start()
            server.broker.tasks.watch_loop(asyncio.get_running_loop())
            for listener in config.listeners:
                await server.open_listeners.open(listener, tls.get(listener))
            with prefix_os_errors(f"cannot serve metrics on {metrics_host}:{metrics_port}"):
                server.broker.metrics.serve(metrics_host, metrics_port, server.read_health)
        except BaseException:
            await server.stop()
            raise
        if server.broker.metrics.port >= 0:
            log.info("metrics are served at http://%s:%d/metrics", metrics_host, server.broker.metrics.port)
        return server

    def read_health(self) -> HealthFacts:
        """Return the state of the broker, from which its health follows. The coordinators are loaded before there is a
        server.
        """
        broker = self.broker
        return HealthFacts(
            partition_count=sum(topic.partition_count for topic in broker.topics),
            opening_count=broker.partitions.opening_count,
            offline_count=broker.partitions.offline_count,
            is_disk_full=broker.reserve.is_full,
            is_stopping=self._is_stopping or self.stopping.is_set(),
        )

    @property
    def listeners(self) -> list[Listener]:
        """The listeners that accept connections, with the ports that are bound."""
        return self.open_listeners.listeners

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self.listeners[0].port

    async def stop(self) -> None:
        """Accept no more requests, complete the requests in flight, and close the data directory.

        Each connection is closed when its client has read all responses, or after `DRAIN_S` seconds.
        """
        self._is_stopping = True
        self.open_listeners.close()
        # Requests that wait for records, or for other members of a group, are answered now.
        self.broker.long_polls.end_all()
        self.broker.groups.end_waits()
        finishing = {
            self.broker.tasks.start("stop", connection.finish, scope=connection.scope): connection
            for connection in self.connections
        }
        if finishing:
            _, unfinished = await asyncio.wait(finishing, timeout=DRAIN_S)
            for task in unfinished:
                task.cancel()
                finishing[task].close(
                    f"the broker stops, and the client has not got or read all responses within {DRAIN_S:g} s"
                )
        # Close also connections that were accepted just before the listener was closed.
        for connection in list(self.connections):
            connection.close()
        self.broker.metrics.close()
        await self.broker.stop()


async def _serve(config: BrokerConfig, directory: Path, ready: Callable[[str, int], None]) -> None:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        server = await Server.open(config, directory, stopping=stopping)
    # The causes of these errors: the disk is read-only or full, the directory belongs to another user, or its path
    # names a file.
    except (DiskError, FileNotFoundError) as error:
        raise UnavailableError(f"the data directory {directory} cannot be used: {in_words(error)}") from error
    collect_often()
    first = server.listeners[0]
    ready(first.advertised[0], first.port)
    await stopping.wait()
    await server.stop()
    if server.failure is not None:
        raise server.failure


def _raise_descriptor_limit() -> None:
    """Raise the process's limit of open file descriptors to the maximum that the system allows.

    Each partition and each connection needs file descriptors. The usual limit of 1,024 is meant for programs that call
    select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # On macOS the real maximum is lower than the reported one, so this call can fail.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_server(config: BrokerConfig, directory: Path, *, ready: Callable[[str, int], None]) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Args:
        config: the broker's settings.
        directory: the data directory.
        ready: called with the advertised host and the port of the first listener, once connections are accepted.

    Raises:
        UnavailableError: the address or the directory is in use or cannot be used, or the disk failed.
        DamageError: the data directory cannot be opened.
    """
    if not __debug__:
        raise UnavailableError(
            "the option -O of Python removes checks that stablelog depends on: run Python without -O"
        )
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
    use_arenas(ARENA_COUNT)
    _raise_descriptor_limit()
    # A thread that calls fsync needs Python's interpreter lock twice, briefly. With Python's default switch interval
    # the thread could wait 5 ms for the lock each time.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    asyncio.run(_serve(config, directory, ready))
