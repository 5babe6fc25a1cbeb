"""The HTTP server of the metrics: one thread for each connection, and limits for their number and time.

Anyone who reaches the address can connect, because the metrics have no login. Each connection takes a thread, so the
number of connections is limited. If the limit is reached, a new connection replaces one that has sent no whole request,
or has been open for long.
"""

import contextlib
import io
import socket
import threading
import time
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

CONNECTION_COUNT_MAX: Final = 8
# A connection that has been open for longer is closed if another client needs its place. A scrape of a broker with
# thousands of partitions takes a second.
PATIENCE_S: Final = 10.0
IDLE_S_MAX: Final = 10.0  # The time in which a client has to read some bytes.
HEAD_S_MAX: Final = 1.0  # The time in which a client has to send the head of its request.
HEAD_SIZE_MAX: Final = 1 << 16


class Handler(WSGIRequestHandler):
    """Handles one HTTP request of a scrape, without logging it."""

    timeout = IDLE_S_MAX
    server: "MetricsServer"

    def handle(self) -> None:
        """Read the head of a request, and answer the request. A client that is slow to send it gets no answer.

        Raises:
            OSError: the client has closed the connection, or was too slow.
        """
        self.rfile = io.BytesIO(_read_head(self.connection))
        self.server.record_request(self.connection)
        self.connection.settimeout(self.timeout)
        super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Log nothing: a line for each scrape would fill the log."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """An HTTP server that serves a WSGI application in a few threads. The constructor binds the address.

    Raises:
        OSError: the address cannot be bound.
    """

    daemon_threads = True
    # The system drops more connections that wait to be accepted, and their clients try again after a second.
    request_queue_size = 128

    def __init__(self, host: str, port: int, app: Any) -> None:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        self._lock = threading.Lock()
        # The open connections, and since when they are open, in order; and those of them that have sent no whole request.
        self._open: dict[socket.socket, float] = {}
        self._without_request: set[socket.socket] = set()
        super().__init__((str(address[0]), port), Handler)
        self.set_app(app)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether a new connection is accepted: the number of connections is limited, because each takes a
        thread.

        If the limit is reached, the oldest connection that has sent no whole request is closed in favour of the new
        one. If all have sent one, it is the oldest of all. If that has been open for less than PATIENCE_S seconds, the
        new one is refused instead.
        """
        with self._lock:
            now_s = time.monotonic()
            if len(self._open) >= CONNECTION_COUNT_MAX:
                waiting = (one for one in self._open if one in self._without_request)
                oldest = next(waiting, None) or next(iter(self._open))
                if oldest not in self._without_request and now_s - self._open[oldest] < PATIENCE_S:
                    return False
                self._forget(oldest)
                _shut_down(oldest)
            self._open[request] = now_s
            self._without_request.add(request)
            return True

    def record_request(self, request: socket.socket) -> None:
        """Record that a connection has sent a whole request."""
        with self._lock:
            self._without_request.discard(request)

    def _forget(self, request: socket.socket) -> None:
        self._open.pop(request, None)
        self._without_request.discard(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection after its request, and count it no longer."""
        with self._lock:
            self._forget(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: an error means that the client has closed the connection, or was too slow."""

    def server_close(self) -> None:
        """Close the listening socket and all connections."""
        super().server_close()
        with self._lock:
            for request in self._open:
                _shut_down(request)


def _read_head(connection: socket.socket) -> bytes:
    """Return the bytes that a client sends, at least up to the empty line that ends the head of a request. A head that
    is too long is cut.

    Raises:
        OSError: the connection has ended before, or the client was too slow.
    """
    deadline_s, head = time.monotonic() + HEAD_S_MAX, b""
    while b"\r\n\r\n" not in head and b"\n\n" not in head and len(head) < HEAD_SIZE_MAX:
        connection.settimeout(max(deadline_s - time.monotonic(), 0.001))
        piece = connection.recv(HEAD_SIZE_MAX)
        if not piece:
            raise ConnectionAbortedError("the connection ended before the head of a request")
        head += piece
    return head


def _shut_down(request: socket.socket) -> None:
    """Shut a connection down from another thread than its own, which may be reading or writing. Its own thread then
    gets an error, and closes the socket.
    """
    with contextlib.suppress(OSError):  # The client has closed it.
        request.shutdown(socket.SHUT_RDWR)
