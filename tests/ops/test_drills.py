"""Several incarnations of one cluster on one store: a primary beside the drill of a restore, an old broker that comes back,
and a restored one. Each keeps what it has acknowledged, and what another one has published is not true of its log.
"""

import asyncio
import logging
import random
import re
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.names import REMOTE_MANIFEST_FILE
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_objects import SimObjects, StoreFaults
from stablelog.tier.manifest import decode_without_parts, encode_manifest
from stablelog.tier.prefix import Prefix
from tests.broker.desk import DATA, batch
from tests.broker.tiering.desk import (
    LOCAL_NOTHING,
    SIMULATED_URL,
    copy,
    simulate_store,
    tiered,
    write_segments,
)
from tests.broker.tiering.world import lines
from tests.ops.test_restore import SELDOM, every_value, range_of, restored

ORDERS = ["offset", "commit"]
KEEPS_LOCAL = {**LOCAL_NOTHING, "local.retention.ms": "-1", "local.retention.bytes": "-1"}


@pytest.fixture
def objects(monkeypatch):
    store = SimObjects(faults=StoreFaults(latency_s=0))
    simulate_store(monkeypatch, store)
    return store


def lives(disk, conversation, order="offset", configs=LOCAL_NOTHING):
    """Run a conversation with a broker on this disk, and stop the broker."""

    async def live():
        async with tiered(
            SIMULATED_URL, disk, configs={**configs, "stablelog.order": order}, **SELDOM
        ) as desk:
            await desk.opened("t", 0)
            return await conversation(desk)

    return asyncio.run(asyncio.wait_for(live(), 60))


async def values(desk):
    """All values that a reader gets."""
    await desk.durable()
    return await every_value(desk, "t", 0, desk.broker.partitions.require("t", 0).high_watermark)


async def produce(desk, value):
    """Produce a record. Return what a fetch of its offset gets."""
    made = await desk.produce(batch(value))
    assert made.error_code is ErrorCode.none
    await desk.durable()
    found = await desk.fetch("t", 0, made.base_offset, isolation=0, max_wait_ms=0)
    assert found.error_code is ErrorCode.none
    assert value in found.records


def published(objects):
    """The last manifest of the topic in the store."""
    prefix = Prefix(ObjectStore(objects, now_s=objects.now_s, sleep=objects.sleep))
    (partition,) = prefix.partitions("t")
    return prefix.last_manifest(partition)


def primary_with_drill(objects, order):
    """A primary that goes on after the drill of a restore, and is stopped. Return its disk and its values."""
    disk = SimDisk()

    async def live(desk):
        await write_segments(desk, 2)
        await copy(desk)
        await asyncio.to_thread(restored, objects)
        await write_segments(desk, 2)
        await copy(desk)
        await produce(desk, b"acknowledged")
        return await values(desk)

    found = lives(disk, live, order)
    assert published(objects).published.restored is not None
    return disk, found


@pytest.mark.extended
def test_a_recorded_manifest_of_another_incarnation_is_not_believed(objects, monkeypatch):
    """The local log shows that no restore has made it."""
    disk, acknowledged = primary_with_drill(objects, "offset")
    path = DATA / "t-0" / REMOTE_MANIFEST_FILE
    recorded = decode_without_parts(disk.read_bytes(path))
    said = published(objects).published.restored
    epochs = LeaderEpochs.decode(disk.read_bytes(DATA / "t-0" / EPOCH_FILE))
    own_epoch = epochs.epoch_of(said.ranges[-1][0])
    in_the_store = replace(said, ranges=((0, 1_000),))  # The local log begins after it.
    for one in (said, replace(said, leader_epoch=own_epoch), in_the_store):
        foreign = recorded._replace(published=recorded.published._replace(restored=one))
        after = SimObjects(faults=StoreFaults(latency_s=0), objects=dict(objects.objects))
        simulate_store(monkeypatch, after)
        started = disk.crash(random.Random(0))
        started.write_atomic(path, encode_manifest(foreign, 0))
        lives(started, check_primary(acknowledged, after))


@pytest.mark.extended
@pytest.mark.parametrize("order", ORDERS)
def test_a_primary_that_goes_on_beside_a_drill_loses_nothing_whenever_it_is_killed(
    objects, monkeypatch, order
):
    """It is killed at each request of its take-over and of its first uploads."""
    disk, acknowledged = primary_with_drill(objects, order)
    kills = []

    def between(_call, _key):
        kills.append((disk.crash(random.Random(len(kills))), dict(objects.objects)))

    objects.between = between
    lives(disk, copy, order)
    assert len(kills) > 20
    for killed, store in kills[:: 1 + len(kills) // 12]:
        after = SimObjects(faults=StoreFaults(latency_s=0), objects=store)
        simulate_store(monkeypatch, after)
        lives(killed, check_primary(acknowledged, after), order)
        lives(killed, check_primary([*acknowledged, b"later"], after), order)
        disk_of_restore, report = restored(after)
        kept = range_of(report, "t", 0).lost_from

        async def read(desk, kept=kept):
            return await every_value(desk, "t", 0, kept)

        found = lives(disk_of_restore, read, order)
        assert found == acknowledged[: len(found)]
        assert len(found) >= len(acknowledged) - 2, "all that was copied"


def check_primary(acknowledged, objects):
    async def check(desk):
        log = desk.broker.partitions.require("t", 0)
        assert log.restored is None
        assert await values(desk) == acknowledged
        await produce(desk, b"later")
        await copy(desk)
        assert await values(desk) == [*acknowledged, b"later"]
        assert published(objects).published.restored is None
        assert published(objects).end_offset == log.remote.end_offset

    return check


def test_a_primary_publishes_its_own_state_after_a_drill_without_a_new_segment(objects):
    """Otherwise readers of the store would look for its next records behind the gap of the drill."""
    disk = SimDisk()

    async def live(desk):
        await write_segments(desk, 1)
        await copy(desk)

    lives(disk, live)
    restored(objects)
    assert published(objects).published.restored is not None

    # Without its record the broker takes over to learn what the store has.
    disk.write_atomic(DATA / "t-0" / REMOTE_MANIFEST_FILE, b"damaged")
    lives(disk, copy)
    assert published(objects).published.restored is None


@pytest.mark.extended
def test_an_old_broker_that_comes_back_stops_no_restored_one(objects, caplog):
    """The restored broker has copied new segments: the log of the old one is another one after what was restored."""
    disk, acknowledged = primary_with_drill(objects, "offset")
    new_disk, report = restored(objects)

    async def go_on(desk):
        await write_segments(desk, 2)
        await copy(desk)
        found = await values(desk)
        before, manifest = chains(objects), published(objects)
        caplog.clear()
        await asyncio.to_thread(lives, disk, come_back)
        assert any("differs from its copy in" in line for line in lines(caplog))
        assert chains(objects) == before, "it has claimed and fenced nothing"
        await write_segments(desk, 1)
        await copy(desk)
        assert desk.broker.partitions.require("t", 0).remote.end_offset > manifest.end_offset
        assert (await values(desk))[: len(found)] == found

    async def come_back(desk):
        await copy(desk)
        assert await values(desk) == acknowledged
        await produce(desk, b"later")

    lives(new_disk, go_on)
    assert range_of(report, "t", 0).lost_from == published(objects).published.restored.ranges[0][0]


async def write_and_copy(desk):
    await write_segments(desk, 1)
    await copy(desk)


def chains(objects):
    """The objects of the chain of the topic."""
    return {key: content for key, content in objects.objects.items() if key.startswith("t.t/")}


@pytest.mark.extended
def test_an_old_broker_takes_over_from_a_restored_one_that_has_copied_nothing(objects, caplog):
    """Both keep what they have acknowledged."""
    disk = SimDisk()

    async def live(desk):
        await write_and_copy(desk)
        await produce(desk, b"acknowledged")
        return await values(desk)

    acknowledged = lives(disk, live)
    new_disk, _ = restored(objects)

    async def go_on(desk):
        await produce(desk, b"by the restored one")
        await copy(desk)
        return await values(desk)

    found = lives(new_disk, go_on)

    async def come_back(desk):
        await write_and_copy(desk)
        assert desk.broker.partitions.require("t", 0).restored is None
        return await values(desk)

    acknowledged += lives(disk, come_back)[len(acknowledged) :]
    assert published(objects).published.restored is None
    caplog.clear()

    async def again(desk):
        await write_and_copy(desk)
        return await values(desk)

    assert lives(new_disk, again)[: len(found)] == found
    assert any("differs from its copy in" in line for line in lines(caplog))
    lives(disk, check_primary(acknowledged, objects))


def test_a_stale_copy_does_not_stop_the_broker_that_owns_the_prefix(objects, caplog):
    """Its log ends before the last copied segment."""
    disk = SimDisk()

    async def live(desk):
        await write_segments(desk, 1)
        await copy(desk)
        stale = disk.crash(random.Random(1))
        await write_segments(desk, 2)
        await copy(desk)
        before = chains(objects)
        caplog.clear()
        await asyncio.to_thread(lives, stale, write_and_copy)
        assert any("are not of the same log" in line for line in lines(caplog))
        assert chains(objects) == before
        await write_segments(desk, 1)
        await copy(desk)
        assert chains(objects) != before, "the owner is not fenced"

    lives(disk, live)


def test_a_stale_copy_does_not_replace_the_dynamic_settings(objects, caplog):
    """Otherwise a later restore would delete what the settings protect."""
    disk = SimDisk()
    kept = {"log.retention.ms": "-1"}

    async def live(desk):
        desk.broker.change_settings({"log.retention.ms": "77"}, {})
        await write_and_copy(desk)
        stale = disk.crash(random.Random(1))
        desk.broker.change_settings(kept, {})
        await write_and_copy(desk)
        caplog.clear()

        async def change(copied):
            await copy(copied)
            copied.broker.change_settings({"log.retention.ms": "78"}, {})
            for _ in range(2):
                await copy(copied)

        await asyncio.to_thread(lives, stale, change)
        told = [line for line in lines(caplog) if "dynamic settings" in line]
        _, report = await asyncio.to_thread(restored, objects)
        assert report.settings == kept
        assert ["are not of the same log" in line for line in told] == [True, True], (
            "one line for each change"
        )

    lives(disk, live)


async def begin(desk):
    """Write a log that is not copied, and its settings: a stale copy has what is copied later, and its beginning."""
    desk.broker.change_settings({"log.retention.ms": "77"}, {})
    await produce(desk, b"before the copy")


async def nothing(_desk):
    """The directory has the id of the cluster and the topic without a record."""


@pytest.mark.parametrize("early", [begin, nothing])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_stale_copy_that_has_copied_nothing_publishes_nothing(objects, caplog, early, is_known):
    """Its log is only the beginning of the right one, or it does not even have the topic (not `is_known`)."""
    disk = SimDisk()
    kept = {"log.retention.ms": "-1"}

    async def live(desk):
        await early(desk)
        stale = disk.crash(random.Random(1))
        if not is_known:
            desk.broker.topic_files.create("later", 1, LOCAL_NOTHING)
        topic = "t" if is_known else "later"
        desk.broker.partitions.require(topic, 0).roll(desk.broker.now_ms())
        await desk.produce(batch(b"acknowledged"), topic=topic)
        await desk.durable()
        desk.broker.change_settings(kept, {})
        await copy(desk)
        before = of_topics(objects)
        caplog.clear()

        async def go_on(copied):
            await copy(copied)
            copied.broker.change_settings({"log.retention.ms": "78"}, {})
            await copy(copied)

        await asyncio.to_thread(lives, stale, go_on)
        _, report = await asyncio.to_thread(restored, objects)
        assert report.settings == kept
        told = [line for line in lines(caplog) if "dynamic settings of this broker are not copied" in line]
        assert len(told) == 2
        assert all("follow docs/guides/back-up.md" in line for line in told)
        if is_known:
            assert any(line.startswith("t-0 cannot be copied") for line in lines(caplog))
        return before

    before = lives(disk, live)
    assert before
    assert all(objects.objects[key] == content for key, content in before.items())


def of_topics(objects):
    """The objects of the topics of clients."""
    return {key: content for key, content in objects.objects.items() if key.startswith(("t.t/", "t.later/"))}


def test_a_stale_copy_with_the_settings_of_the_store_does_not_change_them_later(objects):
    """Its start has nothing to publish. The proof is due when it has."""
    disk = SimDisk()
    kept = {"log.retention.ms": "77"}

    async def live(desk):
        desk.broker.change_settings(kept, {})
        await write_and_copy(desk)
        stale = disk.crash(random.Random(1))
        await write_and_copy(desk)
        count = len([key for key in objects.objects if key.startswith("settings/")])

        async def change(copied):
            await copy(copied)
            copied.broker.change_settings({"log.retention.ms": "78"}, {})
            await copy(copied)

        await asyncio.to_thread(lives, stale, change)
        assert len([key for key in objects.objects if key.startswith("settings/")]) == count
        _, report = await asyncio.to_thread(restored, objects)
        assert report.settings == kept

    lives(disk, live)


def test_settings_that_a_crash_has_kept_from_the_store_are_published_after_the_start(objects):
    disk = SimDisk()

    async def live(desk):
        await write_and_copy(desk)
        desk.broker.change_settings({"log.retention.ms": "-1"}, {})
        return disk.crash(random.Random(1))

    lives(lives(disk, live), copy)
    _, report = restored(objects)
    assert report.settings == {"log.retention.ms": "-1"}


@pytest.mark.extended
def test_a_log_start_of_another_incarnation_deletes_no_local_record(objects, caplog):
    """A restored broker with another retention deletes what the old one still has on its disk."""
    disk = SimDisk()

    async def live(desk):
        await write_segments(desk, 3)
        await copy(desk)
        return await values(desk)

    acknowledged = lives(disk, live, configs=KEEPS_LOCAL)
    new_disk, report = restored(objects)

    async def delete(desk):
        desk.broker.partitions.require("t", 0).deletion.delete_records(range_of(report, "t", 0).lost_from)
        await copy(desk)

    lives(new_disk, delete)
    assert published(objects).log_start > 0
    caplog.clear()

    async def come_back(desk):
        await write_and_copy(desk)
        assert any("has deleted records that this one keeps" in line for line in lines(caplog))
        assert (await values(desk))[: len(acknowledged)] == acknowledged

    for _ in range(2):
        lives(disk, come_back)


def test_records_that_another_incarnation_has_deleted_from_the_store_are_named(objects, caplog):
    """They were only in the store."""
    caplog.set_level(logging.WARNING)
    disk = SimDisk()

    async def live(desk):
        await write_segments(desk, 3)
        await copy(desk)
        return await values(desk), desk.broker.partitions.require("t", 0).start_offset

    acknowledged, local_start = lives(disk, live)
    new_disk, _ = restored(objects)

    async def delete(desk):
        desk.broker.partitions.require("t", 0).deletion.delete_records(4)
        await copy(desk)

    lives(new_disk, delete)

    async def check(desk):
        log = desk.broker.partitions.require("t", 0)
        found = []
        offset = 4
        while offset < local_start:
            answer = await desk.fetch("t", 0, offset, isolation=0, max_wait_ms=5_000)
            assert answer.error_code is ErrorCode.none
            found.append(answer.records)
            offset += 1
        assert log.remote.start_offset == 4

    async def first(desk):
        await write_segments(desk, 1)
        await copy(desk)
        log = desk.broker.partitions.require("t", 0)
        assert log.remote.start_offset == 4 < local_start
        gone = await desk.fetch("t", 0, 3, max_wait_ms=0)
        assert gone.error_code is ErrorCode.offset_out_of_range
        await check(desk)

    lives(disk, first)
    assert any("has deleted the offsets 0 to 3" in one.getMessage() for one in caplog.records)
    assert acknowledged


@pytest.mark.extended
def test_the_documented_way_back_after_a_stale_copy(objects, caplog):
    """The copy was recent, and has copied a segment of its own."""
    disk = SimDisk()

    async def live(desk):
        await write_and_copy(desk)
        await desk.broker.tiering.copy_coordinator_logs()

    lives(disk, live)
    stale = disk.crash(random.Random(1))
    caplog.set_level(logging.INFO)
    caplog.clear()
    lives(stale, write_and_copy)
    said = (re.search(r"has taken broker epoch (\d+)", one.getMessage()) for one in caplog.records)
    epoch = f"{int(next(one for one in said if one)[1]):010}"
    caplog.clear()

    async def refused(desk):
        await produce(desk, b"acknowledged")
        await write_and_copy(desk)
        assert any("are not of the same log" in line for line in lines(caplog))
        return await values(desk)

    acknowledged = lives(disk, refused)
    for key in list(objects.objects):
        chain, _, name = key.rpartition("/")
        if chain.endswith("/manifest") and name.startswith(epoch) and name != f"{epoch}-{0:012}":
            del objects.objects[key]
    caplog.clear()
    lives(disk, check_primary(acknowledged, objects))
    assert not lines(caplog)
    assert published(objects).end_offset > 3
