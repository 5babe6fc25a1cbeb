"""What in a store counts as garbage, and what never does."""

import uuid

import pytest

from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError, FencedError
from stablelog.ops.stored_garbage import delete_garbage, find_garbage, store_time_ms
from stablelog.testing.sim_objects import SimObjects, StoreFaults
from stablelog.tier.chain import Chain, LinkKind, decode_link, same_payload
from stablelog.tier.names import LOG, chain_name_of
from stablelog.tier.pins import VALID_S, Pin, encode_pin
from stablelog.tier.prefix import Prefix
from tests.broker.tiering.world import World
from tests.tier.tiered_log import PARTITION

AGE_MS = 1_000_000


class Stored:
    """A store with a partition of five segments, whose objects have no age yet."""

    def __init__(self):
        world = World()
        world.copy_all()
        self.simulated = SimObjects(faults=StoreFaults(latency_s=0))
        self.store = ObjectStore(self.simulated, now_s=self.simulated.now_s, sleep=self.simulated.sleep)
        self.prefix = Prefix(self.store)
        for key, content in world.store_objects.objects.items():
            self.store.create(key, content)

    def put(self, key, content=b"orphan"):
        self.store.create(key, content)
        return key

    def orphan(self):
        return self.put(PARTITION.segment_key(0, uuid.uuid4(), LOG))

    def pin(self):
        return self.put(PARTITION.pin_key(uuid.uuid4()), encode_pin(Pin(0, 1, "a test")))

    def mark_deleted(self):
        self.put(PARTITION.deleted_key)

    def found(self):
        return find_garbage(
            self.prefix,
            PARTITION,
            deleted_ms=self.prefix.partitions_with_deleted("t")[PARTITION],
            now_ms=store_time_ms(self.store),
            age_ms=AGE_MS,
        )

    def keys(self):
        return [one.key for one in self.found().objects]


def test_an_old_object_that_no_manifest_names_is_garbage():
    stored = Stored()
    old = stored.orphan()
    assert stored.keys() == [], "it may be an upload that is under way"
    stored.simulated.sleep(AGE_MS / 1000)
    young = stored.orphan()
    assert stored.keys() == [old]
    assert [one.key for one in delete_garbage(stored.prefix, stored.found())] == [old]
    stored.simulated.sleep(AGE_MS / 1000)
    assert stored.keys() == [young]


def test_what_a_broker_has_published_meanwhile_stays():
    stored = Stored()
    stored.simulated.sleep(AGE_MS / 1000)
    world = World(stored.simulated)
    found = stored.found()
    assert found.objects == ()
    (row, *_) = stored.prefix.last_manifest(PARTITION).segments
    key = PARTITION.segment_key(row.base_offset, row.segment_id, LOG)
    (listed,) = [one for one in stored.store.list_after(PARTITION.directory) if one.key == key]
    assert list(delete_garbage(stored.prefix, found.__class__(PARTITION, False, False, (listed,)))) == []
    assert key in stored.simulated.objects
    assert world.published() is not None


def test_segments_without_any_manifest_stay():
    """Somebody may have deleted the manifests."""
    stored = Stored()
    stored.simulated.sleep(AGE_MS / 1000)
    for key in [key for key in stored.simulated.objects if chain_name_of(key) is not None]:
        stored.store.delete(key)
    with pytest.raises(
        DamageError, match=r"has no manifest \(the list of segments\), but the partition has segments"
    ):
        stored.found()


def test_a_pin_keeps_everything_while_a_reader_may_renew_it():
    stored = Stored()
    stored.simulated.sleep(AGE_MS / 1000)
    stored.pin()
    assert stored.found().is_pinned
    stored.mark_deleted()
    assert stored.found().is_deleted
    assert stored.found().is_pinned
    stored.simulated.sleep(VALID_S - 10)
    assert stored.found().is_pinned
    stored.simulated.sleep(10)
    assert not stored.found().is_pinned


def test_only_claims_and_fences_of_a_deleted_topic_stay():
    stored = Stored()
    stored.simulated.sleep(1)
    stored.mark_deleted()
    found = stored.found()
    keys = [one.key for one in delete_garbage(stored.prefix, found)]
    assert "/manifest/" in keys[-1], "the manifests are the last, for a crash in between"
    left = [key for key in stored.simulated.objects if key.startswith(PARTITION.directory)]
    assert [decode_link(stored.simulated.objects[key])[0] for key in left] == [LinkKind.CLAIM]
    with pytest.raises(FencedError):
        stored.prefix.run_steps(Chain(PARTITION, 0, bytes(16)).take_over(same_payload))


def test_a_topic_that_a_broker_still_publishes_stays():
    """A late request of a lost broker may have said that the topic was deleted, after a restore."""
    stored = Stored()
    stored.simulated.sleep(1)
    stored.mark_deleted()
    stored.simulated.sleep(1)
    chain = Chain(PARTITION, 9, bytes(16))
    payload = stored.prefix.run_steps(chain.take_over(same_payload))
    stored.prefix.run_steps(chain.publish(payload))
    with pytest.raises(DamageError, match="a broker has published a manifest since"):
        stored.found()


def test_the_time_of_the_store_leaves_no_object():
    stored = Stored()
    before = set(stored.simulated.objects)
    stored.simulated.sleep(5)
    assert store_time_ms(stored.store) - store_time_ms(stored.store) == 0
    assert set(stored.simulated.objects) == before
