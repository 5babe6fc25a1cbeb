"""A topic is deleted, and made again, while work on its partitions is under way: the work does not touch the new one."""

import asyncio
import contextlib
import errno
import threading

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.records import Record, encode_batch
from stablelog.broker.topics.partition_state import PartitionState
from stablelog.broker.upkeep import scrub
from stablelog.coordinators.transactions.log_ends import OFFSET_UNKNOWN
from stablelog.errors import DiskError, UnavailableError
from stablelog.log.compaction.cleaner import Compaction
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import ABORT, DATA, batch, opened

NONE = ErrorCode.none
OTHERS = 40  # topics that a pass comes to before
SETTINGS = {
    "segment.bytes": "2000",
    "retention.bytes": "4000",
    "cleanup.policy": "delete",
    "file.delete.delay.ms": "0",
}


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), 100))


async def make(desk):
    await desk.broker.topic_changes.create_topic("z", 1, SETTINGS)


async def write(desk, count, size):
    for number in range(count):
        assert (await desk.produce(batch(b"%d" % number + bytes(size)), topic="z")).error_code is NONE
    await desk.durable()


def every_pass(desk):
    broker = desk.broker
    return {
        "retention": broker.maintenance.apply_retention,
        "removal": broker.maintenance.remove_deleted,
        "expiry": broker.maintenance.expire_producers,
        "compaction": broker.compactor.compact_all,
        "scrub": broker.scrub.scrub_all,
    }


@pytest.fixture
def one_pass(monkeypatch):
    """The broker scrubs at its rate, and only when the test asks for it."""
    monkeypatch.setattr(scrub.Scrub, "start", lambda _scrub: None)


@pytest.mark.parametrize("name", ["retention", "removal", "expiry", "compaction", "scrub"])
def test_a_pass_leaves_a_topic_alone_that_was_deleted_and_made_again_since_it_began(name, caplog, one_pass):
    disk = SimDisk()
    topics = [f"a{number}" for number in range(OTHERS)]

    async def conversation():
        async with opened(disk, topics=topics, stablelog_scrub_bytes_per_second=1 << 40) as desk:
            await make(desk)
            await write(desk, 20, 1500)
            old = desk.broker.partitions.require("z", 0)
            if name == "removal":
                assert old.deletion.apply_retention(desk.broker.now_ms()) > 0
            passing = asyncio.create_task(every_pass(desk)[name]())
            await asyncio.sleep(0)
            await desk.broker.topic_changes.delete_topic("z")
            await make(desk)
            await write(desk, 3, 10)
            deleted = DATA / "z-0" / "00000000000000000000.index.deleted"  # as if retention had been here
            disk.write_atomic(deleted, b"")
            before = disk.files(DATA / "z-0")
            contents = {path: disk.content(path) for path in before}
            await passing
            assert {path: disk.content(path) for path in disk.files(DATA / "z-0")} == contents
            assert desk.broker.partitions.state("z", 0) is PartitionState.OPEN
        assert not [
            record
            for record in caplog.records
            if record.name.startswith("stablelog") and record.levelname in ("ERROR", "WARNING")
        ]
        async with opened(disk, topics=()) as desk:
            assert [value.rstrip(b"\0") for value in desk.values("z")] == [b"0", b"1", b"2"]

    run(conversation)


def test_a_scrub_that_reads_a_segment_of_a_deleted_topic_ends_without_a_word(monkeypatch, caplog, one_pass):
    """The file is another one by then, or none."""
    there, go_on = threading.Event(), threading.Event()
    plain = scrub.next_in_thread

    async def held(threads, pieces):
        if len(holding):
            holding.clear()
            there.set()
            assert await asyncio.to_thread(go_on.wait, 60)
        return await plain(threads, pieces)

    holding = [True]
    monkeypatch.setattr(scrub, "next_in_thread", held)

    async def conversation():
        async with opened(topics=(), stablelog_scrub_bytes_per_second=1 << 40) as desk:
            await make(desk)
            await write(desk, 20, 1500)
            for partition in desk.broker.partitions:
                if partition.topic != "z":
                    partition.segments = list  # only the one that matters is read
            scrubbing = asyncio.create_task(desk.broker.scrub.scrub_all())
            assert await asyncio.to_thread(there.wait, 60)
            await desk.broker.topic_changes.delete_topic("z")
            await make(desk)
            await write(desk, 3, 10)
            go_on.set()
            await scrubbing
            assert desk.broker.partitions.require("z", 0).log.segments.damaged_count == 0
            assert not [
                record
                for record in caplog.records
                if record.name.startswith("stablelog") and record.levelname == "ERROR"
            ]

    run(conversation)


@contextlib.contextmanager
def sync_under_way(desk):
    """While the block runs, who waits for the end of a sync goes on waiting."""
    flush, ended = desk.broker.flush, asyncio.Event()
    idle, flush.wait_until_idle = flush.wait_until_idle, ended.wait
    try:
        yield
    finally:
        flush.wait_until_idle = idle
        ended.set()


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_compaction_that_begins_while_a_deletion_waits_for_a_sync_has_ended_before_the_files_go(
    monkeypatch,
):
    there, go_on, order = threading.Event(), threading.Event(), []
    steps = Compaction.steps

    def held(work):
        there.set()
        assert go_on.wait(60)
        order.append("compacted")
        yield from steps(work)

    monkeypatch.setattr(Compaction, "steps", held)

    async def conversation():
        async with opened() as desk:
            compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
            await desk.broker.topic_changes.create_topic("z", 1, SETTINGS | compacted)
            partition = desk.broker.partitions.require("z", 0)
            for _ in range(20):
                partition.append(keyed(), now_ms=desk.broker.now_ms())
                await desk.durable()
            unlist = desk.broker.topic_files.unlist
            desk.broker.topic_files.unlist = lambda name: (order.append("deleted"), unlist(name))[1]
            with sync_under_way(desk):
                deleting = asyncio.create_task(desk.broker.topic_changes.delete_topic("z"))
                await turns()
                compacting = asyncio.create_task(desk.broker.compactor.compact_all())
                assert await asyncio.to_thread(there.wait, 60)
            await turns()
            assert not deleting.done()
            go_on.set()
            await asyncio.gather(deleting, compacting)
            assert order == ["compacted", "deleted"]

    run(conversation)


def keyed():
    return encode_batch([Record(0, 0, b"k", bytes(1500))])


def test_an_opening_that_begins_while_a_deletion_waits_for_a_sync_has_ended_before_the_files_go():
    there, go_on, order = threading.Event(), threading.Event(), []

    async def conversation():
        async with opened(topics=()) as desk:
            await make(desk)
            await write(desk, 3, 10)
            topic_files = desk.broker.topic_files
            recover, unlist = topic_files.recover_partition, topic_files.unlist

            def held(*arguments):
                there.set()
                assert go_on.wait(60)
                order.append("recovered")
                return recover(*arguments)

            topic_files.recover_partition = held
            topic_files.unlist = lambda name: (order.append("deleted"), unlist(name))[1]
            with sync_under_way(desk):
                deleting = asyncio.create_task(desk.broker.topic_changes.delete_topic("z"))
                await turns()
                full = DiskError("writing failed", errno.ENOSPC)
                desk.broker.fail_partition(desk.broker.partitions.require("z", 0), full)
                opening = asyncio.create_task(desk.broker.maintenance.tend_reserve())
                await turns()
            assert await asyncio.to_thread(there.wait, 60)
            await turns()
            assert not deleting.done()
            go_on.set()
            await asyncio.gather(deleting, opening)
            assert order == ["recovered", "deleted"]
            assert desk.broker.topics.get("z") is None
            assert not [one for one in desk.broker.partitions if one.topic == "z"]

    run(conversation)


def test_a_deleted_partition_that_fails_later_is_no_failure_of_the_next_one(caplog):
    async def conversation():
        async with opened(topics=()) as desk:
            await make(desk)
            old = desk.broker.partitions.require("z", 0)
            await desk.broker.topic_changes.delete_topic("z")
            await make(desk)
            caplog.clear()
            desk.broker.fail_partition(old, UnavailableError("the file is gone"))
            assert not [one for one in caplog.records if one.name.startswith("stablelog")]
            assert desk.broker.partitions.state("z", 0) is PartitionState.OPEN
            assert desk.broker.flush.durable_future(old, 0).exception() is not None

    run(conversation)


def test_a_transaction_that_is_decided_while_its_topic_is_deleted_does_not_know_where_the_logs_end():
    """If it took them for empty, a broker that starts after a crash would take the transaction for a later one."""

    async def conversation():
        async with opened() as desk:
            producer = await desk.init("a")
            await desk.add("a", producer, ("t", 0), ("t", 1))
            topic = desk.broker.topic_files.unlist("t")
            ended = asyncio.create_task(desk.end("a", producer, ABORT))
            table = desk.broker.transactions.require_group("a").coordinator.table
            while not (txn := table.get("a")).state.is_decided:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert [end.end_offset for end in txn.ends.values()] == [OFFSET_UNKNOWN] * 2
            ended.cancel()
            for index, partition in desk.broker.partitions.remove_topic(topic).items():
                partition.close(clean=False)
                desk.broker.partition_repair.partition_deleted(("t", index), topic.group)
            desk.broker.topics.end_reservation(topic)

    run(conversation)
