"""The connections to the brokers of one cluster, over streams of asyncio. `core.cluster` decides what is sent over
them.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from stablelog.client.call_threads import look_up_addresses, numeric_addresses, shared_threads
from stablelog.client.core import cluster as core
from stablelog.client.core.addresses import host_and_port, invalid_address
from stablelog.client.core.call_limits import DEADLINE_S
from stablelog.client.core.cluster import BACKOFF_FIRST_S, BACKOFF_MAX_S
from stablelog.client.core.connection import CLIENT_ID, BrokerConnection
from stablelog.client.core.security import PLAINTEXT, PROBES, SecuritySettings
from stablelog.client.core.settings import TIMEOUT_S
from stablelog.client.core.steps import Call, Effect, Emit, Now, Open, Pause, Receive, Result, Send, Steps
from stablelog.client.tls import connection_error, tls_context
from stablelog.errors import UnavailableError
from stablelog.processes import watch_forks
from stablelog.types import SecurityProtocol
from stablelog.wire.guard import Buffer

READ_SIZE_MAX: Final = 1 << 20  # bytes that the stream may hold before the socket is read no further


class StreamConnection(BrokerConnection):
    """A connection to a broker over a pair of asyncio streams. `open_stream` makes it.

    Args:
        address: "host:port".
        reader: the stream of responses.
        writer: the stream of requests.
        timeout_s: how long the broker may take to respond.
        security: the security settings.
        client_id: the name of this client in the broker's log and metrics.
    """

    def __init__(
        self,
        address: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        timeout_s: float,
        security: SecuritySettings = PLAINTEXT,
        client_id: str = CLIENT_ID,
    ) -> None:
        super().__init__(address, client_id, security)
        self._reader = reader
        self._writer = writer
        self._timeout_s = timeout_s
        self._is_of_parent = False  # whether the connection is one of the parent process
        watch_forks(self)

    def close(self) -> None:
        """Close the socket. Bytes that were not sent yet, and responses that have not arrived, are lost."""
        if not self._is_of_parent:
            with suppress(
                RuntimeError
            ):  # the event loop was closed before; the socket closes with its transport
                self._writer.transport.abort()

    def after_fork(self) -> None:
        """In a forked process, make this copy of the connection unusable: its file descriptor then stands for the null
        device.

        The connection of the parent process stays usable. The event loops of parent and child share a selector. When
        the child frees the stream, asyncio removes the stream's file descriptor from this selector, and the descriptor
        must then not stand for the parent's socket.
        """
        self._is_of_parent = True
        copied = self._writer.get_extra_info("socket")
        if copied is not None and copied.fileno() >= 0:
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), copied.fileno(), inheritable=False)

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed or broke, so that no request can be sent."""
        return self._is_of_parent or self._writer.transport.is_closing()

    async def send(self, pieces: list[Buffer], limit_s: float | None = None) -> None:
        """Send all these bytes, in order. Raises OSError if the connection breaks, or if not all bytes could be sent
        within `limit_s` seconds.
        """
        self._writer.writelines(pieces)
        await self._within_limit(self._writer.drain(), limit_s)

    async def receive(self, size: int, limit_s: float | None = None) -> memoryview:
        """Receive exactly `size` bytes. Raises OSError if the connection ends before they have arrived, or if they have
        not arrived within `limit_s` seconds.
        """
        return await self._within_limit(self._receive(size), limit_s)

    async def _receive(self, size: int) -> memoryview:
        received = memoryview(bytearray(size))
        at = 0
        while at < size:
            piece = await self._reader.read(size - at)
            if not piece:
                raise ConnectionResetError("the broker closed the connection")
            received[at : at + len(piece)] = piece
            at += len(piece)
        return received

    async def _within_limit(self, work: Coroutine[Any, Any, Result], limit_s: float | None) -> Result:
        try:
            async with asyncio.timeout(self._timeout_s if limit_s is None else min(limit_s, self._timeout_s)):
                return await work
        except TimeoutError as error:
            raise TimeoutError("timed out") from error


async def _beside(function: Callable[[], Any]) -> Any:
    """Call a function that may block, in a thread of its own, and return its result. If this task is cancelled, the
    thread continues, and its result is dropped.
    """
    return await asyncio.wrap_future(shared_threads.start_call(function))


async def _connect(host: str, port: int, limit_s: float) -> socket.socket:
    """Connect to one of the addresses of a host within `limit_s` seconds, and return the socket. Raises OSError."""
    addresses = numeric_addresses(host, port)
    if addresses is None:
        addresses = await _beside(lambda: look_up_addresses(host, port))
    end = time.monotonic() + limit_s
    failure: OSError = OSError(f"the name {host!r} has no address")
    for place, (family, kind, protocol, _, address) in enumerate(addresses):
        connected = socket.socket(family, kind, protocol)
        try:
            connected.setblocking(False)
            async with asyncio.timeout((end - time.monotonic()) / (len(addresses) - place)):
                await asyncio.get_running_loop().sock_connect(connected, address)
            return connected
        except OSError as error:  # TimeoutError, too
            connected.close()
            failure = error
        except BaseException:
            connected.close()
            raise
    raise failure


async def open_stream(
    address: str,
    timeout_s: float,
    security: SecuritySettings = PLAINTEXT,
    *,
    client_id: str = CLIENT_ID,
    limit_s: float | None = None,
) -> StreamConnection:
    """Connect to a broker.

    Args:
        address: "host:port".
        timeout_s: how long the broker may take to respond.
        security: the security settings.
        client_id: the name of this client in the broker's log and metrics.
        limit_s: how long the connection may take to open; by default `timeout_s`.

    Raises:
        UnavailableError: no connection to the address can be made.
        AuthenticationError: client and broker do not accept each other's certificates.
        UsageError: a key or a certificate of the settings cannot be used.
    """
    host, port = host_and_port(address)
    given: dict[str, Any] = {"limit": READ_SIZE_MAX}
    limit_s = timeout_s if limit_s is None else max(0.001, min(limit_s, timeout_s))
    tls = security.tls
    try:
        async with asyncio.timeout(limit_s):
            if tls is not None:
                context = await _beside(lambda: tls_context(tls))
                given |= {"ssl": context, "server_hostname": host, "ssl_handshake_timeout": limit_s}
            connected = await _connect(host, port, limit_s)
            try:
                reader, writer = await asyncio.open_connection(sock=connected, **given)
            except BaseException:
                connected.close()
                raise
        # macOS refuses this if the broker has closed the connection.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except TimeoutError as error:
        raise UnavailableError(f"no broker responds at {address}: timed out") from error
    except OSError as error:  # before ValueError, because ssl.SSLCertVerificationError is both
        raise connection_error(address, security, error) from error
    except (ValueError, OverflowError) as error:
        raise invalid_address(address) from error
    return StreamConnection(address, reader, writer, timeout_s, security, client_id)


class AsyncCluster:
    """The connections to the brokers of one cluster. The first broker is found by a list of addresses, and all other
    brokers by the metadata of the first one. Only one task at a time may use the object.

    Args:
        bootstrap: "host:port,host:port"; one reachable address is enough.
        client_id: the name of this client in the brokers' logs.
        timeout_s: how long a broker may take to respond.
        deadline_s: how long a call is retried before it fails.
        security: the security settings.
        backoff_s: a pair: the first pause between two attempts, and the longest one, in seconds.

    Attributes:
        core: the object of `client.core` that decides what the calls send, and that knows the brokers' addresses and
            topics.

    Raises:
        UsageError: an address is invalid.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = CLIENT_ID,
        timeout_s: float = TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
        security: SecuritySettings = PLAINTEXT,
        backoff_s: tuple[float, float] = (BACKOFF_FIRST_S, BACKOFF_MAX_S),
    ) -> None:
        self.core = core.Cluster(bootstrap, deadline_s=deadline_s, security=security, backoff_s=backoff_s)
        self._timeout_s = timeout_s
        self._client_id = client_id
        watch_forks(self)
        self._awaited: StreamConnection | None = None  # the connection for which the present effect waits
        self._beside: asyncio.Future[Any] | None = None  # the present work that can be given up
        self._pausing: asyncio.Future[None] | None = None  # done when the present pause has to end early

    def after_fork(self) -> None:
        """In a forked process, drop the connections of the parent process. The next request opens new ones."""
        self.core.forget_connections()
        self._pausing = None

    @property
    def bootstrap(self) -> str:
        """The addresses, as given."""
        return self.core.bootstrap

    async def open_connection(self, address: str, probe: SecurityProtocol | None = None) -> BrokerConnection:
        """Open a connection to the broker at this address, and return it. `probe` is PLAINTEXT or SSL for a connection
        without a login, which only finds out the security protocol of a listener; None for an ordinary connection with
        the security settings of the cluster.
        """
        security = self.core.security if probe is None else PROBES[probe]
        return await open_stream(
            address, self._timeout_s, security, client_id=self._client_id, limit_s=self._limit_s()
        )

    def _limit_s(self) -> float | None:
        """Return how many seconds are left for the next I/O operation until the deadline of the present call; None if
        the call has no deadline, so that only the timeout of the connection counts.
        """
        return None if self.core.until is None else max(0.0, self.core.until - time.monotonic())

    def close(self) -> None:
        """Close all connections. A later call opens them again."""
        self.core.close()

    def cancel(self) -> None:
        """Let the running call end soon: it makes no further retry, and its present wait for a broker ends."""
        self.core.cancel_retries()
        self.end_waits()

    def end_waits(self) -> None:
        """End the present wait of the running call: close the connection from which it expects bytes, or stop waiting
        for the function that it has started in a thread.
        """
        self.end_pause()
        if self._awaited is not None:
            self._awaited.close()
        if self._beside is not None:
            self._beside.cancel()

    def end_pause(self) -> None:
        """If the running call pauses before it repeats a request, end the pause now."""
        if self._pausing is not None and not self._pausing.done():
            self._pausing.set_result(None)

    async def run(self, steps: Steps[Result]) -> Result:
        """Run the steps of a call to their end, and return their result. (Steps are a generator of `client.core` that
        yields the I/O operations it needs.) The steps of readers also yield items, such as transactions: run those by
        `advance`.
        """
        ended, result = await self.advance(steps)
        assert ended, "these steps emit items: run them by advance"
        return result  # type: ignore[no-any-return]

    async def advance(self, steps: Steps[Any]) -> tuple[bool, Any]:
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
                    answer = await self.perform(effect)
                except BaseException as error:  # noqa: BLE001 - the steps handle it
                    failure = error
        except BaseException:
            steps.close()  # now, and not when the last reference to the error is gone
            raise
        finally:
            failure = None  # the error refers to this frame: without this they would keep each other alive

    async def perform(self, effect: Effect) -> Any:
        """Carry out one effect (an I/O operation that steps of `client.core` ask for, such as sending bytes), and
        return its result to the steps.
        """
        match effect:
            case Receive(connection, size):
                assert isinstance(connection, StreamConnection)
                self._awaited = connection
                try:
                    return await connection.receive(size, self._limit_s())
                finally:
                    self._awaited = None
            case Send(connection, pieces):
                assert isinstance(connection, StreamConnection)
                self._awaited = connection
                try:
                    await connection.send(pieces, self._limit_s())
                finally:
                    self._awaited = None
            case Now():
                return time.monotonic()
            case Pause(seconds):
                limit_s = self._limit_s()
                await self._pause(seconds if limit_s is None else min(seconds, limit_s))
            case Call(function):
                return await self._cancellable(self._call(function))
            case Open(address, probe):
                return await self._cancellable(self.open_connection(address, probe))
            case _:
                raise AssertionError(effect)
        return None

    async def _call(self, function: Callable[[], Any]) -> Any:
        try:
            async with asyncio.timeout(self._limit_s()):
                return await _beside(function)
        except TimeoutError as error:
            raise UnavailableError("the login to the broker was not complete in time") from error

    async def _cancellable(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await `work`, a part of a call that may take long, and return its result. `end_waits` can cancel it
        meanwhile.

        Raises:
            UnavailableError: `end_waits` has cancelled `work`.
        """
        self._beside = asyncio.ensure_future(work)
        try:
            await asyncio.wait((self._beside,))
            if self._beside.cancelled():
                raise UnavailableError("the call was cancelled before a broker responded")
            return self._beside.result()
        finally:
            self._beside.cancel()
            self._beside = None

    async def _pause(self, seconds: float) -> None:
        self._pausing = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((self._pausing,), timeout=seconds)
        finally:
            self._pausing = None
