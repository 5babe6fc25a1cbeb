"""What `stablelog storage` says of a store is what is in it, and every damaged object is named."""

from dataclasses import replace

import pytest

from stablelog.batch.header import headers_in
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError
from stablelog.ops import stored_partitions
from stablelog.ops.stored_partitions import Verification, measure_partition
from stablelog.testing.sim_objects import SimObjects
from stablelog.tier.names import INDEXES, LOG
from stablelog.tier.pins import Pin, encode_pin
from stablelog.tier.prefix import Prefix
from tests.broker.tiering.world import World
from tests.tier.tiered_log import PARTITION


@pytest.fixture
def world():
    """Five segments in a store."""
    world = World()
    world.copy_all()
    return world


def prefix_of(objects):
    return Prefix(ObjectStore(SimObjects(objects=objects)))


def verify(objects):
    """The faults of all segments, as (key, fault)."""
    verification = Verification(prefix_of(objects), PARTITION)
    return [
        (one.key, one.fault) for segment in verification.segments for one in verification.faults_of(segment)
    ]


def keys(world, kind):
    return sorted(key for key in world.store_objects.objects if key.endswith(f".{kind}"))


def test_a_partition_is_described(world):
    objects = world.store_objects.objects
    logs = sum(len(objects[key]) for key in keys(world, LOG))
    found = measure_partition(prefix_of(objects), PARTITION)
    assert (found.topic, found.partition, found.log_start) == ("t", 0, 0)
    assert (found.segments, found.size, found.end_offset) == (5, logs, world.remote.end_offset)
    assert (found.marked, found.marked_size, found.unnamed, found.unnamed_size, found.pins) == (0, 0, 0, 0, 0)

    first = world.remote.manifest.segments[0]
    world.partition.deletion.delete_records(first.end_offset)
    world.copy_all()
    left = f"{PARTITION.directory}/{99:020}-=left.log"
    objects[left] = b"12345"
    objects[PARTITION.pin_key(first.segment_id)] = encode_pin(Pin(0, 5, "a reader"))
    now = measure_partition(prefix_of(objects), PARTITION)
    assert now == replace(
        found,
        log_start=first.end_offset,
        segments=4,
        size=logs - first.size,
        marked=1,
        marked_size=first.size,
        unnamed=1,
        unnamed_size=5,
        manifests=found.manifests + 1,
        pins=1,
    )


def test_a_partition_without_a_manifest_has_no_segments():
    found = measure_partition(prefix_of({PARTITION.segment_key(0, PARTITION.topic_id, LOG): b"1"}), PARTITION)
    assert (found.segments, found.unnamed, found.unnamed_size) == (0, 1, 1)


@pytest.mark.parametrize("piece_size", [61, 100, 8 << 20])
def test_good_objects_have_no_fault_in_whatever_pieces_they_are_read(world, monkeypatch, piece_size):
    monkeypatch.setattr(stored_partitions, "PIECE_SIZE", piece_size)
    assert verify(world.store_objects.objects) == []


@pytest.mark.extended
def test_each_flipped_byte_of_a_segment_is_found(world):
    """The CRC of a batch does not cover its offset and its leader epoch: a greater offset may be right, too."""
    objects = world.store_objects.objects
    log = keys(world, LOG)[0]
    uncovered = {at + byte for at, _ in headers_in(objects[log]) for byte in (*range(8), *range(12, 16))}
    for key in (keys(world, LOG)[0], keys(world, INDEXES)[3]):
        for place in range(len(objects[key])):
            damaged = bytearray(objects[key])
            damaged[place] ^= 1
            found = verify({**objects, key: bytes(damaged)})
            named = [one for one, _ in found]
            assert named == [key] or (key == log and place in uncovered and not named), f"{place} of {key}"


def test_missing_longer_and_shorter_objects_are_named(world):
    objects = world.store_objects.objects
    for kind in (LOG, INDEXES):
        key = keys(world, kind)[1]
        assert verify({one: objects[one] for one in objects if one != key}) == [
            (key, "the object is missing")
        ]
        for content in (objects[key][:-1], objects[key] + b"\0", b""):
            assert [one for one, _ in verify({**objects, key: content})] == [key]


def test_a_batch_of_another_segment_is_a_fault(world):
    objects = world.store_objects.objects
    first, second = keys(world, LOG)[3:5]
    assert [one for one, _ in verify({**objects, first: objects[second]})] == [first]


def test_what_the_broker_has_deleted_meanwhile_is_no_fault(world):
    verification = Verification(prefix_of(world.store_objects.objects), PARTITION)
    first = verification.segments[0]
    world.partition.deletion.delete_records(first.end_offset)
    world.copy_all()
    for kind in (LOG, INDEXES):
        del world.store_objects.objects[PARTITION.segment_key(first.base_offset, first.segment_id, kind)]
    assert list(verification.faults_of(first)) == []


def test_a_damaged_manifest_is_named(world):
    objects = world.store_objects.objects
    key = max(key for key in objects if "/manifest/" in key)
    objects[key] = objects[key][:-1] + bytes([objects[key][-1] ^ 1])
    for look in (measure_partition, Verification):
        with pytest.raises(DamageError, match=key):
            look(prefix_of(objects), PARTITION)
