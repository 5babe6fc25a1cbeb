"""A TCP proxy between clients and a broker, which delays, drops, duplicates or fails requests. It works with every
client library.

The broker advertises the proxy's address, so that clients send all requests through the proxy. The proxy understands
the header of a request, and its body only to build an error response.

Two threads serve a connection: one passes requests on, and one passes responses back in the order of the requests. A
fault counts as happened (`Fault.happened`) before the client can notice it. So a test in which the client has noticed a
fault can rely on this count.
"""

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from stablelog.errors import RefusedError
from stablelog.processes import this_process
from stablelog.testing.error_responses import error_response
from stablelog.testing.faults import Fault, FaultKind, Faults
from stablelog.wire.api import Api, ApiKey
from stablelog.wire.messages import CLIENT_ID_SIZE, PREFIX, decode_request

LENGTH: Final = struct.Struct(">i")
CORRELATION_ID: Final = struct.Struct(">i")
CONNECT_TIMEOUT_S: Final = 10.0
DRAIN_TIMEOUT_S: Final = 30.0
HOST: Final = "127.0.0.1"


class FaultProxy:
    """A proxy between clients and a broker, on a port of its own. The port is open until `close`.

    Attributes:
        port: the port on which clients connect.
        target_port: the port of the broker on this host; None while there is no broker. Connections are refused then.
        faults: the faults that a test has requested, such as delays, for the requests that pass the proxy.
    """

    def __init__(self) -> None:
        self.faults = Faults()
        self.target_port: int | None = None
        self._owner = this_process()
        self._lock = threading.Lock()
        self._links: set[_ProxiedConnection] = set()
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="stablelog-proxy", daemon=True).start()

    @property
    def bootstrap(self) -> str:
        """The proxy's address "host:port", which clients take as `bootstrap.servers`."""
        return f"{HOST}:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the port and all connections. In a forked process, do nothing: the threads of the proxy are in the
        process that made it.
        """
        if self._owner is not this_process():
            return
        self.faults.clear()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connections of all clients. The port stays open, so they can connect again."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # the proxy is closed
                return
            try:
                if self.target_port is None:
                    raise ConnectionRefusedError
                broker = socket.create_connection((HOST, self.target_port), CONNECT_TIMEOUT_S)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            for connection in (client, broker):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _ProxiedConnection(client, broker, self.faults)
            with self._lock:
                self._links.add(link)
            for work in (link.pass_requests, link.pass_responses):
                threading.Thread(target=self._run, args=(link, work), daemon=True).start()

    def _run(self, link: "_ProxiedConnection", work: Callable[[], None]) -> None:
        try:
            with contextlib.suppress(OSError):
                work()
        finally:
            link.close()
            with self._lock:
                self._links.discard(link)


@dataclass(eq=False)
class _AwaitedResponse:
    """A response that a client still has to get from the proxy. The client gets responses in the order of its requests.

    Attributes:
        correlation_id: the correlation id of the request.
        fault: the fault that counts as happened when the turn of this response comes; None if the request has no fault.
        is_local: whether the proxy makes the response itself (`local`), and does not wait for one of the broker.
        local: the proxy's response if `is_local`; None to close the connection instead of a response.
        is_dropped: whether the connection is closed when the broker's response has come, and the response is not passed
            on.
        is_held: whether the request was delayed: the broker is to carry it out even if the client has gone.
        is_swallowed: whether the response is left out and the connection stays open, because the request was duplicated
            and the client has got the first response.
    """

    correlation_id: int
    fault: Fault | None = None
    is_local: bool = False
    local: bytes | None = None
    is_dropped: bool = False
    is_held: bool = False
    is_swallowed: bool = False


class _ProxiedConnection:
    """A connection of a client, and the connection to the broker that the proxy has opened for it."""

    def __init__(self, client: socket.socket, broker: socket.socket, faults: Faults) -> None:
        self._client = client
        self._broker = broker
        self._faults = faults
        self._changed = threading.Condition()
        self._awaited: deque[_AwaitedResponse] = deque()
        self._is_closed = False

    def close(self) -> None:
        """Close both connections."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for connection in (self._client, self._broker):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def pass_requests(self) -> None:
        """Pass requests to the broker until the client closes the connection. Then wait until the faults of these
        requests have happened, and until the broker has responded to the delayed ones: the client of a duplicated
        request, for example, may leave after the first response, before the broker has responded to the second request.
        """
        try:
            while (frame := _receive(self._client)) is not None:
                self._pass_request(frame)
        finally:
            with self._changed:
                self._changed.wait_for(self._is_drained, DRAIN_TIMEOUT_S)

    def _is_drained(self) -> bool:
        return self._is_closed or not any(awaited.fault or awaited.is_held for awaited in self._awaited)

    def _pass_request(self, frame: bytes) -> None:
        api_key, _, correlation_id = PREFIX.unpack_from(frame)
        fault = self._faults.take_fault(api_key, _client_id(frame))
        is_held = fault is not None and fault.kind is FaultKind.DELAY
        if fault is not None and is_held:
            fault.add_happened()
            fault.hold_request()
            fault = None
        is_silent = api_key == ApiKey.PRODUCE and _acks(frame) == 0
        if fault is None:
            self._deliver(frame, [] if is_silent else [_AwaitedResponse(correlation_id, is_held=is_held)])
        elif fault.kind is FaultKind.DUPLICATE:
            self._duplicate(frame, correlation_id, fault, is_silent=is_silent)
        elif fault.kind is FaultKind.DROP and fault.is_delivered and not is_silent:
            self._deliver(frame, [_AwaitedResponse(correlation_id, fault, is_dropped=True)])
        else:
            if fault.kind is FaultKind.DROP and fault.is_delivered:
                self._deliver(frame, [])
            local = error_response(frame, fault.error) if fault.kind is FaultKind.FAIL else None
            self._deliver(None, [_AwaitedResponse(correlation_id, fault, is_local=True, local=local)])

    def _duplicate(self, frame: bytes, correlation_id: int, fault: Fault, *, is_silent: bool) -> None:
        if is_silent:
            self._deliver(frame, [])
            self._deliver(frame, [])
            fault.add_happened()
        else:
            self._deliver(frame, [_AwaitedResponse(correlation_id)])
            self._deliver(frame, [_AwaitedResponse(correlation_id, fault, is_swallowed=True)])

    def _deliver(self, frame: bytes | None, awaited: list[_AwaitedResponse]) -> None:
        """Send a request to the broker. Before this, add the responses that the request will have to the ones that the
        proxy awaits.

        Args:
            frame: the request; None if the broker is not to get it.
            awaited: the responses that the proxy awaits for the request; empty if the client expects none.
        """
        with self._changed:
            self._awaited.extend(awaited)
        if frame is not None:
            self._broker.sendall(LENGTH.pack(len(frame)) + frame)
        self._respond()

    def pass_responses(self) -> None:
        """Pass the broker's responses to the client, with their faults, until one of the two connections ends."""
        while (frame := _receive(self._broker)) is not None:
            with self._changed:
                awaited = self._awaited.popleft()
                assert CORRELATION_ID.unpack_from(frame)[0] == awaited.correlation_id
                if awaited.is_dropped:
                    self._end(awaited)
                    return
                if not awaited.is_swallowed:
                    with contextlib.suppress(OSError):  # the client has gone, and a fault may be under way
                        self._client.sendall(LENGTH.pack(len(frame)) + frame)
                if awaited.fault is not None:
                    awaited.fault.add_happened()
                self._changed.notify_all()
            self._respond()

    def _respond(self) -> None:
        """Send the responses that the proxy makes itself, as long as no earlier request waits for a response of the
        broker.
        """
        with self._changed:
            while self._awaited and self._awaited[0].is_local:
                awaited = self._awaited.popleft()
                if awaited.local is None:
                    self._end(awaited)
                    return
                assert awaited.fault is not None
                awaited.fault.add_happened()
                self._client.sendall(LENGTH.pack(len(awaited.local)) + awaited.local)

    def _end(self, awaited: _AwaitedResponse) -> None:
        """Close both connections, of the client and to the broker, instead of passing the response `awaited` on."""
        assert awaited.fault is not None
        awaited.fault.add_happened()
        self.close()


def _receive(connection: socket.socket) -> bytes | None:
    """Receive a frame (a request or response), and return it without its length prefix; None at the end of the
    connection.
    """
    size = _receive_exactly(connection, LENGTH.size)
    return None if size is None else _receive_exactly(connection, LENGTH.unpack(size)[0])


def _receive_exactly(connection: socket.socket, size: int) -> bytes | None:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            return None
        received += piece
    return bytes(received)


def _client_id(frame: bytes) -> str | None:
    (size,) = CLIENT_ID_SIZE.unpack_from(frame, PREFIX.size)
    at = PREFIX.size + CLIENT_ID_SIZE.size
    return None if size < 0 else frame[at : at + size].decode(errors="replace")


def _acks(frame: bytes) -> int:
    """Return the field acks of a Produce request. With acks=0 the client expects no response. If the request cannot be
    decoded, return 1, because the broker responds with an error.
    """
    _, version, _ = PREFIX.unpack_from(frame)
    try:
        return int(decode_request(Api(ApiKey.PRODUCE, version, version), version, frame)[1].acks)
    except RefusedError:
        return 1
