"""What ends is freed without the garbage collector, which passes over what it has frozen."""

import asyncio
import contextlib
import gc
import weakref

import pytest

from stablelog.batch.records import Record, encode_batch
from stablelog.broker.loop.garbage import COLLECTION_S_MAX, FreezeAfterLongCollection, collect_often
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import Desk, batch, opened
from tests.broker.test_unexpected_errors import API_VERSIONS_KEY, any_request, ask, serving


@contextlib.contextmanager
def no_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def until(is_so):
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.mark.extended
@pytest.mark.parametrize("order", ["offset", "commit"])
def test_a_deleted_partition_is_freed(order):
    async def conversation():
        async with opened(topics=()) as desk:
            desk.broker.topic_files.create("t", 1, {"stablelog.order": order})
            await desk.produce(batch(b"v"))
            with no_collector():
                partitions = [
                    weakref.ref(one)
                    for one in desk.broker.partitions.of_topic(desk.broker.topics.named("t")).values()
                ]
                await desk.broker.topic_changes.delete_topic("t")
                await until(lambda: not any(one() for one in partitions))

    asyncio.run(asyncio.wait_for(conversation(), 60))


SMALL = {"segment.bytes": "1024", "retention.bytes": "2048"}
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "1024"}
COMMIT_ORDERED = {"stablelog.order": "commit"}
KINDS = {
    "ordinary": {},
    "commit-ordered": COMMIT_ORDERED,
    "of many segments": SMALL,
    "commit-ordered, of many segments": COMMIT_ORDERED | SMALL,
    "compacted": COMPACTED,
    "without aborted data": SMALL | {"stablelog.local.drop.aborted": "true", "retention.bytes": "-1"},
    "tiered": SMALL | {"remote.storage.enable": "true", "local.retention.bytes": "1"},
    "commit-ordered, tiered": COMMIT_ORDERED
    | SMALL
    | {"remote.storage.enable": "true", "local.retention.bytes": "1"},
}


@contextlib.contextmanager
def garbage():
    """What only the garbage collector frees, of that which ends in the block: objects of stablelog's classes."""
    found = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [type(one) for one in gc.garbage if type(one).__module__.startswith("stablelog")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def fill(desk, *, rounds=6):
    """Records, commits and aborts in topic `t`, and reads of them."""
    broker = desk.broker
    for number in range(rounds):
        for key in (b"a", b"b", b"c"):
            await desk.produce(encode_batch([Record(0, broker.now_ms(), key, bytes(300))]))
        who = await desk.init("id")
        await desk.add("id", who, ("t", 0))
        record = Record(0, broker.now_ms(), b"d", bytes(300))
        written = encode_batch(
            [record], producer_id=who[0], producer_epoch=who[1], base_sequence=0, transactional=True
        )
        await desk.produce(written, transactional_id="id")
        await desk.end("id", who, number % 2 == 0)
        await desk.durable()
    await read(desk)


async def read(desk):
    for offset in range(4):
        at = desk.broker.partitions.require("t", 0).start_offset + offset
        await desk.fetch("t", 0, at, max_wait_ms=0)
        await desk.fetch("t", 0, at, max_wait_ms=0, isolation=0)
    await desk.offset_at("t", 0, 1)


async def tidy(desk):
    """What a broker does from time to time: copies, retention, compaction, removal of files."""
    broker = desk.broker
    await broker.tiering.copy_all()
    await broker.maintenance.apply_retention()
    await broker.compactor.compact_all()
    await desk.durable()
    broker.clock.advance(3_600_000)
    await broker.maintenance.expire_producers()
    await broker.maintenance.remove_deleted()


@pytest.mark.extended
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", ["made", "opened"])
def test_nothing_of_a_partition_waits_for_the_collector(kind, when, tmp_path):
    """Replaced segments, rewritten ones, those that retention removes, and a partition that is deleted."""
    settings = {"stablelog_remote_url": (tmp_path / "store").as_uri()} if "tiered" in kind else {}
    settings |= {"remote_log_manager_task_interval_ms": 3_600_000, "log_segment_delete_delay_ms": 0}
    disk = SimDisk()

    async def made():
        async with opened(disk, topics=(), **settings) as desk:
            for name in ("warm", "t"):
                desk.broker.topic_files.create(name, 1, KINDS[kind])
            await fill(desk)
            if when == "made":
                await churn(desk)

    async def opened_again():
        async with opened(disk, topics=(), prove=False, **settings) as desk:
            await churn(desk)

    async def churn(desk):
        with garbage() as found:
            await fill(desk, rounds=2)
            await tidy(desk)
            await fill(desk, rounds=2)
            await tidy(desk)
            await read(desk)
            await desk.broker.topic_changes.delete_topic("t")
            desk.broker.clock.advance(3_600_000)
            await desk.broker.maintenance.remove_deleted()
            for _ in range(100):
                await asyncio.sleep(0)
        assert not found

    asyncio.run(asyncio.wait_for(made(), 60))
    if (
        when == "opened"
    ):  # in a loop of its own: the threads of the first broker have ended, and hold nothing of it
        asyncio.run(asyncio.wait_for(opened_again(), 60))


@pytest.mark.extended
def test_a_connection_is_freed_when_it_is_closed():
    async def conversation():
        async with serving() as (server, port):
            server.broker.topic_files.create("t", 1, {})
            assert Desk(server.broker)
            await ask(port, any_request(API_VERSIONS_KEY))
            seen = []
            with no_collector():
                asked = asyncio.create_task(ask(port, any_request(API_VERSIONS_KEY)))
                await until(lambda: server.connections)
                seen += map(weakref.ref, list(server.connections))
                await asked
                await until(lambda: not any(one() for one in seen))

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_a_deleted_group_is_freed():
    async def conversation():
        async with opened() as desk:
            with no_collector():
                coordinator = desk.broker.groups.coordinator
                partitions = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}]
                fields = {
                    "group_id": "g",
                    "member_id": "",
                    "topics": [{"name": "t", "partitions": partitions}],
                }
                await desk.ask_with(8, 6, fields)
                group = weakref.ref(coordinator.table.groups["g"])
                await desk.ask_with(42, 1, {"groups_names": ["g"]})
                await until(lambda: group() is None)

    asyncio.run(asyncio.wait_for(conversation(), 60))


@pytest.fixture
def own_collector():
    """The test may change how garbage is collected."""
    threshold, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.set_threshold(*threshold)
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.mark.extended
def test_no_collection_looks_at_many_objects_however_many_there_are(own_collector, monkeypatch):
    """With CPython's thresholds, a collection would look at 80,000 of these objects and more."""
    looked_at = []
    monkeypatch.setattr("stablelog.broker.loop.garbage.COLLECTION_S_MAX", 0)  # each takes long

    def count(phase, _info):
        if phase == "start":
            looked_at.append(len(gc.get_objects()))

    collect_often()
    gc.callbacks.append(count)
    kept = [[number] for number in range(300_000)]
    assert len(kept) == 300_000
    assert len(looked_at) > 10
    assert max(looked_at) < 25_000


@pytest.mark.parametrize(("seconds", "frozen"), [(COLLECTION_S_MAX * 2, True), (COLLECTION_S_MAX / 2, False)])
def test_what_survives_a_long_full_collection_is_frozen(monkeypatch, seconds, frozen):
    calls = []
    clock = iter([0.0, seconds])
    monkeypatch.setattr("stablelog.broker.loop.garbage.time.thread_time", lambda: next(clock))
    monkeypatch.setattr("stablelog.broker.loop.garbage.gc.freeze", lambda: calls.append("freeze"))
    collector = FreezeAfterLongCollection()
    for generation in (0, 1, 2):
        for phase in ("start", "stop"):
            collector(phase, {"generation": generation})
    assert bool(calls) is frozen
