"""A proxy before a broker that loses what a test wants lost."""

import contextlib
import socket
import struct
import threading

LENGTH = struct.Struct(">i")
HEAD = struct.Struct(">hhi")


class Proxy:
    """Passes frames between clients and a broker.

    Args:
        target: the broker's (host, port). May be set later: a broker that is to name the proxy starts after it.
        lose: called with (api key, count of that key so far) for each request: "answer" to drop the connection
            instead of answering, "request" to drop it instead of passing the request on, "silence" to do nothing;
            else None.
        spoil: called with (api key, the answer as a frame): what the client gets instead.
    """

    def __init__(self, target, lose, spoil=lambda _key, answer: answer):
        self.target = target
        self._lose = lose
        self._spoil = spoil
        self._counts = {}
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def bootstrap(self):
        return f"127.0.0.1:{self._server.getsockname()[1]}"

    def count(self, api_key):
        return self._counts.get(api_key, 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in [self._server, *self._open]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self.target)
            except OSError:
                client.close()
                continue
            self._open += [client, broker]
            threading.Thread(target=self._serve, args=(client, broker), daemon=True).start()

    def _serve(self, client, broker):
        """Requests one by one: the order of answers is that of requests."""
        try:
            while True:
                request = frame(client)
                key = HEAD.unpack_from(request, 4)[0]
                with self._lock:
                    self._counts[key] = count = self._counts.get(key, 0) + 1
                fate = self._lose(key, count)
                if fate == "request":
                    break
                if fate == "silence":
                    continue
                broker.sendall(request)
                answer = frame(broker)
                if fate == "answer":
                    break
                client.sendall(self._spoil(key, answer))
        except OSError:
            pass
        finally:
            for each in (client, broker):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()


def frame(connected):
    size = LENGTH.unpack(_exactly(connected, LENGTH.size))[0]
    return LENGTH.pack(size) + _exactly(connected, size)


def _exactly(connected, size):
    received = bytearray()
    while len(received) < size:
        chunk = connected.recv(size - len(received))
        if not chunk:
            raise OSError("closed")
        received += chunk
    return bytes(received)
