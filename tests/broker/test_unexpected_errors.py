"""What fails when the broker has a fault: the connection, the partition or the broker, by name, and nothing else."""

import asyncio
import contextlib
import dataclasses
import errno
import random
import subprocess
import sys
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.broker import Broker
from stablelog.broker.durability import journal
from stablelog.broker.durability.journal import Journal
from stablelog.broker.network import connection
from stablelog.broker.requests.router import Router
from stablelog.broker.server import Server
from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.broker.transactions.transaction_group import TransactionGroup
from stablelog.broker.upkeep import maintenance
from stablelog.commit_order.view import CommitOrder
from stablelog.coordinators.consumer_groups.coordinator import GroupCoordinator
from stablelog.coordinators.transactions.coordinator import TransactionCoordinator
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.data_directory.checkpoints import OffsetCheckpoint
from stablelog.data_directory.clean_shutdown import CLEAN_SHUTDOWN_FILE
from stablelog.errors import DiskError, RefusedError, UnavailableError
from stablelog.log.partition import Partition
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.testing.sim_clock import SimClock
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from stablelog.wire.messages import message_class
from tests.broker.desk import ABORT, COMMIT, DATA, SIMULATED, Desk, batch, frame, part
from tests.broker.jump import LENGTH, settle
from tests.broker.test_any_request import made
from tests.declared_apis import APIS

API_VERSIONS_KEY, METADATA = 18, 3
FETCH_REQUEST = frame(
    1,
    4,
    replica_id=-1,
    max_wait=timedelta(seconds=60),
    min_bytes=1,
    max_bytes=1 << 20,
    isolation_level=0,
    topics=(
        part(
            1,
            4,
            "request",
            "FetchTopic",
            topic="t",
            partitions=(
                part(
                    1, 4, "request", "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=9999
                ),
            ),
        ),
    ),
)
EXCEPTIONS = (RuntimeError, MemoryError, RecursionError, KeyError)


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation, 100))


def tracebacks(caplog):
    return [record for record in caplog.records if record.exc_info]


def faulty(exception=RuntimeError):
    """A function that fails by a fault of the broker."""

    def fail(*_arguments, **_named):
        raise exception("on purpose")

    return fail


def fails_once(monkeypatch, owner, name, exception=RuntimeError):
    """Have the next call of a method raise."""
    sound = getattr(owner, name)

    def method(*arguments, **named):
        monkeypatch.setattr(owner, name, sound)
        raise exception("on purpose")

    monkeypatch.setattr(owner, name, method)


# -- a connection --------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serving():
    """A broker with a socket, on a simulated disk. Gives the server and its port."""
    config = BrokerConfig(SIMULATED | {"listeners": "PLAINTEXT://127.0.0.1:0"})
    server = await Server.open(config, DATA, disk=SimDisk(), clock=SimClock())
    try:
        yield server, server.port
    finally:
        await server.stop()


async def ask(port, request):
    """One request on a connection of its own. Returns the answer; None if the connection is closed instead."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(LENGTH.pack(len(request)) + request)
        size = await reader.readexactly(4)
        return await reader.readexactly(LENGTH.unpack(size)[0])
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return None
    finally:
        writer.close()


def any_request(api_key):
    """A well-formed request of the newest version that is spoken."""
    version = APIS[api_key].last_version
    message = message_class(api_key, version, "request")
    request = made(message, random.Random(api_key))
    return frame(
        api_key,
        version,
        **{field.name: getattr(request, field.name) for field in dataclasses.fields(message)},
    )


@pytest.mark.parametrize("exception", EXCEPTIONS)
def test_a_request_whose_handler_fails_closes_its_connection_and_nothing_else(exception, monkeypatch, caplog):
    """One API after the other, each by a fault of its handler, on one broker."""

    sound = Router.prepare_api
    failing = []

    def prepare(router, api, version):
        sound(router, api, version)
        handle = router.handlers[api.key]

        async def handle_or_fail(broker, request, context):
            if api.key in failing:
                raise exception("on purpose")
            return await handle(broker, request, context)

        router.handlers[api.key] = handle_or_fail

    monkeypatch.setattr(Router, "prepare_api", prepare)

    async def conversation():
        async with serving() as (server, port):
            for api_key in APIS:
                caplog.clear()
                failing[:] = [api_key]
                assert await ask(port, any_request(api_key)) is None, ApiKey(api_key).snake_name
                failing.clear()
                [record] = tracebacks(caplog)
                assert ApiKey(api_key).snake_name in record.getMessage()
                assert "on purpose" in caplog.text
                assert await ask(port, any_request(API_VERSIONS_KEY)) is not None
            assert server.broker.tasks.error_counts == {ApiKey(api_key).snake_name: 1 for api_key in APIS}
            assert server.failure is None

    run(conversation())


def test_bytes_that_the_connection_fails_on_close_it_and_nothing_else(monkeypatch, caplog):
    async def conversation():
        async with serving() as (server, port):
            lengths = SimpleNamespace(size=LENGTH.size, unpack_from=LENGTH.unpack_from)
            monkeypatch.setattr(connection, "LENGTH", lengths)
            fails_once(monkeypatch, lengths, "unpack_from", IndexError)
            assert await ask(port, any_request(API_VERSIONS_KEY)) is None
            assert server.broker.tasks.error_counts == {"connection": 1}
            assert len(tracebacks(caplog)) == 1
            assert await ask(port, any_request(API_VERSIONS_KEY)) is not None

    run(conversation())


def test_a_long_poll_that_fails_when_it_is_woken_fails_alone(monkeypatch, caplog):
    async def conversation():
        async with serving() as (server, port):
            desk = Desk(server.broker)
            server.broker.topic_files.create("t", 1, {})
            polls = [asyncio.create_task(ask(port, FETCH_REQUEST)) for _ in range(3)]
            while len(server.broker.long_polls) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            fails_once(monkeypatch, Partition, "read")
            assert (await desk.produce(batch(b"x"))).error_code is ErrorCode.none
            answers = await asyncio.gather(*polls)
            assert sum(answer is None for answer in answers) == 1
            assert server.broker.tasks.error_counts == {"fetch": 1}

    run(conversation())
    assert len(tracebacks(caplog)) == 1


# -- a partition ---------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def two_partitions(disk=None, **settings):
    """A broker with a topic of two partitions, and how it failed, if it did."""
    failures = []
    given = SIMULATED | {name.replace("_", "."): str(value) for name, value in settings.items()}
    broker = Broker(
        BrokerConfig(given), DATA, disk=disk or SimDisk(), clock=SimClock(), on_failure=failures.append
    )
    await broker.start()
    await next(task for task in asyncio.all_tasks() if task.get_name() == "recovery")
    if broker.topics.get("t") is None:
        broker.topic_files.create("t", 2, {})
    try:
        yield Desk(broker), failures
    finally:
        await broker.stop()


async def check_first_is_offline(desk, caplog, where):
    """The first partition is offline and named, and the other one works."""
    broker = desk.broker
    assert broker.partitions.of_topic(broker.topics.named("t"))[0].failure is not None
    with pytest.raises(RefusedError) as refused:
        broker.partitions.require("t", 0)
    assert refused.value.code is ErrorCode.kafka_storage_error
    assert (await desk.produce(batch(b"x"), partition=0)).error_code is ErrorCode.kafka_storage_error
    assert (await desk.produce(batch(b"y"), partition=1)).error_code is ErrorCode.none
    assert desk.values("t", 1)[-1:] == [b"y"]
    named = [record for record in caplog.records if "t-0 has failed" in record.getMessage()]
    assert len(named) == 1, "once"
    if where is not None:
        [record] = tracebacks(caplog)
        assert where in record.getMessage()
        assert broker.tasks.error_counts == {where: 1}


def test_an_append_that_ends_half_way_takes_its_partition_offline(monkeypatch, caplog):
    """The bytes are in the file, and memory does not know: nothing may be written behind them."""

    async def conversation():
        async with two_partitions() as (desk, failures):
            fails_once(monkeypatch, GrowingSegment, "index_batch")
            with pytest.raises(RuntimeError):
                await desk.produce(batch(b"x"), partition=0)
            await check_first_is_offline(desk, caplog, None)
            assert failures == []

    run(conversation())


@pytest.mark.parametrize("name", ["sync_work", "finish_sync"])
def test_a_sync_that_fails_unexpectedly_takes_its_partition_offline(name, monkeypatch, caplog):
    async def conversation():
        async with two_partitions() as (desk, failures):
            fails_once(monkeypatch, Partition, name)
            answer = await desk.produce(batch(b"x"), partition=0)
            assert answer.error_code is ErrorCode.kafka_storage_error
            await check_first_is_offline(desk, caplog, "flush")
            assert failures == []

    run(conversation())


def test_a_directory_that_is_gone_takes_its_partition_offline(caplog):
    """A sync that cannot say whether bytes are durable stops the broker; what is not there is one partition's."""
    disk = SimDisk()

    async def conversation():
        async with two_partitions(disk, log_segment_bytes=1024) as (desk, failures):
            disk.remove_dir(DATA / "t-0")
            with pytest.raises((UnavailableError, FileNotFoundError)):
                for _ in range(40):
                    answer = await desk.produce(batch(bytes(100)), partition=0)
                    if answer.error_code is not ErrorCode.none:
                        raise UnavailableError("it was refused")
            assert (await desk.produce(batch(b"y"), partition=1)).error_code is ErrorCode.none
            assert failures == []

    run(conversation())


def test_a_view_that_fails_takes_its_partition_offline(monkeypatch, caplog):
    async def conversation():
        async with two_partitions() as (desk, failures):
            desk.broker.topic_files.create("c", 2, {"stablelog.order": "commit"})
            fails_once(monkeypatch, CommitOrder, "advance")
            refused = await desk.produce(batch(b"x"), topic="c", partition=0)
            assert refused.error_code is ErrorCode.kafka_storage_error
            refused = await desk.produce(batch(b"x"), topic="c", partition=0)
            assert refused.error_code is ErrorCode.kafka_storage_error
            assert (await desk.produce(batch(b"y"), topic="c", partition=1)).error_code is ErrorCode.none
            assert (await desk.produce(batch(b"y"))).error_code is ErrorCode.none
            assert failures == []

    run(conversation())
    assert len(tracebacks(caplog)) == 1


async def durable(desk, index):
    """Wait until all that was written to a partition can be read."""
    partition = desk.broker.partitions.require("t", index)
    wait = desk.broker.flush.durable_future(partition, partition.end_offset)
    if wait is not None:
        await wait


@pytest.mark.parametrize("exception", [RuntimeError, partial(DiskError, number=errno.EIO)])
def test_markers_of_a_partition_that_fails_wait_for_a_restart_and_others_are_written(exception, monkeypatch):
    disk = SimDisk()

    async def write(desk):
        who = await desk.init("a")
        await desk.add("a", who, ("t", 0), ("t", 1))
        for index in (0, 1):
            written = await desk.produce(
                batch(b"x", producer=who, sequence=0), partition=index, transactional_id="a"
            )
            assert written.error_code is ErrorCode.none
        fails_for(monkeypatch, "append_markers", ("t", 0), exception)
        assert (await desk.end("a", who, COMMIT)).error_code is ErrorCode.none
        await durable(desk, 1)
        assert desk.values("t", 1) == [b"x"]
        assert desk.broker.transactions.default.missing_commit_markers() == [(1, "a", "t", 0)]
        assert desk.broker.transactions.default.resolved_commit_sequence == 0
        other = await desk.init("b")
        await desk.add("b", other, ("t", 1))
        await desk.produce(batch(b"y", producer=other, sequence=0), partition=1, transactional_id="b")
        assert (await desk.end("b", other, COMMIT)).error_code is ErrorCode.none
        await durable(desk, 1)
        assert desk.values("t", 1) == [b"x", b"y"]

    async def first():
        async with two_partitions(disk) as (desk, failures):
            await write(desk)
            assert failures == []

    async def second():
        async with two_partitions(disk) as (desk, _):
            await desk.durable()
            assert desk.values("t", 0) == [b"x"]
            assert desk.broker.transactions.default.resolved_commit_sequence == 2

    run(first())
    assert not disk.exists(DATA / CLEAN_SHUTDOWN_FILE), "a partition that has failed was not closed in order"
    run(second())


def fails_for(monkeypatch, name, target, exception):
    """Have a method of one partition raise, once."""
    sound = getattr(Partition, name)

    def method(partition, *arguments, **named):
        if (partition.topic, partition.index) == target:
            monkeypatch.setattr(Partition, name, sound)
            raise exception("on purpose")
        return sound(partition, *arguments, **named)

    monkeypatch.setattr(Partition, name, method)


def test_a_partition_that_cannot_be_opened_by_a_fault_stays_offline_and_others_are_opened(
    monkeypatch, caplog
):
    disk = SimDisk()

    async def first():
        async with two_partitions(disk) as (desk, _):
            for index in (0, 1):
                await desk.produce(batch(b"x"), partition=index)

    async def second():
        async with two_partitions(disk) as (desk, failures):
            assert set(desk.broker.partitions.of_topic(desk.broker.topics.named("t"))) == {1}
            assert desk.values("t", 1) == [b"x"]
            assert failures == []
            assert desk.broker.tasks.error_counts == {"recovery of a partition": 1}

    run(first())
    recover = TopicFiles.recover_partition

    def recover_partition(topics, topic, index, *arguments):
        if (topic.name, index) == ("t", 0):
            raise RuntimeError("on purpose")
        return recover(topics, topic, index, *arguments)

    monkeypatch.setattr(TopicFiles, "recover_partition", recover_partition)
    run(second())
    assert len(tracebacks(caplog)) == 1


def test_making_a_topic_that_fails_unexpectedly_fails_the_request(monkeypatch, caplog):
    async def conversation():
        async with two_partitions() as (desk, failures):
            fails_once(monkeypatch, TopicFiles, "make_partitions")
            with pytest.raises(UnavailableError):
                await desk.broker.topic_changes.create_topic("late", 2, {})
            await desk.broker.topic_changes.create_topic("late", 2, {})
            assert failures == []
            assert desk.broker.tasks.error_counts == {"making partitions": 1}

    run(conversation())
    assert len(tracebacks(caplog)) == 1


# -- the broker ----------------------------------------------------------------------------------------------------


async def commit(desk, transactional_id="a", values=(b"x",)):
    who = await desk.init(transactional_id)
    await desk.add(transactional_id, who, ("t", 0))
    await desk.produce(batch(*values, producer=who, sequence=0), transactional_id=transactional_id)
    return await desk.end(transactional_id, who, COMMIT)


async def begin_and_wait(desk, failures):
    """Something open, which a coordinator has to look at when its time is up."""
    who = await desk.init("a")
    await desk.add("a", who, ("t", 0))
    async with asyncio.timeout(60):
        while not failures:  # noqa: ASYNC110 - another task fails
            await asyncio.sleep(0.001)


BROKER_WIDE = {
    "transaction timeouts": (TransactionCoordinator, "abort_overdue", begin_and_wait),
    "expiry of ids": (TransactionCoordinator, "forget_expired", begin_and_wait),
    "commit-log trimming": (Journal, "checkpoint_if_grown", begin_and_wait),
    "transactions": (TransactionCoordinator, "markers_done", lambda desk, _failures: commit(desk)),
    "flush": (TransactionGroup, "write_decided", lambda desk, _failures: commit(desk)),
    "checkpoints": (OffsetCheckpoint, "write", begin_and_wait),
}


@pytest.mark.parametrize("where", BROKER_WIDE)
def test_work_of_the_whole_broker_that_fails_stops_it_with_its_reason(where, monkeypatch, caplog):
    """Nothing is acknowledged any more, and the next start reads everything again."""
    monkeypatch.setattr(maintenance, "CHECKPOINT_S", 0.01)
    monkeypatch.setattr(journal, "CHECKPOINT_SIZE_MIN", 0)
    owner, name, cause = BROKER_WIDE[where]
    disk = SimDisk()

    async def conversation():
        often = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 10}
        async with two_partitions(disk, **often) as (desk, failures):
            monkeypatch.setattr(owner, name, faulty())
            with contextlib.suppress(UnavailableError, RuntimeError):
                async with asyncio.timeout(20):
                    await cause(desk, failures)
            await settle()
            [failure] = failures
            assert "on purpose" in str(failure)
            with pytest.raises(UnavailableError):
                await desk.produce(batch(b"x"), partition=1)
            assert desk.broker.tasks.error_counts == {where: 1}
            monkeypatch.undo()

    run(conversation())
    [record] = tracebacks(caplog)
    assert where in record.getMessage()
    assert not disk.exists(DATA / CLEAN_SHUTDOWN_FILE)


def test_an_effect_of_a_journal_that_fails_stops_the_broker(caplog):
    async def conversation():
        async with two_partitions() as (desk, failures):
            journal = desk.broker.transactions.default.journal
            with desk.held_disk():
                journal.append([(b"\0\0\0\0", b"x")])
                journal.run_when_durable(faulty())
            async with asyncio.timeout(60):
                while not failures:  # noqa: ASYNC110 - the flush fails
                    await asyncio.sleep(0.001)

    run(conversation())
    assert len(tracebacks(caplog)) == 1


def test_the_timer_of_the_consumer_groups_that_fails_stops_the_broker(monkeypatch):
    async def conversation():
        async with two_partitions() as (desk, failures):
            monkeypatch.setattr(GroupCoordinator, "tick", faulty())
            monkeypatch.setattr(GroupCoordinator, "next_deadline_ms", lambda _self: 0)
            desk.broker.groups.set_timer()
            async with asyncio.timeout(60):
                while not failures:  # noqa: ASYNC110 - the timer fails
                    await asyncio.sleep(0.001)
            assert desk.broker.tasks.error_counts == {"consumer groups": 1}

    run(conversation())


def test_a_decision_that_fails_before_it_changes_anything_fails_its_request(monkeypatch):
    async def conversation():
        async with two_partitions() as (desk, failures):
            who = await desk.init("a")
            fails_once(monkeypatch, TransactionCoordinator, "end")
            with pytest.raises(RuntimeError):
                await desk.end("a", who, ABORT)
            assert failures == []
            assert (await commit(desk)).error_code is ErrorCode.none

    run(conversation())


def test_a_decision_that_fails_half_way_stops_the_broker(monkeypatch):
    """Its memory says committed and its log does not: asked again, it would acknowledge what no restart finds."""
    disk = SimDisk()

    async def conversation():
        async with two_partitions(disk) as (desk, failures):
            who = await desk.init("a")
            await desk.add("a", who, ("t", 0))
            await desk.produce(batch(b"x", producer=who, sequence=0), transactional_id="a")
            put = TransactionTable.put

            def put_and_fail(*arguments):
                put(*arguments)
                raise RuntimeError("on purpose")

            monkeypatch.setattr(TransactionTable, "put", put_and_fail)
            with pytest.raises(RuntimeError):
                await desk.end("a", who, COMMIT)
            monkeypatch.undo()
            [failure] = failures
            assert "commit log" in str(failure)
            with pytest.raises(UnavailableError):
                await desk.end("a", who, COMMIT)

    run(conversation())

    async def after():
        async with two_partitions(disk) as (desk, _):
            assert desk.values() == [], "it was never acknowledged"

    run(after())


PROCESS = """
import sys
from stablelog.coordinators.transactions.coordinator import TransactionCoordinator

def abort_overdue(*_arguments):
    raise RuntimeError("a fault of the broker")

TransactionCoordinator.abort_overdue = abort_overdue
from stablelog.cli.main import run
run()
"""


@pytest.mark.extended
def test_the_process_ends_with_the_reason(tmp_path):
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            PROCESS,
            "serve",
            f"--data={tmp_path / 'data'}",
            "--port=0",
            "--set=transaction.abort.timed.out.transaction.cleanup.interval.ms=10",
        ],
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 2
    assert (
        "stablelog: transaction timeouts failed unexpectedly: RuntimeError('a fault of the broker')"
        in ended.stderr
    )
    assert ended.stderr.count("Traceback") == 1
