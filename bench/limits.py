"""What does the machine do at best? No broker can be faster than that."""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

MB = 1e6
BLOCK_SIZE = 1 << 20
TRIES = 3

ECHO = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
while data := connection.recv(1024):
    connection.sendall(data)
"""
BARE_PYTHON = "print(open('/proc/self/status').read().split('RssAnon:')[1].split()[0])"


@dataclass(frozen=True, slots=True)
class Limits:
    """The machine's best."""

    memory_copy_mb_s: float
    loopback_mb_s: float
    round_trip_ms: float  # 100 B to another process and back
    sync_ms: float  # an append of 100 B and its fdatasync
    synced_write_mb_s: float  # appends of 1 MiB, each with its fdatasync
    python_start_s: float  # a Python that does nothing
    python_memory_mb: float  # its anonymous memory


def measure() -> Limits:
    """Measure them, in a few seconds: the best of several tries, and of syncs the median, for these wait for others."""
    starts = [_python() for _ in range(TRIES)]
    return Limits(
        memory_copy_mb_s=max(_memory_copy_mb_s() for _ in range(TRIES)),
        loopback_mb_s=max(_loopback_mb_s() for _ in range(TRIES)),
        round_trip_ms=min(_round_trip_ms() for _ in range(TRIES)),
        sync_ms=_sync_s(100, 300) * 1000,
        synced_write_mb_s=BLOCK_SIZE / _sync_s(BLOCK_SIZE, 100) / MB,
        python_start_s=min(seconds for seconds, _ in starts),
        python_memory_mb=statistics.median(memory for _, memory in starts),
    )


def _memory_copy_mb_s() -> float:
    source, target = memoryview(os.urandom(BLOCK_SIZE)), memoryview(bytearray(BLOCK_SIZE))
    began = time.thread_time()  # what others take of the processor is not the memory's
    for _ in range(1000):
        target[:] = source
    return 1000 * BLOCK_SIZE / (time.thread_time() - began) / MB


def _loopback_mb_s(block_count: int = 1000) -> float:
    block, inbox = bytes(BLOCK_SIZE), bytearray(BLOCK_SIZE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    with sender, receiver:
        thread = threading.Thread(target=lambda: [sender.sendall(block) for _ in range(block_count)])
        began, left = time.perf_counter(), block_count * BLOCK_SIZE
        thread.start()
        while left:
            left -= receiver.recv_into(inbox)
        seconds = time.perf_counter() - began
        thread.join()
    return block_count * BLOCK_SIZE / seconds / MB


def _round_trip_ms() -> float:
    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trips = []
            for _ in range(1000):
                asked = time.perf_counter()
                connection.sendall(bytes(100))
                connection.recv(1024)
                trips.append(time.perf_counter() - asked)
    return statistics.median(trips) * 1000


def _sync_s(size: int, count: int) -> float:
    block = os.urandom(size)
    syncs = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(count):
            asked = time.perf_counter()
            os.write(file.fileno(), block)
            os.fdatasync(file.fileno())
            syncs.append(time.perf_counter() - asked)
    return statistics.median(syncs)


def _python() -> tuple[float, float]:
    """(seconds, MB) of a Python that only looks at itself."""
    began = time.perf_counter()
    told = subprocess.run([sys.executable, "-c", BARE_PYTHON], capture_output=True, text=True, check=True)
    return time.perf_counter() - began, int(told.stdout) / 1024
