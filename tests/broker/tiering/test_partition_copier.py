"""The copier: a crash or an error at any step loses nothing, and no manifest names a missing object."""

import asyncio
import itertools
import random
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from stablelog.batch.records import Record, encode_batch
from stablelog.broker.tiering.copy_throttle import CopyThrottle
from stablelog.broker.tiering.partition_copier import PUBLISHED_AFTER_S
from stablelog.env.objects.opening import open_store
from stablelog.env.objects.retrying_store import PART_SIZE, Patience
from stablelog.errors import StoreError
from stablelog.testing.s3 import S3Fault, serve_s3
from stablelog.testing.sim_faults import SimulatedCrash
from stablelog.testing.sim_objects import HOSTILE, SimObjects, StoreFaults
from tests.broker.tiering.world import World, chance_of, lines, stop_before
from tests.log.timeline import NOW_MS
from tests.scale import seeds

PATIENT = Patience(limit_s=60, pause_s=0.001, pause_s_max=0.01)


@pytest.fixture(params=[1_000, 1], ids=["whole", "in-parts"])
def part_count(request, monkeypatch):
    """The number of segments in a part of a manifest. With 1, each manifest of more than one segment has parts."""
    monkeypatch.setattr("stablelog.broker.tiering.copy_plans.PART_COUNT", request.param)
    return request.param


def life(world):
    """Copy, delete the copied segments from the local disk, write on, and do the same again."""
    world.copy_all()
    world.drop_local()
    world.partition.deletion.remove_deleted(world.now_ms + 10**9)
    world.write_segments(["- -", "P4 P4a"])
    world.copy_all()
    world.drop_local()


def test_copied_segments_leave_the_local_disk_and_stay_readable(part_count):
    world = World()
    life(world)
    world.check()
    assert len(world.published().parts) == (6 if part_count == 1 else 0)
    assert world.names() == [f"{world.remote.end_offset:020}.log"]
    assert world.partition.start_offset == world.remote.end_offset
    assert world.copier.uploads.count == 7


def test_a_segment_that_is_deleted_during_the_copy_is_no_damage(caplog):
    world = World()
    end_offset = list(world.partition.log.segments)[2].end_offset

    def between(call, _key):
        if call == "upload" and world.partition.start_offset < end_offset:
            world.partition.deletion.delete_records(end_offset)
            world.partition.deletion.remove_deleted(world.now_ms + 10**9)

    world.store_objects.between = between
    world.copy_all()
    assert world.partition.start_offset == end_offset
    assert not world.copier.failed
    world.copy_all()
    assert not lines(caplog)
    assert world.published().end_offset == world.partition.end_offset
    assert world.published().log_start == end_offset


def test_a_slow_copy_publishes_at_least_each_hour():
    """Otherwise `storage clean` could take copied segments for the objects of failed uploads."""
    world = World()
    counts = []

    def between(call, key):
        if call == "upload" and key.endswith(".log"):
            world.now_s += PUBLISHED_AFTER_S * 0.6
            published = world.published()
            counts.append(0 if published is None else len(published.segments))

    world.store_objects.between = between
    world.copy_all()
    assert counts == [0, 0, 2, 2, 4]


def finish(world):
    """Copy the rest, and delete it from the local disk: nothing is lost, and the copies are complete."""
    world.copy_all()
    world.drop_local()
    world.check()
    assert world.remote.end_offset == world.partition.start_offset == world.partition.end_offset


@pytest.mark.extended
@pytest.mark.usefixtures("part_count")
def test_the_broker_may_stop_before_each_request_to_the_store():
    number = 0
    while True:
        world = World()
        seen = stop_before(world.store_objects, number)
        try:
            world.copy_all()
        except SimulatedCrash:
            world.drop_local()  # retention may run at any time
        world.power_failure(chance_of(number))
        world.check()
        finish(world)
        if number not in seen:
            break
        number += 1
    assert number > 15, (
        "there are requests for the check, the cluster, the epoch, the chain and five segments"
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rounds", [1, 2])
def test_the_machine_may_stop_at_each_operation_of_the_disk(rounds):
    for number in itertools.count(1):
        world = World()
        if rounds == 2:
            life(world)
            world.write_segments(["P5 P5c", "-"])
        world.disk.crash_at = world.disk.steps + number
        try:
            world.copy_all()
            world.drop_local()
            world.partition.deletion.remove_deleted(world.now_ms + 10**9)
            break
        except SimulatedCrash:
            stopped = world.disk
            for seed in range(3):
                world.power_failure(chance_of(number, seed), stopped)
                world.check()
            finish(world)
    assert number > 20, "the record of the manifest, the local log start and the removed files are operations"


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", seeds(20))
@pytest.mark.usefixtures("part_count")
def test_a_hostile_store_loses_nothing(seed):
    """Requests are refused, applied without an answer, or applied late; a create is answered "exists" though it failed."""
    objects = SimObjects(seed, HOSTILE)
    world = World(objects)
    for _ in range(3):
        world.copy_all()
        world.drop_local()
        world.write_segments(["- P6", "P6c"])
    objects.faults = StoreFaults()
    world.check()
    world.restart()
    finish(world)


CREATED = ("check/", "cluster", "epoch/", "manifest/")
UPLOADED = ("begin", "part", "complete")
ANSWERS = (
    (503, False),
    (503, True),
    (500, True),
    (0, False),
    (0, True),
)  # a status, and whether the request is applied
S3_FAULTS = [
    *(S3Fault("put", key, *answer) for key in CREATED for answer in (*ANSWERS, (409, False))),
    *(
        S3Fault(kind, key, *answer)
        for kind in ("put", *UPLOADED)
        for key in (".log", ".indexes")
        for answer in ANSWERS
    ),
    *(S3Fault("list", "", *answer) for answer in ANSWERS),
    *(S3Fault("delete", "", *answer) for answer in ANSWERS),
    S3Fault("get"),
    S3Fault("get", status=0),
    S3Fault("get", cut_size=3),
]


@pytest.mark.extended
@pytest.mark.parametrize(
    "counts",
    [(1, 3), pytest.param((3, 1), marks=pytest.mark.night)],
    ids=["once or thrice", "thrice or once"],
)
def test_faults_of_s3_lose_nothing(counts, monkeypatch):
    """By day each fault occurs once, or three times in a row."""
    for fault, count in zip(S3_FAULTS, itertools.cycle(counts), strict=False):
        # An object of one part is uploaded by one put.
        part_size = 50 if fault.kind in UPLOADED else PART_SIZE
        monkeypatch.setattr("stablelog.env.objects.retrying_store.PART_SIZE", part_size)
        with serve_s3() as s3:
            world = World(SimpleNamespace(objects=s3.objects, now_s=time.monotonic, sleep=time.sleep))
            world.start(open_store("s3://bucket", PATIENT, allow_http=True, options=s3.options))
            fails = replace(fault, count=count)
            s3.fail(fails)
            world.copy_all()
            world.drop_local()
            world.check()
            # A request that was applied is not repeated.
            assert fails.count < count, f"the fault has not occurred: {fault}"
            assert world.remote.end_offset == world.partition.start_offset == world.partition.end_offset, (
                fault
            )
            world.copier.close()


@pytest.mark.parametrize("seed", seeds(3))
def test_a_store_that_stops_answering_is_asked_again_in_the_next_pass(seed):
    """The store accepts some requests and then rejects all; the pass fails, and the next one goes on."""
    for number in range(seed % 3, 30, 3):
        world = World()
        objects, made = world.store_objects, itertools.count()

        def between(_call, _key, made=made, objects=objects, number=number):
            objects.is_rejecting = next(made) >= number

        objects.between = between
        failed = False
        try:
            world.copy_all()
        except StoreError:
            failed = True  # the broker has no epoch yet
        failed = failed or world.partition in world.copier.failed
        objects.between = lambda _call, _key: None
        assert failed is objects.is_rejecting
        objects.is_rejecting = False
        world.drop_local()
        world.check()
        finish(world)
        assert not world.copier.failed


def slow_world():
    """A world whose copies would take a day, and an event that is set when a copy waits for its turn."""
    world = World()
    slept = threading.Event()

    def sleep(seconds):
        slept.set()
        time.sleep(min(seconds, 0.001))

    world.start(throttle=CopyThrottle(lambda: 1, sleep=sleep))
    return world, slept


def test_the_end_of_the_broker_stops_a_slow_copy():
    world, slept = slow_world()

    async def life():
        copying = asyncio.create_task(world.copier.copy_all([world.partition]))
        await asyncio.to_thread(slept.wait, 60)
        copying.cancel()
        await asyncio.gather(copying, return_exceptions=True)
        world.copier.close()

    asyncio.run(life())
    assert not world.published().segments if world.published() else True
    world.start()
    finish(world)


def test_a_topic_that_is_deleted_during_a_copy_is_left_at_once():
    world, slept = slow_world()

    async def life():
        copying = asyncio.create_task(world.copier.copy_all([world.partition]))
        await asyncio.to_thread(slept.wait, 60)
        assert world.copier.is_copying("t")
        await world.copier.stop_copying("other")
        assert world.copier.is_copying("t")
        await world.copier.stop_copying("t")
        assert not world.copier.is_copying("t")
        await copying
        world.copier.close()

    asyncio.run(life())
    assert world.published() is None
    assert not world.copier.failed, "a copy that was stopped has not failed"


def test_a_manifest_says_where_the_log_ends_and_which_settings_the_topic_has():
    world = World()
    world.write("-")
    world.copy_all()
    said = world.published().published
    assert (said.log_end, said.partition_count, said.configs) == (
        world.partition.end_offset,
        1,
        {"remote.storage.enable": "true"},
    )
    assert said.log_end > world.published().end_offset


def test_records_that_are_not_durable_may_be_lost_after_a_manifest_was_published():
    """Otherwise the broker would be refused after the power failure, because its log ends before its last manifest."""
    world = World()
    world.write("-")
    world.write("- - -", sync=False)
    durable = world.partition.high_watermark
    assert durable < world.partition.end_offset
    world.copy_all()
    assert world.published().end_offset < world.published().published.log_end == durable
    stopped, end_offset = world.disk, world.partition.end_offset
    for number in itertools.count():
        world.power_failure(random.Random(number), stopped)
        if world.partition.end_offset < end_offset:
            break
    assert world.partition.end_offset >= durable
    world.write_segments(["-"])
    world.copy_all()
    assert not world.copier.failed
    assert world.published().end_offset == world.partition.end_offset


def test_other_settings_of_the_topic_are_published_without_a_new_segment():
    world = World()
    world.copy_all()
    before = world.published()
    world.configs = {"remote.storage.enable": "true", "retention.ms": "5"}
    world.copy_all()
    after = world.published()
    assert after.published.configs == world.configs
    assert after.segments == before.segments


def test_segments_are_copied_in_order_over_a_slow_link():
    """A segment takes longer than the first time limit of an upload. The copier finds out the rate, and goes on."""
    objects = SimObjects(faults=StoreFaults(latency_s=0), rate=66_000)
    world = World(objects, words=())
    ends = []
    for number in range(3):
        for log in (world, world.plain):
            batch = encode_batch([Record(0, NOW_MS, None, bytes([number]) * 700_000)])
            for _ in range(2):
                log.partition.append(batch, now_ms=NOW_MS)
            log.partition.roll(NOW_MS)
            log.sync()
    for _ in range(10):
        world.copy_all()
        manifest = world.published()
        ends.append(0 if manifest is None else manifest.end_offset)
    assert ends == sorted(ends)
    assert ends[-1] == 6
    assert objects.moved_size < 2 * 3 * 1_400_000
    world.drop_local()
    world.check()
