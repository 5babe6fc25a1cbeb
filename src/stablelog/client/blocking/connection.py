"""Connection to one broker over a blocking socket. What stands in the bytes is decided by `core.connection`.

`ask` and `call` send a message and return the response. `send` and `receive` are for requests that the caller has
encoded. Several of these requests may be in flight; the broker responds in their order.
"""

import socket
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from stablelog.client.buffers import BufferPool
from stablelog.client.call_threads import aside, connect
from stablelog.client.core import connection as core
from stablelog.client.core.addresses import host_and_port, invalid_address
from stablelog.client.core.security import PLAINTEXT, SecuritySettings
from stablelog.client.core.settings import TIMEOUT_S
from stablelog.client.core.steps import Call, Effect, Emit, Now, Open, Pause, Receive, Result, Send, Steps
from stablelog.client.tls import connection_error, context_of
from stablelog.errors import UnavailableError
from stablelog.processes import watch
from stablelog.types import SecurityProtocol
from stablelog.wire.guard import Buffer

BUFFERS_SIZE_MAX: Final = 24 << 20  # maximum bytes of receive buffers that are kept for reuse
AHEAD_SIZE: Final = 4 << 10  # bytes that are received with one system call where fewer are asked for
PIECES_MAX: Final = 64  # maximum of pieces in one system call


class SocketConnection(core.BrokerConnection):
    """A connection to a broker over a blocking socket.

    Args:
        address: "host:port".
        client_id: the name of this client in the broker's log and metrics.
        timeout_s: how long the broker may take to respond.
        security: the security settings.
        limit_s: how long the connection may take to open; by default `timeout_s`.

    Raises:
        UnavailableError: no connection to the address can be made.
        AuthenticationError: client and broker do not accept each other's certificates.
        UsageError: a key or a certificate of the settings cannot be used.
    """

    def __init__(
        self,
        address: str,
        *,
        client_id: str = core.CLIENT_ID,
        timeout_s: float = TIMEOUT_S,
        security: SecuritySettings = PLAINTEXT,
        limit_s: float | None = None,
    ) -> None:
        super().__init__(address, client_id, security)
        limit_s = timeout_s if limit_s is None else max(0.001, min(limit_s, timeout_s))
        host, port = host_and_port(address)
        context = None if security.tls is None else context_of(security.tls)
        try:
            self._socket = connect(host, port, limit_s)
        except (ValueError, OverflowError) as error:
            raise invalid_address(address) from error
        except OSError as error:
            raise UnavailableError(f"no broker responds at {address}: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=host)
        except OSError as error:
            self._socket.close()
            raise connection_error(address, security, error) from error
        watch(self)
        self._timeout_s, self._limit_s = timeout_s, limit_s
        self._buffers = BufferPool(BUFFERS_SIZE_MAX)
        self._ahead = b""  # bytes that were received and not asked for yet

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket. Responses that have not arrived are lost."""
        self._socket.close()

    def after_fork(self) -> None:
        """In a forked process, close its copy of the file descriptor. The connection of the parent process stays open."""
        self._socket.close()

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed or broke, so that no request can be sent."""
        return self._socket.fileno() < 0

    @property
    def versions(self) -> dict[int, tuple[int, int]]:
        """The versions that the broker supports: api key -> (first version, last version). They are requested once.

        Raises:
            UnavailableError: the broker did not respond.
        """
        if self._versions is None:
            run(self.negotiate())
        return super().versions

    # --- requests ---

    def ask(self, request: Any) -> Any:
        """Send a request in the newest version that the client and the broker support, at most in the version of
        `request`.

        Returns:
            The response, in the version of `request`. A field that the broker does not send has its default.

        Raises:
            UnavailableError: the broker does not support the API, or did not respond. It may have carried out the
                request.
        """
        return run(self.ask_steps(request))

    def call(self, request: Any, response_class: Any = None) -> Any:
        """Send a request in its own version, and return the response. `response_class` replaces the class of the kio
        library where that class cannot represent the response.

        Raises:
            UnavailableError: the broker did not respond. It may have carried out the request.
        """
        return run(self.call_steps(request, response_class))

    def send(self, api_key: int, version: int, pieces: Sequence[Buffer], *, flexible: bool) -> None:
        """Send a request without waiting for the response. Its body may be in several pieces.

        Raises:
            UnavailableError: the request could not be sent completely. The broker may have carried it out.
        """
        run(self.send_steps(api_key, version, pieces, flexible=flexible))

    def receive(self, *, flexible: bool) -> memoryview:
        """Receive the body of the response to the oldest request in flight.

        Args:
            flexible: whether the response's version is flexible; then its header is a byte longer.

        Raises:
            UnavailableError: the broker did not respond. It may have carried out the request.
        """
        return run(self.receive_steps(flexible=flexible))

    # --- the socket ---

    def _limit(self, limit_s: float | None) -> float:
        """Set the timeout of the socket to the least of `limit_s` and the connection's own. Return it."""
        limit_s = self._timeout_s if limit_s is None else min(limit_s, self._timeout_s)
        if limit_s <= 0:
            raise TimeoutError("timed out")
        if limit_s != self._limit_s:
            self._socket.settimeout(limit_s)
            self._limit_s = limit_s
        return limit_s

    def send_all(self, pieces: list[Buffer], limit_s: float | None = None) -> None:
        """Send all pieces with as few copies and system calls as possible, within `limit_s` seconds. Raises OSError."""
        end = time.monotonic() + self._limit(limit_s)
        if self.security.tls is not None:
            self._socket.sendall(b"".join(pieces))  # one piece: TLS makes records of it, and has no sendmsg
            return
        left = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        while left:
            sent = self._socket.sendmsg(left[:PIECES_MAX])
            if sum(map(len, left)) > sent:
                self._limit(end - time.monotonic())
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]

    def receive_exactly(self, size: int, limit_s: float | None = None) -> memoryview:
        """Receive this many bytes. Raises OSError if the connection ends before, or after `limit_s` seconds.

        The end of a response, and a small one altogether, is received with what follows it: its size and its body need
        only one system call.
        """
        received = memoryview(self._buffers.take(size))
        at = 0
        end = time.monotonic() + self._limit(limit_s)
        while at < size:
            if at:
                self._limit(end - time.monotonic())
            left = size - at
            if not self._ahead and left >= AHEAD_SIZE:
                count = self._socket.recv_into(received[at:])
            else:
                ahead = self._ahead or self._socket.recv(AHEAD_SIZE)
                count = min(len(ahead), left)
                received[at : at + count] = ahead[:count]
                self._ahead = ahead[count:]
            if not count:
                raise ConnectionResetError("the broker closed the connection")
            at += count
        return received


class BlockingRunner:
    """Runs the steps of the client in the calling thread: waits at sockets, and sleeps."""

    def run(self, steps: Steps[Result]) -> Result:
        """Run steps to their end, and return their result. The steps give no items."""
        ended, result = self.advance(steps)
        assert ended, "these steps give items"
        return result  # type: ignore[no-any-return]

    def advance(self, steps: Steps[Any]) -> tuple[bool, Any]:
        """Run steps until they give an item or end. Return whether they have ended, and the item or their result."""
        answer: Any = None
        failure: BaseException | None = None
        try:
            while True:
                try:
                    effect = steps.send(answer) if failure is None else steps.throw(failure)
                except StopIteration as end:
                    return True, end.value
                if isinstance(effect, Emit):
                    return False, effect.item
                answer = failure = None
                try:
                    answer = self.perform(effect)
                except BaseException as error:  # noqa: BLE001 - the steps handle it
                    failure = error
        except BaseException:
            steps.close()  # now, and not when the last reference to the error is gone
            raise
        finally:
            failure = None  # the error refers to this frame: without this they would keep each other alive

    def limit_s(self) -> float | None:
        """Return how long an effect may wait for a broker; None for the timeout of its connection."""
        return None

    def perform(self, effect: Effect) -> Any:
        """Carry out one effect, and return its result."""
        match effect:
            case Receive(connection, size):
                assert isinstance(connection, SocketConnection)
                return connection.receive_exactly(size, self.limit_s())
            case Send(connection, pieces):
                assert isinstance(connection, SocketConnection)
                connection.send_all(pieces, self.limit_s())
            case Now():
                return time.monotonic()
            case Pause(seconds):
                limit_s = self.limit_s()
                time.sleep(seconds if limit_s is None else max(0.0, min(seconds, limit_s)))
            case Call(function):
                return self.call(function)
            case Open(address, probe):
                return self.open_connection(address, probe)
            case _:
                raise AssertionError(effect)
        return None

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function that may block, in a thread that is left behind at the end of the time."""
        limit_s = self.limit_s()
        try:
            return function() if limit_s is None else aside.call(function, limit_s)
        except TimeoutError as error:
            raise UnavailableError(f"a login has not ended in time: {error}") from error

    def open_connection(self, address: str, probe: SecurityProtocol | None = None) -> SocketConnection:
        """Open a connection to a broker, with the client's security settings or those of a probe. Only a `Cluster` does
        so.
        """
        raise AssertionError(f"a connection opens no other one: {address}")


_blocking = BlockingRunner()
run = _blocking.run
