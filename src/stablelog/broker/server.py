"""The server process: a listening socket, its broker, and the handling of signals."""

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from stablelog.broker.broker import Broker
from stablelog.broker.budget import Budget
from stablelog.broker.config import BrokerConfig
from stablelog.broker.connection import Connection, Limits
from stablelog.broker.garbage import collect_often
from stablelog.broker.metrics import Sample
from stablelog.broker.router import Router
from stablelog.env.clock import Clock, SystemClock
from stablelog.env.disk import Disk
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import DiskError, Unavailable, in_words

log = logging.getLogger(__name__)

DRAIN_S = 5.0
SWITCH_INTERVAL_S = 0.0002


class Server:
    """A broker and the socket on which it listens."""

    def __init__(
        self, config: BrokerConfig, directory: Path, *, disk: Disk | None = None, clock: Clock | None = None
    ) -> None:
        self.failure: BaseException | None = None
        self.stopping = asyncio.Event()
        self.broker = Broker(
            config, directory, disk=disk or LocalDisk(), clock=clock or SystemClock(), on_failure=self._fail
        )
        self._config = config
        self._connections: set[Connection] = set()
        self.broker.metrics.register(lambda: [Sample("stablelog_connections", (), len(self._connections))])
        self._listener: asyncio.Server | None = None

    def _fail(self, error: BaseException) -> None:
        """Stop: the disk failed, or a part that the whole broker relies on."""
        log.critical("%sthe broker stops: %s", "the disk failed, " * isinstance(error, DiskError), error)
        self.failure = error
        self.stopping.set()

    async def start(self) -> tuple[str, int]:
        """Open the data directory and listen. Returns the address.

        Raises:
            Unavailable: the address, or that of the metrics, cannot be bound. A data directory that did not exist was
                then not created, unless another process took the address during the start. Other errors as in
                `Broker.start`.
        """
        config = self._config
        host, port = config["listeners"]
        metrics_port: int = config["stablelog.metrics.port"]
        try:
            await _check_address(host, port)
        except OSError as error:
            raise _cannot_listen(host, port, error) from error
        try:
            if metrics_port >= 0:
                await _check_address(host, metrics_port)
        except OSError as error:
            raise _cannot_serve_metrics(host, metrics_port, error) from error
        await self.broker.start()
        in_flight_size_max: int = config["queued.max.request.bytes"]
        limits = Limits(
            request_size_max=min(config["socket.request.max.bytes"], in_flight_size_max),
            connection_count_max=config["max.connections"],
            connection_count_per_host_max=config["max.connections.per.ip"],
            in_flight_count_max=config["stablelog.max.in.flight.requests"],
            idle_ms_max=config["connections.max.idle.ms"],
            receive_ms_max=config["stablelog.request.receive.timeout.ms"],
        )
        loop = asyncio.get_running_loop()
        tasks = self.broker.tasks
        tasks.watch(loop)
        budget = Budget(
            in_flight_size_max, limits.receive_ms_max / 1000, loop.time, partial(tasks.later, "memory budget")
        )
        router = Router(self.broker)
        try:
            self._listener = await loop.create_server(
                lambda: Connection(router.respond, limits, budget, self._connections, tasks),
                host,
                port,
                backlog=1024,
            )
        except OSError as error:
            await self.broker.stop()
            raise _cannot_listen(host, port, error) from error
        try:
            self.broker.metrics.serve(host, metrics_port)
        except OSError as error:
            await self.stop()
            raise _cannot_serve_metrics(host, metrics_port, error) from error
        if self.broker.metrics.port >= 0:
            log.info("metrics are served at http://%s:%d/metrics", host, self.broker.metrics.port)
        address: tuple[str, int] = self._listener.sockets[0].getsockname()[:2]
        advertised = config["advertised.listeners"]
        self.broker.advertised = (
            (advertised[0], advertised[1] or address[1]) if advertised else (_reachable(host), address[1])
        )
        return self.broker.advertised[0], address[1]

    async def stop(self) -> None:
        """Take no more requests, complete those in flight, and close the data directory.

        Each connection has `DRAIN_S` seconds to get its responses and to read them; then it is closed.
        """
        if self._listener is not None:
            self._listener.close()
        finishing = {
            self.broker.tasks.start("stop", connection.finish, scope=connection.scope): connection
            for connection in self._connections
        }
        if finishing:
            _, unfinished = await asyncio.wait(finishing, timeout=DRAIN_S)
            for task in unfinished:
                task.cancel()
                finishing[task].close(
                    f"it was not answered, or did not read, within {DRAIN_S:g} s of the stop"
                )
        for connection in list(
            self._connections
        ):  # Connections that were accepted before the listener was closed.
            connection.close()
        self.broker.metrics.close()
        await self.broker.stop()


async def _check_address(host: str, port: int) -> None:
    """Check that a listener can be bound to an address.

    Raises:
        OSError: it cannot.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _name, address in found:
        try:
            probe = socket.socket(family, kind, protocol)
        except OSError:
            continue  # The machine does not have this address family.
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # As the listener does: IPv4 has an address of its own.
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)


def _cannot_listen(host: str, port: int, error: OSError) -> Unavailable:
    return Unavailable(f"cannot listen on {host}:{port}: {error.strerror or error}")


def _cannot_serve_metrics(host: str, port: int, error: OSError) -> Unavailable:
    return Unavailable(f"cannot serve metrics on {host}:{port}: {error.strerror or error}")


def _reachable(host: str) -> str:
    """The host name with which clients on this machine reach a listener on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound


async def _serve(config: BrokerConfig, directory: Path, ready: Callable[[str, int], None]) -> None:
    server = Server(config, directory)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stopping.set)
    try:
        host, port = await server.start()
    # The disk is read-only or full, the directory belongs to another user, or the path is a file.
    except (DiskError, FileNotFoundError) as error:
        raise Unavailable(f"the data directory {directory} cannot be used: {in_words(error)}") from error
    collect_often()
    ready(host, port)
    await server.stopping.wait()
    await server.stop()
    if server.failure is not None:
        raise server.failure


def _take_all_descriptors() -> None:
    """Raise the limit of file descriptors to its maximum.

    Each partition and each connection needs one. The usual limit of 1,024 is meant for programs that call select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit than it reports.
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_server(config: BrokerConfig, directory: Path, *, ready: Callable[[str, int], None]) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Args:
        config: the broker's settings.
        directory: the data directory.
        ready: called with host and port once connections are accepted.

    Raises:
        Unavailable: the address or the directory is in use or cannot be used, or the disk failed.
        Corrupt: the data directory cannot be opened.
    """
    if not __debug__:
        raise Unavailable("stablelog asserts what it relies on: run Python without -O")
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
    _take_all_descriptors()
    # A thread that syncs a file needs the interpreter lock twice, briefly. By default it could wait 5 ms for it.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    asyncio.run(_serve(config, directory, ready))
