"""The limits of connections: how many may be open, how fast they may be opened, and what one connection may take."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from stablelog.broker.loop.tasks import Scope
from stablelog.broker.network.request_head import REQUEST_SIZE_MIN
from stablelog.broker.settings.listeners import LISTENER_PREFIX, LOCAL

if TYPE_CHECKING:
    from stablelog.security.login import Login


class Arrival(NamedTuple):
    """What the limits decide about a new connection when it arrives: how long it waits, and whether it is then served
    or closed.

    Attributes:
        delay_ms: how long the broker reads nothing from the connection, in ms.
        why_closed: why the connection is closed after this time; None if it is served then.
    """

    delay_ms: int
    why_closed: str | None = None


log = logging.getLogger(__name__)

BACKLOG: Final = 1024  # The number of connections that the operating system keeps until they are accepted.
CLOSING: Final = "closing %s: %s"
AT_ONCE: Final = Arrival(0)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits that apply to a connection of one listener. Names that end in `_max` are upper limits; times are in
    ms.

    Attributes:
        connection_count_max: the number of open connections of the broker.
        connection_count_per_host_max: the number of open connections from one address.
        in_flight_count_max: the number of unanswered requests of the connection.
        idle_ms_max: a connection without a request is closed after this time.
        receive_ms_max: the time in which a request must arrive, or the client must log in.
        listener: the name of the listener.
        listener_count_max: the number of connections of this listener; None for no limit of its own.
        host_count_max: the number of open connections by address, for addresses that have a limit of their own in place
            of `connection_count_per_host_max`.
        arrive: counts a new connection from a host, and decides when it is served.
        log_close: logs why a connection is closed. Called with the address and port of the client, and the reason.
    """

    request_size_max: int
    connection_count_max: int
    connection_count_per_host_max: int
    in_flight_count_max: int
    idle_ms_max: int
    receive_ms_max: int
    handshake_ms_max: int = 10_000
    login_size_max: int = 65_536  # The largest request before the login.
    listener: str = LOCAL.name
    listener_count_max: int | None = None
    host_count_max: Mapping[str, int] = field(default_factory=dict)
    arrive: Callable[[str], Arrival] = lambda _host: AT_ONCE
    log_close: Callable[[str, str], None] = lambda peer, why: log.warning(CLOSING, peer, why)

    def first_check_s(self, *, has_login: bool) -> float:
        """The time in seconds after which a new connection is checked for the first time. The check closes the
        connection if it is idle, or if its client should have logged in by then and has not.

        Args:
            has_login: whether the client has to log in.
        """
        ms = min(self.idle_ms_max, self.receive_ms_max) if has_login else self.idle_ms_max
        return ms / 1000

    def request_sizes(self, login: "Login | None") -> tuple[int, int]:
        """Return a pair for the next request of a connection: the least and the greatest number of bytes that it may
        have.

        Before the client has logged in, the greatest number is smaller. While the client may send SASL messages without
        request headers, the least number is 0, because such a message may be shorter than a header.

        Args:
            login: the state of the client's login; None if the listener needs no login.
        """
        size_min = 0 if login is not None and login.takes_bare_messages else REQUEST_SIZE_MIN
        if login is None or login.principal is not None:
            return size_min, self.request_size_max
        return size_min, min(self.login_size_max, self.request_size_max)


class OpenConnection(Protocol):
    """A connection that counts for the limits: an open one, or one whose TLS handshake is under way."""

    host: str
    listener: str

    @property
    def scope(self) -> Scope:
        """The part of the broker that fails if the work of the connection raises an unexpected exception: this
        connection only.
        """

    async def finish(self) -> None:
        """Accept no more requests, and close the connection when its responses have been sent."""

    def close(self, why: str | None = None) -> None:
        """Close the connection at once.

        Args:
            why: the reason for the log; None to log nothing.
        """


def peer_addresses(transport: asyncio.BaseTransport) -> tuple[str, str]:
    """Return (the client's address, its address with its port). Both are "?" if the client has left already."""
    peer = transport.get_extra_info("peername")
    return (str(peer[0]), f"{peer[0]}:{peer[1]}") if peer else ("?", "?")


def limit_reached(
    open_connections: Collection[OpenConnection], limits: ConnectionLimits, host: str
) -> str | None:
    """Return the limit that a new connection from `host` would exceed, in words for the log; None if the connection may
    be opened.
    """
    own = limits.listener_count_max
    per_host = limits.host_count_max.get(host, limits.connection_count_per_host_max)
    if len(open_connections) >= limits.connection_count_max:
        reached = f"max.connections={limits.connection_count_max}"
    elif own is not None and sum(one.listener == limits.listener for one in open_connections) >= own:
        reached = f"{LISTENER_PREFIX}{limits.listener.lower()}.max.connections={own}"
    elif sum(one.host == host for one in open_connections) >= per_host:
        name = "max.connections.per.ip"
        reached = (
            f"{name}.overrides={host}:{per_host}" if host in limits.host_count_max else f"{name}={per_host}"
        )
    else:
        return None
    return f"as many connections are open as {reached} allows"
