"""Tiered topics that are created and deleted for months leave nothing behind but one small object each."""

import asyncio
import gc
import os
import statistics
import uuid

import pytest

from stablelog.batch.records import Record, encode_batch
from stablelog.data_directory.catalog import read_catalog
from stablelog.log.partition import Origin
from stablelog.testing.sim_disk import SimDisk
from stablelog.tier.events import Events
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.records import encode_record
from tests.broker.desk import DATA, delete_topic
from tests.broker.tiering.test_metadata_topic import NAME, tiered
from tests.tier.test_manifest import NOW_MS, segment

AT_ONCE = {"stablelog_remote_delete_delay_ms": 0}
MORE_MAX = 1.05
FEW, TIMES = int(os.environ.get("STABLELOG_DEAD_TOPICS", "2")), 10


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """The store applies no upload late, and few events are many."""
    monkeypatch.setattr("stablelog.tier.deletion.LATE_S", 0)
    monkeypatch.setattr("stablelog.broker.tiering.metadata_topic.DEAD_COUNT_MAX", 0)


def stored(tmp_path):
    """The sizes of the objects of all topics but `kept`, by key, without `deleted`."""
    root = tmp_path / "store"
    return {
        str(path.relative_to(root)): path.stat().st_size
        for path in root.rglob("*")
        if path.is_file() and path.parts[len(root.parts)].startswith("t.d") and path.name != "deleted"
    }


async def churn(one, number, count):
    """Create topics with copied segments, and delete them. Return how many there were."""
    for name in (f"d{number + n}" for n in range(count)):
        one.create(name)
        await one.write(segments=3, topic=name)
        await one.copy()
        delete_topic(one.broker.topic_files, name)
        for _ in range(3):
            await one.copy()
    return number + count


def measured(one, tmp_path, disk):
    objects = stored(tmp_path)
    topic = one.broker.topics.get(NAME)
    return {
        "events": len(one.records()),
        "bytes of events": sum(
            partition.size for partition in one.broker.partitions.of_topic(topic).values()
        ),
        "objects": len(objects),
        "bytes of objects": sum(objects.values()),
        "deleted topics in the list": len(read_catalog(disk, DATA).deleted),
        "partitions with events in memory": sum(type(one) is Events for one in gc.get_objects()),
    }


@pytest.mark.extended
def test_after_ten_times_as_many_deleted_topics_there_is_not_more(tmp_path):
    disk = SimDisk()

    async def body():
        async with tiered(tmp_path, disk, **AT_ONCE) as one:
            one.create("kept")
            await one.write(segments=2, topic="kept")
            await one.copy()
            looks, number = [], 0
            for end in (FEW, TIMES * FEW):
                number = await churn(one, number, end - number)
                found = []
                for _ in range(3):
                    number = await churn(one, number, 1)
                    found.append(measured(one, tmp_path, disk))
                looks.append({key: statistics.median(look[key] for look in found) for key in found[0]})
            kept = one.events("kept")
        few, many = looks
        assert few["objects"] == many["objects"] == 0
        for key, value in few.items():
            assert many[key] <= value * MORE_MAX, (few, many)
        assert [event for event in kept if event[0] != "started"] != []
        async with tiered(tmp_path, disk, **AT_ONCE) as one:
            await one.copy()
            assert measured(one, tmp_path, disk)["events"] <= many["events"] * MORE_MAX

    asyncio.run(body())


def test_a_start_adds_nothing_while_a_deletion_waits(tmp_path):
    disk = SimDisk()

    async def body():
        async with tiered(tmp_path, disk) as one:
            one.create("d0")
            await one.write(segments=2, topic="d0")
            await one.copy()
            delete_topic(one.broker.topic_files, "d0")
            await one.copy()
        before = stored(tmp_path)
        assert before
        for _ in range(3):
            async with tiered(tmp_path, disk) as one:
                for _ in range(2):
                    await one.copy()
            assert stored(tmp_path) == before
        async with tiered(tmp_path, disk, **AT_ONCE) as one:
            for _ in range(3):
                await one.copy()
            assert stored(tmp_path) == {}

    asyncio.run(body())


def test_events_of_segments_that_apache_kafka_has_copied_stay(tmp_path):
    """No manifest names these segments."""
    disk = SimDisk()
    partition = RemotePartition("kafkas", uuid.UUID(int=9), 0)
    manifest = Manifest("c", 0, (segment(0, by_kafka=True),))

    async def body():
        async with tiered(tmp_path, disk, **AT_ONCE) as one:
            await churn(one, 0, 1)
            events = [
                encode_record(event) for event in Events().missing_events(partition, manifest, NOW_MS, 1)
            ]
            for log in one.broker.partitions.of_topic(one.broker.topics.named(NAME)).values():
                batch = encode_batch([Record(0, NOW_MS, None, event) for event in events])
                log.append(batch, now_ms=NOW_MS, origin=Origin.COORDINATOR)
        async with tiered(tmp_path, disk, **AT_ONCE) as one:
            await churn(one, 1, 3)
            values = [record.value for _, record in one.records()]
            assert [values.count(event) for event in events] == [len(one.partitions())] * len(events)

    asyncio.run(body())
