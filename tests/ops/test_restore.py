"""A data directory that is made from an object store alone. Disk and store are simulated."""

import asyncio
import os
import random
import re

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.data_directory.catalog import CATALOG_FILE, read_catalog
from stablelog.data_directory.incomplete_restore import RESTORING_FILE, read_restoring
from stablelog.data_directory.meta_properties import META_FILE
from stablelog.data_directory.settings_file import META_LINE, SETTINGS_FILE
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError, UsageError
from stablelog.log.files.names import COMMIT_SUFFIXES, REMOTE_MANIFEST_FILE, RESTORED_FILE, VIEW_START_FILE
from stablelog.log.files.partition_metadata import METADATA_FILE
from stablelog.ops.restore import restore
from stablelog.ops.restore_plan import make_plan
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_faults import SimulatedCrash
from stablelog.testing.sim_objects import SimObjects, StoreFaults
from stablelog.wire.api import ApiKey
from tests.broker.desk import COMMIT, DATA, batch, opened
from tests.broker.tiering.desk import (
    LOCAL_NOTHING,
    SIMULATED_URL,
    copy,
    simulate_store,
    tiered,
    write_segments,
)
from tests.broker.tiering.world import stop_before

NONE = ErrorCode.none
ORDERED = {**LOCAL_NOTHING, "stablelog.order": "commit"}
NOW_MS = 1_800_000_000_000
HOURS_MS = 3_600_000
KILLS = int(os.environ.get("STABLELOG_KILLS", "12"))  # of a restore, at different steps
SELDOM = {"stablelog_remote_coordinator_copy_interval_ms": HOURS_MS}


class Lost:
    """A broker whose disk is lost: the topic `t` in offset order, and `u` in commit order with two partitions.

    The transaction `kept` is in the store in all its partitions. Of `torn`, the store has only the part in `u-0`. The
    store has nothing of the last records of `t`.
    """

    def __init__(self, objects):
        self.objects = objects
        self.producers = {}
        self.sequences = {}

    async def transact(self, desk, name, *targets):
        who = self.producers[name] = self.producers.get(name) or await desk.init(name)
        assert set(await desk.add(name, who, *targets)) == {NONE}
        for topic, index in targets:
            sequence = self.sequences.get((name, topic, index), 0)
            records = batch(b"%s %d" % (name.encode(), sequence), producer=who, sequence=sequence)
            self.sequences[name, topic, index] = sequence + 1
            made = await desk.produce(records, topic=topic, partition=index, transactional_id=name)
            assert made.error_code is NONE
        assert (await desk.end(name, who, COMMIT)).error_code is NONE
        await desk.durable()

    async def live(self):
        async with tiered(SIMULATED_URL, **SELDOM) as desk:
            desk.broker.topic_files.create("u", 2, ORDERED)
            await self.transact(desk, "kept", ("t", 0), ("u", 0), ("u", 1))
            await desk.produce(batch(b"idle 0", producer=(90_000, 0), sequence=0, transactional=False))
            await self.roll(desk, "t", 0)
            await self.roll(desk, "u", 1)
            await self.transact(desk, "torn", ("u", 0), ("u", 1))
            await self.roll(desk, "u", 0)
            await copy(desk)
            await self.transact(desk, "gone", ("t", 0), ("u", 0))
            await desk.produce(batch(b"idle 1", producer=(90_000, 0), sequence=1, transactional=False))
            await desk.produce(batch(b"other", producer=(90_001, 0), sequence=0, transactional=False))
            self.ends = {at: log.end_offset for at, log in partitions(desk)}
            return dict(self.objects.objects)

    @staticmethod
    async def roll(desk, topic, index):
        desk.broker.partitions.require(topic, index).roll(desk.broker.now_ms())
        await desk.produce(batch(b"after"), topic=topic, partition=index)


def partitions(desk):
    return [
        ((name, index), desk.broker.partitions.require(name, index))
        for name, index in (("t", 0), ("u", 0), ("u", 1))
    ]


@pytest.fixture(scope="module")
def lost():
    with pytest.MonkeyPatch.context() as patches:
        objects = SimObjects(faults=StoreFaults(latency_s=0))
        simulate_store(patches, objects)
        found = Lost(objects)
        found.kept = asyncio.run(asyncio.wait_for(found.live(), 60))
        return found


@pytest.fixture
def store_of(lost, monkeypatch):
    objects = SimObjects(faults=StoreFaults(latency_s=0), objects=dict(lost.kept))
    simulate_store(monkeypatch, objects)
    return objects


def restored(objects, disk=None):
    disk = disk or SimDisk()
    store = ObjectStore(objects, now_s=objects.now_s, sleep=objects.sleep)
    return disk, restore(store, disk, DATA, NOW_MS)


def run(objects, conversation, disk=None):
    """Restore, and talk with a broker on the result."""
    disk, report = restored(objects) if disk is None else (disk, None)

    async def talk():
        async with opened(
            disk,
            topics=(),
            stablelog_remote_url=SIMULATED_URL,
            remote_log_manager_task_interval_ms=HOURS_MS,
            **SELDOM,
        ) as desk:
            for name, index in (("t", 0), ("u", 0), ("u", 1)):
                await desk.opened(name, index)
            return await conversation(desk, report)

    return asyncio.run(asyncio.wait_for(talk(), 60))


def range_of(report, topic, index):
    return next(one for one in report.ranges if (one.topic, one.partition) == (topic, index))


def test_the_report_says_what_is_gone(lost, store_of):
    _, report = restored(store_of)
    for (topic, index), end in lost.ends.items():
        found = range_of(report, topic, index)
        assert 0 < found.lost_from <= found.log_end <= end < found.next_offset
        assert found.log_end_ms is not None
    assert range_of(report, "t", 0).lost_from < range_of(report, "t", 0).log_end
    (torn,) = report.torn
    assert (torn.transactional_id, torn.found, torn.lost) == ("torn", (("u", 0),), (("u", 1),))
    assert report.torn_sequences == {"": torn.commit_sequence}


def test_the_report_names_the_groups_beyond_what_is_left(monkeypatch):
    """A group that is at the end of what is left goes on with the first new record."""
    objects = SimObjects(faults=StoreFaults(latency_s=0))
    simulate_store(monkeypatch, objects)

    async def live():
        async with tiered(SIMULATED_URL, **SELDOM) as desk:
            await write_segments(desk, 2)
            await copy(desk)
            end = desk.broker.partitions.require("t", 0).remote.end_offset
            await desk.produce(batch(b"lost"))
            for group, offset in (("behind", 1), ("at", end), ("ahead", end + 1), ("returned", end + 1)):
                await commit_offset(desk, group, offset)
            await commit_offset(desk, "returned", end)
            await in_transaction(desk, "aborted", end + 1, commit=False)
            await in_transaction(desk, "committed", end + 1, commit=True)
            await desk.durable()
            await desk.broker.tiering.copy_coordinator_logs()
            return end, dict(objects.objects)

    end, kept = asyncio.run(asyncio.wait_for(live(), 60))
    _, report = restored(SimObjects(faults=StoreFaults(latency_s=0), objects=kept))
    assert report.groups == [
        ("ahead", "t", 0, end + 1, end),
        ("committed", "t", 0, end + 1, end),
    ]


async def commit_offset(desk, group, offset):
    answer = await desk.ask_with(
        8,
        6,
        {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": "t", "partitions": [row(offset)]}],
        },
    )
    assert answer.topics[0].partitions[0].error_code is NONE


def test_the_report_says_what_the_broker_then_does_with_pending_offsets(monkeypatch):
    """The store has the decision to commit, and of the offsets log only what was before its marker."""
    objects = SimObjects(faults=StoreFaults(latency_s=0))
    simulate_store(monkeypatch, objects)

    async def live():
        async with tiered(SIMULATED_URL, **SELDOM) as desk:
            await write_segments(desk, 2)
            await copy(desk)
            end = desk.broker.partitions.require("t", 0).remote.end_offset
            await in_transaction(desk, "decided", end + 1, commit=True, before_end=copy_logs)
            await desk.durable()
            before = set(objects.objects)
            await desk.broker.tiering.copy_coordinator_logs()
            late = [key for key in objects.objects if "__consumer_offsets" in key and key not in before]
            assert late
            return end, {key: one for key, one in objects.objects.items() if key not in late}

    async def copy_logs(desk):
        await desk.broker.tiering.copy_coordinator_logs()

    end, kept = asyncio.run(asyncio.wait_for(live(), 60))
    after = SimObjects(faults=StoreFaults(latency_s=0), objects=kept)
    simulate_store(monkeypatch, after)
    disk, report = restored(after)
    assert report.groups == [("decided", "t", 0, end + 1, end)]

    async def check(desk):
        offsets = desk.broker.groups.coordinator.table.offsets
        assert offsets.committed("decided")["t", 0].value.offset == end + 1

    lives(after, check, disk)


async def in_transaction(desk, group, offset, *, commit, before_end=None):
    """Commit an offset in a transaction."""
    who = await desk.init(group)
    answer = await desk.ask_with(
        25,
        3,
        {
            "transactional_id": group,
            "producer_id": who[0],
            "producer_epoch": who[1],
            "group_id": group,
        },
    )
    assert answer.error_code is NONE
    answer = await desk.ask_with(
        28,
        3,
        {
            "transactional_id": group,
            "group_id": group,
            "producer_id": who[0],
            "producer_epoch": who[1],
            "generation_id": -1,
            "member_id": "",
            "topics": [{"name": "t", "partitions": [row(offset)]}],
        },
    )
    assert answer.topics[0].partitions[0].error_code is NONE
    if before_end is not None:
        await desk.durable()
        await before_end(desk)
    assert (await desk.end(group, who, commit)).error_code is NONE


def row(offset):
    return {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }


def test_the_settings_of_topics_are_restored(store_of):
    async def check(desk, _report):
        topics = desk.broker.topics
        assert topics.named("u").partition_count == 2
        assert topics.named("u").configs.items() >= ORDERED.items()
        assert topics.named("t").configs.items() >= LOCAL_NOTHING.items()

    run(store_of, check)


def lives(objects, conversation, disk=None, **settings):
    """Run a conversation with a broker on this store. Return its result."""

    async def live():
        async with tiered(SIMULATED_URL, disk, **SELDOM, **settings) as desk:
            return await conversation(desk)

    return asyncio.run(asyncio.wait_for(live(), 60))


@pytest.fixture
def empty_store(monkeypatch):
    objects = SimObjects(faults=StoreFaults(latency_s=0))
    simulate_store(monkeypatch, objects)
    return objects


def test_a_topic_without_a_copied_segment_is_restored_with_its_id_and_settings(empty_store):
    async def live(desk):
        topic = desk.broker.topic_files.create("e", 3, {**ORDERED, "retention.ms": "77"})
        desk.broker.topic_files.create("local", 1, {})
        await copy(desk)
        count = len(empty_store.objects)
        await copy(desk)
        assert len(empty_store.objects) == count, "nothing has changed"
        await desk.produce(batch(b"gone"), topic="e", partition=1)
        return topic.topic_id

    topic_id = lives(empty_store, live)
    disk, report = restored(empty_store)
    assert {one.topic for one in report.ranges} >= {"e", "t"}
    assert "local" not in {one.topic for one in report.ranges}

    async def check(desk):
        topic = desk.broker.topics.named("e")
        assert (topic.topic_id, topic.partition_count) == (topic_id, 3)
        assert topic.configs == {**ORDERED, "retention.ms": "77"}
        for index in range(3):
            await desk.opened("e", index)
            made = await desk.produce(batch(b"new"), topic="e", partition=index)
            assert made.base_offset == range_of(report, "e", index).next_offset
        await desk.durable()
        found = await desk.fetch("e", 1, 0, max_wait_ms=0)
        assert found.error_code is NONE
        assert b"new" in found.records
        lost = await desk.fetch("e", 1, 1, max_wait_ms=0)
        assert lost.error_code is ErrorCode.offset_out_of_range

    lives(empty_store, check, disk)


def test_swapped_manifests_of_partitions_without_a_copied_segment_are_refused(empty_store):
    """The store gives each topic the manifest of the other one. No segment in them says whose they are."""

    async def live(desk):
        for name, retention in (("e", "77"), ("f", "88")):
            desk.broker.topic_files.create(name, 1, {**ORDERED, "retention.ms": retention})
        await copy(desk)

    lives(empty_store, live)
    objects = empty_store.objects
    (first,) = [key for key in objects if key.startswith("t.e/") and key.endswith("-000000000001")]
    (second,) = [key for key in objects if key.startswith("t.f/") and key.endswith("-000000000001")]
    objects[first], objects[second] = objects[second], objects[first]
    with pytest.raises(
        DamageError, match=r"the last manifest in t\.e/.* is that of partition 0 of the topic"
    ):
        restored(empty_store)


def test_settings_that_were_changed_before_a_stop_are_published_after_it(empty_store):
    disk = SimDisk()
    lives(empty_store, copy, disk)

    async def change(desk):
        topic = desk.broker.topics.named("t")
        desk.broker.topic_files.configure(topic, {**LOCAL_NOTHING, "retention.ms": "77"})

    lives(empty_store, change, disk)
    lives(empty_store, copy, disk)
    restored_disk, _ = restored(empty_store)
    topic = next(one for one in read_catalog(restored_disk, DATA).topics if one.name == "t")
    assert topic.configs["retention.ms"] == "77"


@pytest.mark.extended
def test_the_dynamic_settings_of_the_broker_are_restored(empty_store):
    async def live(desk):
        await copy(desk)
        desk.broker.change_settings({"log.retention.ms": "-1", "log.segment.bytes": "77777"}, {})
        await copy(desk)
        count = len(empty_store.objects)
        desk.broker.change_settings({"log.retention.ms": "-1"}, {"log.retention.bytes": "777777"})
        await copy(desk)
        await copy(desk)
        assert len(empty_store.objects) == count + 1

    lives(empty_store, live)
    disk, report = restored(empty_store)
    assert report.settings == {"log.retention.ms": "-1"}
    assert META_LINE.encode() in disk.read_bytes(DATA / META_FILE).splitlines()

    async def check(desk):
        assert desk.broker.config.dynamic == {"log.retention.ms": "-1"}
        assert desk.broker.config.dynamic_defaults == {"log.retention.bytes": "777777"}
        assert desk.broker.config["log.retention.ms"] == -1
        desk.broker.change_settings({}, {})
        await copy(desk)

    lives(empty_store, check, disk)
    disk, report = restored(empty_store)
    assert report.settings == {}
    assert not disk.exists(DATA / SETTINGS_FILE)
    lives(empty_store, copy, disk)


def test_a_broker_that_a_restore_has_replaced_changes_no_settings_in_the_store(empty_store):
    async def live(desk):
        desk.broker.change_settings({"log.retention.ms": "77"}, {})
        await copy(desk)
        await asyncio.to_thread(restored, empty_store)
        desk.broker.change_settings({"log.retention.ms": "88"}, {})
        await copy(desk)
        _, report = await asyncio.to_thread(restored, empty_store)
        assert report.settings == {"log.retention.ms": "77"}

    lives(empty_store, live)


def test_damaged_dynamic_settings_are_named_and_nothing_is_written(empty_store):
    lives(empty_store, copy)
    (key,) = [one for one in empty_store.objects if one.startswith("settings/")]
    empty_store.objects[key] = empty_store.objects[key][:-2]
    before, disk = dict(empty_store.objects), SimDisk()
    with pytest.raises(DamageError, match=re.escape(key)):
        restored(empty_store, disk)
    assert not disk.is_dir(DATA)
    assert empty_store.objects == before


def test_every_record_in_the_store_is_read_and_a_reader_of_a_lost_offset_gets_an_error(store_of):
    async def check(desk, report):
        for topic, index in (("t", 0), ("u", 0), ("u", 1)):
            found = range_of(report, topic, index)
            for isolation in (0, 1):
                first = await desk.fetch(topic, index, 0, isolation=isolation, max_wait_ms=5_000)
                assert first.error_code is NONE
                assert first.records
                at_end = await desk.fetch(topic, index, found.lost_from, isolation=isolation, max_wait_ms=0)
                assert at_end.error_code is NONE
                for offset in (found.lost_from + 1, found.log_end + 1, found.next_offset - 1):
                    beyond = await desk.fetch(topic, index, offset, isolation=isolation, max_wait_ms=0)
                    assert beyond.error_code is ErrorCode.offset_out_of_range
            made = await desk.produce(batch(b"new"), topic=topic, partition=index)
            assert made.base_offset == found.next_offset
            await desk.durable()
            for offset in (found.lost_from, found.next_offset):
                new = await desk.fetch(topic, index, offset, max_wait_ms=0)
                assert new.error_code is NONE
                assert b"new" in new.records
            still = await desk.fetch(topic, index, found.lost_from + 1, max_wait_ms=0)
            assert still.error_code is ErrorCode.offset_out_of_range

    run(store_of, check)


def test_the_file_of_lost_offsets_may_be_lost_too(store_of):
    disk, report = restored(store_of)
    disk.remove(DATA / "t-0" / RESTORED_FILE)

    async def check(desk, _report):
        beyond = await desk.fetch("t", 0, range_of(report, "t", 0).lost_from + 1, max_wait_ms=0)
        assert beyond.error_code is ErrorCode.offset_out_of_range

    run(store_of, check, disk)


def test_producers_whose_batches_are_gone_are_refused(lost, store_of):
    async def check(desk, _report):
        async def produce(producer, sequence, **more):
            records = batch(b"x", producer=producer, sequence=sequence, **more)
            return (await desk.produce(records, transactional_id=None)).error_code

        order = ErrorCode.out_of_order_sequence_number
        assert await produce((90_000, 0), 2, transactional=False) is order, "its batch 1 is gone"
        assert await produce((90_001, 0), 1, transactional=False) is order, "its batch 0 is gone"
        assert await produce((90_001, 0), 0, transactional=False) is NONE
        for name in ("kept", "torn", "gone"):
            answer = await desk.end(name, lost.producers[name], COMMIT)
            assert answer.error_code is not NONE, name
            assert (await desk.add(name, lost.producers[name], ("t", 0))) != [NONE]
        for name in ("kept", "torn", "gone"):
            assert (await desk.init(name))[0] > max(who[0] for who in lost.producers.values())
            lost_again = Lost(store_of)
            await lost_again.transact(desk, name, ("t", 0), ("u", 0))

    run(store_of, check)


def test_numbers_continue_above_all_that_are_known(lost, store_of):
    async def check(desk, report):
        table = desk.broker.transactions.default.coordinator.table
        known = max(one.latest_sequence for _, log in partitions(desk) if (one := log.view) is not None)
        assert table.sequences.next == report.commit_sequences[""] > known + 1_000_000
        who = await desk.init("fresh")
        assert who[0] >= report.next_producer_id > 90_001
        assert desk.broker.topics.leader_epoch > report.leader_epoch >= 1_000

    run(store_of, check)


def test_the_indexes_of_local_segments_name_the_commits_before_them(store_of):
    """When retention has deleted all restored segments, a reader of a cut is told of the commits in them."""

    async def check(desk, _report):
        for _, log in partitions(desk):
            if log.view is not None:
                before = [one.commit.latest_sequence for one in log.remote.manifest.segments if one.commit]
                assert before
                assert log.view.builder.sequence_before(log.segments()[0].base_offset) == max(before)

    run(store_of, check)


def test_a_restored_directory_lets_the_time_of_the_broker_go_on(empty_store):
    """The broker that opens it for the restore leaves the file. So a later start with an earlier clock does not go back."""
    lives(empty_store, copy)
    disk, _ = restored(empty_store)
    assert disk.exists(DATA / "broker-time")


def test_no_cut_begins_before_a_torn_transaction(store_of):
    async def check(desk, report):
        answer = await desk.ask(ApiKey.DESCRIBE_CUT, 0, group=None, commit_sequence=-1, topics=("u",))
        assert answer.error_code is NONE
        for partition in answer.topics[0].partitions:
            assert partition.removed_commit_sequence >= report.torn_sequences[""]
            # A reader that goes on from an earlier cut asks for torn commits only.
            assert partition.torn_commit_sequence >= report.torn_sequences[""]

    run(store_of, check)


def test_the_restored_log_is_copied_on_and_can_be_restored_again(store_of):
    disk, _ = restored(store_of)

    async def go_on(desk, _report):
        await desk.produce(batch(b"new"))
        desk.broker.partitions.require("t", 0).roll(desk.broker.now_ms())
        await desk.produce(batch(b"newer"))
        await copy(desk)
        log = desk.broker.partitions.require("t", 0)
        assert log.remote.end_offset > log.restored.ranges[-1][1]
        assert log.start_offset == log.remote.end_offset
        return log.remote.end_offset

    end = run(store_of, go_on, disk)

    async def check(desk, report):
        assert range_of(report, "t", 0).lost_from == end
        answer = await desk.fetch("t", 0, end - 1, max_wait_ms=5_000)
        assert b"new" in answer.records
        log = desk.broker.partitions.require("t", 0)
        assert len(log.restored.ranges) == 2
        for start, after in log.restored.ranges:
            for offset in (start + 1, after - 1):
                beyond = await desk.fetch("t", 0, offset, max_wait_ms=0)
                assert beyond.error_code is ErrorCode.offset_out_of_range

    run(store_of, check)


def test_a_broker_that_still_lives_copies_no_more_and_says_why(monkeypatch, caplog):
    objects = SimObjects(faults=StoreFaults(latency_s=0))
    simulate_store(monkeypatch, objects)

    async def live():
        async with tiered(SIMULATED_URL, **SELDOM) as desk:
            await write_segments(desk, 1)
            await copy(desk)
            await asyncio.to_thread(restored, objects)
            count = sum("/manifest/" in key for key in objects.objects)
            await write_segments(desk, 1)
            await copy(desk)
            assert sum("/manifest/" in key for key in objects.objects) == count
            assert "This broker copies no more segments" in caplog.text
            await desk.produce(batch(b"x"))

    asyncio.run(asyncio.wait_for(live(), 60))


def test_a_second_restore_continues_above_the_numbers_of_the_first(store_of):
    _, first = restored(store_of)
    _, second = restored(store_of)
    for one, other in zip(first.ranges, second.ranges, strict=True):
        assert one.lost_from == other.lost_from
        assert one.next_offset is None or other.next_offset > one.next_offset + 1_000_000
    assert second.commit_sequences[""] > first.commit_sequences[""]
    assert second.next_producer_id > first.next_producer_id + 1_000
    assert second.leader_epoch > first.leader_epoch
    assert second.torn_sequences == first.torn_sequences


def test_a_directory_with_a_file_is_refused_and_not_changed(store_of):
    disk = SimDisk()
    disk.make_dir(DATA)
    disk.write_atomic(DATA / "file", b"")
    steps = disk.steps
    before = dict(store_of.objects)
    with pytest.raises(UsageError, match="not empty"):
        restored(store_of, disk)
    assert disk.steps == steps
    assert store_of.objects == before


def test_a_store_that_no_cluster_has_used_is_refused():
    with pytest.raises(UsageError, match="no object of a cluster"):
        restored(SimObjects(faults=StoreFaults(latency_s=0)))


def test_a_missing_or_damaged_object_is_named_and_nothing_is_written(lost):
    refused = {"missing": 0, "damaged": 0}
    for key in sorted(lost.kept):
        for kind in refused:
            # The log files of topics are not read. The last manifest may be missing: the one before it is valid, too.
            is_needed = key.endswith((".log", ".indexes") if kind == "missing" else (".indexes",))
            is_needed = is_needed or (key.startswith("t.__") and key.endswith(".log"))
            objects = SimObjects(faults=StoreFaults(latency_s=0), objects=dict(lost.kept))
            if kind == "missing":
                del objects.objects[key]
            else:
                content = objects.objects[key]
                objects.objects[key] = content[:-1] + bytes([content[-1] ^ 1])
            before, disk = dict(objects.objects), SimDisk()
            if not is_needed:
                continue
            with pytest.raises(DamageError, match=re.escape(key)):
                restored(objects, disk)
            assert not disk.is_dir(DATA)
            assert objects.objects == before, "the broker that may still live is not fenced"
            refused[kind] += 1
    assert min(refused.values()) >= 4


def test_a_damaged_manifest_is_named_and_nothing_is_written(lost):
    chains = {key.rpartition("/")[0] for key in lost.kept if "/manifest/" in key}
    for chain in chains:
        last = max(key for key in lost.kept if key.startswith(chain))
        objects = SimObjects(faults=StoreFaults(latency_s=0), objects=dict(lost.kept))
        objects.objects[last] = objects.objects[last][:-1]
        disk = SimDisk()
        with pytest.raises(DamageError, match=re.escape(last)):
            restored(objects, disk)
        assert not disk.is_dir(DATA)


def test_a_crash_leaves_a_directory_that_a_broker_refuses_or_a_complete_one(lost, store_of):
    """The same command, run again, gives the result of an undisturbed restore."""
    whole, report = restored(store_of)
    refused = complete = 0
    steps = [1 + number * whole.steps // KILLS for number in range(KILLS)]
    for number, step in enumerate([*steps, *[whole.steps] * 4]):  # Half of the crashes undo the last step.
        disk = SimDisk()
        disk.crash_at = step
        store_of.objects = dict(lost.kept)
        with pytest.raises(SimulatedCrash):
            restored(store_of, disk)
        after = disk.crash(random.Random(number))
        if not after.is_dir(DATA) or not after.list_dir(DATA):
            continue
        if RESTORING_FILE in after.list_dir(DATA):
            refused += 1
            with pytest.raises(UsageError, match="incomplete restore"):
                run(store_of, None, after)
            assert restored(store_of, after)[1] == report
            assert contents(after) == contents(whole)
        else:
            complete += 1
            assert contents(after) == contents(whole)
            ends = run(store_of, ends_of_partitions, after)
            assert (
                ends.items() <= {(one.topic, one.partition): one.next_offset for one in report.ranges}.items()
            )
    assert refused > KILLS // 2
    assert complete


async def ends_of_partitions(desk, _report):
    return {at: log.end_offset for at, log in partitions(desk)}


def test_a_restore_that_is_killed_at_any_request_to_the_store_is_run_again_with_the_same_result(
    lost, store_of
):
    calls = stop_before(store_of, -1)
    whole, report = restored(store_of)
    count = len(calls)
    published = 0
    for number in sorted({*range(0, count, 1 + count // KILLS), *range(count - 4, count)}):
        disk, store_of.objects = SimDisk(), dict(lost.kept)
        stop_before(store_of, number)
        with pytest.raises(SimulatedCrash):
            restored(store_of, disk)
        published += bool(read_restoring(disk, DATA))
        store_of.between = lambda _call, _key: None
        assert restored(store_of, disk)[1] == report
        assert contents(disk) == contents(whole)
    assert published > 2


@pytest.mark.extended
def test_restores_that_are_killed_while_they_publish_leave_no_trace_in_the_next_one(lost, store_of):
    whole, report = restored(store_of)
    for numbers in ((1, 2), (3, 1), (3, 3), (3, 1, 2)):
        disk, store_of.objects = SimDisk(), dict(lost.kept)
        for number in numbers:
            stop_publishing(store_of, number)
            with pytest.raises(SimulatedCrash):
                restored(store_of, disk)
        assert len(read_restoring(disk, DATA)) == len(numbers)
        store_of.between = lambda _call, _key: None
        assert restored(store_of, disk)[1] == report
        assert contents(disk) == contents(whole)


def stop_publishing(objects, count):
    """Let the machine stop when a restore has published so many manifests."""
    made = []

    def between(call, key):
        if call == "create" and (made or key.startswith("settings/")):
            made.append(key)
            if len(made) == count + 2:
                raise SimulatedCrash("a request to the store")

    objects.between = between


def contents(disk):
    """The files of a restored directory without what time and chance decide: the ids of its new topics and segments."""
    return {
        path: disk.read_bytes(path)
        for path in disk.files(DATA)
        if path.name not in (CATALOG_FILE, METADATA_FILE, REMOTE_MANIFEST_FILE)
        and path.suffix
        not in COMMIT_SUFFIXES  # A start of a broker makes them again, and syncs none of them.
    }


@pytest.mark.extended
@pytest.mark.parametrize("count", [2, 3, 5])
def test_restores_in_a_row_lose_nothing(lost, store_of, count):
    """No broker copies anything between them, so their gaps add up."""
    for _ in range(count - 1):
        restored(store_of)

    async def check(desk, report):
        for topic, index in (("t", 0), ("u", 0), ("u", 1)):
            found = range_of(report, topic, index)
            before = await every_value(desk, topic, index, found.lost_from)
            for number in range(2):
                made = await desk.produce(batch(b"new %d" % number), topic=topic, partition=index)
                assert (made.error_code, made.base_offset) == (NONE, found.next_offset + number)
                log = desk.broker.partitions.require(topic, index)
                log.roll(desk.broker.now_ms())
            await desk.produce(batch(b"last"), topic=topic, partition=index)
            await desk.durable()
            await copy(desk)
            assert log.start_offset == log.remote.end_offset > found.next_offset
            assert before
            read = await every_value(desk, topic, index, log.high_watermark)
            assert read == [*before, b"new 0", b"new 1", b"last"]

    disk, report = restored(store_of)
    run(store_of, lambda desk, _: check(desk, report), disk)

    async def check_again(desk, report):
        for topic, index in (("t", 0), ("u", 0), ("u", 1)):
            found = range_of(report, topic, index)
            read = await every_value(desk, topic, index, found.lost_from)
            assert read[-2:] == [b"new 0", b"new 1"]

    run(store_of, check_again)


async def every_value(desk, topic, index, end):
    """The values of all records that a consumer gets up to an offset."""
    found, offset = [], 0
    while offset < end:
        answer = await desk.fetch(topic, index, offset, isolation=0, max_wait_ms=5_000)
        assert answer.error_code is NONE
        for at, header in headers_in(answer.records):
            if not header.is_control:
                records = decode_records(answer.records, at)
                found += [one.value for one in records if one.offset >= offset]
            offset = header.last_offset + 1
    return found


def damaged_plan(monkeypatch, change):
    """Let each restore plan something else than it should."""
    make = make_plan

    def changed(*arguments):
        plan = make(*arguments)
        change(plan)
        return plan

    monkeypatch.setattr("stablelog.ops.restore.make_plan", changed)


def cut(plan):
    files = plan.partitions["t-0"]
    log = max(name for name in files if name.endswith(".log"))
    files[log] += b"no batch"


def without_files(plan):
    del plan.partitions["t-0"]


def finding(plan):
    plan.partitions["t-0"][VIEW_START_FILE] = b"damaged, and no broker reads it in this topic"


@pytest.mark.parametrize("change", [cut, without_files, finding])
def test_a_directory_that_a_broker_cannot_use_is_refused_before_the_store_is_changed(
    store_of, monkeypatch, change
):
    damaged_plan(monkeypatch, change)
    before, disk = dict(store_of.objects), SimDisk()
    with pytest.raises(DamageError, match=r"a broker cannot use it: .*t-0.*Nothing was published"):
        restored(store_of, disk)
    assert store_of.objects == before
    with pytest.raises(UsageError, match="incomplete restore"):
        run(store_of, None, disk)


def test_what_the_lost_broker_publishes_during_the_restore_is_restored(empty_store, monkeypatch):
    """It publishes after everything was read, and before the restore takes over."""

    async def live(desk):
        loop = asyncio.get_running_loop()

        def publish_once(plan):
            if not published:
                published.append(True)
                asyncio.run_coroutine_threadsafe(publish(), loop).result(30)

        async def publish():
            await write_segments(desk, 1)
            await copy(desk)

        published = []
        await write_segments(desk, 1)
        await copy(desk)
        damaged_plan(monkeypatch, publish_once)
        _, report = await asyncio.to_thread(restored, empty_store)
        assert range_of(report, "t", 0).lost_from == desk.broker.partitions.require("t", 0).remote.end_offset

    lives(empty_store, live)


class HalfCopied:
    """A broker whose store has the first records of a transaction in `t-0`, and not its marker.

    Args:
        order: the setting `stablelog.order` of the topic.
        version: of EndTxn: 3 keeps the producer's epoch, 5 raises it.
        committed: how the transaction ends.
        is_whole: whether the store has all records of the transaction.
    """

    def __init__(self, order, version, *, committed, is_whole):
        self.order, self.version = order, version
        self.committed, self.is_whole = committed, is_whole

    async def live(self):
        configs = {**LOCAL_NOTHING, "stablelog.order": self.order}
        async with tiered(SIMULATED_URL, configs=configs, **SELDOM) as desk:
            desk.broker.topic_files.create("u", 2, LOCAL_NOTHING)
            log = desk.broker.partitions.require("t", 0)
            await desk.produce(batch(b"before"))
            who = await desk.init("half")
            for number in range(2):
                await desk.add("half", who, ("t", 0))
                records = batch(b"half %d" % number, producer=who, sequence=number)
                await desk.produce(records, transactional_id="half")
                if number == self.is_whole:
                    log.roll(desk.broker.now_ms())
            answer = await desk.end("half", who, self.committed, version=self.version)
            assert answer.error_code is NONE
            await desk.durable()
            await desk.produce(batch(b"after"))  # The next sync completes the files of the sealed segment.
            await copy(desk)
            assert log.remote.end_offset == (3 if self.is_whole else 2)


async def values_of(desk, *, isolation=1):
    """The values that a consumer gets of `t-0`, without what is before the next offset."""
    log = desk.broker.partitions.require("t", 0)
    found, offset = [], 0
    while offset < (log.last_stable_offset if isolation else log.high_watermark):
        answer = await desk.fetch("t", 0, offset, isolation=isolation, max_wait_ms=5_000)
        assert answer.error_code is NONE
        aborted = {(one.producer_id, one.first_offset) for one in answer.aborted_transactions or ()}
        for at, header in headers_in(answer.records):
            is_dropped = any(
                who == header.producer_id and first <= header.base_offset for who, first in aborted
            )
            if not header.is_control and not is_dropped:
                found += [record.value for record in decode_records(answer.records, at)]
            offset = header.last_offset + 1
        if not len(answer.records):
            break
    return found


@pytest.mark.sampled(11)
@pytest.mark.parametrize("version", [3, 5])
@pytest.mark.parametrize("order", ["offset", "commit"])
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("is_whole", [True, False])
def test_no_reader_gets_a_part_of_a_transaction_whose_marker_is_gone(
    monkeypatch, order, version, committed, is_whole
):
    objects = SimObjects(faults=StoreFaults(latency_s=0))
    simulate_store(monkeypatch, objects)
    half = HalfCopied(order, version, committed=committed, is_whole=is_whole)
    asyncio.run(asyncio.wait_for(half.live(), 60))

    async def conversation(desk, report):
        await desk.durable()
        log = desk.broker.partitions.require("t", 0)
        if order == "offset":
            assert log.last_stable_offset == log.high_watermark == log.end_offset, "no transaction is open"
        found = await values_of(desk)
        # The end of the records is known only of a decision that keeps the epoch of the producer. In commit order, a
        # marker needs the records in the local log.
        has_all = committed and is_whole and (order, version) == ("offset", 3)
        assert found == ([b"before", b"half 0", b"half 1"] if has_all else [b"before"])
        count = 1 + is_whole
        if committed and not has_all:
            (left_out,) = report.left_out
            assert left_out == ("half", left_out.commit_sequence, "t", 0, 1, count)
            assert left_out.commit_sequence > 0
        elif has_all:
            assert report.left_out == []

    run(objects, conversation)


def test_a_transaction_of_which_a_partition_has_only_a_part_is_torn_if_another_one_has_it(monkeypatch):
    objects = SimObjects(faults=StoreFaults(latency_s=0))
    simulate_store(monkeypatch, objects)

    async def live():
        async with tiered(SIMULATED_URL, **SELDOM) as desk:
            desk.broker.topic_files.create("u", 2, LOCAL_NOTHING)
            who = await desk.init("across")
            for topic, sequence in (("t", 0), ("t", 1), ("u", 0)):
                await desk.add("across", who, (topic, 0))
                records = batch(b"%d" % sequence, producer=who, sequence=sequence)
                await desk.produce(records, topic=topic, transactional_id="across")
                if (topic, sequence) == ("t", 0):
                    desk.broker.partitions.require("t", 0).roll(desk.broker.now_ms())
            await desk.end("across", who, COMMIT)
            await desk.durable()
            desk.broker.partitions.require("u", 0).roll(desk.broker.now_ms())
            await desk.produce(batch(b"after"), topic="u")
            await copy(desk)

    asyncio.run(asyncio.wait_for(live(), 60))
    _, report = restored(objects)
    (torn,) = report.torn
    assert (torn.transactional_id, torn.found, torn.lost) == ("across", (("u", 0),), (("t", 0),))
    (left_out,) = report.left_out
    assert left_out == ("across", torn.commit_sequence, "t", 0, 0, 1)
