"""The HTTP server of the metrics: one thread for each connection, and limits for their number and time.

Anyone who reaches the address can connect, because the metrics have no login. Each connection takes a thread, so the
number of connections is limited. If the limit is reached, a new connection replaces one that has been open for long.
"""

import contextlib
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
IDLE_S_MAX: Final = 10.0  # The time in which a client has to send the next bytes, or to read some.


class Handler(WSGIRequestHandler):
    """Handles one HTTP request of a scrape, without logging it."""

    timeout = IDLE_S_MAX

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Log nothing: a line for each scrape would fill the log."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """An HTTP server that serves a WSGI application in a few threads. The constructor binds the address.

    Raises:
        OSError: the address cannot be bound.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, app: Any) -> None:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        self._lock = threading.Lock()
        self._open: dict[
            socket.socket, float
        ] = {}  # The open connections, and since when they are open, in order.
        super().__init__((str(address[0]), port), Handler)
        self.set_app(app)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether a new connection is accepted: the number of connections is limited, because each takes a
        thread.

        If the limit is reached, the connection that has been open for the longest time is closed in favour of the new
        one. If that connection has been open for less than PATIENCE_S seconds, the new one is refused instead.
        """
        with self._lock:
            now_s = time.monotonic()
            if len(self._open) >= CONNECTION_COUNT_MAX:
                oldest = next(iter(self._open))
                if now_s - self._open[oldest] < PATIENCE_S:
                    return False
                del self._open[oldest]
                _shut_down(oldest)
            self._open[request] = now_s
            return True

    def shutdown_request(self, request: Any) -> None:
        """Close a connection after its request, and count it no longer."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: an error means that the client has closed the connection, or was too slow."""

    def server_close(self) -> None:
        """Close the listening socket and all connections."""
        super().server_close()
        with self._lock:
            for request in self._open:
                _shut_down(request)


def _shut_down(request: socket.socket) -> None:
    """Shut a connection down from another thread than its own, which may be reading or writing. Its own thread then
    gets an error, and closes the socket.
    """
    with contextlib.suppress(OSError):  # The client has closed it.
        request.shutdown(socket.SHUT_RDWR)
