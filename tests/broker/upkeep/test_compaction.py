"""The broker compacts in a thread, and what it does meanwhile is none of the thread's affair."""

import asyncio
import threading

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.coordinators.log_names import CONSUMER_OFFSETS_TOPIC
from stablelog.log.compaction.cleaner import Compaction
from stablelog.log.partition import Isolation
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import DATA, batch, opened

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), 100))


async def written(desk, *, keys=10, rounds=20):
    """A compacted topic that holds each key many times."""
    log = desk.broker.partitions.get("c", 0) or desk.create("c", COMPACTED)
    for number in range(rounds):
        records = [Record(0, 0, b"key %d" % key, b"%d" % number) for key in range(keys)]
        answer = await desk.produce(encode_batch(records), topic="c")
        assert answer.error_code.value == 0, answer
    log.roll(desk.broker.now_ms())
    await desk.broker.flush.durable_future(
        log, log.end_offset
    ) if log.high_watermark < log.end_offset else None
    desk.broker.flush.mark_dirty(log)
    for _ in range(9000):
        if log.segments()[-2].durable:
            return log
        await asyncio.sleep(0.01)
    raise AssertionError("the rolled segment is not durable")


def records(log):
    read = log.read(log.start_offset, 1 << 30, Isolation.READ_COMMITTED)
    return decode_records(read.buffers[0]) if read.buffers else []


def test_a_topic_is_compacted_and_how_far_is_known_after_a_restart():
    disk = SimDisk()

    async def conversation():
        async with opened(disk) as desk:
            log = await written(desk)
            size = log.size
            await desk.broker.compactor.compact_all()
            assert log.size < size / 10
            assert {record.value for record in records(log)} == {b"19"}
            assert log.compaction.first_dirty_offset == 200
        assert disk.read_bytes(DATA / "cleaner-offset-checkpoint") == b"0\n1\nc 0 200\n"
        async with opened(disk) as desk:
            log = desk.broker.partitions.require("c", 0)
            log.log.prove_segments()
            assert log.compaction.first_dirty_offset == 200
            assert len(records(log)) == 10
            await desk.broker.topic_changes.delete_topic("c")
            assert desk.create("c", COMPACTED).compaction.first_dirty_offset == 0

    run(conversation)


def test_the_brokers_own_topics_are_trimmed_and_not_compacted():
    async def conversation():
        async with opened() as desk:
            log = desk.broker.partitions.require(CONSUMER_OFFSETS_TOPIC, 0)
            assert "compact" in log.config.cleanup_policy
            log.compaction = None  # whoever uses it fails
            await desk.broker.compactor.compact_all()

    run(conversation)


@pytest.fixture
def held(monkeypatch):
    """Compaction stops at its first step until it is let go; it says when it is there."""
    there, go_on = threading.Event(), threading.Event()
    plain = Compaction.steps

    def steps(work):
        there.set()
        assert go_on.wait(90)
        yield from plain(work)

    monkeypatch.setattr(Compaction, "steps", steps)
    return there, go_on


async def reached(event):
    await asyncio.get_running_loop().run_in_executor(None, event.wait, 90)


def test_a_topic_that_is_compacted_is_read_written_and_deleted_as_ever(held):
    there, go_on = held

    async def conversation():
        async with opened() as desk:
            log = await written(desk)
            compacting = asyncio.create_task(desk.broker.compactor.compact_all())
            await reached(there)
            await written(desk, rounds=1)
            assert len(records(log)) > 0
            deleting = asyncio.create_task(desk.broker.topic_changes.delete_topic("c"))
            await asyncio.sleep(0)
            assert not deleting.done()
            go_on.set()
            await deleting
            await compacting
            assert desk.broker.topics.get("c") is None

    run(conversation)


def test_a_stop_waits_for_the_thread_and_leaves_a_clean_directory(held):
    there, go_on = held
    disk = SimDisk()

    async def conversation():
        async with opened(disk) as desk:
            await written(desk)
            compacting = asyncio.create_task(desk.broker.compactor.compact_all())
            await reached(there)
            compacting.cancel()
            close = desk.broker.compactor.close
            # The loop stands still while the thread is waited for.
            desk.broker.compactor.close = lambda: go_on.set() or close()
        assert disk.exists(DATA / ".kafka_cleanshutdown")
        async with opened(disk) as desk:
            assert desk.broker.topic_files.clean
            names = disk.list_dir(DATA / "c-0")
            assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
            await desk.broker.compactor.compact_all()
            log = desk.broker.partitions.require("c", 0)
            assert {record.value for record in records(log)} == {b"19"}

    run(conversation)


def test_a_commit_ordered_topic_is_not_compacted_where_that_is_the_brokers_default():
    async def conversation():
        async with opened(topics=(), log_cleanup_policy="compact") as desk:
            desk.broker.topic_files.create("t", 1, {"stablelog.order": "commit"})
            assert (await desk.produce(batch(b"without a key"))).error_code is ErrorCode.none
            log = desk.broker.partitions.require("t", 0)
            assert log.config.cleanup_policy == {"delete"}
            assert log.compaction.begin_pass(0, key_count_max=100) is None

    asyncio.run(conversation())
