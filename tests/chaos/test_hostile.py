"""Strangers at the door: the broker stays up, small, and there for everybody else."""

import contextlib
import os
import socket
import struct
from pathlib import Path

import pytest

import stablelog
from tests.clients.drivers import Confluent
from tests.scale import randomness
from tests.wire.test_messages import EVERY, frame

LENGTH = struct.Struct(">i")


def anonymous_mb(pid):
    return int(Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1].split()[0]) / 1024


def send(port, data):
    """Send, and read what comes until the broker closes or has nothing more to say."""
    with socket.create_connection(("127.0.0.1", port), 10) as stranger, contextlib.suppress(OSError):
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(0.2)
        while stranger.recv(65536):
            pass


@pytest.mark.skipif("STABLELOG_HOSTILE" not in os.environ, reason="half a minute: set STABLELOG_HOSTILE=1")
def test_garbage_half_frames_and_lies_disturb_nobody():
    chance = randomness()
    with stablelog.serve() as broker:
        client = Confluent(broker.bootstrap)
        client.produce("t", [b"before"])
        before = anonymous_mb(broker.pid)
        held = [socket.create_connection(("127.0.0.1", broker.port), 10) for _ in range(30)]
        for slow in held:
            slow.sendall(
                LENGTH.pack(50 << 20) + b"\0\0\0\x09"
            )  # fifty megabytes are announced, and never come
        for stopped in [socket.create_connection(("127.0.0.1", broker.port), 10) for _ in range(4)]:
            held.append(stopped)
            stopped.sendall(LENGTH.pack(60 << 20) + bytes(20 << 20))  # a third comes
        for data in (
            b"GET / HTTP/1.1\r\n\r\n",
            LENGTH.pack(-1),
            LENGTH.pack(2**31 - 1) + bytes(100),
            LENGTH.pack(8) + struct.pack(">hhi", 999, 0, 1),
            LENGTH.pack(8) + struct.pack(">hhi", 0, 99, 1),
            LENGTH.pack(8) + struct.pack(">hhi", 18, 99, 1),
        ):
            send(broker.port, data)
        for _ in range(150):
            key, version = chance.choice(EVERY)
            data = bytearray(frame(key, version))
            for _ in range(chance.randint(1, 5)):
                data[chance.randrange(8, len(data))] = chance.randrange(256)
            send(
                broker.port,
                LENGTH.pack(len(data)) + bytes(data[: chance.choice((len(data), len(data) // 2))]),
            )
        large = bytes(900_000)
        client.produce("t", [b"after", large])
        assert [value for _, value in client.read("t")] == [b"before", b"after", large]
        assert anonymous_mb(broker.pid) - before < 300, "queued.max.request.bytes bounds what is in flight"
        for slow in held:
            slow.close()
        assert "Traceback" not in broker.log_tail(2000), broker.log_tail(60)
