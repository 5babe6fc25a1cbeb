"""The objects of a deleted topic leave the store; the store says that it was deleted."""

import asyncio
import random
import uuid

import pytest

from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.tiering import segment_uploads
from stablelog.broker.tiering.remote_storage import RemoteStorage
from stablelog.data_directory.catalog import read_catalog
from stablelog.env.objects.opening import open_store
from stablelog.errors import RefusedError, StoreError, UnavailableError
from stablelog.testing.sim_disk import SimDisk
from stablelog.tier.chain import Chain, LinkKind, claim_epoch, decode_link, same_payload
from stablelog.tier.names import chain_name_of
from stablelog.tier.pins import Pin, encode_pin
from stablelog.tier.prefix import Prefix
from tests.broker.desk import DATA, delete_topic
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
    return [path for path in links if decode_link(path.read_bytes())[0] is LinkKind.MANIFEST]


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
            delete_topic(one.broker.topic_files, "t")
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


def test_a_topic_that_is_deleted_during_a_copy_gets_no_manifest(tmp_path, monkeypatch):
    """It would not say whose it is, and which settings the topic has."""
    encode = segment_uploads.encode_cut_points

    async def body():
        async with tiered(tmp_path, SimDisk()) as one:
            loop = asyncio.get_running_loop()
            one.create()
            await one.write(segments=2)

            async def delete():
                delete_topic(one.broker.topic_files, "t")

            def deleting(summary, *given):
                if summary.base_offset:  # The segment before it is in the store.
                    asyncio.run_coroutine_threadsafe(delete(), loop).result()
                return encode(summary, *given)

            monkeypatch.setattr(segment_uploads, "encode_cut_points", deleting)
            await one.copy()
            assert one.broker.topics.get("t") is None
            assert of_segments(tmp_path)
            assert manifests(tmp_path) == []

    asyncio.run(body())


def test_a_restart_goes_on_with_the_deletion(tmp_path):
    disk = SimDisk()

    async def body():
        async with tiered(tmp_path, disk) as one:
            await with_two_topics(one)
            delete_topic(one.broker.topic_files, "t")
            await one.copy()
            assert "deleted" in stored(tmp_path), "a restore must not bring the topic back in the delay"
            assert Prefix(one.store).partitions("t") == []
            assert len(of_segments(tmp_path)) == 4
        async with tiered(tmp_path, disk, **AT_ONCE) as one:
            await one.copy()
            assert of_segments(tmp_path) == []
            assert one.events("t")[-2:] == [("deleted", 0), ("deleted", 2)]

    asyncio.run(body())


@pytest.mark.parametrize("stop", ["restart", "crash"])
@pytest.mark.parametrize("lost", ["nothing", "events", "manifest", "copies"])
def test_the_store_is_told_of_each_deletion(tmp_path, monkeypatch, lost, stop):
    """The broker ends before the store knows of the deletion. Nothing says that it had copied segments: the events are
    gone, or no manifest was published, or nothing was copied.
    """
    disk = SimDisk()

    async def body():
        async with tiered(tmp_path, disk) as one:
            one.create()
            await one.write(segments=2)
            with monkeypatch.context() as patched:
                if lost == "manifest":
                    patched.setattr(Chain, "publish", failing)
                if lost != "copies":
                    await one.copy()
            assert len(of_segments(tmp_path)) == (0 if lost == "copies" else 4)
            if lost == "events":
                for partition in one.partitions():
                    one.broker.flush.mark_dirty(partition)
                    await one.until(lambda one=partition: one.high_watermark == one.end_offset)
                    partition.deletion.delete_records(partition.end_offset)
            delete_topic(one.broker.topic_files, "t")
            crashed = one.broker.disk.crash(random.Random(0))
        async with tiered(tmp_path, disk if stop == "restart" else crashed, **AT_ONCE) as one:
            await one.copy()
            assert "deleted" in stored(tmp_path)
            assert Prefix(one.store).partitions("t") == []
            assert of_segments(tmp_path) == manifests(tmp_path) == []
            assert not read_catalog(one.broker.disk, DATA).deleted
            before = requests_of(one)
            await one.copy()
            assert requests_of(one) == before

    asyncio.run(body())


def failing(_chain, _payload):
    raise StoreError("the store does not answer")
    yield


def test_the_store_is_told_when_it_answers_again(tmp_path, monkeypatch):
    async def body():
        async with tiered(tmp_path, **AT_ONCE) as one:
            one.create()
            await one.copy()
            delete_topic(one.broker.topic_files, "t")
            with monkeypatch.context() as patched:
                patched.setattr(
                    RemoteStorage, "mark_deleted", lambda _storage, _partition: next(failing(0, 0))
                )
                await one.copy()
            assert "deleted" not in stored(tmp_path)
            assert [topic.name for topic in read_catalog(one.broker.disk, DATA).deleted] == ["t"]
            await one.copy()
            assert "deleted" in stored(tmp_path)

    asyncio.run(body())


def test_a_topic_without_a_remote_tier_is_deleted_without_a_request(tmp_path):
    async def body():
        async with tiered(tmp_path, **AT_ONCE) as one:
            one.broker.topic_files.create("plain", 1, {})
            await one.copy()
            before = requests_of(one)
            delete_topic(one.broker.topic_files, "plain")
            assert not read_catalog(one.broker.disk, DATA).deleted
            await one.copy()
            assert requests_of(one) == before

    asyncio.run(body())


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("is_tiered", [True, False])
def test_a_topic_that_had_a_remote_tier_counts_as_tiered(tmp_path, is_tiered, is_open):
    """Its objects stay until the topic is deleted, also if its settings have disabled the tier, or it is offline."""

    async def body():
        async with tiered(tmp_path, **AT_ONCE) as one:
            one.create()
            await one.write()
            topic = one.broker.topics.named("t")
            if not is_tiered:
                await one.copy()
                disabled = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
                one.broker.topic_files.configure(topic, disabled)
            if not is_open:
                one.broker.partitions.of_topic(topic).pop(0).close(clean=False)
            one.broker.topic_files.unlist("t")
            one.broker.topics.end_reservation(topic)
            assert [found.name for found in read_catalog(one.broker.disk, DATA).deleted] == ["t"]
            await one.copy()
            assert "deleted" in stored(tmp_path)
            assert of_segments(tmp_path) == []

    asyncio.run(body())


def test_a_deletion_that_the_disk_refuses_deletes_nothing(tmp_path, monkeypatch):
    async def body():
        async with tiered(tmp_path, **AT_ONCE) as one:
            one.create()
            await one.write()
            await one.copy()
            topic_files = one.broker.topic_files
            with monkeypatch.context() as patched:
                patched.setattr(DiskReserve, "write_atomic", refuse)
                with pytest.raises(RefusedError):
                    topic_files.unlist("t")
            await one.copy()
            assert len(of_segments(tmp_path)) == 2
            delete_topic(topic_files, "t")
            with monkeypatch.context() as patched:
                patched.setattr(DiskReserve, "write_atomic", refuse)
                await one.copy()
            assert [topic.name for topic in read_catalog(one.broker.disk, DATA).deleted] == ["t"]
            await one.copy()
            assert not read_catalog(one.broker.disk, DATA).deleted

    asyncio.run(body())


def refuse(_reserve, path, _content):
    raise UnavailableError(f"{path}: the disk is full")


def test_a_pin_keeps_the_objects_of_a_deleted_topic(tmp_path):
    async def body():
        async with tiered(tmp_path, **AT_ONCE) as one:
            await with_two_topics(one)
            pin = tmp_path / "store" / one.remote().pin_key(uuid.uuid4())
            pin.parent.mkdir()
            pin.write_bytes(encode_pin(Pin(0, 1, "a test")))
            delete_topic(one.broker.topic_files, "t")
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
            delete_topic(one.broker.topic_files, "t")
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
            epoch = prefix.run_steps(claim_epoch(b"another start ..."[:16]))
            prefix.run_steps(Chain(partition, epoch, b"another start ..."[:16]).take_over(same_payload))
            delete_topic(one.broker.topic_files, "t")
            before = of_segments(tmp_path)
            for _ in range(2):
                await one.copy()
            assert of_segments(tmp_path) == before
            assert manifests(tmp_path)
            assert "deleted" not in stored(tmp_path)

    asyncio.run(body())
    assert sum("has taken over the manifests" in line for line in lines(caplog)) == 1
