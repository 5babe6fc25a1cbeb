"""The copies of the coordinators' logs: what the store has of them at any time is enough to make a broker again."""

import asyncio
import contextlib
import itertools
import random
import threading
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

import stablelog
from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.coordinators.consumer_groups.records import encode_group_key
from stablelog.env.objects.attempts import UnclearError
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import StoreError
from stablelog.log.partition import Isolation
from stablelog.testing.sim_clock import SimClock
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_objects import HOSTILE, SimObjects, StoreFaults
from stablelog.tier.chain import MANIFESTS_KEPT
from tests.broker.apis.test_joint_apis import committed_offset
from tests.broker.apis.test_txn_offset_commit import add_offsets, commit
from tests.broker.desk import ABORT, COMMIT, DATA, batch, opened
from tests.broker.tiering.desk import LOCAL_NOTHING, SIMULATED_URL, simulate_store
from tests.broker.tiering.restoring import live_rows, manifests, objects_in, restored
from tests.broker.tiering.world import lines, warnings
from tests.scale import seeds
from tests.waiting import until

NONE = ErrorCode.none
HOURS_MS = 3_600_000
SELDOM = {
    "remote_log_manager_task_interval_ms": HOURS_MS,
    "stablelog_remote_coordinator_copy_interval_ms": HOURS_MS,
}


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), 60))


class Pipeline:
    """A producer whose transaction number n writes a record to `t` and commits the offset n of the group `g`. All its
    transactions have the same producer epoch.
    """

    def __init__(self, desk):
        self.desk = desk
        self.number = 0  # of the last transaction
        self.who = None

    @property
    def last(self):
        """The number of the last transaction that was decided."""
        return self.desk.broker.transactions.default.coordinator.table.sequences.last

    async def begin(self):
        """Begin a transaction, up to its end."""
        self.who = self.who or await self.desk.init("a")
        assert await self.desk.add("a", self.who, ("t", 0)) == [NONE]
        records = batch(b"%d" % (self.number + 1), producer=self.who, sequence=self.number)
        self.number += 1
        assert (await self.desk.produce(records, transactional_id="a")).error_code is NONE
        assert await add_offsets(self.desk, self.who) is NONE
        assert await commit(self.desk, 3, self.who, offset=self.number) is NONE

    async def end(self):
        assert (await self.desk.end("a", self.who, COMMIT)).error_code is NONE

    async def transact(self, count=1):
        for _ in range(count):
            await self.begin()
            await self.end()


async def state_of(objects):
    """What a broker finds that starts from the objects: last commit sequence, committed offset, values in `t`."""
    disk = await restored(objects, "t")
    async with opened(disk, topics=()) as desk:
        await desk.opened("t")
        await desk.durable()
        table = desk.broker.transactions.default.coordinator.table
        return table.sequences.last, max(committed_offset(desk), 0), committed_values(desk)


def committed_values(desk):
    """The committed values in all segments of `t`, except those of records outside transactions."""
    log = desk.broker.partitions.require("t", 0)
    log.log.prove_segments()
    found, offset = [], log.start_offset
    while offset < log.last_stable_offset:
        read = log.read(offset, 1 << 20, Isolation.READ_COMMITTED)
        assert not read.aborted, "the pipelines that copy topics commit"
        data, offset = b"".join(read.buffers), read.end_offset
        headers = [(at, header) for at, header in headers_in(data) if header.is_transactional]
        found += [
            record.value
            for at, header in headers
            if not header.is_control
            for record in decode_records(data, at)
        ]
    return found


def test_groups_and_commit_sequences_are_in_the_store(tmp_path):
    async def conversation():
        async with opened(
            topics=("t",), partitions=1, stablelog_remote_url=tmp_path.as_uri(), **SELDOM
        ) as desk:
            pipeline = Pipeline(desk)
            await pipeline.transact(3)
            await desk.broker.tiering.copy_coordinator_logs()
            assert await state_of(objects_in(tmp_path)) == (3, 3, [])
            await pipeline.begin()
            await desk.broker.tiering.copy_coordinator_logs()
            assert await state_of(objects_in(tmp_path)) == (3, 3, [])
            await pipeline.end()
            await desk.broker.tiering.copy_coordinator_logs()
            assert await state_of(objects_in(tmp_path)) == (4, 4, [])

    run(conversation)


class Watched(SimDisk):
    """A disk that lets a test act before each operation that changes it."""

    before = staticmethod(lambda: None)

    def step(self, what, torn=None, path=None):
        super().step(what, torn, path)
        self.before()


@contextlib.asynccontextmanager
async def simulated(monkeypatch, objects, disk=None, **settings):
    """A broker whose store is simulated, with a tiered topic `t`."""
    simulate_store(monkeypatch, objects)
    settings = {"stablelog_remote_url": SIMULATED_URL, **SELDOM, **settings}
    async with opened(disk, topics=(), **settings) as desk:
        if desk.broker.topics.get("t") is None:
            desk.broker.topic_files.create("t", 1, LOCAL_NOTHING)
        await desk.opened("t")
        yield desk


async def life(desk, pipeline, told):
    """Rounds, copies of `t`, and trims, with a transaction that is open meanwhile. `told` is called after each round with
    the number of the last transaction that was decided before it.
    """
    broker, log = desk.broker, desk.broker.partitions.require("t", 0)

    async def copied():
        before = pipeline.last
        await broker.tiering.copy_coordinator_logs()
        told(before)

    for _ in range(2):
        await pipeline.transact(2)
        await copied()
        await pipeline.begin()
        await broker.maintenance.trim_logs()
        await copied()
        await pipeline.end()
        await broker.maintenance.trim_logs()
        await pipeline.transact()
        log.roll(broker.now_ms())
        await desk.produce(batch(b"0"))
        await broker.tiering.copy_all()
        await broker.maintenance.trim_logs()
        await pipeline.begin()
        await copied()
        await pipeline.end()


STRIDE = 60


@pytest.mark.extended
@pytest.mark.parametrize("seed", seeds(6))
def test_the_machine_may_be_lost_before_each_operation_of_the_disk_and_of_the_store(monkeypatch, seed):
    """What is in the store then makes a broker that knows each decision of which a copy of the topic has a marker, and the
    offsets that were committed with it. A machine that starts again copies on.
    """
    monkeypatch.setattr("stablelog.broker.durability.journal.CHECKPOINT_SIZE_MIN", 1)
    objects, disk, chance = SimObjects(), Watched(), random.Random(seed)
    moments = []
    count = itertools.count()
    floor = 0

    async def conversation():
        nonlocal floor
        async with simulated(monkeypatch, objects, disk) as desk:
            pipeline = Pipeline(desk)

            def look(*_request):
                if next(count) % STRIDE == seed % STRIDE:
                    moments.append((dict(objects.objects), disk.crash(chance), floor, pipeline.number))

            def told(number):
                nonlocal floor
                floor = number

            disk.before = objects.between = look
            await life(desk, pipeline, told)
            disk.before = objects.between = lambda *_request: None
        for kept, left, least, most in moments:
            sequence, offset, values = await state_of(kept)
            assert least <= offset <= sequence <= most
            assert values == [b"%d" % number for number in range(1, len(values) + 1)]
            assert len(values) <= offset
            again = SimObjects(objects=dict(kept))
            async with simulated(monkeypatch, again, left) as desk:
                pipeline = Pipeline(desk)
                assert pipeline.last >= sequence
                await desk.broker.tiering.copy_coordinator_logs()
                assert (await state_of(again.objects))[:2] == (pipeline.last, max(committed_offset(desk), 0))

    run(conversation)
    assert len(moments) > 3


def test_a_decision_is_trimmed_only_when_its_marker_is_in_the_store(monkeypatch):
    """The copied offsets log has an open transaction. Its decision is trimmed, and the next one is an abort."""
    monkeypatch.setattr("stablelog.broker.durability.journal.CHECKPOINT_SIZE_MIN", 1)
    objects, kept = SimObjects(), []

    def look(call, key):
        if call == "create" and key.startswith("t.__consumer_offsets/") and "/manifest/" in key:
            kept.append(dict(objects.objects))

    async def conversation():
        async with simulated(monkeypatch, objects) as desk:
            pipeline, log = Pipeline(desk), desk.broker.transactions.default.journal.partition
            await pipeline.begin()
            await desk.broker.tiering.copy_coordinator_logs()
            await pipeline.end()
            await desk.broker.maintenance.trim_logs()
            assert log.start_offset > 0
            await pipeline.begin()
            await desk.end("a", pipeline.who, ABORT)
            objects.between = look
            await desk.broker.tiering.copy_coordinator_logs()
            objects.between = lambda *_request: None
            found = {one.topic: manifest for one, manifest in manifests(kept[0]).items()}
            assert found["__transaction_state"].log_start == log.start_offset
        assert (await state_of(kept[0]))[:2] == (1, 1)

    run(conversation)


def test_offsets_of_an_open_transaction_are_copied_with_the_checkpoint(monkeypatch):
    """The log is trimmed beside it. In the store, its decision may be copied before its marker."""
    monkeypatch.setattr("stablelog.broker.durability.journal.CHECKPOINT_SIZE_MIN", 1)
    monkeypatch.setattr("stablelog.broker.durability.journal.CHECKPOINT_GROWTH", 1)
    objects, kept = SimObjects(), []

    def look(call, key):
        if call == "create" and key.startswith("t.__consumer_offsets/") and "/manifest/" in key:
            kept.append(dict(objects.objects))

    async def conversation():
        async with simulated(monkeypatch, objects) as desk:
            pipeline, log = Pipeline(desk), desk.broker.groups.journal.partition
            await pipeline.transact()
            await pipeline.begin()
            for _ in range(2):
                begin = log.end_offset
                await desk.broker.maintenance.trim_logs()
                assert log.start_offset == begin
                desk.broker.groups.journal.append([(encode_group_key("other"), None)])
                await desk.broker.tiering.copy_coordinator_logs()
                found = {one.topic: manifest for one, manifest in manifests(objects.objects).items()}
                assert found["__consumer_offsets"].log_start == begin
                assert (await state_of(objects.objects))[:2] == (1, 1)
            await pipeline.end()
            objects.between = look
            await desk.broker.tiering.copy_coordinator_logs()
            objects.between = lambda *_request: None
        assert (await state_of(kept[0]))[:2] == (2, 2)
        assert (await state_of(objects.objects))[:2] == (2, 2)

    run(conversation)


def test_what_a_topic_gets_during_a_round_is_not_copied_with_it(monkeypatch):
    objects = SimObjects()

    async def conversation():
        loop = asyncio.get_running_loop()
        async with simulated(monkeypatch, objects) as desk:
            pipeline, log = Pipeline(desk), desk.broker.partitions.require("t", 0)

            async def go_on():
                await pipeline.transact()
                log.roll(desk.broker.now_ms())
                await desk.produce(batch(b"0"))

            def between(call, key):
                if call == "create" and key.startswith("t.__transaction_state/"):
                    objects.between = lambda *_request: None
                    asyncio.run_coroutine_threadsafe(go_on(), loop).result(20)

            await go_on()
            objects.between = between
            await desk.broker.tiering.copy_all()
            assert pipeline.number == 2
            sequence, offset, values = await state_of(objects.objects)
            assert (sequence, offset, values) == (1, 1, [b"1"])
            await desk.broker.tiering.copy_all()
            sequence, offset, values = await state_of(objects.objects)
            assert (sequence, offset, values) == (2, 2, [b"1", b"2"])

    run(conversation)


@pytest.mark.extended
def test_a_marker_in_the_copied_offsets_log_has_its_decision_in_the_copied_commit_log(monkeypatch):
    """A transaction ends while a round rolls many logs, one in each turn of the event loop."""
    monkeypatch.setattr("stablelog.broker.loop.turns.TURN_S", -1)
    objects, found = SimObjects(), set()

    async def conversation():
        async with simulated(monkeypatch, objects) as desk:
            for group in range(20):
                await desk.init(f"g{group}/x")
            pipeline = Pipeline(desk)
            await desk.broker.tiering.copy_coordinator_logs()
            for turns in (0, 1, 2, 5):
                for group in range(20):
                    await desk.init(f"g{group}/x")
                await pipeline.begin()
                end = asyncio.create_task(pipeline.end())
                for _ in range(turns):
                    await asyncio.sleep(0)
                await desk.broker.tiering.copy_coordinator_logs()
                await end
                sequence, offset, _ = await state_of(objects.objects)
                found.add(pipeline.number - sequence)
                assert sequence == offset

    run(conversation)
    assert found == {0, 1}, "some rounds have the decision, and some do not"


def test_an_idle_broker_sends_no_request_and_a_busy_one_three_for_each_log(monkeypatch):
    objects, disk = SimObjects(), SimDisk()
    seen = []
    objects.between = lambda call, key: seen.append((call, key.split("/")[0]))

    async def conversation():
        async with simulated(monkeypatch, objects, disk) as desk:
            pipeline = Pipeline(desk)
            await desk.broker.tiering.copy_coordinator_logs()
            assert not seen, "the logs are empty"
            await pipeline.transact()
            await desk.broker.tiering.copy_coordinator_logs()
            for _ in range(2):
                seen.clear()
                await desk.broker.tiering.copy_coordinator_logs()
                assert not seen
                await pipeline.transact()
                await desk.broker.tiering.copy_coordinator_logs()
                one = ["upload", "upload", "create"]
                logs = ("t.__transaction_state", "t.__consumer_offsets")
                assert seen == [(call, log) for log in logs for call in one]
            seen.clear()
        assert not seen, "the stop of an idle broker"
        async with simulated(monkeypatch, objects, disk) as desk:
            await desk.broker.tiering.copy_coordinator_logs()
            assert not seen, "the start of an idle broker"

    run(conversation)


def test_a_clean_stop_copies_the_rest(monkeypatch):
    objects = SimObjects()

    async def conversation():
        async with simulated(monkeypatch, objects) as desk:
            await Pipeline(desk).transact(2)
            assert not objects.objects
        assert (await state_of(objects.objects))[:2] == (2, 2)

    run(conversation)


def test_old_manifests_are_deleted_after_a_copy_and_not_at_a_stop(monkeypatch):
    """A stop waits for the last copy for a short time only."""
    monkeypatch.setattr("stablelog.tier.deletion.MANIFEST_COUNT_MAX", 0)
    objects = SimObjects()

    def manifest_count():
        return sum(is_publication("create", key) for key in objects.objects if "__transaction_state" in key)

    async def conversation():
        async with simulated(monkeypatch, objects) as desk:
            pipeline = Pipeline(desk)
            for _ in range(15):
                await pipeline.transact()
                await desk.broker.tiering.copy_coordinator_logs()
            assert manifest_count() == MANIFESTS_KEPT
            await pipeline.transact()
        assert manifest_count() == MANIFESTS_KEPT + 1

    run(conversation)


STOP_S = 1.0  # enough for all steps of a copy before a request that is held, on a busy machine, too


def is_publication(call, key):
    return call == "create" and "/manifest/" in key and not key.endswith(f"-{0:012}")


@pytest.mark.extended
@pytest.mark.parametrize("is_held", [lambda _call, _key: True, is_publication], ids=["first", "publication"])
def test_a_stop_does_not_wait_for_a_store_that_does_not_answer(monkeypatch, caplog, is_held):
    """When the store answers at last, the broker that has stopped writes nothing."""
    monkeypatch.setattr("stablelog.broker.tiering.tiering.STOP_S", STOP_S)
    objects, disk = SimObjects(faults=StoreFaults(latency_s=0)), SimDisk()
    released, answered = threading.Event(), []

    def wait(call, key):
        if is_held(call, key):
            released.wait(60)
            answered.append(True)

    async def conversation():
        async with simulated(monkeypatch, objects, disk) as desk:
            await Pipeline(desk).transact()
            objects.between = wait
        assert not answered
        steps = disk.steps
        released.set()
        (task,) = [one for one in asyncio.all_tasks() if "last copy" in one.get_name()]
        await task
        assert answered
        assert disk.steps == steps
        async with simulated(monkeypatch, SimObjects(), disk) as desk:
            assert Pipeline(desk).last == 1

    run(conversation)
    assert any(f"on the local disk only: no answer within {STOP_S:g} s" in line for line in warnings(caplog))
    assert not lines(caplog)


def test_a_stop_ends_the_attempts_of_a_publication_that_is_under_way(monkeypatch):
    monkeypatch.setattr("stablelog.broker.tiering.tiering.STOP_S", 0.05)
    tried = []

    def between(call, key):
        if is_publication(call, key):
            tried.append(key)
            raise UnclearError("503")

    objects = SimObjects(faults=StoreFaults(latency_s=0), between=between)
    store = ObjectStore(objects)  # It waits by a real clock, for up to 30 s.
    monkeypatch.setattr("stablelog.env.objects.opening.open_store", lambda _url, **_options: store)

    async def conversation():
        async with opened(partitions=1, stablelog_remote_url="file:///simulated", **SELDOM) as desk:
            await Pipeline(desk).transact()
            desk.broker.tasks.start("a copy", desk.broker.tiering.copy_coordinator_logs)
            while len(tried) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    begun_s = time.monotonic()
    run(conversation)
    assert time.monotonic() - begun_s < 10


def test_a_stop_does_not_ask_a_store_that_has_failed_before(monkeypatch):
    objects, asked = SimObjects(), []

    async def conversation():
        async with simulated(monkeypatch, objects) as desk:
            await Pipeline(desk).transact()
            objects.is_rejecting = True
            with pytest.raises(StoreError):
                await desk.broker.tiering.copy_coordinator_logs()
            objects.between = lambda *request: asked.append(request)

    run(conversation)
    assert not asked


def test_a_log_that_was_trimmed_while_the_store_was_away_is_copied_from_its_new_start(monkeypatch):
    monkeypatch.setattr("stablelog.broker.durability.journal.CHECKPOINT_SIZE_MIN", 1)
    objects = SimObjects()

    async def conversation():
        async with simulated(monkeypatch, objects) as desk:
            pipeline = Pipeline(desk)
            await pipeline.transact()
            await desk.broker.tiering.copy_coordinator_logs()
            objects.is_rejecting = True
            for _ in range(3):
                await pipeline.transact()
                await desk.broker.tiering.copy_coordinator_logs()
                await desk.broker.maintenance.trim_logs()
            objects.is_rejecting = False
            await desk.broker.tiering.copy_coordinator_logs()
            assert await state_of(objects.objects) == (4, 4, [])
            await pipeline.transact()
            await desk.broker.tiering.copy_coordinator_logs()
            assert await state_of(objects.objects) == (5, 5, [])

    run(conversation)


def test_a_log_whose_record_is_lost_is_copied_from_its_new_start(monkeypatch):
    monkeypatch.setattr("stablelog.broker.durability.journal.CHECKPOINT_SIZE_MIN", 1)
    objects, disk = SimObjects(), SimDisk()

    async def conversation():
        async with simulated(monkeypatch, objects, disk) as desk:
            pipeline = Pipeline(desk)
            await pipeline.transact()
            await desk.broker.tiering.copy_coordinator_logs()
            objects.is_rejecting = True
            await pipeline.transact()
            await desk.broker.maintenance.trim_logs()
        objects.is_rejecting = False
        disk.remove(DATA / "__transaction_state-0" / "remote-manifest")
        disk.write_atomic(DATA / "__consumer_offsets-0" / "remote-manifest", b"damaged")
        async with simulated(monkeypatch, objects, disk) as desk:
            await desk.broker.tiering.copy_coordinator_logs()
            assert await state_of(objects.objects) == (2, 2, [])

    run(conversation)


def test_a_log_that_was_trimmed_up_to_its_end_before_it_was_copied_keeps_no_topic_waiting(monkeypatch):
    """The last group was deleted while the store was away, so the checkpoint of the groups is empty."""
    monkeypatch.setattr("stablelog.broker.durability.journal.CHECKPOINT_SIZE_MIN", 1)
    objects = SimObjects()

    async def conversation():
        async with simulated(monkeypatch, objects) as desk:
            groups, log = desk.broker.groups, desk.broker.partitions.require("t", 0)
            await Pipeline(desk).transact()
            log.roll(desk.broker.now_ms())
            await desk.produce(batch(b"0"))
            await desk.broker.tiering.copy_coordinator_logs()
            objects.is_rejecting = True
            groups.apply_decision(groups.coordinator.delete_groups(["g"], now_ms=desk.broker.now_ms()))
            await desk.broker.maintenance.trim_logs()
            assert groups.journal.partition.start_offset == groups.journal.partition.end_offset
            objects.is_rejecting = False
            await desk.broker.tiering.copy_all()
            assert log.remote.end_offset > 0

    run(conversation)


def test_a_topic_waits_for_the_logs_of_the_coordinators(monkeypatch, caplog):
    """The manifest of the offsets log is damaged: nothing of `t` is copied, and the log says why."""
    objects, disk = SimObjects(), SimDisk()

    async def conversation():
        async with simulated(monkeypatch, objects, disk) as desk:
            await Pipeline(desk).transact()
        (key,) = [
            key
            for key, content in objects.objects.items()
            if key.startswith("t.__consumer_offsets/") and "/manifest/" in key and len(content) > 100
        ]
        good, objects.objects[key] = objects.objects[key], objects.objects[key][:-1]
        async with simulated(monkeypatch, objects, disk) as desk:
            log = desk.broker.partitions.require("t", 0)
            await desk.commit("a", await desk.init("a"))
            assert await add_offsets(desk, who := await desk.init("a")) is NONE
            assert await commit(desk, 3, who, offset=2) is NONE
            log.roll(desk.broker.now_ms())
            await desk.produce(batch(b"0"))
            await desk.broker.tiering.copy_all()
            assert log.remote.end_offset == 0
            objects.objects[key] = good
            await desk.broker.tiering.copy_all()
            assert log.remote.end_offset > 0

    run(conversation)
    assert any("__consumer_offsets-0 cannot be copied to sim://store" in line for line in lines(caplog))


def test_a_manifest_of_many_segments_has_parts(monkeypatch):
    monkeypatch.setattr("stablelog.broker.tiering.copy_plans.COORDINATOR_PART_COUNT", 2)
    objects = SimObjects()

    async def conversation():
        async with simulated(monkeypatch, objects) as desk:
            pipeline = Pipeline(desk)
            for _ in range(7):
                await pipeline.transact()
                await desk.broker.tiering.copy_coordinator_logs()
            for manifest in manifests(objects.objects).values():
                assert len(live_rows(manifest)) == 7
                assert len(manifest.parts) == 3
            assert await state_of(objects.objects) == (7, 7, [])

    run(conversation)


@pytest.mark.extended
def test_a_manifest_does_not_name_all_segments_that_were_ever_trimmed(monkeypatch):
    monkeypatch.setattr("stablelog.broker.tiering.copy_plans.COORDINATOR_PART_COUNT", 2)
    monkeypatch.setattr("stablelog.broker.tiering.copy_plans.MARKED_COUNT_MAX", 6)
    monkeypatch.setattr("stablelog.broker.durability.journal.SEGMENT_COUNT_MAX", 3)
    objects = SimObjects()

    async def conversation():
        async with simulated(monkeypatch, objects) as desk:
            pipeline, most = Pipeline(desk), 0
            for number in range(1, 31):
                await pipeline.transact()
                await desk.broker.tiering.copy_coordinator_logs()
                await desk.broker.maintenance.trim_logs()
                found = {one.topic: manifest for one, manifest in manifests(objects.objects).items()}
                assert set(found) == {"__consumer_offsets", "__transaction_state"}
                most = max([most, *(len(manifest.segments) for manifest in found.values())])
                if number % 5 == 0:
                    assert (await state_of(objects.objects))[:2] == (number, number)
            assert 8 <= most <= 14

    run(conversation)


@pytest.mark.parametrize("seed", seeds(5))
def test_a_hostile_store_gets_all_in_the_end(monkeypatch, seed):
    objects = SimObjects(seed, HOSTILE)

    async def conversation():
        async with simulated(monkeypatch, objects) as desk:
            pipeline, done = Pipeline(desk), 0
            for _ in range(5):
                await pipeline.transact()
                with contextlib.suppress(StoreError):
                    await desk.broker.tiering.copy_coordinator_logs()
                sequence, offset, _ = await state_of(objects.objects)
                assert done <= offset <= sequence <= pipeline.number
                done = offset
            objects.faults = StoreFaults()
            await desk.broker.tiering.copy_coordinator_logs()
            assert (await state_of(objects.objects))[:2] == (5, 5)

    run(conversation)


def test_without_a_store_no_log_is_rolled_or_copied():
    async def conversation():
        async with opened(partitions=1, stablelog_remote_coordinator_copy_interval_ms=100) as desk:
            pipeline = Pipeline(desk)
            await pipeline.transact(2)
            await desk.broker.tiering.copy_coordinator_logs()
            await desk.broker.tiering.copy_at_stop()
            for name in ("__consumer_offsets", "__transaction_state"):
                log = desk.broker.partitions.require(name, 0)
                assert len(log.segments()) == 1
                assert log.remote is None

    run(conversation)


def test_reads_of_the_logs_stay_local(monkeypatch):
    async def conversation():
        async with simulated(monkeypatch, SimObjects()) as desk:
            await Pipeline(desk).transact(2)
            await desk.broker.tiering.copy_coordinator_logs()
            for name in ("__consumer_offsets", "__transaction_state"):
                log = desk.broker.partitions.require(name, 0)
                assert log.remote is None
                assert log.start_offset == 0, "a copy deletes nothing"
                assert len(log.segments()) == 2
            assert desk.broker.topics.get("__remote_log_metadata") is None, "they have no events"

    run(conversation)


def test_the_age_of_what_is_not_in_the_store_is_told(monkeypatch):
    clock = SimClock()

    async def conversation():
        async with simulated(monkeypatch, SimObjects(), now_ms=clock.now_ms()) as desk:

            def lag_s():
                found = {one.name: one.value for one in desk.broker.tiering.samples()}
                return found["stablelog_remote_coordinator_lag_seconds"]

            assert lag_s() == 0
            desk.broker.clock.advance(7_000)
            await Pipeline(desk).transact()
            assert lag_s() == 7
            await desk.broker.tiering.copy_coordinator_logs()
            assert lag_s() == 0
            desk.broker.clock.advance(3_000)
            assert lag_s() == 0, "the logs have not grown"
            await desk.init("b")
            assert lag_s() == 3

    run(conversation)


@pytest.mark.extended
def test_the_logs_are_copied_by_themselves(tmp_path):
    """A real broker, a real client and a store in a directory. The broker is killed."""
    settings = {
        "stablelog_remote_url": tmp_path.as_uri() + "/store",
        "stablelog_remote_coordinator_copy_interval_ms": 100,
    }
    with stablelog.serve(tmp_path / "data", **settings) as broker:
        address = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        admin = AdminClient(address)
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
        consumer = Consumer({**address, "group.id": "g", "enable.auto.commit": False})
        consumer.commit(offsets=[TopicPartition("t", 0, 5)], asynchronous=False)
        producer = Producer({**address, "transactional.id": "a"})
        producer.init_transactions(30)
        for number in range(3):
            producer.begin_transaction()
            producer.produce("t", b"%d" % number, partition=0)
            producer.commit_transaction(30)

        def copied():
            return asyncio.run(state_of(objects_in(tmp_path / "store")))[:2]

        until(lambda: copied() == (3, 5), "the logs are not copied")
        broker.kill()
        consumer.close()
    assert copied() == (3, 5)
