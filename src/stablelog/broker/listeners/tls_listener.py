"""A listener with TLS: accepts connections, and does their TLS handshakes.

A handshake counts as a connection for the limits of connections, and must be complete within a time limit. A client
whose handshake fails reaches no other part of the broker. Each handshake uses the certificates that are valid when it
begins.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from stablelog.broker.listeners.tls import ListenerTls
from stablelog.broker.loop.tasks import Scope, Tasks
from stablelog.broker.network.connection import Connection, OnMade
from stablelog.broker.network.connection_limits import (
    BACKLOG,
    Arrival,
    ConnectionLimits,
    OpenConnection,
    limit_reached,
)

log = logging.getLogger(__name__)

PAUSE_AFTER_ERROR_S: Final = (
    1.0  # as asyncio's own listeners pause when the process has no free file descriptors
)


class _Handshake:
    """The connection of a client during its TLS handshake. It counts for the limits of connections."""

    def __init__(
        self,
        listener: str,
        host: str,
        peer: str,
        accepted: socket.socket,
        log_close: Callable[[str, str], None],
    ) -> None:
        self.listener = listener
        self.host = host
        self.peer = peer
        self.accepted = accepted
        self._log_close = log_close
        self.is_begun = False
        self.task: asyncio.Task[None] | None = None

    @property
    def scope(self) -> Scope:
        return Scope(f"the connection of {self.peer} is closed", lambda _why: self.close())

    def close(self, why: str | None = None) -> None:
        if why is not None:
            self._log_close(self.peer, why)
        if self.task is not None:
            self.task.cancel()
        if not self.is_begun:
            self.accepted.close()

    async def finish(self) -> None:
        """Close the connection because the broker stops. No request has to be completed first, because a client cannot
        send any before its handshake is complete.
        """
        self.close()


class TlsListener:
    """A listener with TLS.

    Args:
        tls: the certificates of the listener.
        present_limits: returns the limits of connections, some of which may change while the broker runs.
        open_connections: the open connections of the broker. Each handshake in progress is added to them.
        tasks: starts the handshakes.
        connect: makes the object for a client's connection. Its argument `on_made` is a function that the connection
            calls when the handshake is complete.
    """

    def __init__(
        self,
        tls: ListenerTls,
        present_limits: Callable[[], ConnectionLimits],
        open_connections: set[OpenConnection],
        tasks: Tasks,
        connect: Callable[[OnMade], Connection],
    ) -> None:
        self._tls = tls
        self._present_limits = present_limits
        self._open_connections = open_connections
        self._tasks = tasks
        self._connect = connect
        self._accepting: list[asyncio.Task[None]] = []
        self.sockets: Sequence[socket.socket] = ()

    async def open(self, host: str, port: int) -> None:
        """Bind the addresses of the host, and begin to accept connections.

        Raises:
            OSError: an address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with contextlib.ExitStack() as opened:
            sockets = []
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                listening = opened.enter_context(
                    socket.create_server(address[:2], family=family, backlog=BACKLOG)
                )
                listening.setblocking(False)
                sockets.append(listening)
            opened.pop_all()
        self.sockets = sockets
        for listening in sockets:
            task = self._tasks.start("accept", lambda at=listening: self._accept_connections(at))  # type: ignore[misc]
            self._accepting.append(task)

    def close(self) -> None:
        """Accept no more connections, and close the addresses."""
        for task in self._accepting:
            task.cancel()
        for listening in self.sockets:
            listening.close()

    async def _accept_connections(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:  # such as: too many open files
                log.error("a listener with TLS cannot accept a connection, and tries again in 1 s: %s", error)
                await asyncio.sleep(PAUSE_AFTER_ERROR_S)
                continue
            self._begin_handshake(accepted, str(address[0]), f"{address[0]}:{address[1]}")
            # Without uvloop, `sock_accept` does not wait while connections are there.
            await asyncio.sleep(0)

    def _begin_handshake(self, accepted: socket.socket, host: str, peer: str) -> None:
        limits = self._present_limits()  # The limits of this connection until its handshake has ended.
        reached = limit_reached(self._open_connections, limits, host)
        if reached is not None:
            limits.log_close(peer, reached)
            accepted.close()
            return
        accepted.setblocking(False)
        # A response must not wait for the client's acknowledgement of the one before. Event loops set this option only
        # for sockets that they have accepted themselves.
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:  # macOS refuses it if the client has closed the connection
            limits.log_close(peer, _error_reason(error))
            accepted.close()
            return
        arrival = limits.arrive(host)
        handshake = _Handshake(limits.listener, host, peer, accepted, limits.log_close)
        self._open_connections.add(handshake)
        handshake.task = self._tasks.start(
            "handshake", lambda: self._do_handshake(handshake, arrival, limits), scope=handshake.scope
        )

    async def _do_handshake(self, handshake: _Handshake, arrival: Arrival, limits: ConnectionLimits) -> None:
        if arrival.delay_ms:
            try:
                await asyncio.sleep(arrival.delay_ms / 1000)
            except asyncio.CancelledError:
                self._open_connections.discard(handshake)
                raise
        if arrival.why_closed is not None:
            self._open_connections.discard(handshake)
            handshake.accepted.close()
            limits.log_close(handshake.peer, arrival.why_closed)
            return
        handshake.is_begun = True  # from now on, the transport closes the socket

        def on_made(connection: Connection, encrypted: asyncio.BaseTransport) -> None:
            self._open_connections.discard(handshake)
            connection.session.principal = self._tls.principal(encrypted.get_extra_info("ssl_object"))

        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._connect(on_made),
                handshake.accepted,
                ssl=self._tls.context,
                ssl_handshake_timeout=limits.handshake_ms_max / 1000,
            )
        except OSError as error:  # ssl.SSLError and the errors of a lost connection are OSErrors
            limits.log_close(handshake.peer, f"the TLS handshake failed: {_error_reason(error)}")
        finally:
            self._open_connections.discard(handshake)


def _error_reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate was refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return str(error) or type(error).__name__
