"""A connection to one broker over a blocking socket, and the loop that carries out the I/O of calls. `core.connection`
encodes the requests and decodes the responses.

`request` and `request_unchanged` send a message and return the response. `send` and `receive` are for requests that the
caller has encoded: several of them may be in flight, and the broker responds in their order.
"""

import socket
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from stablelog.client.buffers import BufferPool
from stablelog.client.call_threads import connect_socket, shared_threads
from stablelog.client.core import connection as core
from stablelog.client.core.addresses import host_and_port, invalid_address
from stablelog.client.core.security import PLAINTEXT, SecuritySettings
from stablelog.client.core.settings import TIMEOUT_S
from stablelog.client.core.steps import Call, Effect, Emit, Now, Open, Pause, Receive, Result, Send, Steps
from stablelog.client.tls import connection_error, tls_context
from stablelog.errors import UnavailableError
from stablelog.processes import watch_forks
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
        context = None if security.tls is None else tls_context(security.tls)
        try:
            self._socket = connect_socket(host, port, limit_s)
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
        watch_forks(self)
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
        """In a forked process, close this process's copy of the socket. The connection of the parent process stays
        open.
        """
        self._socket.close()

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed or broke, so that no request can be sent."""
        return self._socket.fileno() < 0

    @property
    def versions(self) -> dict[int, tuple[int, int]]:
        """The versions that the broker supports: API key -> (first version, last version). The first call requests
        them.

        Raises:
            UnavailableError: the broker did not respond.
        """
        if self._versions is None:
            run(self.negotiate())
        return super().versions

    # --- requests ---

    def request(self, request: Any) -> Any:
        """Send a request and return its response. The version is the newest one that the client and the broker support,
        but not above the version of `request`.

        Returns:
            The response, in the version of `request`. A field that the broker does not send has its default.

        Raises:
            UnavailableError: the broker does not support the API, or did not respond. It may have carried out the
                request.
        """
        return run(self.request_steps(request))

    def request_unchanged(self, request: Any, response_class: Any = None) -> Any:
        """Send a request in exactly its own version, and return the response. `response_class` decodes the response
        instead of the class of the kio library, where that class cannot represent it.

        Raises:
            UnavailableError: the broker did not respond. It may have carried out the request.
        """
        return run(self.request_unchanged_steps(request, response_class))

    def send(self, api_key: int, version: int, pieces: Sequence[Buffer], *, flexible: bool) -> None:
        """Send an encoded request without waiting for the response.

        Args:
            api_key: the API of the request.
            version: the version in which the request is encoded.
            pieces: the encoded body of the request, in one or more pieces.
            flexible: whether this version is flexible; then the header of the request has tagged fields.

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
        """Set the timeout of the socket's next operation: `limit_s` seconds, but at most the timeout of the connection,
        which also counts if `limit_s` is None. Return the timeout that was set, in seconds.
        """
        limit_s = self._timeout_s if limit_s is None else min(limit_s, self._timeout_s)
        if limit_s <= 0:
            raise TimeoutError("timed out")
        if limit_s != self._limit_s:
            self._socket.settimeout(limit_s)
            self._limit_s = limit_s
        return limit_s

    def send_all(self, pieces: list[Buffer], limit_s: float | None = None) -> None:
        """Send all these bytes, in order, with few copies and system calls. Raises OSError if the connection breaks, or
        if not all could be sent within `limit_s` seconds.
        """
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
        """Receive exactly `size` bytes. Raises OSError if the connection ends before they have arrived, or if they have
        not arrived within `limit_s` seconds.

        If `size` is small, one system call also receives some of the bytes after it, because the length and the body of
        a response, and often the next response, arrive together.
        """
        received = memoryview(self._buffers.take_buffer(size))
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
    """Runs the steps of the client's calls in the calling thread. Steps are generators of `client.core`: they decide
    what is sent, and yield effects, which are I/O operations and pauses. This object carries the effects out.
    """

    def run(self, steps: Steps[Result]) -> Result:
        """Run the steps of a call (a generator that yields I/O operations) to their end, and return their result. The
        steps of readers also yield items, such as transactions: run those by `advance`.
        """
        ended, result = self.advance(steps)
        assert ended, "these steps emit items: run them by advance"
        return result  # type: ignore[no-any-return]

    def advance(self, steps: Steps[Any]) -> tuple[bool, Any]:
        """Run the steps of a call (a generator that yields I/O operations) until they emit an item, such as a
        transaction that was read, or end.

        Returns:
            (False, the item) if the steps have emitted an item: the next call continues them. (True, the result of the
            steps) if they have ended.
        """
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
        """Return how many seconds are left for the next I/O operation until the deadline of the present call; None if
        the call has no deadline, so that only the timeout of the connection counts.
        """
        return None

    def perform(self, effect: Effect) -> Any:
        """Carry out one effect (an I/O operation that steps ask for, such as sending bytes), and return its result to
        the steps.
        """
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
        """Call a function that may block, in another thread, and return its result. At the deadline of the present
        call, stop waiting for the function; it continues in its thread, and its result is dropped.
        """
        limit_s = self.limit_s()
        try:
            return function() if limit_s is None else shared_threads.call_within(function, limit_s)
        except TimeoutError as error:
            raise UnavailableError(f"the login to the broker was not complete in time: {error}") from error

    def open_connection(self, address: str, probe: SecurityProtocol | None = None) -> SocketConnection:
        """Open a connection to the broker at this address, and return it. Only `BlockingCluster` implements this.
        `probe` is PLAINTEXT or SSL for a connection without a login, which only finds out the security protocol of a
        listener; None for an ordinary connection.
        """
        raise AssertionError(f"a connection cannot open another connection, to {address}")


_blocking = BlockingRunner()
run = _blocking.run
