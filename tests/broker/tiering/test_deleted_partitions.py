"""The objects of a deleted topic leave the store; the store says that it was deleted."""

import asyncio
import uuid

import pytest

from stablelog.env.objects.opening import open_store
from stablelog.testing.sim_disk import SimDisk
from stablelog.tier.chain import Chain, Kind, claim_epoch, decode_link
from stablelog.tier.names import chain_name_of
from stablelog.tier.pins import Pin, encode_pin
from stablelog.tier.prefix import Prefix
from tests.broker.desk import delete_topic
from tests.broker.tiering.test_metadata_topic import tiered
from tests.broker.tiering.world import lines

AT_ONCE = {"stablelog_remote_delete_delay_ms": 0}


@pytest.fixture(autouse=True)
def _no_late_uploads(monkeypatch):
    """The store of these tests applies no upload late, so that the last sweep need not wait for one."""
    monkeypatch.setattr("stablelog.tier.deletion.LATE_S", 0)


def stored(tmp_path, topic="t"):
    """The objects of a topic, by key without the name and the id of the topic."""
    root = tmp_path / "store" / f"t.{topic}"
    return {
        "/".join(path.relative_to(root).parts[1:]): path for path in sorted(root.rglob("*")) if path.is_file()
    }


def of_segments(tmp_path, topic="t"):
    return [key for key in stored(tmp_path, topic) if key.endswith((".log", ".indexes"))]


def manifests(tmp_path, topic="t"):
    links = [path for key, path in stored(tmp_path, topic).items() if chain_name_of(key) is not None]
    return [path for path in links if decode_link(path.read_bytes())[0] is Kind.MANIFEST]


def requests_of(one):
    """The requests to the store up to now, by kind."""
    samples = one.broker.tiering.samples()
    return [(labels, count) for name, labels, count in samples if name == "stablelog_remote_requests"]


async def with_two_topics(one):
    for name in "tu":
        one.create(name)
        await one.write(segments=2, topic=name)
    await one.copy()


def test_the_objects_of_a_deleted_topic_leave_the_store(tmp_path):
    disk = SimDisk()

    async def body():
        async with tiered(tmp_path, disk, **AT_ONCE) as one:
            await with_two_topics(one)
            kept = stored(tmp_path, "u").keys()
            delete_topic(one.broker.topics, "t")
            await one.copy()
            assert of_segments(tmp_path) == manifests(tmp_path) == []
            assert stored(tmp_path)["deleted"].read_bytes() == (tmp_path / "store" / "cluster").read_bytes()
            assert stored(tmp_path, "u").keys() == kept
            prefix = Prefix(one.store)
            assert [found for name in prefix.topics() for found in prefix.partitions(name)][-1].topic == "u"
            assert prefix.partitions("t") == []
            assert one.events("t")[-2:] == [("deleted", 0), ("deleted", 2)]
            count = len(one.records())
            before = requests_of(one)
            await one.copy()
            assert requests_of(one) == before
        async with tiered(tmp_path, disk, **AT_ONCE) as one:
            await one.copy()
            assert len(one.records()) == count

    asyncio.run(body())


def test_a_restart_goes_on_with_the_deletion(tmp_path):
    disk = SimDisk()

    async def body():
        async with tiered(tmp_path, disk) as one:
            await with_two_topics(one)
            delete_topic(one.broker.topics, "t")
            await one.copy()
            assert "deleted" in stored(tmp_path), "a restore must not bring the topic back in the delay"
            assert len(of_segments(tmp_path)) == 4
        async with tiered(tmp_path, disk, **AT_ONCE) as one:
            await one.copy()
            assert of_segments(tmp_path) == []
            assert one.events("t")[-2:] == [("deleted", 0), ("deleted", 2)]

    asyncio.run(body())


def test_a_pin_keeps_the_objects_of_a_deleted_topic(tmp_path):
    async def body():
        async with tiered(tmp_path, **AT_ONCE) as one:
            await with_two_topics(one)
            pin = tmp_path / "store" / one.remote().pin_key(uuid.uuid4())
            pin.parent.mkdir()
            pin.write_bytes(encode_pin(Pin(0, 1, "a test")))
            delete_topic(one.broker.topics, "t")
            await one.copy()
            assert len(of_segments(tmp_path)) == 4
            assert manifests(tmp_path), "the reader may read the manifest again"
            pin.unlink()
            await one.copy()
            assert of_segments(tmp_path) == manifests(tmp_path) == []

    asyncio.run(body())


def test_a_topic_of_the_same_name_keeps_its_objects(tmp_path):
    async def body():
        async with tiered(tmp_path, **AT_ONCE) as one:
            await with_two_topics(one)
            delete_topic(one.broker.topics, "t")
            one.create()
            await one.write(segments=3)
            await one.copy()
            assert len(of_segments(tmp_path)) == 6
            assert len(one.manifest().segments) == 3
            assert [found.topic_id for found in Prefix(one.store).partitions("t")] == [one.remote().topic_id]

    asyncio.run(body())


def test_a_broker_that_another_one_has_fenced_deletes_nothing(tmp_path, caplog):
    async def body():
        async with tiered(tmp_path, **AT_ONCE) as one:
            await with_two_topics(one)
            partition, prefix = one.remote(), Prefix(open_store(f"file://{tmp_path}/store"))
            epoch = prefix.run(claim_epoch(b"another start ..."[:16]))
            prefix.run(Chain(partition, epoch, b"another start ..."[:16]).take_over())
            delete_topic(one.broker.topics, "t")
            before = of_segments(tmp_path)
            for _ in range(2):
                await one.copy()
            assert of_segments(tmp_path) == before
            assert manifests(tmp_path)
            assert "deleted" not in stored(tmp_path)

    asyncio.run(body())
    assert sum("has taken over the manifests" in line for line in lines(caplog)) == 1
