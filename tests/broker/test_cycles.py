"""What ends is freed without the garbage collector, which passes over what it has frozen."""

import asyncio
import contextlib
import gc
import weakref

import pytest

from stablelog.broker.loop.garbage import COLLECTION_S_MAX, FreezeAfterLongCollection, collect_often
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


def test_a_deleted_partition_is_freed():
    async def conversation():
        async with opened(topics=("t",)) as desk:
            await desk.produce(batch(b"v"))
            with no_collector():
                partitions = [weakref.ref(one) for one in desk.broker.topics.get("t").partitions.values()]
                await desk.broker.topic_changes.delete("t")
                await until(lambda: not any(one() for one in partitions))

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_a_connection_is_freed_when_it_is_closed():
    async def conversation():
        async with serving() as (server, port):
            server.broker.topics.create("t", 1, {})
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
