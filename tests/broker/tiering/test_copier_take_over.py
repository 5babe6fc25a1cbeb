"""Taking over the manifests of a partition: damage and foreign objects are refused by name, and nothing is deleted."""

import pytest

from stablelog.broker.tiering.remote_storage import PROOF_S
from stablelog.env.objects.opening import open_store
from stablelog.errors import DamageError, StablelogError, UnavailableError, UsageError
from stablelog.log.files.names import REMOTE_LOG_START_FILE, REMOTE_MANIFEST_FILE, REMOTE_PART_PREFIX
from stablelog.log.partition import Isolation
from stablelog.testing.s3 import serve_s3
from stablelog.testing.sim_objects import SimObjects, StoreFaults
from stablelog.tier.chain import same_payload
from stablelog.tier.local_state import LocalState
from tests.broker.tiering.world import World, lines
from tests.tier.tiered_log import PARTITION

COMMITTED = Isolation.READ_COMMITTED


def copied(**config):
    """A world whose segments are only in the store, but for the growing one."""
    world = World(**config)
    world.copy_all()
    assert world.drop_local() == 5
    return world


def manifests(world):
    """The keys of the manifests in the store, oldest first."""
    objects = world.store_objects.objects
    return sorted(key for key in objects if "/manifest/" in key and len(objects[key]) > 31)


def refused(world, caplog, *words):
    """Copy; check that this is refused once with a line that has these words, and that nothing was deleted."""
    caplog.clear()
    before, names = set(world.store_objects.objects), world.names()
    world.copy_all()
    world.copy_all()
    (line,) = lines(caplog)
    for word in ("sim://store", *words):
        assert word in line
    assert before <= set(world.store_objects.objects)
    assert world.names() == names
    assert world.partition in world.copier.failed


# -- the conditions of the store -----------------------------------------------------------------------------------


class Versioned(SimObjects):
    """A store that ignores conditions from a moment on, as Ceph does when versions of objects are switched on."""

    is_versioned = False

    def create(self, key, content):
        if self.is_versioned:
            self.objects.pop(key, None)
        super().create(key, content)


def test_a_store_that_ignores_conditions_since_the_start_is_refused_at_the_next_take_over(
    caplog, monkeypatch
):
    objects = Versioned(faults=StoreFaults(latency_s=0))
    world = World(objects, words=())
    storage, asked = world.storage, []
    objects.between = lambda call, key: asked.append((call, key))
    storage.take_epoch()
    world.write_segments(["P1 P1c"])
    objects.is_versioned = True
    world.now_s += PROOF_S + 1
    asked.clear()
    refused(world, caplog, "is not safe", "ignores If-None-Match")
    assert not [key for call, key in asked if call != "delete" and not key.startswith("check/")]
    objects.is_versioned = False
    world.copy_all()
    assert world.published().end_offset == 2


def test_a_start_checks_the_store_once_for_all_its_partitions(monkeypatch):
    objects = SimObjects(faults=StoreFaults(latency_s=0))
    world = World(objects)
    asked = []
    objects.between = lambda call, key: asked.append(key)
    for _ in range(3):
        if world.storage.epoch:
            world.storage.take_over(world.storage.chain(PARTITION), same_payload)
        else:
            world.storage.take_epoch()
    assert len([key for key in asked if key.startswith("check/")]) == 5


# -- two brokers ---------------------------------------------------------------------------------------------------


def test_the_second_of_two_brokers_fences_the_first(caplog):
    first = World()
    first.copy_all()
    second = World(first.store_objects)  # the same records, as a copied data directory has them
    second.write_segments(["- -"])
    first.write_segments(["P8 P8a"])
    second.copy_all()
    published = second.published()
    caplog.clear()
    first.copy_all()
    (line,) = lines(caplog)
    assert "epoch 2" in line or "another broker has taken over" in line
    assert "copies no more segments" in line
    assert "sim://store" in line
    assert first.storage.fenced is not None
    assert second.published() == published, "a fenced broker publishes nothing that readers see"
    count = len(first.store_objects.objects)
    first.write_segments(["-"])
    first.copy_all()
    assert len(first.store_objects.objects) == count, "it sends no requests any more"
    first.drop_local()
    first.check_own()
    second.check()


def test_a_broker_with_another_history_publishes_nothing(caplog):
    """Its log ends before the last copied segment: records of two histories would have the same offsets."""
    first = World()
    first.copy_all()
    second = World(first.store_objects, words=["- -"])
    refused(second, caplog, "t.t/")
    assert second.partition.start_offset == 0
    assert not second.remote.manifest.segments


def test_a_broker_whose_segments_differ_from_the_copied_ones_publishes_nothing(caplog):
    first = World(words=["- - -", "-"])
    first.copy_all()
    second = World(first.store_objects, words=["-", "- -", "- - -"])
    refused(second, caplog, "t.t/")


# -- the store of another cluster ----------------------------------------------------------------------------------


def test_a_store_of_another_cluster_is_refused():
    world = copied()
    world.start(cluster_id="other")
    before = dict(world.store_objects.objects)
    with pytest.raises(
        UsageError, match=r"sim://store holds the objects of cluster cluster, .* other: use another"
    ):
        world.copy_all()
    assert world.store_objects.objects == before


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"version": "x", "cluster": 1}', b"\xff\xfe", b"null"]
)
def test_a_prefix_whose_cluster_object_is_something_else_is_refused(content):
    world = World()
    world.store_objects.objects["cluster"] = content
    with pytest.raises(StablelogError, match="sim://store/cluster"):
        world.copy_all()
    assert set(world.store_objects.objects) == {"cluster"}


def test_a_manifest_of_another_cluster_is_refused(caplog):
    world = copied()
    world.write_segments(["-"])
    world.store_objects.objects.pop("cluster")
    world.start(cluster_id="other")
    refused(world, caplog, "was written by cluster cluster", "t.t/")


def test_a_store_that_ignores_conditions_is_refused():
    with serve_s3() as s3:
        s3.ignores_conditions = True
        world = World()
        world.start(open_store("s3://bucket/prefix", allow_http=True, options=s3.options))
        with pytest.raises(StablelogError, match=r"s3://bucket/prefix is not safe, .* ignores If-None-Match"):
            world.copy_all()
        assert not s3.objects
        assert world.drop_local() == 0


# -- damage in the store -------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_any_flipped_or_missing_byte_of_the_last_manifest_is_refused(caplog):
    world = copied()
    (key,) = manifests(world)
    objects = world.store_objects.objects
    good = dict(objects)
    size = len(good[key])
    world.write_segments(["-"])
    contents = [good[key][:cut] for cut in (0, 1, 20, 31, 32, size // 2, size - 1)]
    for place in range(0, size, 7):
        damaged = bytearray(good[key])
        damaged[place] ^= 1 << place % 8
        contents.append(bytes(damaged))
    for content in contents:
        objects.clear()
        objects.update(good)
        objects[key] = content
        world.restart()
        refused(world, caplog, "t.t/")
    objects.clear()
    objects.update(good)
    world.restart()
    finish(world)


@pytest.mark.parametrize("lost", ["the last manifest", "all manifests", "all objects"])
def test_a_store_that_lost_manifests_is_refused(lost, caplog):
    world = copied()
    world.write_segments(["-"])
    world.copy_all()
    last = manifests(world)[-1]
    for key in list(world.store_objects.objects):
        if lost == "all objects" or key == last or (lost == "all manifests" and "/manifest/" in key):
            del world.store_objects.objects[key]
    world.write_segments(["-"])
    world.restart()
    refused(world, caplog, "t.t/", "are lost")
    if lost != "all objects":
        world.check_own()


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "another part"])
def test_a_damaged_or_missing_part_of_a_manifest_is_refused_by_its_key(damage, caplog, monkeypatch):
    """The local record is lost too: otherwise the broker has a copy of each part."""
    monkeypatch.setattr("stablelog.broker.tiering.copy_plans.PART_COUNT", 1)
    world = copied()
    objects = world.store_objects.objects
    good = dict(objects)
    parts = sorted(key for key in objects if "/part/" in key)
    assert len(parts) == 4
    world.write_segments(["-"])
    for key in parts:
        match damage:
            case "missing":
                del objects[key]
            case "cut":
                objects[key] = good[key][:-1]
            case "flipped":
                objects[key] = bytes([*good[key][:40], good[key][40] ^ 1, *good[key][41:]])
            case _:
                objects[key] = good[parts[parts.index(key) - 1]]
        world.disk.remove(world.directory / REMOTE_MANIFEST_FILE)
        world.restart()
        refused(world, caplog, key)
        with pytest.raises(UnavailableError):
            world.partition.read(0, 100, COMMITTED)
        objects.clear()
        objects.update(good)
    world.restart()
    finish(world)


def test_a_broker_takes_the_parts_of_the_last_one_over(monkeypatch):
    monkeypatch.setattr("stablelog.broker.tiering.copy_plans.PART_COUNT", 2)
    world = copied()
    parts = world.published().parts
    assert [part.segment_count for part in parts] == [2, 2]
    world.write_segments(["- -", "P4 P4a"])
    world.restart()
    finish(world)
    assert world.published().parts[:2] == parts, "a part is written once"
    assert len(world.published().parts) == 3


# -- the local record ----------------------------------------------------------------------------------------------


def local_parts(world):
    return sorted(
        name for name in world.disk.list_dir(world.directory) if name.startswith(REMOTE_PART_PREFIX)
    )


def test_a_start_reads_no_part_from_the_store(monkeypatch):
    monkeypatch.setattr("stablelog.broker.tiering.copy_plans.PART_COUNT", 1)
    world = copied()
    named = sorted(REMOTE_PART_PREFIX + part.part_id.hex for part in world.published().parts)
    assert len(named) == 4
    assert local_parts(world) == named
    world.restart()
    assert world.remote.manifest == world.published()
    asked = []
    world.store_objects.between = lambda call, key: asked.append((call, key))
    world.write_segments(["- -"])
    world.copy_all()
    world.store_objects.between = lambda _call, _key: None
    assert [call for call, key in asked if "/part/" in key] == ["create"], "that of the new segment"
    finish(world)


def test_the_local_directory_keeps_the_parts_of_the_last_manifest_only(monkeypatch):
    monkeypatch.setattr("stablelog.broker.tiering.copy_plans.PART_COUNT", 1)
    world = copied()
    before = local_parts(world)
    world.partition.deletion.delete_records(3)
    world.copy_all()
    assert local_parts(world) == sorted(
        REMOTE_PART_PREFIX + part.part_id.hex for part in world.published().parts
    )
    assert local_parts(world) != before


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_a_damaged_local_part_is_replaced_by_that_of_the_store(damage, monkeypatch):
    monkeypatch.setattr("stablelog.broker.tiering.copy_plans.PART_COUNT", 1)
    world = copied()
    path = world.directory / local_parts(world)[1]
    good = world.disk.read_bytes(path)
    match damage:
        case "missing":
            world.disk.remove(path)
        case "cut":
            world.disk.write_atomic(path, good[:-1])
        case _:
            world.disk.write_atomic(path, bytes([*good[:40], good[40] ^ 1, *good[41:]]))
    with pytest.raises(DamageError, match=path.name):
        LocalState(world.disk, world.directory).read_manifest()
    world.restart()
    with pytest.raises(UnavailableError, match="not known until the object store answers"):
        world.partition.read(0, 100, COMMITTED)
    world.copy_all()
    assert world.disk.read_bytes(path) == good
    assert LocalState(world.disk, world.directory).read_manifest().segments == world.published().segments
    finish(world)


# -- damage of the local record ------------------------------------------------------------------------------------


DAMAGED = (b"", b"x", b"2\n")


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_local_manifest_is_replaced_by_that_of_the_store(content):
    world = copied()
    world.partition.deletion.delete_records(3)
    world.disk.write_atomic(world.directory / REMOTE_MANIFEST_FILE, content)
    world.restart()
    with pytest.raises(UnavailableError, match="not known until the object store answers"):
        world.partition.read(4, 100, COMMITTED)
    with pytest.raises(UnavailableError):
        world.partition.visible_start(COMMITTED)
    world.copy_all()
    assert world.partition.visible_start(COMMITTED) == 3, "deleted records stay deleted"
    assert world.whole(world, 3) == world.whole(world.plain, 3)
    assert LocalState(world.disk, world.directory).read_manifest().segments == world.published().segments


@pytest.mark.parametrize("content", DAMAGED)
def test_with_a_damaged_local_manifest_an_empty_store_is_refused(content, caplog):
    """Local segments were deleted, so the store had them. An empty store is damage, or another store."""
    world = copied()
    world.disk.write_atomic(world.directory / REMOTE_MANIFEST_FILE, content)
    world.store_objects.objects.clear()
    world.restart()
    refused(world, caplog, REMOTE_MANIFEST_FILE)
    with pytest.raises(UnavailableError):
        world.partition.read(0, 100, COMMITTED)


def test_a_damaged_local_log_start_is_refused(caplog):
    """Without it the broker would return records that a user has deleted."""
    world = copied()
    world.partition.deletion.delete_records(3)
    world.disk.write_atomic(world.directory / REMOTE_LOG_START_FILE, b"x")
    world.restart()
    refused(world, caplog, REMOTE_LOG_START_FILE)
    with pytest.raises(UnavailableError):
        world.partition.read(0, 100, COMMITTED)
    world.write_segments(["-"])
    assert world.partition.read(world.partition.start_offset, 100, COMMITTED).buffers, "local reads go on"


# -- the log start -------------------------------------------------------------------------------------------------


@pytest.mark.sampled(10)
@pytest.mark.parametrize("before", range(14))
@pytest.mark.parametrize("is_copied", [False, True])
def test_records_behind_any_log_start_are_copied(before, is_copied):
    """A log start in the middle of a segment does not keep the segment from being copied."""
    world = World()
    if is_copied:
        world.copy_all()
        world.drop_local()
        world.write_segments(["- - -", "-"])
    world.partition.deletion.delete_records(min(before, world.partition.end_offset))
    world.copy_all()
    world.drop_local()
    world.restart()
    world.copy_all()
    world.drop_local()
    start = world.partition.visible_start(COMMITTED)
    assert start == min(before, world.partition.end_offset)
    assert world.whole(world, start) == world.whole(world.plain, start)
    assert world.partition.start_offset == world.partition.end_offset


def finish(world):
    """Copy the rest, and check that nothing is lost."""
    world.copy_all()
    world.drop_local()
    world.check()
