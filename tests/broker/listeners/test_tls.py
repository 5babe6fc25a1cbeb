"""Listeners with TLS, by real sockets, with asyncio's event loop and with uvloop's."""

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import random
import socket
import ssl
import struct

import pytest
import trustme

from stablelog.broker.apis import api_versions
from stablelog.broker.listeners.tls_listener import TlsListener
from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.network.connection import Connection
from stablelog.broker.network.connection_limits import ConnectionLimits
from stablelog.broker.server import Server
from stablelog.broker.settings.config import BrokerConfig
from stablelog.errors import UsageError
from tests.broker.desk import frame, read_answer
from tests.broker.test_server import new_uvloop, run

API_VERSIONS, METADATA = 18, 3
NO_DELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.fixture(params=[asyncio.new_event_loop, new_uvloop], ids=["asyncio", "uvloop"])
def new_loop(request):
    if request.param is None:
        pytest.skip("uvloop is not installed")
    return request.param


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def write_keystore(path, authority, common_name="localhost"):
    """Write the key and the chain of a new certificate, as a rename, so that no reader sees a half."""
    issued = authority.issue_cert("localhost", "127.0.0.1", common_name=common_name)
    made = path.with_suffix(".new")
    made.write_bytes(
        issued.private_key_pem.bytes() + b"".join(part.bytes() for part in issued.cert_chain_pems)
    )
    made.replace(path)
    return path


def trusting(authority, certificate=None, **versions):
    """A client's context; `certificate` is the client's own."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    for name, version in versions.items():
        setattr(context, name, version)
    if certificate is not None:
        certificate.configure_cert(context)
    return context


@contextlib.asynccontextmanager
async def serving(tmp_path, authority, **settings):
    keystore = write_keystore(tmp_path / "server.pem", authority)
    trust = tmp_path / "authority.pem"
    trust.write_bytes(authority.cert_pem.bytes())
    given = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.location": str(trust),
        "stablelog.disk.reserve.bytes": "0",
    }
    given |= {name.replace("_", "."): str(value) for name, value in settings.items()}
    server = await Server.open(BrokerConfig(given), tmp_path / "data")
    try:
        yield server
    finally:
        await server.stop()


async def ask(port, context, *requests):
    """Send requests on one connection; return the answers, and the certificate of the server."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost" if context else None
    )
    writer.write(b"".join(struct.pack(">i", len(request)) + request for request in requests))
    answers = []
    for _ in requests:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        answers.append(await reader.readexactly(size))
    certificate = writer.get_extra_info("ssl_object").getpeercert(True) if context else None
    writer.close()
    return answers, certificate


async def until(condition):
    """Wait for what the broker's part of this event loop does."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail("it did not come")


def versions_request():
    return frame(API_VERSIONS, 0)


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_requests_are_answered_over_tls(tmp_path, authority, new_loop, version):
    async def conversation():
        async with serving(tmp_path, authority) as server:
            only = ssl.TLSVersion[version]
            context = trusting(authority, minimum_version=only, maximum_version=only)
            answers, _ = await ask(server.port, context, *[versions_request()] * 20)
            answer, _ = read_answer(API_VERSIONS, 0, answers[-1])
            assert len(answers) == 20
            assert len(answer.api_keys) == len(api_versions.versions_response(0).api_keys)

    run(conversation, new_loop)


def test_a_client_that_has_gone_before_it_was_accepted_ends_nothing(
    tmp_path, authority, new_loop, monkeypatch
):
    """macOS refuses the options of a socket that its client has reset."""

    to_come, set_option = [True], socket.socket.setsockopt

    def setsockopt(self, level, option, value):
        is_accepted = (level, option) == NO_DELAY and self.getsockname()[1] == ports[0]
        if is_accepted and to_come:
            to_come.clear()
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        set_option(self, level, option, value)

    monkeypatch.setattr(socket.socket, "setsockopt", setsockopt)
    ports = []

    async def conversation():
        async with serving(tmp_path, authority) as server, asyncio.timeout(10):
            port = server.listeners[0].port
            ports.append(port)
            with pytest.raises(OSError):
                await ask(port, trusting(authority), versions_request())
            await ask(port, trusting(authority), versions_request())

    run(conversation, new_loop)


def test_no_response_waits_for_an_acknowledgement(tmp_path, authority, new_loop, monkeypatch):
    """Nagle's algorithm would delay each second response of a login by about 40 ms."""
    options, made = [], Connection.connection_made

    def connection_made(self, transport):
        accepted = transport.get_extra_info("socket")
        options.append(bool(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        made(self, transport)

    monkeypatch.setattr(Connection, "connection_made", connection_made)

    async def conversation():
        settings = {
            "listeners": "PLAINTEXT://127.0.0.1:0,OUT://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUT:SSL",
        }
        async with serving(tmp_path, authority, **settings) as server:
            plain, out = (listener.port for listener in server.listeners)
            for port, context in ((plain, None), (out, trusting(authority))):
                await ask(port, context, versions_request())

    run(conversation, new_loop)
    assert options == [True, True]


def test_each_listener_advertises_its_own_address(tmp_path, authority, new_loop):
    async def conversation():
        settings = {"listeners": "PLAINTEXT://127.0.0.1:0,OUT://127.0.0.1:0"}
        settings |= {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUT:SSL",
            "advertised.listeners": "OUT://log.example.org:17",
        }
        async with serving(tmp_path, authority, **settings) as server:
            plain, out = (listener.port for listener in server.listeners)
            request = frame(METADATA, 1, topics=())
            for port, context, expected in (
                (plain, None, ("127.0.0.1", plain)),
                (out, trusting(authority), ("log.example.org", 17)),
            ):
                (raw,), _ = await ask(port, context, request)
                answer, _ = read_answer(METADATA, 1, raw)
                assert [(broker.host, broker.port) for broker in answer.brokers] == [expected]

    run(conversation, new_loop)


def test_the_principal_is_that_of_the_client_certificate(tmp_path, authority, new_loop):
    async def conversation():
        settings = {
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:CN=(.*?),.*/$1/L,DEFAULT",
        }
        async with serving(tmp_path, authority, **settings) as server:
            alice = authority.issue_cert("alice.example.org", common_name="Alice")
            context = trusting(authority, alice)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", server.port, ssl=context, server_hostname="localhost"
            )
            writer.write(struct.pack(">i", len(versions_request())) + versions_request())
            await reader.readexactly(4)
            (member,) = server.connections
            assert str(member.session.principal) == "User:alice"
            writer.close()

    run(conversation, new_loop)


@pytest.mark.parametrize(("auth", "is_served"), [("none", True), ("requested", True), ("required", False)])
def test_a_client_without_a_certificate(tmp_path, authority, new_loop, auth, is_served, caplog):
    async def conversation():
        async with serving(tmp_path, authority, **{"ssl.client.auth": auth}) as server:
            if is_served:
                await ask(server.port, trusting(authority), versions_request())
            else:
                with pytest.raises((OSError, asyncio.IncompleteReadError)):
                    await ask(server.port, trusting(authority), versions_request())

    with caplog.at_level(logging.WARNING):
        run(conversation, new_loop)
    assert ("the TLS handshake failed: peer did not return a certificate" in caplog.text) is not is_served


@pytest.mark.parametrize("auth", ["requested", "required"])
def test_a_certificate_of_another_authority_is_refused_by_name(tmp_path, authority, new_loop, auth, caplog):
    async def conversation():
        stranger = trustme.CA().issue_cert("mallory", common_name="alice")
        async with serving(tmp_path, authority, **{"ssl.client.auth": auth}) as server:
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await ask(server.port, trusting(authority, stranger), versions_request())
            await until(lambda: not server.connections)

    with caplog.at_level(logging.WARNING):
        run(conversation, new_loop)
    assert "the TLS handshake failed: the client's certificate was refused" in caplog.text


def test_new_certificates_are_used_without_a_restart_and_bad_ones_are_not(
    tmp_path, authority, new_loop, caplog, monkeypatch
):
    monkeypatch.setattr("stablelog.broker.listeners.tls.LOOK_EVERY_S", 0)

    async def conversation():
        async with serving(tmp_path, authority) as server:
            context = trusting(authority)
            _, first = await ask(server.port, context, versions_request())
            keystore = tmp_path / "server.pem"
            whole = keystore.read_bytes()
            keystore.write_bytes(whole[: len(whole) // 2])
            _, second = await ask(server.port, context, versions_request())
            assert second == first
            write_keystore(keystore, authority)
            _, third = await ask(server.port, context, versions_request())
            assert third != first

    with caplog.at_level(logging.INFO):
        run(conversation, new_loop)
    assert "so new connections still use the old ones: listener SSL" in caplog.text
    assert "listener SSL uses new certificates" in caplog.text


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + b"x" * 65535,
        random.Random(1).randbytes(4096),
    ],
    ids=["nothing", "HTTP", "a long record", "random bytes"],
)
def test_what_is_no_handshake_closes_its_connection_and_harms_no_other(
    tmp_path, authority, new_loop, sent, caplog
):
    async def conversation():
        async with serving(tmp_path, authority, **{"stablelog.ssl.handshake.timeout.ms": 300}) as server:
            opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
            for _, writer in opened:
                writer.write(sent)
            await ask(server.port, trusting(authority), versions_request())
            for reader, writer in opened:
                with contextlib.suppress(ConnectionError):
                    await reader.read()  # until the broker closes
                writer.close()
            await until(lambda: not server.connections)
            assert not server.broker.tasks.error_counts

    with caplog.at_level(logging.WARNING):
        run(conversation, new_loop)
    assert caplog.text.count("the TLS handshake failed") == 5
    assert "Traceback" not in caplog.text


class Certificate:
    """The certificates of a listener, as far as a handshake that fails needs them."""

    def __init__(self, authority):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(self.context)


@pytest.mark.parametrize("count_max", [0, 10])
def test_the_limits_are_read_once_for_a_connection_and_its_handshake(authority, new_loop, count_max, caplog):
    read = []

    def present_limits():
        read.append(1)
        return ConnectionLimits(1 << 20, count_max, count_max, 10, 60_000, 60_000)

    async def conversation():
        failures, members = [], set()
        listener = TlsListener(
            Certificate(authority),
            present_limits,
            members,
            Tasks(failures.append),
            lambda _: asyncio.Protocol(),
        )
        await listener.open("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()  # until the listener closes
        writer.close()
        await until(lambda: not members)
        listener.close()
        assert not failures

    run(conversation, new_loop)
    assert len(read) == 1
    assert "closing 127.0.0.1" in caplog.text


def test_handshakes_count_as_connections(tmp_path, authority, new_loop):
    async def conversation():
        async with serving(tmp_path, authority, **{"max.connections": 3}) as server:
            opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
            await until(lambda: len(server.connections) == 3)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            assert await reader.read() == b""
            for _, waiting in [*opened, (reader, writer)]:
                waiting.close()
            await until(lambda: not server.connections)
            await ask(server.port, trusting(authority), versions_request())

    run(conversation, new_loop)


@pytest.fixture
def pem(tmp_path, authority):
    """Files of keys and certificates, by the fault that they have."""
    good = write_keystore(tmp_path / "good.pem", authority).read_text()
    other = write_keystore(tmp_path / "other.pem", authority).read_text()
    key, chain = good[: good.index("-----BEGIN CERT")], good[good.index("-----BEGIN CERT") :]
    other_chain = other[other.index("-----BEGIN CERT") :]
    files = {"mismatch": key + other_chain, "no key": chain, "empty": "", "garbage": "x" * 100}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path, key, chain


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs the broker's key and certificate: set ssl.keystore.location"),
        ({"ssl.keystore.location": "missing"}, "missing cannot be used: No such file"),
        ({"ssl.keystore.location": "mismatch"}, "the key does not belong to the first certificate"),
        ({"ssl.keystore.location": "no key"}, "it has no key or no certificate in PEM format"),
        ({"ssl.keystore.location": "empty"}, "empty cannot be used: "),
        ({"ssl.keystore.location": "garbage"}, "garbage cannot be used: "),
        ({"ssl.keystore.location": "good.pem", "ssl.client.auth": "required"}, "set ssl.truststore.location"),
        (
            {
                "ssl.keystore.location": "good.pem",
                "ssl.client.auth": "required",
                "ssl.truststore.location": "garbage",
            },
            "garbage cannot be used: ",
        ),
        ({"ssl.keystore.location": "good.pem", "ssl.cipher.suites": "ROT13"}, "ssl.cipher.suites=ROT13"),
    ],
)
def test_a_broker_without_usable_certificates_does_not_start_and_writes_nothing(pem, settings, message):
    directory, _, _ = pem
    given = {
        name: str(directory / value) if name.endswith("location") else value
        for name, value in settings.items()
    }

    async def start():
        with pytest.raises(UsageError, match=f"^listener SSL: .*{message}"):
            await Server.open(BrokerConfig(given | {"listeners": "SSL://127.0.0.1:0"}), directory / "data")

    asyncio.run(start())
    assert not (directory / "data").exists()


def test_key_and_certificates_may_stand_in_the_settings(pem, authority):
    directory, key, chain = pem

    async def conversation():
        settings = {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain.replace("\n", "\\n")}
        given = {"listeners": "SSL://127.0.0.1:0", **settings}
        server = await Server.open(BrokerConfig(given), directory / "data")
        await ask(server.port, trusting(authority), versions_request())
        await server.stop()

    before = set(itertools.chain(os.listdir("/tmp")))
    asyncio.run(conversation())
    assert not [name for name in set(os.listdir("/tmp")) - before if name.endswith(".pem")]
