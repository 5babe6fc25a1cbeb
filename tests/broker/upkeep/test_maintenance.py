"""The broker's periodic work, seen from outside: each kind is done in time, and what fails in one partition is that one's."""

import asyncio
import contextlib
import errno
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.broker import Broker
from stablelog.broker.durability import journal
from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.upkeep import maintenance
from stablelog.errors import UnavailableError
from stablelog.log.record_deletion import RecordDeletion
from stablelog.testing.sim_clock import SimClock
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import COMMIT, DATA, SIMULATED, Desk, batch, opened

OFTEN = SIMULATED | {
    "log.retention.ms": "-1",
    "log.retention.check.interval.ms": "5",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "5",
    "log.segment.bytes": "1024",
    "log.segment.delete.delay.ms": "0",
}


@contextlib.asynccontextmanager
async def working(disk=None, partitions=2, **settings):
    """A broker whose periodic work is done every few milliseconds, on a topic of so many partitions."""
    failures = []
    given = OFTEN | {name.replace("_", "."): str(value) for name, value in settings.items()}
    clock = SimClock()
    broker = Broker(
        BrokerConfig(given), DATA, disk=disk or SimDisk(), clock=clock, on_failure=failures.append
    )
    await broker.start()
    broker.topic_files.create("t", partitions, {})
    try:
        yield Desk(broker), clock
    finally:
        await broker.stop()
    assert failures == []


async def until(condition):
    """Wait until something has been done by a task."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it is done in no other's knowledge
            await asyncio.sleep(0.002)


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation, 100))


async def fill(desk, index, *, count=6, topic="t"):
    """Several segments."""
    for _ in range(count):
        written = await desk.produce(batch(bytes(600)), topic=topic, partition=index)
        assert written.error_code is ErrorCode.none
    return desk.broker.partitions.require(topic, index)


def test_old_segments_are_deleted_and_their_files_removed(monkeypatch):
    monkeypatch.setattr(maintenance, "REMOVAL_S", 0.005)
    disk = SimDisk()

    async def conversation():
        async with working(disk, log_retention_bytes=1500) as (desk, _):
            partition = await fill(desk, 0)
            await until(lambda: partition.start_offset > 0)
            await until(lambda: not any("delete" in path.name for path in disk.files(DATA / "t-0")))
            assert desk.broker.partitions.require("t", 1).start_offset == 0

    run(conversation())


def test_a_partition_whose_start_cannot_be_written_does_not_keep_retention_from_the_others(
    monkeypatch, caplog
):
    """Its start cannot be made durable, and those behind it are deleted from all the same."""
    disk = SimDisk()
    full = []
    disk.fault = lambda what, path: (
        errno.EIO if what == "writing" and path.parent in full and path.name == "log-start-offset" else None
    )

    async def conversation():
        async with working(disk, log_retention_bytes=1500) as (desk, _):
            full.append(DATA / "t-0")
            first = await fill(desk, 0)
            second = await fill(desk, 1)
            await until(lambda: second.start_offset > 0)
            assert first.start_offset == 0
            assert first.failure is None
            full.clear()
            await until(lambda: first.start_offset > 0)

    run(conversation())
    assert "retention of t-0 failed" in caplog.text


def test_a_partition_that_retention_fails_on_unexpectedly_is_offline_and_the_others_go_on(
    monkeypatch, caplog
):
    apply = RecordDeletion.apply_retention

    async def conversation():
        async with working(log_retention_bytes=1500) as (desk, _):
            first = desk.broker.partitions.of_topic(desk.broker.topics.named("t"))[0]

            def apply_retention(deletion, now_ms, **times):
                if deletion is first.deletion:
                    raise KeyError("on purpose")
                return apply(deletion, now_ms, **times)

            monkeypatch.setattr(RecordDeletion, "apply_retention", apply_retention)
            second = await fill(desk, 1)
            await until(lambda: second.start_offset > 0)
            await until(lambda: first.failure is not None)
            refused = await desk.produce(batch(b"x"), partition=0)
            assert refused.error_code is ErrorCode.kafka_storage_error
            assert desk.broker.tasks.error_counts == {"retention": 1}

    run(conversation())
    assert caplog.text.count("Traceback") == 1


def test_transactions_time_out_though_retention_and_trimming_fail(monkeypatch):
    """Each is a task of its own."""
    disk = SimDisk()

    async def conversation():
        async with working(disk, log_retention_bytes=1500) as (desk, clock):
            who = await desk.init("a")
            await desk.add("a", who, ("t", 0))
            await desk.produce(batch(b"x", producer=who, sequence=0), transactional_id="a")
            await fill(desk, 1)
            disk.fault = lambda what, path: (
                errno.EIO if what == "writing" and path.name.startswith("log-start-offset") else None
            )
            clock.advance(61_000)
            partition = desk.broker.partitions.require("t", 0)
            await until(lambda: not partition.log.open_transactions())
            disk.fault = None

    run(conversation())


def test_ids_and_producers_that_were_not_used_for_long_are_forgotten():
    async def conversation():
        settings = {"transactional_id_expiration_ms": 1000, "producer_id_expiration_ms": 1000}
        async with working(**settings) as (desk, clock):
            who = await desk.init("a")
            await desk.add("a", who, ("t", 0))
            await desk.produce(batch(b"x", producer=who, sequence=0), transactional_id="a")
            await desk.end("a", who, COMMIT)
            await desk.durable()
            partition, coordinator = (
                desk.broker.partitions.require("t", 0),
                desk.broker.transactions.default.coordinator,
            )
            assert (len(coordinator.table), len(partition.log.producers)) == (1, 1)
            clock.advance(2000)
            await until(lambda: len(coordinator.table) == 0 and len(partition.log.producers) == 0)

    run(conversation())


def test_a_commit_log_that_has_grown_is_trimmed_and_only_once_if_it_cannot_be(monkeypatch):
    """A trim that fails is tried again; it does not write another checkpoint each time."""
    monkeypatch.setattr(journal, "CHECKPOINT_SIZE_MIN", 2000)
    disk = SimDisk()

    async def conversation():
        async with working(disk, transaction_abort_timed_out_transaction_cleanup_interval_ms=5) as (desk, _):
            log = desk.broker.transactions.default.journal.partition
            tries = []

            def fault(what, path):
                if what == "writing" and path.name == "log-start-offset" and path.parent == log.directory:
                    tries.append(path)
                    return errno.EIO
                return None

            disk.fault = fault
            for _ in range(40):
                await desk.init("a")
            await until(lambda: len(tries) >= 3)
            end = log.end_offset
            await until(lambda: len(tries) >= 10)
            assert log.end_offset == end
            disk.fault = None
            await until(lambda: log.start_offset > 0)

    run(conversation())


def test_nothing_is_trimmed_while_a_partition_has_failed(monkeypatch):
    """Its markers may be lost in a crash, and are written again from the decisions in the commit log."""
    monkeypatch.setattr(journal, "CHECKPOINT_SIZE_MIN", 2000)

    async def conversation():
        async with working() as (desk, _):
            broker = desk.broker
            broker.tasks.partition_scope(broker.partitions.require("t", 0)).fail(
                UnavailableError("on purpose")
            )
            log = broker.transactions.default.journal.partition
            for _ in range(40):
                await desk.init("a")
            assert log.size > 2000
            for _ in range(3):
                await broker.maintenance.trim_logs()
            assert log.start_offset == 0

    run(conversation())


def test_deleted_topics_are_removed_from_the_disk(monkeypatch):
    monkeypatch.setattr(maintenance, "REMOVAL_S", 0.005)
    disk = SimDisk()

    async def conversation():
        async with working(disk) as (desk, _):
            await fill(desk, 0)
            await desk.broker.topic_changes.delete_topic("t")
            await until(lambda: not any(name.startswith("t-") for name in disk.list_dir(DATA)))

    run(conversation())


def test_log_starts_are_in_kafkas_checkpoint_soon(monkeypatch):
    monkeypatch.setattr(maintenance, "CHECKPOINT_S", 0.005)
    disk = SimDisk()

    async def conversation():
        async with working(disk) as (desk, _):
            partition = await fill(desk, 1)
            partition.deletion.delete_records(3)
            path = Path(DATA / "log-start-offset-checkpoint")
            await until(lambda: disk.exists(path) and b"t 1 3" in disk.read_bytes(path))

    run(conversation())


@pytest.mark.parametrize("kind", ["transactions", "offsets"])
def test_a_start_after_a_clean_stop_replays_little_more_than_the_live_state(kind):
    """However much was decided: the log is trimmed when the broker stops."""
    disk = SimDisk()

    async def conversation():
        async with opened(disk) as desk:
            if kind == "transactions":
                who = await desk.init("a")
                for _ in range(200):
                    await desk.add("a", who, ("t", 0))
                    await desk.end("a", who, COMMIT)
            else:
                where = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "m" * 500}
                fields = {"group_id": "g", "member_id": "", "topics": [{"name": "t", "partitions": [where]}]}
                for _ in range(150):
                    await desk.ask_with(8, 6, fields)
            before = journal_of(desk).partition.size
            state = state_of(desk)
            assert before > journal.STOP_SIZE_MIN
        for _ in range(2):
            async with opened(disk) as desk:
                assert journal_of(desk).partition.size < 2_000
                assert state_of(desk) == state
                if kind == "transactions":
                    assert await desk.init("a")
                    state = state_of(desk)

    def journal_of(desk):
        broker = desk.broker
        return broker.transactions.default.journal if kind == "transactions" else broker.groups.journal

    def state_of(desk):
        broker = desk.broker
        if kind == "offsets":
            offsets = broker.groups.coordinator.table.offsets.committed("g")
            return {partition: one.value for partition, one in offsets.items()}
        return sorted(broker.transactions.default.coordinator.table.checkpoint())

    run(conversation())


def test_a_stop_does_not_trim_a_log_that_has_hardly_grown():
    disk = SimDisk()

    async def conversation():
        async with opened(disk) as desk:
            await desk.init("a")
            end = desk.broker.transactions.default.journal.partition.end_offset
        async with opened(disk) as desk:
            assert desk.broker.transactions.default.journal.partition.end_offset == end

    run(conversation())
