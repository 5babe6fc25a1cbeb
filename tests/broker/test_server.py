"""A broker's end, over real sockets: what was answered is sent, and nobody keeps it from ending."""

import asyncio
import contextlib
import errno
import socket
import struct
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker import server as server_module
from stablelog.broker.monitoring.limited_log import LINES_MAX
from stablelog.broker.monitoring.metrics import Metrics
from stablelog.broker.server import Server
from stablelog.broker.settings.config import BrokerConfig
from stablelog.data_directory.clean_shutdown import CLEAN_SHUTDOWN_FILE
from stablelog.errors import UnavailableError
from stablelog.wire.api import ApiKey
from tests.broker.desk import batch, frame, part, produce_fields, read_answer
from tests.clients.proxy import LENGTH, receive
from tests.declared_apis import APIS
from tests.waiting import until

try:
    from uvloop import new_event_loop as new_uvloop
except ImportError:
    new_uvloop = None

FETCH = 1
VALUE = bytes(8 << 20)


@pytest.fixture(params=[asyncio.new_event_loop, new_uvloop], ids=["asyncio", "uvloop"])
def new_loop(request):
    if request.param is None:
        pytest.skip("uvloop is not installed")
    return request.param


def run(conversation, new_loop):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(conversation())


@contextlib.asynccontextmanager
async def started(directory):
    """A server with a topic that holds one record of 8 MiB."""
    server = await Server.open(BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0"}), directory)
    server.broker.topic_files.create("t", 1, {"max.message.bytes": str(16 << 20)})
    log = server.broker.partitions.require("t", 0)
    appended = log.append(batch(VALUE), now_ms=server.broker.now_ms())
    server.broker.flush.mark_dirty(log)
    await server.broker.flush.durable_future(log, appended.last_offset + 1)
    yield server, server.port


def fetch_all():
    where = {"partition": 0, "fetch_offset": 0, "log_start_offset": -1, "partition_max_bytes": 16 << 20}
    partition = part(FETCH, 7, "request", "FetchPartition", **where)
    request = frame(
        FETCH,
        7,
        max_wait=timedelta(0),
        min_bytes=0,
        max_bytes=16 << 20,
        session_epoch=-1,
        topics=(part(FETCH, 7, "request", "FetchTopic", topic="t", partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    return LENGTH.pack(len(request)) + request


async def answer_begins(server, connection):
    """Ask for the record, and wait until its answer is on its way: more than the client's buffers hold."""
    connection.sendall(fetch_all())
    await asyncio.to_thread(
        until,
        lambda: any(not made.is_writable for made in list(server.connections)),
        "it is on its way",
    )


@contextlib.contextmanager
def slow_client(port):
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", port))
        yield connection


@pytest.mark.parametrize("more", [0, 100_000], ids=["one request", "many requests"])
def test_answers_that_a_slow_client_has_not_read_yet_are_sent_before_the_broker_ends(
    tmp_path, monkeypatch, new_loop, more
):
    """Also to a client that has sent more: to close a socket with something unread resets it, and takes the answers."""
    monkeypatch.setattr(server_module, "DRAIN_S", 60.0)

    async def conversation():
        async with started(tmp_path) as (server, port):
            with slow_client(port) as connection:
                await answer_begins(server, connection)
                connection.sendall(bytes(more))
                stopping = asyncio.create_task(server.stop())
                await asyncio.to_thread(
                    until,
                    lambda: all(made.is_draining for made in list(server.connections)),
                    "it takes no more",
                )
                data = await asyncio.to_thread(receive, connection)
                answer, _ = read_answer(FETCH, 7, data)
                assert VALUE in answer.responses[0].partitions[0].records
                assert await asyncio.to_thread(connection.recv, 1) == b"", "and then it is closed"
                await stopping

    run(conversation, new_loop)


def long_fetch():
    where = {"partition": 0, "fetch_offset": 1, "log_start_offset": -1, "partition_max_bytes": 1 << 20}
    partition = part(FETCH, 7, "request", "FetchPartition", **where)
    return frame(
        FETCH,
        7,
        max_wait=timedelta(minutes=10),
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=(part(FETCH, 7, "request", "FetchTopic", topic="t", partitions=(partition,)),),
        forgotten_topics_data=(),
    )


def long_join():
    protocol = part(11, 2, "request", "JoinGroupRequestProtocol", name="range", metadata=b"")
    return frame(
        11,
        2,
        group_id="g",
        session_timeout=timedelta(minutes=5),
        rebalance_timeout=timedelta(minutes=10),
        member_id="",
        protocol_type="consumer",
        protocols=(protocol,),
    )


@pytest.mark.parametrize("kind", ["fetch", "join"])
def test_a_stop_answers_requests_that_wait_for_records_or_for_other_members(
    tmp_path, monkeypatch, new_loop, kind
):
    monkeypatch.setattr(server_module, "DRAIN_S", 60.0)

    async def conversation():
        async with started(tmp_path) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            request = long_fetch() if kind == "fetch" else long_join()
            writer.write(LENGTH.pack(len(request)) + request)
            broker = server.broker
            groups = broker.groups.coordinator.table.groups
            waits = (lambda: len(broker.long_polls)) if kind == "fetch" else (lambda: "g" in groups)
            await asyncio.to_thread(until, waits, "the request waits")
            async with asyncio.timeout(30):  # it would wait for 10 minutes, and the stop for 60 s
                await server.stop()
            (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            answer, _ = read_answer(
                *((FETCH, 7) if kind == "fetch" else (11, 2)), await reader.readexactly(size)
            )
            if kind == "join":
                assert answer.error_code is ErrorCode.coordinator_not_available
            else:
                assert answer.responses[0].partitions[0].error_code is ErrorCode.none
            writer.close()

    run(conversation, new_loop)


def test_a_client_that_does_not_read_does_not_keep_the_broker_from_ending(
    tmp_path, monkeypatch, caplog, new_loop
):
    monkeypatch.setattr(server_module, "DRAIN_S", 0.2)

    async def conversation():
        async with started(tmp_path) as (server, port):
            with slow_client(port) as connection:
                await answer_begins(server, connection)
                await server.stop()
                assert not server.connections or all(made.is_closing for made in server.connections)

    run(conversation, new_loop)
    assert "the broker stops, and the client has not got or read all responses within 0.2 s" in caplog.text


@pytest.mark.parametrize("has_gone", [False, True])
def test_a_request_that_does_not_end_does_not_keep_the_broker_from_ending(
    new_loop, tmp_path, monkeypatch, has_gone
):
    monkeypatch.setattr(server_module, "DRAIN_S", 0.2)

    async def conversation():
        async with started(tmp_path) as (server, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.to_thread(until, lambda: server.connections, "the connection")
            (connection,) = server.connections
            async with connection.appending:
                request = frame(ApiKey.PRODUCE, 9, **produce_fields(9, "t", 0, batch(b"x"), acks=0))
                writer.write(LENGTH.pack(len(request)) + request)
                await asyncio.to_thread(until, lambda: connection.tasks, "the request")
                tasks = connection.tasks
                if has_gone:
                    writer.close()
                    await asyncio.to_thread(until, lambda: connection.is_closing, "the loss")
                await asyncio.wait_for(server.stop(), timeout=10)
                assert all(task.done() for task in tasks)

    run(conversation, new_loop)


@pytest.mark.parametrize("version", APIS[ApiKey.PRODUCE].served_versions)
def test_records_of_a_client_that_awaits_no_response_and_leaves_are_appended(new_loop, tmp_path, version):
    """The first request of each version waits for a thread, which prepares its codec."""

    async def conversation():
        async with started(tmp_path) as (server, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3):
                request = frame(
                    ApiKey.PRODUCE, version, **produce_fields(version, "t", 0, batch(b"x"), acks=0)
                )
                writer.write(LENGTH.pack(len(request)) + request)
            writer.close()
            partition = server.broker.partitions.require("t", 0)
            await asyncio.to_thread(until, lambda: partition.end_offset == 4, "the records", patience_s=10)
            await server.stop()

    run(conversation, new_loop)


def test_clients_cannot_fill_the_log(new_loop, tmp_path, caplog):
    async def conversation():
        async with started(tmp_path) as (server, port):
            for _ in range(LINES_MAX + 20):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"\xff" * 8)
                assert await reader.read() == b""
                writer.close()
            await server.stop()

    run(conversation, new_loop)
    closings = [record for record in caplog.records if record.message.startswith("closing 127.0.0.1:")]
    assert len(closings) == LINES_MAX


def test_the_log_does_not_repeat_the_bytes_of_a_client(new_loop, tmp_path, caplog):
    async def conversation():
        async with started(tmp_path) as (server, port):
            for size in (1, 30_000):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                request = struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 1, size) + b"\xff" * size
                writer.write(struct.pack(">i", len(request)) + request)
                assert await reader.read() == b""
                writer.close()
            await server.stop()

    run(conversation, new_loop)
    closings = [
        record.message for record in caplog.records if record.message.startswith("closing 127.0.0.1:")
    ]
    assert len(closings) == 2
    for line in closings:
        assert line.endswith("not a api_versions request of version 0: byte 0 is not UTF-8")


@pytest.mark.parametrize("fails", ["create_server", "serve"])
def test_an_address_that_is_lost_while_the_directory_is_opened_stops_the_broker_in_order(
    tmp_path, monkeypatch, fails
):
    """Another process may take a port after it was looked at."""

    async def start():
        def lost(*_arguments, **_named):
            raise OSError(errno.EADDRINUSE, "Address already in use")

        owner = asyncio.get_running_loop() if fails == "create_server" else Metrics
        monkeypatch.setattr(owner, fails, lost)
        with pytest.raises(UnavailableError, match="Address already in use"):
            await Server.open(BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0"}), tmp_path)

    asyncio.run(start())
    assert (tmp_path / CLEAN_SHUTDOWN_FILE).exists()


async def is_served(port, opened):
    """Whether the broker serves a new connection, which stays open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    opened.callback(writer.close)
    request = frame(ApiKey.API_VERSIONS, 0)
    writer.write(LENGTH.pack(len(request)) + request)
    return await reader.read(1) != b""


@pytest.mark.parametrize(
    ("name", "few", "many"),
    [
        ("max.connections", "1", "9"),
        ("max.connections.per.ip", "1", "9"),
        ("max.connections.per.ip.overrides", "127.0.0.1:1", "127.0.0.1:9"),
    ],
)
def test_a_limit_of_connections_counts_for_those_that_come_after_the_change(
    new_loop, tmp_path, name, few, many
):
    async def conversation():
        async with started(tmp_path) as (server, port):
            with contextlib.ExitStack() as opened:
                assert await is_served(port, opened)
                assert await is_served(port, opened)
                server.broker.change_settings({name: few}, {})
                assert not await is_served(port, opened)
                server.broker.change_settings({name: many}, {})
                assert await is_served(port, opened)
            await server.stop()

    run(conversation, new_loop)


def test_the_limit_of_one_listener_leaves_the_others_that_of_the_broker_which_counts_all(new_loop, tmp_path):
    config = BrokerConfig(
        {
            "listeners": "INNER://127.0.0.1:0,OUTER://127.0.0.1:0",
            "listener.security.protocol.map": "INNER:PLAINTEXT,OUTER:PLAINTEXT",
            "inter.broker.listener.name": "INNER",
            "listener.name.outer.max.connections": "1",
            "max.connections": "4",
        }
    )

    async def conversation():
        server = await Server.open(config, tmp_path)
        inner, outer = (one.port for one in server.listeners)
        with contextlib.ExitStack() as opened:
            assert [await is_served(outer, opened) for _ in range(2)] == [True, False]
            assert [await is_served(inner, opened) for _ in range(3)] == [True, True, True]
            server.broker.change_settings({"max.connections": "5"}, {})
            assert not await is_served(outer, opened)
            assert [await is_served(inner, opened) for _ in range(2)] == [True, False]
        await server.stop()

    run(conversation, new_loop)
