"""Deleted records of a tiered topic stay deleted: for readers of the store without the broker, and after a restore."""

import asyncio
import contextlib
import random
import shutil

import pytest

from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.ops.restore import restore
from stablelog.spark import count
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_objects import SimObjects, StoreFaults
from tests.broker.desk import DATA, batch, opened
from tests.broker.tiering.desk import LOCAL_NOTHING, log_of, tiered, write_segments
from tests.broker.tiering.restoring import manifests, objects_in
from tests.broker.tiering.test_commit_order import ORDERED, committed, deleted, write
from tests.broker.tiering.world import warnings
from tests.spark.reading import rows

NOW_MS = 1_800_000_000_000
HOURS_MS = 3_600_000
SELDOM = {"stablelog_remote_coordinator_copy_interval_ms": HOURS_MS}
BEFORE = 1  # in the middle of the first segment: no whole segment is deleted


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation, 60))


def manifest_in(tmp_path):
    """The last manifest of `t` in the store."""
    (found,) = [found for one, found in manifests(objects_in(tmp_path)).items() if one.topic == "t"]
    return found


def in_store(tmp_path):
    """The (offset, value) of the records that a reader of the store gets without the broker."""
    given = {"path": tmp_path.as_uri(), "subscribe": "t"}
    found = rows(given, "offset", "value")
    assert count(given) == len(found)
    return found


async def restored(tmp_path, configs):
    """What a consumer gets from a broker that was restored from the store alone."""
    objects = SimObjects(faults=StoreFaults(latency_s=0), objects=objects_in(tmp_path))
    disk = SimDisk()
    store = ObjectStore(objects, now_s=objects.now_s, sleep=objects.sleep)
    await asyncio.to_thread(restore, store, disk, DATA, NOW_MS)
    async with opened(disk, topics=(), stablelog_remote_url=tmp_path.as_uri(), **SELDOM) as desk:
        await desk.opened("t")
        log = log_of(desk)
        log.log.prove_segments()
        start = log.view.start_offset if configs is ORDERED else log.remote.start_offset
        return start, await committed(desk, start)


@contextlib.asynccontextmanager
async def copied(tmp_path, disk=None, configs=LOCAL_NOTHING):
    """A broker whose topic `t` is copied."""
    async with tiered(tmp_path.as_uri(), disk, configs=configs, **SELDOM) as desk:
        if configs is ORDERED:
            await write(desk)
        else:
            await write_segments(desk, 4)
        await desk.durable()
        for _ in range(2):  # the second pass has nothing to do
            await desk.broker.tiering.copy_all()
        yield desk


@pytest.mark.parametrize("moment", ["the next pass", "a clean stop"])
def test_a_deletion_inside_a_segment_is_published(moment, tmp_path):
    async def conversation():
        async with copied(tmp_path) as desk:
            kept = [row for row in in_store(tmp_path) if row[0] >= BEFORE]
            assert await deleted(desk, BEFORE) == BEFORE
            if moment == "the next pass":
                await desk.broker.tiering.copy_all()
                assert manifest_in(tmp_path).log_start == BEFORE
        assert in_store(tmp_path) == kept
        assert manifest_in(tmp_path).log_start == BEFORE
        start, found = await restored(tmp_path, LOCAL_NOTHING)
        assert (start, found[: len(kept)]) == (BEFORE, kept)

    run(conversation())


def test_a_deletion_before_a_kill_is_published_by_the_next_start(tmp_path):
    disk, left = SimDisk(), tmp_path / "left"

    async def conversation():
        async with copied(tmp_path / "store", disk) as desk:
            assert await deleted(desk, BEFORE) == BEFORE
            killed = disk.crash(random.Random(0))
            shutil.copytree(tmp_path / "store", left)  # a clean stop publishes
        assert manifest_in(left).log_start == 0
        async with tiered(left.as_uri(), killed, **SELDOM) as desk:
            await desk.opened("t")
            await desk.broker.tiering.copy_all()
            assert manifest_in(left).log_start == BEFORE

    run(conversation())


@pytest.mark.extended
def test_in_commit_order_the_start_of_the_view_is_published(tmp_path):
    """Records of transactions that are kept may stand before deleted ones, and behind the log start."""
    behind = 0

    async def conversation():
        nonlocal behind
        async with copied(tmp_path, configs=ORDERED) as desk:
            for before in range(1, in_store(tmp_path)[-1][0] + 2, 4):
                start = await deleted(desk, before)
                kept = await committed(desk, start)
                await desk.broker.tiering.copy_all()
                found = in_store(tmp_path)
                assert found == kept[: len(found)]
                assert found or start >= manifest_in(tmp_path).end_offset
                assert await restored(tmp_path, ORDERED) == (start, found)
                behind += start > manifest_in(tmp_path).log_start

    run(conversation())
    assert behind > 3


def test_no_manifest_is_published_if_the_store_has_no_record_that_could_be_read(tmp_path):
    async def conversation():
        async with copied(tmp_path) as desk:
            await deleted(desk, log_of(desk).end_offset)
            await desk.broker.tiering.copy_all()
            published = objects_in(tmp_path).keys()
            for _ in range(3):
                await desk.produce(batch(b"new"))
                await deleted(desk, log_of(desk).end_offset)
                await desk.broker.tiering.copy_all()
            assert objects_in(tmp_path).keys() == published

    run(conversation())


@pytest.mark.extended
def test_a_stop_without_the_store_names_what_is_not_published(tmp_path, caplog):
    async def conversation():
        store = tmp_path / "store"
        async with copied(store) as desk:
            assert await deleted(desk, BEFORE) == BEFORE
            store.rename(tmp_path / "away")
            store.write_text("")
        (line,) = [line for line in warnings(caplog) if "the deletion of records of t-0" in line]
        assert "until this broker is started again" in line

    run(conversation())
