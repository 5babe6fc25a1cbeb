"""What the copier deletes from the store: segments before the log start, and objects that a failed upload or a crash left."""

import asyncio
import uuid

import pytest

from stablelog.env.objects.attempts import RejectedError
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_faults import SimulatedCrash
from stablelog.tier.deletion import named_keys
from stablelog.tier.names import INDEXES
from stablelog.tier.pins import Pin, encode_pin
from stablelog.tier.records import SegmentState
from tests.broker.tiering.test_metadata_topic import tiered as tiered_with_events
from tests.broker.tiering.world import DELAY_S, World, chance_of, lines, stop_before
from tests.tier.tiered_log import PARTITION

AT_ONCE = {"stablelog_remote_delete_delay_ms": 0}


def objects_of(world):
    """The keys of the partition's segments and parts in the store."""
    keys = {key for key in world.store_objects.objects if key.startswith(PARTITION.directory)}
    return {key for key in keys if "/manifest/" not in key}


def wait(world):
    """Let time pass, until what can be deleted is deleted."""
    for _ in range(4):
        world.now_s += DELAY_S
        world.copy_all()


def check_whole(world):
    """The store has what the manifest names, and nothing else; readers see the whole log."""
    assert objects_of(world) == named_keys(PARTITION, world.published())
    world.drop_local()
    world.check()


def test_the_objects_of_a_failed_upload_are_deleted():
    world = World()
    world.copy_all()
    wait(world)
    count = 0

    def between(call, key):
        nonlocal count
        if call == "upload" and key.endswith(INDEXES):
            count += 1
            raise RejectedError("no")

    world.write_segments(["- -"])
    world.store_objects.between = between
    world.copy_all()
    assert count == 1
    assert len(objects_of(world) - named_keys(PARTITION, world.published())) == 1
    world.store_objects.between = lambda _call, _key: None
    wait(world)
    check_whole(world)


def test_the_objects_of_an_upload_that_a_crash_ended_are_deleted():
    world = World()
    world.copy_all()
    world.write_segments(["- -", "P4 P4a"])
    stop_before(world.store_objects, 2)
    with pytest.raises(SimulatedCrash):
        world.copy_all()
    world.power_failure(chance_of("a crash"))
    world.copy_all()
    assert objects_of(world) - named_keys(PARTITION, world.published())
    wait(world)
    check_whole(world)


def test_a_store_that_refuses_deletions_stops_no_copy_and_is_logged_once(caplog):
    world = World()
    world.copy_all()
    world.drop_local()
    world.partition.deletion.delete_records(world.published().segments[1].end_offset)
    world.copy_all()

    def between(call, _key):
        if call == "delete":
            raise RejectedError("only copies")

    world.store_objects.between = between
    for _ in range(3):
        wait(world)
        world.write_segments(["- -"])
        world.copy_all()
    assert [line.partition(";")[0] for line in lines(caplog)] == ["sim://store: objects cannot be deleted"]
    assert not world.copier.failed
    assert len(world.published().segments) == 8
    world.store_objects.between = lambda _call, _key: None
    wait(world)
    assert len(world.published().segments) == 6
    assert objects_of(world) == named_keys(PARTITION, world.published())


def test_a_crash_at_any_request_of_a_deletion_leaves_nothing_behind():
    number = 0
    while True:
        world = World()
        world.copy_all()
        world.drop_local()
        world.partition.deletion.delete_records(world.published().segments[1].end_offset)
        world.copy_all()
        world.now_s += DELAY_S
        seen = stop_before(world.store_objects, number)
        try:
            world.copy_all()
        except SimulatedCrash:
            world.power_failure(chance_of(number))
        else:
            assert number == len(seen) > 4
            return
        wait(world)
        assert objects_of(world) == named_keys(PARTITION, world.published())
        assert len(world.published().segments) == 3
        number += 1


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_crash_after_the_last_segment_was_deleted_is_no_loss(is_pinned):
    """The record on the disk still has segments that the last manifest does not name."""
    world = World()
    world.copy_all()
    world.drop_local()
    if is_pinned:
        world.store_objects.objects[PARTITION.pin_key(uuid.uuid4())] = encode_pin(Pin(0, 1, "a test"))
    world.partition.deletion.delete_records(world.published().end_offset)
    world.copy_all()
    world.now_s += DELAY_S
    steps = world.disk.steps
    world.store_objects.between = lambda call, key: (
        call == "create" and setattr(world.disk, "crash_at", world.disk.steps + 1)
    )
    with pytest.raises(SimulatedCrash):
        world.copy_all()
    assert world.disk.steps > steps
    assert len(world.published().segments) == is_pinned
    world.power_failure(chance_of("a crash"))
    world.write_segments(["- -"])
    world.copy_all()
    assert not world.copier.failed
    assert world.published().end_offset == world.partition.end_offset


def test_a_publication_that_fails_after_a_deletion_is_repeated():
    world = World()
    world.copy_all()
    world.drop_local()
    world.partition.deletion.delete_records(world.published().end_offset)
    world.copy_all()
    world.now_s += DELAY_S

    def between(call, _key):
        if call == "create":
            raise RejectedError("no")

    world.store_objects.between = between
    world.copy_all()
    assert world.copier.failed
    deleted = []
    world.store_objects.between = lambda call, key: call == "delete" and deleted.append(key)
    world.copy_all()
    assert not world.copier.failed
    assert world.published().segments == ()
    assert not deleted, "the objects are gone already"


def test_deleted_records_leave_the_store_and_the_topic_of_events_tells_it(tmp_path):
    disk = SimDisk()

    def stored(one):
        """The base offsets of the segments in the store."""
        return sorted(int(path.name[:20]) for path in (tmp_path / "store").rglob("*.log"))

    async def body():
        async with tiered_with_events(tmp_path, disk, **AT_ONCE) as one:
            one.create()
            await one.write(segments=3)
            await one.copy()
            pin = tmp_path / "store" / one.remote().pin_key(uuid.uuid4())
            pin.parent.mkdir()
            pin.write_bytes(encode_pin(Pin(0, 1, "a test")))
            one.broker.partitions.require("t", 0).deletion.delete_records(2)
            await one.copy()
            assert stored(one) == [0, 2], "the pin keeps the first segment"
            samples = {name: value for name, _, value in one.broker.tiering.samples()}
            assert samples["stablelog_remote_deleted_segments"] == 1
            pin.unlink()
        async with tiered_with_events(tmp_path, disk, **AT_ONCE) as one:
            await one.desk.opened("t")
            assert stored(one) == [0, 2]
            await one.copy()
            assert stored(one) == [2], "a start deletes, also if there is no segment to copy"
            assert [row.base_offset for row in one.manifest().segments] == [2]
            assert (0, SegmentState.DELETE_FINISHED) in one.events()
            assert (1, SegmentState.DELETE_FINISHED) in one.events()
            assert (2, SegmentState.DELETE_STARTED) not in one.events()

    asyncio.run(body())


def test_a_long_deletion_ends_when_the_topic_is_deleted():
    """`leave` waits for the run under way, and no further one begins."""
    world = World()
    world.plan.deleted_at_once = 1
    world.copy_all()
    world.drop_local()
    world.partition.deletion.delete_records(world.published().segments[3].end_offset)
    world.copy_all()
    world.now_s += DELAY_S
    deleted = []

    async def body():
        loop = asyncio.get_running_loop()

        def between(call, key):
            if call == "delete":
                deleted.append(key)
                if len(deleted) == 1:
                    asyncio.run_coroutine_threadsafe(world.copier.stop_copying("t"), loop)

        world.store_objects.between = between
        await world.copier.delete_all([world.partition])

    asyncio.run(body())
    assert len(deleted) == 2, "the objects of one segment"
    assert len(world.published().segments) == 4
