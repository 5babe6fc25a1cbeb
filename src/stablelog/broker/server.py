"""The server process: its listeners, its broker, and the handling of signals."""

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablelog.broker.broker import Broker
from stablelog.broker.loop.garbage import collect_often
from stablelog.broker.monitoring.limited_log import LimitedLog
from stablelog.broker.monitoring.metrics import Sample
from stablelog.broker.network.budget import LOGIN_SIZE_MAX, MemoryBudget, MemoryBudgets
from stablelog.broker.network.connection import Connection, OnMade
from stablelog.broker.network.connection_limits import BACKLOG, CLOSING, ConnectionLimits, OpenConnection
from stablelog.broker.network.inbox import LOGIN_INBOX_SIZE
from stablelog.broker.network.session import Session
from stablelog.broker.requests.router import Router
from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.settings.listeners import Listener
from stablelog.env.clock import Clock, SystemClock
from stablelog.env.disk import Disk
from stablelog.env.local_disk import LocalDisk
from stablelog.env.malloc import use_arenas
from stablelog.errors import DiskError, UnavailableError, in_words
from stablelog.types import SecurityProtocol

if TYPE_CHECKING:
    from stablelog.broker.listeners.tls import ListenerTls
    from stablelog.broker.listeners.tls_listener import TlsListener

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
        stopping: an event that the server sets when it has to stop.

    Attributes:
        connections: the open connections.
        listeners: the listeners that accept connections, with the ports that are bound.
        failure: the error that stops the server; None while it runs, and if a signal stops it.

    Raises:
        StablelogError: as `Broker` does.
    """

    def __init__(
        self, config: BrokerConfig, directory: Path, *, disk: Disk, clock: Clock, stopping: asyncio.Event
    ) -> None:
        self.failure: BaseException | None = None
        self.stopping = stopping
        self.broker = Broker(config, directory, disk=disk, clock=clock, on_failure=self._fail)
        self.connections: set[OpenConnection] = set()
        self.listeners: list[Listener] = []
        self.broker.metrics.register_source(
            lambda: [Sample("stablelog_connections", (), len(self.connections))]
        )
        self._listening: list[asyncio.Server | TlsListener] = []

    def _fail(self, error: BaseException) -> None:
        """Stop the server, because the disk or another part that the whole broker depends on has failed."""
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
            StablelogError: as `Broker` does.
        """
        metrics_host: str = config["stablelog.metrics.host"]
        metrics_port: int = config["stablelog.metrics.port"]
        # Made before the data directory, because a listener without a valid certificate ends the start.
        tls = _load_certificates(config)
        for listener in config.listeners:
            with _prefix_os_errors(f"cannot listen on {listener.address}"):
                await _check_address(listener.host, listener.port)
        if metrics_port >= 0:
            with _prefix_os_errors(f"cannot serve metrics on {metrics_host}:{metrics_port}"):
                await _check_address(metrics_host, metrics_port)
        server = cls(
            config,
            directory,
            disk=disk or LocalDisk(),
            clock=clock or SystemClock(),
            stopping=stopping or asyncio.Event(),
        )
        try:
            await server.broker.start()
            await server._listen(config, tls)
            with _prefix_os_errors(f"cannot serve metrics on {metrics_host}:{metrics_port}"):
                server.broker.metrics.serve(metrics_host, metrics_port)
        except BaseException:
            await server.stop()
            raise
        if server.broker.metrics.port >= 0:
            log.info("metrics are served at http://%s:%d/metrics", metrics_host, server.broker.metrics.port)
        return server

    async def _listen(self, config: BrokerConfig, tls: "Mapping[Listener, ListenerTls]") -> None:
        """Begin to accept connections on each listener."""
        closings = LimitedLog(log, logging.WARNING, "closed connections", self.broker.now_ms)
        in_flight_size_max: int = config["queued.max.request.bytes"]
        limits = ConnectionLimits(
            request_size_max=min(config["socket.request.max.bytes"], in_flight_size_max),
            **_connection_counts(config),
            in_flight_count_max=config["stablelog.max.in.flight.requests"],
            idle_ms_max=config["connections.max.idle.ms"],
            receive_ms_max=config["stablelog.request.receive.timeout.ms"],
            handshake_ms_max=config["stablelog.ssl.handshake.timeout.ms"],
            login_size_max=min(config["sasl.server.max.receive.size"], LOGIN_SIZE_MAX),
            arrive=self.broker.quotas.count_connection,
            log_close=partial(closings.write, CLOSING),
        )
        loop = asyncio.get_running_loop()
        tasks = self.broker.tasks
        tasks.watch_loop(loop)
        more = limits.receive_ms_max / 1000, loop.time, partial(tasks.later, "memory budget")
        budgets = MemoryBudgets(
            MemoryBudget(in_flight_size_max, *more),
            MemoryBudget(LOGIN_SIZE_MAX, *more, inbox_size=LOGIN_INBOX_SIZE),
        )
        router = Router(self.broker)

        for listener in config.listeners:
            listening = [listener]  # with the port, once it is bound
            count_max = None
            if config.is_set_for_listener(listener.name, "max.connections"):
                count_max = config.listener_value(listener.name, "max.connections")
            own_limits = replace(limits, listener=listener.name, listener_count_max=count_max)

            def present_limits(limits: ConnectionLimits = own_limits) -> ConnectionLimits:
                return replace(limits, **_connection_counts(config))

            def connect(
                on_made: OnMade | None = None,
                at: list[Listener] = listening,
                present_limits: Callable[[], ConnectionLimits] = present_limits,
            ) -> Connection:
                logins = self.broker.logins
                session = Session(at[0], login=None if logins is None else logins.new_login(at[0].name))
                return Connection(
                    router, present_limits(), budgets, self.connections, tasks, session, on_made
                )

            with _prefix_os_errors(f"cannot listen on {listener.address}"):
                if listener.protocol.is_tls:
                    from stablelog.broker.listeners.tls_listener import TlsListener

                    accepting = TlsListener(tls[listener], present_limits, self.connections, tasks, connect)
                    self._listening.append(accepting)
                    await accepting.open(listener.host, listener.port)
                    sockets = accepting.sockets
                else:
                    plain = await loop.create_server(connect, listener.host, listener.port, backlog=BACKLOG)
                    self._listening.append(plain)
                    sockets = plain.sockets
            port: int = sockets[0].getsockname()[1]
            host, advertised_port = listener.advertised
            listening[0] = listener._replace(port=port, advertised=(host, advertised_port or port))
            self.listeners.append(listening[0])
            if len(config.listeners) > 1 or listener.protocol is not SecurityProtocol.PLAINTEXT:
                log.info(
                    "listener %s (%s) accepts connections on %s",
                    listener.name,
                    listener.protocol.value,
                    listening[0].address,
                )

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self.listeners[0].port

    async def stop(self) -> None:
        """Accept no more requests, complete the requests in flight, and close the data directory.

        Each connection is closed when its client has read all responses, or after `DRAIN_S` seconds.
        """
        for listening in self._listening:
            listening.close()
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


def _load_certificates(config: BrokerConfig) -> "dict[Listener, ListenerTls]":
    """Return the certificates of each listener with TLS."""
    secured = [listener for listener in config.listeners if listener.protocol.is_tls]
    if not secured:
        return {}
    from stablelog.broker.listeners.tls import ListenerTls

    now_s = asyncio.get_running_loop().time
    return {listener: ListenerTls(config, listener, now_s) for listener in secured}


async def _check_address(host: str, port: int) -> None:
    """Check that a listener can be bound to an address: bind each address of the host for a moment.

    Raises:
        OSError: the address cannot be bound.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _name, address in found:
        try:
            probe = socket.socket(family, kind, protocol)
        except OSError:
            continue  # This machine does not support the address family (IPv4 or IPv6).
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Bind the IPv6 address for IPv6 only, as asyncio does for a listener: an IPv4 address has a socket of its
            # own.
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)


def _connection_counts(config: BrokerConfig) -> dict[str, Any]:
    """Return the limits of the number of connections. They may change while the broker runs."""
    return {
        "connection_count_max": config["max.connections"],
        "connection_count_per_host_max": config["max.connections.per.ip"],
        "host_count_max": config["max.connections.per.ip.overrides"],
    }


@contextlib.contextmanager
def _prefix_os_errors(what: str) -> Iterator[None]:
    """Convert an OSError of the `with` block to an UnavailableError, with `what` at the beginning of its message."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"{what}: {error.strerror or error}") from error


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
        ready: called with host and port once connections are accepted.

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
