"""A proxy that knows no frames: it delays bytes, divides them anywhere, and cuts connections after any byte."""

import contextlib
import random
import socket
import threading
import time

PIECE = 1 << 16
DELAY_S_MAX, SILENCE_S_MAX = 0.2, 3.0


class ByteProxy:
    """Passes bytes between clients and a port of this host, and does harm between `harm` and `heal`.

    Attributes:
        counts: how often each harm was done.
    """

    def __init__(self, target_port, seed):
        self._target_port = target_port
        self._chance = random.Random(f"bytes {seed}")
        self._lock = threading.Lock()
        self._open = set()
        self._is_healed = threading.Event()
        self._is_healed.set()
        self.counts = dict.fromkeys(("delayed", "divided", "truncated", "silent"), 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def bootstrap(self):
        return f"127.0.0.1:{self.port}"

    def harm(self):
        """Do harm from now on."""
        self._is_healed.clear()

    def heal(self):
        """Do no more harm."""
        self._is_healed.set()

    def close(self):
        """Close the port and all connections."""
        self.heal()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            ends = list(self._open)
        for end in ends:
            hang_up(end)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                client.close()
                continue
            for source, target in ((client, server), (server, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._open.add(source)
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source, target):
        try:
            while piece := source.recv(PIECE):
                if not self._pass_piece(piece, target):
                    break
        except OSError:
            pass
        finally:
            for end in (source, target):
                hang_up(end)
            source.close()
            with self._lock:
                self._open.discard(source)

    def _pass_piece(self, piece, target):
        """Pass a piece on. Returns whether the connection goes on."""
        with self._lock:
            harm, place, share = (
                self._chance.random(),
                self._chance.randrange(len(piece) + 1),
                self._chance.random(),
            )
        if self._is_healed.is_set():
            harm = 1
        if harm < 0.003:
            self._count("truncated")
            target.sendall(piece[:place])
            return False
        if harm < 0.004:
            self._count("silent")
            self._is_healed.wait(share * SILENCE_S_MAX)
            return False
        if harm < 0.02:
            self._count("delayed")
            time.sleep(share * DELAY_S_MAX)
        elif harm < 0.05:
            self._count("divided")
            target.sendall(piece[:place])
            time.sleep(share * DELAY_S_MAX / 10)
            piece = piece[place:]
        target.sendall(piece)
        return True

    def _count(self, harm):
        with self._lock:
            self.counts[harm] += 1


def hang_up(end):
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
