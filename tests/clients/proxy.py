"""Between a client and the broker: sees every request, holds some back, and sends some again.

The broker advertises the proxy's address, so that a real client speaks through it. What is sent again goes over a
connection of the proxy's own, as a request does that the network had lost and found.
"""

import contextlib
import io
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass, field

from stablelog.wire.messages import PREFIX, decode_request
from tests.broker.desk import frame, read_answer
from tests.declared_apis import APIS

LENGTH = struct.Struct(">i")
PRODUCE, ADD_PARTITIONS, END_TXN = 0, 24, 26


def receive(connection):
    """The next frame without its length; None at the end."""
    header = _exactly(connection, 4)
    return None if header is None else _exactly(connection, LENGTH.unpack(header)[0])


def _exactly(connection, count):
    buffer = io.BytesIO()
    while count:
        data = connection.recv(count)
        if not data:
            return None
        buffer.write(data)
        count -= len(data)
    return buffer.getvalue()


class Peer:
    """A client of raw frames, one request at a time."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        self._lock = threading.Lock()

    def send(self, data):
        """Send a frame as it is. Returns its answer."""
        with self._lock:
            self._socket.sendall(LENGTH.pack(len(data)) + data)
            answer = receive(self._socket)
            assert answer is not None, "the broker closed the connection"
            return answer

    def ask(self, api_key, version, **fields):
        return read_answer(api_key, version, self.send(frame(api_key, version, **fields)))[0]

    def repeat(self, request):
        """Send somebody's request again. Returns the answer."""
        return read_answer(request.api_key, request.version, self.send(request.data))[0]

    def close(self):
        self._socket.close()


@dataclass(eq=False)
class Request:
    """A request that came through."""

    api_key: int
    version: int
    correlation_id: int
    data: bytes
    answer: object = None
    held: threading.Event = field(default_factory=threading.Event)

    def fields(self):
        """It, decoded."""
        return decode_request(APIS[self.api_key], self.version, self.data)[1]


class Proxy:
    """Forwards frames.

    Attributes:
        hold: asked of each request; where it says yes the request stays here, and with it all that follow on its
            connection.
        answered: told of each request with its answer, before the client is.
    """

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.upstream = None
        self.hold = lambda _request: False
        self.answered = lambda _request: None
        self.held = deque()
        self.errors = []
        self._open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self.upstream), 30)
                broker.settimeout(None)
                self._open += [client, broker]
                asked = deque()
                for work in (self._requests, self._answers):
                    threading.Thread(
                        target=self._run, args=(work, client, broker, asked), daemon=True
                    ).start()

    def _run(self, work, client, broker, asked):
        try:
            with contextlib.suppress(OSError):
                work(client, broker, asked)
        except BaseException as error:
            self.errors.append(error)
            raise
        finally:
            for connection in (client, broker):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _requests(self, client, broker, asked):
        while (data := receive(client)) is not None:
            request = Request(*PREFIX.unpack_from(data), data)
            if self.hold(request):
                self.held.append(request)
                request.held.set()
                continue
            asked.append(request)
            broker.sendall(LENGTH.pack(len(data)) + data)

    def _answers(self, client, broker, asked):
        while (data := receive(broker)) is not None:
            request = asked.popleft()
            assert LENGTH.unpack_from(data)[0] == request.correlation_id
            if request.api_key in (PRODUCE, ADD_PARTITIONS, END_TXN):
                request.answer = read_answer(request.api_key, request.version, data)[0]
                self.answered(request)
            client.sendall(LENGTH.pack(len(data)) + data)

    def close(self):
        self._listener.close()
        for connection in self._open:
            connection.close()
