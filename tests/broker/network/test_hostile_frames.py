"""Hostile frames, before and after a login, with TLS and without: no crash, no traceback, no growth, and nothing for who has
not logged in but what Kafka gives.

STABLELOG_FRAMES says how many frames go through the connection object in memory, and STABLELOG_SOCKET_FRAMES how many over
sockets; `make night` sends many.
"""

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import random
import resource
import struct

import pytest
import trustme

from stablelog.broker.network.budget import MemoryBudget, MemoryBudgets
from stablelog.broker.network.connection import Connection
from stablelog.broker.network.connection_limits import ConnectionLimits
from stablelog.broker.network.session import Session
from stablelog.broker.requests.router import Router
from stablelog.broker.server import Server
from stablelog.broker.settings.config import BrokerConfig
from stablelog.wire.api import ApiKey
from stablelog.wire.messages import message_class
from stablelog.wire.sasl.plain import encode_plain
from tests.broker.desk import frame
from tests.broker.jump import Wire
from tests.broker.listeners.test_tls import trusting, write_keystore
from tests.broker.test_any_request import made
from tests.declared_apis import APIS

pytestmark = pytest.mark.extended

FRAMES = int(os.environ.get("STABLELOG_FRAMES", "6000"))
SOCKET_FRAMES = int(os.environ.get("STABLELOG_SOCKET_FRAMES", "400"))
SEED = int(os.environ.get("STABLELOG_SEED", "1"))
POOL_SIZE = 400  # well-formed requests, from which most frames are made
# Bytes. A leaked object of each frame takes more than 50. Clients that may do everything make transactional ids, one of about
# 120 frames, which the broker has to keep: 1.4 KB each.
GROWTH_MAX, GROWTH_OF_FRAME_MAX = 48 << 20, 32
UNAUTHENTICATED = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
TURNS_MAX = 120
ANSWER_S = 0.5
LENGTH = struct.Struct(">i")
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret";'
# What a request may wait for would be most of the time.
WAITING = {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.DESCRIBE_COMMITS}


def login_frames():
    """The requests of a login of alice."""
    return [
        frame(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN"),
        frame(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=encode_plain("alice", "alice-secret")),
    ]


def pool(chance):
    """Well-formed requests of all APIs and versions, with any content."""
    found = []
    while len(found) < POOL_SIZE:
        api_key = chance.choice([key for key in APIS if key not in WAITING])
        version = chance.choice(APIS[api_key].served_versions)
        message = message_class(api_key, version, "request")
        content = made(message, chance)
        body = {field.name: getattr(content, field.name) for field in dataclasses.fields(content)}
        found.append(frame(api_key, version, **body))
    return found


def hostile(chance, requests):
    """One frame, with its length: as it is, changed, cut, longer, or nothing but noise."""
    request = bytearray(chance.choice(requests))
    kind = chance.random()
    if kind < 0.2:
        pass
    elif kind < 0.6:
        for _ in range(chance.choice((1, 1, 2, 8))):
            request[chance.randrange(len(request))] = chance.randrange(256)
    elif kind < 0.75:
        del request[chance.randrange(8, len(request) + 1) :]
    elif kind < 0.85:
        request += chance.randbytes(chance.choice((1, 7, 300)))
    else:
        request[4 if kind < 0.95 else 0 :] = chance.randbytes(chance.choice((4, 20, 200)))
    size = len(request) if chance.random() < 0.98 else chance.choice((0, 1, -1, 2**31 - 1, len(request) + 3))
    return LENGTH.pack(size) + bytes(request)


@contextlib.asynccontextmanager
async def serving(directory, authority):
    """A server with a listener of each kind, on which alice may log in."""
    names = {"OPEN": "PLAINTEXT", "TLS": "SSL", "LOGIN": "SASL_PLAINTEXT", "BOTH": "SASL_SSL"}
    given = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in names),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in names.items()),
        "ssl.keystore.location": str(write_keystore(directory / "server.pem", authority)),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "connection.failed.authentication.delay.ms": "0",
        "stablelog.disk.reserve.bytes": "0",
        "stablelog.max.partitions": "40",
        "stablelog.flush": "os",
        "stablelog.request.receive.timeout.ms": "200",
        **{f"listener.name.{name}.plain.sasl.jaas.config": JAAS for name in ("login", "both")},
    }
    server = await Server.open(BrokerConfig(given), directory / "data")
    try:
        yield server
    finally:
        await server.stop()


def memory():
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Errors(logging.Handler):
    """The errors that are logged."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        if record.exc_info or record.levelno >= logging.ERROR:
            self.lines.append(self.format(record))


@contextlib.contextmanager
def only_errors():
    """The errors that are logged in the block. pytest's handlers would keep each other line: they would be millions."""
    gc.collect()  # Tasks that earlier tests have left are an error in the log when they are collected.
    root, handler = logging.getLogger(), Errors()
    handlers, root.handlers[:] = root.handlers[:], [handler]
    try:
        yield handler.lines
    finally:
        root.handlers[:] = handlers


def check(server, errors):
    """Check that no frame was an unexpected error."""
    assert not errors
    assert not server.broker.tasks.error_counts
    assert server.failure is None


class InMemory:
    """Connections without a network."""

    def __init__(self, server, listener):
        self._server = server
        self._listener = listener
        limits = ConnectionLimits(1 << 20, 10, 10, 20, 600_000, 30_000)
        loop = asyncio.get_running_loop()
        self._tasks = server.broker.tasks
        budget = MemoryBudget(4 << 20, 30, loop.time, loop.call_later)
        self._budgets = MemoryBudgets(budget, budget)
        self._router = Router(server.broker)
        self._made = lambda session: Connection(
            self._router, limits, self._budgets, set(), self._tasks, session
        )
        self.wire = None

    async def connect(self):
        self.wire = Wire()
        login = self._server.broker.logins.new_login(self._listener.name)
        self.wire.protocol = self._made(Session(self._listener, login=login))
        self.wire.protocol.connection_made(self.wire)

    async def send(self, data):
        """Send a frame, and return the answers when the broker has no work left for it."""
        self.wire.send(data)
        for turn in range(TURNS_MAX):
            # After some turns of the loop, give threads time.
            await asyncio.sleep(0 if turn < TURNS_MAX // 2 else 0.001)
            if self.wire.closed or not self.wire.protocol.tasks:
                break
        else:
            await self.close()  # a request that waits for other clients, or for the time that it names
        found = self.wire.answers()
        self.wire.outbound.clear()
        return found

    @property
    def is_closed(self):
        return self.wire.closed

    async def close(self):
        if not self.wire.closed:
            self.wire.lost()
            await asyncio.sleep(0)


class OverSocket:
    """Connections over the network. An answer is waited for, or the close, or the end of a request that is not whole."""

    def __init__(self, listener, context):
        self._listener = listener
        self._context = context
        self._reader = self._writer = None
        self.is_closed = True

    async def connect(self):
        name = "localhost" if self._context else None
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._listener.port, ssl=self._context, server_hostname=name
        )
        self.is_closed = False

    async def send(self, data):
        self._writer.write(data)
        try:
            (size,) = LENGTH.unpack(await asyncio.wait_for(self._reader.readexactly(4), ANSWER_S))
            return [await self._reader.readexactly(size)]
        except (asyncio.IncompleteReadError, ConnectionError):
            self.is_closed = True
        except TimeoutError:
            await self.close()  # a Produce request without acknowledgement, or one that waits
        return []

    async def close(self):
        self.is_closed = True
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def attack(server, client, count, *, logs_in, is_sasl, chance, errors):
    """Send so many frames on connections of which some live long."""
    requests = pool(chance)
    await client.connect()
    begun = None
    for number in range(count):
        if number == count // 5:
            begun = memory()
        if client.is_closed or chance.random() < 0.01:
            await client.close()
            await client.connect()
            if logs_in:
                for request in login_frames():
                    answers = await client.send(LENGTH.pack(len(request)) + request)
                    assert answers, "alice cannot log in any more"
        data = hostile(chance, requests)
        answers = await client.send(data)
        if answers and is_sasl and not logs_in:
            assert int.from_bytes(data[4:6], "big") in UNAUTHENTICATED, data
        if number % 2000 == 0:
            check(server, errors)
    await client.close()
    check(server, errors)
    assert memory() - begun < GROWTH_MAX + count * GROWTH_OF_FRAME_MAX, "the broker's memory grows"


CASES = [("OPEN", False), ("LOGIN", False), ("LOGIN", True)]
SOCKET_CASES = [*CASES, ("TLS", False), ("BOTH", False), ("BOTH", True)]


def told(case):
    return f"{case[0]}, {'after' if case[1] else 'before'} a login"


def send_frames(client_of, count, case, tmp_path):
    """Send so many frames to a listener; `client_of` is called with the server, the listener and their authority."""
    name, logs_in = case

    async def conversation():
        authority = trustme.CA()
        async with serving(tmp_path, authority) as server:
            (listener,) = (one for one in server.listeners if one.name == name)
            await attack(
                server,
                client_of(server, listener, authority),
                count,
                logs_in=logs_in,
                is_sasl=listener.is_sasl,
                chance=random.Random(f"{SEED} {case}"),
                errors=errors,
            )

    with only_errors() as errors:
        asyncio.run(conversation())


@pytest.mark.parametrize("case", CASES, ids=told)
def test_frames_in_memory(case, tmp_path):
    send_frames(lambda server, listener, _: InMemory(server, listener), FRAMES, case, tmp_path)


@pytest.mark.parametrize("case", SOCKET_CASES, ids=told)
def test_frames_over_sockets(case, tmp_path):
    def client_of(_server, listener, authority):
        return OverSocket(listener, trusting(authority) if listener.protocol.is_tls else None)

    send_frames(client_of, SOCKET_FRAMES, case, tmp_path)
