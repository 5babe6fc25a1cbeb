"""The open listeners of a server: their bound addresses, and the limits and memory that their connections share."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stablelog.broker.monitoring.limited_log import LimitedLog
from stablelog.broker.network.budget import LOGIN_SIZE_MAX, MemoryBudget, MemoryBudgets
from stablelog.broker.network.connection import Connection, OnMade
from stablelog.broker.network.connection_limits import (
    BACKLOG,
    CLOSING,
    Arrival,
    ConnectionLimits,
    OpenConnection,
)
from stablelog.broker.network.inbox import LOGIN_INBOX_SIZE
from stablelog.broker.network.request_router import RequestRouter
from stablelog.broker.network.session import Session
from stablelog.broker.runtime import Runtime
from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.settings.listeners import Listener
from stablelog.errors import UnavailableError
from stablelog.types import SecurityProtocol

if TYPE_CHECKING:
    from stablelog.broker.listeners.tls import ListenerTls
    from stablelog.broker.listeners.tls_listener import TlsListener
    from stablelog.broker.security.logins import Logins

log = logging.getLogger(__name__)


class OpenListeners:
    """The listeners of a server that accept connections.

    Args:
        runtime: the objects that the parts of the broker share, such as its settings, its background tasks and its
            clock.
        router: computes the responses to requests.
        logins: begins the login of a client; None if no listener has SASL.
        count_connection: counts a new connection from a host, and decides when it is served. A connection above the
            limit of new connections per second is served later.
        open_connections: the set to which each open connection adds itself.

    Attributes:
        listeners: the listeners, with the ports that are bound.
    """

    def __init__(
        self,
        runtime: Runtime,
        router: RequestRouter,
        logins: "Logins | None",
        count_connection: Callable[[str], Arrival],
        open_connections: set[OpenConnection],
    ) -> None:
        config = self._config = runtime.config
        self._router = router
        self._logins = logins
        self._tasks = runtime.tasks
        self._open_connections = open_connections
        self.listeners: list[Listener] = []
        self._accepting: list[asyncio.Server | TlsListener] = []
        closings = LimitedLog(log, logging.WARNING, "closed connections", runtime.clock.now_ms)
        in_flight_size_max: int = config["queued.max.request.bytes"]
        self._limits = ConnectionLimits(
            request_size_max=min(config["socket.request.max.bytes"], in_flight_size_max),
            **_connection_counts(config),
            in_flight_count_max=config["stablelog.max.in.flight.requests"],
            idle_ms_max=config["connections.max.idle.ms"],
            receive_ms_max=config["stablelog.request.receive.timeout.ms"],
            handshake_ms_max=config["stablelog.ssl.handshake.timeout.ms"],
            login_size_max=min(config["sasl.server.max.receive.size"], LOGIN_SIZE_MAX),
            arrive=count_connection,
            log_close=partial(closings.write, CLOSING),
        )
        more = (
            self._limits.receive_ms_max / 1000,
            asyncio.get_running_loop().time,
            partial(self._tasks.later, "memory budget"),
        )
        self._budgets = MemoryBudgets(
            MemoryBudget(in_flight_size_max, *more),
            MemoryBudget(LOGIN_SIZE_MAX, *more, inbox_size=LOGIN_INBOX_SIZE),
        )

    async def open(self, listener: Listener, tls: "ListenerTls | None") -> None:
        """Bind the address of a listener, and begin to accept connections.

        Args:
            listener: the listener. Port 0 takes a free port.
            tls: the certificates of the listener; None if it has no TLS.

        Raises:
            UnavailableError: the address cannot be bound.
        """
        assert (tls is not None) == listener.protocol.is_tls
        at = [listener]  # with the port, once it is bound
        connect = partial(self._connect, at)
        with prefix_os_errors(f"cannot listen on {listener.address}"):
            if tls is None:
                loop = asyncio.get_running_loop()
                plain = await loop.create_server(connect, listener.host, listener.port, backlog=BACKLOG)
                self._accepting.append(plain)
                bound = plain.sockets[0]
            else:
                from stablelog.broker.listeners.tls_listener import TlsListener

                limits = partial(self._present_limits, listener)
                secured = TlsListener(tls, limits, self._open_connections, self._tasks, connect)
                self._accepting.append(secured)
                await secured.open(listener.host, listener.port)
                bound = secured.sockets[0]
        port: int = bound.getsockname()[1]
        host, advertised_port = listener.advertised
        at[0] = listener._replace(port=port, advertised=(host, advertised_port or port))
        self.listeners.append(at[0])
        if len(self._config.listeners) > 1 or listener.protocol is not SecurityProtocol.PLAINTEXT:
            log.info(
                "listener %s (%s) accepts connections on %s",
                listener.name,
                listener.protocol.value,
                at[0].address,
            )

    def _connect(self, at: list[Listener], on_made: OnMade | None = None) -> Connection:
        """Return the connection object of a client that has connected to a listener.

        Args:
            at: a list with the listener as its only entry. It is a list because the caller makes it before it knows the
                port of the listener, and replaces its entry when the port is bound.
            on_made: called with the connection and its transport, when it is established; None to call nothing.
        """
        logins = self._logins
        session = Session(at[0], login=None if logins is None else logins.new_login(at[0].name))
        limits = self._present_limits(at[0])
        return Connection(
            self._router, limits, self._budgets, self._open_connections, self._tasks, session, on_made
        )

    def _present_limits(self, listener: Listener) -> ConnectionLimits:
        """Return the limits of a new connection, as they are now: dynamic settings of the broker may change some of
        them.
        """
        name, config, count_max = listener.name, self._config, None
        if config.is_set_for_listener(name, "max.connections"):
            count_max = config.listener_value(name, "max.connections")
        counts = _connection_counts(config)
        return replace(self._limits, listener=name, listener_count_max=count_max, **counts)

    def close(self) -> None:
        """Accept no more connections."""
        for accepting in self._accepting:
            accepting.close()


def load_certificates(config: BrokerConfig) -> "Mapping[Listener, ListenerTls]":
    """Return the certificates of each listener with TLS.

    Raises:
        UsageError: the certificates of a listener cannot be used.
    """
    secured = [listener for listener in config.listeners if listener.protocol.is_tls]
    if not secured:
        return {}
    from stablelog.broker.listeners.tls import ListenerTls

    now_s = asyncio.get_running_loop().time
    return {listener: ListenerTls(config, listener, now_s) for listener in secured}


async def check_address(host: str, port: int) -> None:
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
    """Return the present limits of the number of connections, as keyword arguments for `ConnectionLimits`. These limits
    may change while the broker runs.
    """
    return {
        "connection_count_max": config["max.connections"],
        "connection_count_per_host_max": config["max.connections.per.ip"],
        "host_count_max": config["max.connections.per.ip.overrides"],
    }


@contextlib.contextmanager
def prefix_os_errors(failed_call: str) -> Iterator[None]:
    """Context that converts an OSError of the `with` block to an UnavailableError, whose message begins with
    `failed_call`, such as the address that could not be bound.
    """
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"{failed_call}: {error.strerror or error}") from error
