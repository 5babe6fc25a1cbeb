"""The topic `__remote_log_metadata` has an event for each change of a remote segment, and its errors stop no copy."""

import asyncio
import contextlib
import errno
import logging
from collections import Counter
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.broker.tiering.remote_storage import RemoteStorage
from stablelog.broker.topics.partition_state import PartitionState
from stablelog.env.objects.opening import open_store
from stablelog.errors import DiskError, UnavailableError
from stablelog.log.partition import Isolation, Origin
from stablelog.testing.sim_disk import SimDisk
from stablelog.tier.chain import last_manifest
from stablelog.tier.events import partition_of
from stablelog.tier.manifest import decode_manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.records import (
    PartitionDeleteRecord,
    SegmentRecord,
    SegmentState,
    decode_record,
    metadata_partition,
)
from tests.broker.desk import DATA, Gate, batch, delete_topic, opened

NAME = "__remote_log_metadata"
COUNT = 5  # metadata partitions, so that a test with several topics uses several of them
STARTED, FINISHED, DELETING, DELETED = SegmentState
TIERED = {"remote.storage.enable": "true", "file.delete.delay.ms": "0"}


class Tiered:
    """A broker with a tiered topic, and what `__remote_log_metadata` says of it."""

    def __init__(self, desk, url):
        self.desk = desk
        self.broker = desk.broker
        self.store = open_store(url)

    def create(self, name="t"):
        self.broker.topic_files.create(name, 1, TIERED)

    async def write(self, *, segments=1, topic="t"):
        """Write sealed, durable segments of one record each."""
        for _ in range(segments):
            await self.desk.produce(batch(b"value"), topic=topic)
            self.broker.partitions.require(topic, 0).roll(self.broker.now_ms())
        self.broker.flush.mark_dirty(self.broker.partitions.require(topic, 0))
        await self.until(lambda: all(one.durable for one in self.sealed(topic)))

    def sealed(self, topic="t"):
        return [one for one in self.broker.partitions.require(topic, 0).log.segments if one.sealed]

    async def until(self, holds):
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def copy(self):
        """One pass of the copier."""
        await self.broker.tiering.copy_all()

    def remote(self, topic="t"):
        return RemotePartition(topic, self.broker.topics.named(topic).topic_id, 0)

    def manifest(self, topic="t"):
        """The last manifest in the store."""
        storage = RemoteStorage(self.store, self.broker.cluster_id)
        return decode_manifest(storage.prefix.run_steps(last_manifest(self.remote(topic))))

    def index(self, topic):
        """The metadata partition of a topic."""
        return metadata_partition(self.remote(topic).topic_id, 0, COUNT)

    def partitions(self):
        topic = self.broker.topics.get(NAME)
        return [] if topic is None else list(self.broker.partitions.of_topic(topic).values())

    def records(self):
        """(metadata partition, record) of the topic."""
        found = []
        for partition in self.partitions():
            if partition.end_offset:
                partition.log.prove_segments()
                data = b"".join(partition.read(partition.start_offset, 1 << 30, Isolation.LOG_END).buffers)
                for at, _ in headers_in(data):
                    found += [(partition.index, record) for record in decode_records(data, at)]
        return found

    def events(self, topic="t"):
        """The events about a topic: (first offset of the segment, state), or ("deleted", state)."""
        starts, found = {}, []
        for _, record in self.records():
            event = decode_record(record.value)
            if partition_of(event).topic != topic:
                continue
            if isinstance(event, PartitionDeleteRecord):
                found.append(("deleted", event.state))
                continue
            if isinstance(event, SegmentRecord):
                starts[event.segment.segment_id] = event.start_offset
            found.append((starts[event.segment.segment_id], SegmentState(event.state)))
        return found


@contextlib.asynccontextmanager
async def tiered(directory, disk=None, **settings):
    url = f"file://{directory}/store"
    given = {"stablelog_remote_url": url, "rlmm_config_remote_log_metadata_topic_num_partitions": COUNT}
    # No pass begins by itself.
    given |= {"remote_log_manager_task_interval_ms": 10**9, **settings}
    async with opened(disk, topics=(), **given) as desk:
        yield Tiered(desk, url)


def test_the_topic_is_created_with_the_first_tiered_partition_and_not_before(tmp_path):
    async def body():
        async with tiered(tmp_path) as one:
            one.broker.topic_files.create("plain", 1, {})
            await one.copy()
            assert one.broker.topics.get(NAME) is None
            one.create()
            await one.copy()
            topic = one.broker.topics.named(NAME)
            assert topic.partition_count == COUNT
            assert topic.configs == {
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "retention.bytes": "-1",
                "remote.storage.enable": "false",
            }
            assert one.events() == []

    asyncio.run(body())


def test_a_copied_segment_has_two_events_and_a_segment_before_the_log_start_a_third(tmp_path):
    async def body():
        async with tiered(tmp_path) as one:
            one.create()
            await one.write(segments=2)
            await one.copy()
            assert one.events() == [(0, STARTED), (1, STARTED), (0, FINISHED), (1, FINISHED)]
            await one.copy()
            assert len(one.events()) == 4, "a pass that copies nothing appends nothing"
            one.broker.partitions.require("t", 0).deletion.delete_records(1)
            await one.copy()
            assert one.events()[4] == (0, DELETING)
            index = one.index("t")
            assert {(at, record.key) for at, record in one.records()} == {(index, None)}

    asyncio.run(body())


def test_the_events_of_a_manifest_do_not_wait_for_the_end_of_a_long_pass(tmp_path, monkeypatch):
    monkeypatch.setattr("stablelog.broker.tiering.partition_copier.PUBLISHED_AFTER", 1)

    async def body():
        async with tiered(tmp_path) as one:
            one.create()
            await one.write(segments=2)
            await one.copy()
            assert one.events() == [(0, STARTED), (0, FINISHED), (1, STARTED), (1, FINISHED)]

    asyncio.run(body())


def test_the_events_say_what_the_manifest_says(tmp_path):
    async def body():
        async with tiered(tmp_path) as one:
            one.create()
            await one.write()
            await one.copy()
            (row,) = one.manifest().segments
            started, finished = [decode_record(record.value) for _, record in one.records()]
            held = row.to_record()
            for name in (
                "start_offset",
                "end_offset",
                "max_timestamp_ms",
                "leader_epochs",
                "size",
                "broker_id",
            ):
                assert getattr(started, name) == getattr(held, name), name
            assert started.segment == finished.segment
            assert started.segment.segment_id == row.segment_id
            assert partition_of(started) == one.remote()
            assert (started.is_txn_index_empty, started.custom_metadata) == (True, None)
            assert finished.custom_metadata == row.summary.encode()
            assert started.event_timestamp_ms <= finished.event_timestamp_ms == row.event_ms

    asyncio.run(body())


def test_the_event_that_a_copy_begins_is_there_although_the_copy_fails(tmp_path):
    async def body():
        disk = SimDisk()
        async with tiered(tmp_path, disk) as one:
            one.create()
            await one.write()
            disk.fault = lambda call, path: (
                errno.EIO if call == "reading" and path.suffix == ".index" else None
            )
            await one.copy()
            assert one.events() == [(0, STARTED)]
            disk.fault = None
            await one.copy()
            assert one.events() == [(0, STARTED), (0, STARTED), (0, FINISHED)]

    asyncio.run(body())


def test_a_manifest_has_events_only_when_it_is_recorded_locally(tmp_path):
    """A start may begin with the recorded manifest: it must not take a segment that it lacks as deleted."""

    async def body():
        disk = SimDisk()
        async with tiered(tmp_path, disk) as one:
            one.create()
            await one.write()
            await one.copy()
            await one.write()
            disk.fault = lambda _call, path: errno.EIO if path.name.startswith("remote-manifest") else None
            await one.copy()
            assert len(one.manifest().segments) == 2
            assert one.events() == [(0, STARTED), (0, FINISHED), (1, STARTED)]
            disk.fault = None
        async with tiered(tmp_path, disk) as one:
            for _ in range(2):
                await one.copy()
            assert (1, FINISHED) in one.events()
            assert not {(1, DELETING), (1, DELETED)} & set(one.events())

    asyncio.run(body())


def test_a_restart_appends_no_event_again_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("stablelog.broker.tiering.metadata_topic.READ_SIZE", 300)  # one or two events

    async def body():
        disk = SimDisk()
        async with tiered(tmp_path, disk) as one:
            one.create()
            await one.write(segments=3)
            await one.copy()
            before = one.events()
        async with tiered(tmp_path, disk) as one:
            await one.copy()
            assert one.events() == before
            await one.write()
            await one.copy()
            assert one.events() == [*before, (3, STARTED), (3, FINISHED)]

    asyncio.run(body())


@pytest.mark.parametrize("is_restarted", [False, True])
def test_events_that_the_disk_refused_are_appended_later_and_the_copies_go_on(tmp_path, caplog, is_restarted):
    async def body():
        disk = SimDisk()
        async with contextlib.AsyncExitStack() as stack:
            one = await stack.enter_async_context(tiered(tmp_path, disk))
            one.create()
            await one.copy()
            disk.fault = lambda call, path: errno.EACCES if NAME in str(path) and call == "writing" else None
            for _ in range(2):
                await one.write()
                await one.copy()
            assert len(one.manifest().segments) == 2
            assert one.events() == []
            assert sum("the broker tries again" in record.getMessage() for record in caplog.records) == 1
            disk.fault = None
            if is_restarted:
                await stack.aclose()
                one = await stack.enter_async_context(tiered(tmp_path, disk))
            await one.copy()
            assert one.events() == [(0, STARTED), (0, FINISHED), (1, STARTED), (1, FINISHED)]

    with caplog.at_level(logging.ERROR):
        asyncio.run(body())


def test_a_deleted_topic_is_marked_once(tmp_path):
    async def body():
        disk = SimDisk()
        async with tiered(tmp_path, disk) as one:
            for name in ("t", "u", "never-copied"):
                one.create(name)
            for name in "tu":
                await one.write(topic=name)
            await one.copy()
            for name in ("t", "never-copied"):
                delete_topic(one.broker.topic_files, name)
            for _ in range(2):
                await one.copy()
            assert one.events("t") == [(0, STARTED), (0, FINISHED), ("deleted", 0)]
            delete_topic(one.broker.topic_files, "u")
        async with tiered(tmp_path, disk) as one:
            await one.copy()
            assert one.events("t")[2:] == one.events("u")[2:] == [("deleted", 0)]
            assert one.events("never-copied") == []

    asyncio.run(body())


def test_a_topic_of_the_same_name_has_events_of_its_own(tmp_path):
    async def body():
        async with tiered(tmp_path) as one:
            for _ in range(2):
                one.create()
                await one.write()
                await one.copy()
                delete_topic(one.broker.topic_files, "t")
            await one.copy()
            assert Counter(one.events()) == {("deleted", 0): 2, (0, STARTED): 2, (0, FINISHED): 2}

    asyncio.run(body())


def test_a_topic_that_cannot_be_created_stops_no_copy(tmp_path, caplog):
    async def body():
        # The partitions of the coordinators' logs, and that of the tiered topic.
        async with tiered(tmp_path, stablelog_max_partitions=3) as one:
            one.create()
            for count in (1, 2):
                await one.write()
                await one.copy()
                assert len(one.manifest().segments) == count
            assert one.broker.topics.get(NAME) is None
            assert sum("stablelog.max.partitions=3" in record.getMessage() for record in caplog.records) == 1

    with caplog.at_level(logging.ERROR):
        asyncio.run(body())


def test_a_damaged_metadata_partition_stops_neither_the_broker_nor_a_copy(tmp_path, caplog):
    async def body():
        disk = SimDisk()
        async with tiered(tmp_path, disk) as one:
            one.create()
            await one.write()
            await one.copy()
            index = one.index("t")
        disk.remove(DATA / f"{NAME}-{index}" / f"{0:020}.log")
        async with tiered(tmp_path, disk) as one:
            assert one.broker.partitions.state(NAME, index) is PartitionState.OFFLINE
            await one.write()
            await one.copy()
            assert len(one.manifest().segments) == 2
            other = next(name for name in "abcdefgh" if one.create(name) or one.index(name) != index)
            await one.write(topic=other)
            await one.copy()
            assert len(one.events(other)) == 2, "the other metadata partitions get their events"

    with caplog.at_level(logging.ERROR):
        asyncio.run(body())
    assert sum("the broker tries again" in record.getMessage() for record in caplog.records) == 1


def test_a_failed_metadata_partition_does_not_stop_the_broker(tmp_path, caplog):
    async def body():
        async with tiered(tmp_path) as one:
            one.create()
            await one.copy()
            for partition in one.partitions():
                one.broker.fail_partition(partition, UnavailableError("a sync failed"))
            assert one.broker.tasks.failure is None
            await one.write()
            await one.copy()
            assert len(one.manifest().segments) == 1

    with caplog.at_level(logging.ERROR):
        asyncio.run(body())


def test_a_metadata_partition_that_is_opened_again_gets_the_missing_events(tmp_path):
    async def body():
        async with tiered(tmp_path) as one:
            one.create()
            await one.write()
            await one.copy()
            full = DiskError("the disk is full", errno.ENOSPC)
            for partition in one.partitions():
                one.broker.fail_partition(partition, full)
            assert await one.broker.maintenance.restore_reserve()
            await one.write()
            await one.copy()
            assert len(one.manifest().segments) == 2
            await one.broker.maintenance.tend_reserve()
            await one.copy()
            assert one.events() == [(0, STARTED), (0, FINISHED), (1, STARTED), (1, FINISHED)]

    asyncio.run(body())


def test_no_event_is_appended_while_the_disk_is_full(tmp_path, caplog):
    async def body():
        async with tiered(tmp_path) as one:
            one.create()
            await one.write()
            one.broker.reserve.record_failure(DiskError("the disk is full", errno.ENOSPC))
            await one.copy()
            assert len(one.manifest().segments) == 1
            assert one.broker.topics.get(NAME) is None
            assert await one.broker.maintenance.restore_reserve()
            await one.copy()
            assert one.events() == [(0, STARTED), (0, FINISHED)]
            await one.write()
            one.broker.reserve.record_failure(DiskError("the disk is full", errno.ENOSPC))
            await one.copy()
            assert len(one.manifest().segments) == 2
            assert len(one.events()) == 2
            assert await one.broker.maintenance.restore_reserve()
            await one.copy()
            assert len(one.events()) == 4

    with caplog.at_level(logging.ERROR):
        asyncio.run(body())
    assert sum("the broker tries again" in record.getMessage() for record in caplog.records) == 2


def test_a_metadata_partition_that_is_opening_is_waited_for_by_no_copy(tmp_path, caplog):
    async def body():
        disk, one_partition = SimDisk(), {"rlmm_config_remote_log_metadata_topic_num_partitions": 1}
        async with tiered(tmp_path, disk, **one_partition) as one:
            one.create()
            await one.copy()
        gate = Gate(NAME)
        async with tiered(tmp_path, disk, gate=gate, **one_partition) as one:
            await one.write()
            await one.copy()
            assert len(one.manifest().segments) == 1
            gate.open()
            await one.desk.opened(NAME)
            assert one.events() == []
            await one.copy()
            assert one.events() == [(0, STARTED), (0, FINISHED)]

    with caplog.at_level(logging.ERROR):
        asyncio.run(body())
    assert not caplog.records


def test_records_that_cannot_be_read_are_skipped(tmp_path):
    async def body():
        disk = SimDisk()
        async with tiered(tmp_path, disk) as one:
            one.create()
            await one.write()
            await one.copy()
            for partition in one.partitions():
                partition.append(batch(b"", b"no event", None), now_ms=0, origin=Origin.COORDINATOR)
            await one.desk.durable()
        async with tiered(tmp_path, disk) as one:
            await one.write()
            await one.copy()
            values = [record.value for _, record in one.records()]
            assert len(values) - 3 * COUNT == 4

    asyncio.run(body())


def test_clients_read_the_topic_and_cannot_change_it(tmp_path):
    async def body():
        async with tiered(tmp_path) as one:
            one.create()
            await one.write()
            await one.copy()
            index = one.index("t")
            await one.desk.durable()
            read = await one.desk.fetch(NAME, index, 0)
            assert [header.record_count for _, header in headers_in(read.records)] == [1, 1]
            refused = ErrorCode.invalid_topic_exception
            answer = await one.desk.produce(batch(b"value"), topic=NAME, partition=index)
            assert answer.error_code is refused
            answer = await one.desk.ask(20, 5, topic_names=(NAME,), timeout=timedelta(seconds=1))
            assert answer.responses[0].error_code is refused
            answer = await one.desk.ask_with(
                21,
                2,
                {
                    "timeout": timedelta(seconds=1),
                    "topics": [{"name": NAME, "partitions": [{"partition_index": index, "offset": 1}]}],
                },
            )
            assert answer.topics[0].partitions[0].error_code is refused
            answer = await one.desk.ask_with(
                27,
                1,
                {
                    "markers": [
                        {
                            "producer_id": 1,
                            "producer_epoch": 0,
                            "transaction_result": True,
                            "coordinator_epoch": 0,
                            "topics": [{"name": NAME, "partition_indexes": (index,)}],
                        }
                    ]
                },
            )
            assert answer.markers[0].topics[0].partitions[0].error_code is refused

    asyncio.run(body())


def test_the_topic_is_not_tiered_although_topics_are_by_default(tmp_path):
    async def body():
        disk = SimDisk()
        for _ in range(2):
            async with tiered(tmp_path, disk, stablelog_remote_storage_enable="true") as one:
                if one.broker.topics.get("t") is None:
                    one.create()
                await one.write()
                await one.copy()
                assert one.partitions()
                assert all(partition.remote is None for partition in one.partitions())
                # A directory of Apache Kafka may have the topic with other settings.
                one.broker.topic_files.configure(one.broker.topics.named(NAME), TIERED)
                await one.copy()
                assert all(partition.remote is None for partition in one.partitions())
                assert not list((tmp_path / "store").glob(f"t.{NAME}"))

    asyncio.run(body())


def test_retention_deletes_no_event(tmp_path):
    async def body():
        async with tiered(tmp_path, log_retention_ms=1) as one:
            one.broker.topic_files.create("t", 1, {**TIERED, "retention.ms": "-1"})
            await one.write()
            await one.copy()
            for partition in one.partitions():
                partition.roll(one.broker.now_ms())
            one.broker.clock.advance(10**6)
            await one.broker.maintenance.apply_retention()
            assert len(one.events()) == 2

    asyncio.run(body())
