"""What is deleted from the store of a partition, and when: each rule alone."""

import uuid

import pytest

from stablelog.errors import FencedError, StoreError
from stablelog.tier.chain import MANIFESTS_KEPT, Chain, Create, Delete, List, last_manifest, same_payload
from stablelog.tier.deletion import LATE_S, MANIFEST_COUNT_MAX, PIN_PAUSE_S, ObjectDeletion, named_keys
from stablelog.tier.manifest import Manifest, decode_manifest, encode_manifest
from stablelog.tier.manifest_parts import divide_into_parts
from stablelog.tier.names import INDEXES, LOG
from stablelog.tier.pins import VALID_S, Pin, encode_pin
from stablelog.tier.records import SegmentState
from stablelog.tier.remote_segment import RemoteSegment
from tests.tier.chain_world import PARTITION, World

DELAY_S = 1_000.0
NOW_S = 50_000.0  # of a clock that began at any time


def segment(number):
    """Segment `number` has the offsets from 100 times its number on."""
    base = 100 * number
    return RemoteSegment(uuid.UUID(int=number + 1), base, base + 100, 10, -1, ((0, base),))


class Store:
    """A store, and the one broker that owns the chain of a partition in it.

    Args:
        segment_count: the segments that the last manifest names.
        part_count: the number of segments in a part of a manifest.
    """

    def __init__(self, segment_count=3, part_count=1_000):
        self.world = World(0)
        self.objects = self.world.objects
        self.part_count = part_count
        self.now_s = NOW_S
        self.requests = []
        self.fails_at = None
        self.manifest = Manifest("cluster")
        self.chain = self.take_over(1)
        self.deletion = ObjectDeletion(PARTITION, self.chain, self.manifest, self.now_s)
        rows = [segment(number) for number in range(segment_count)]
        for row in rows:
            for kind in (LOG, INDEXES):
                self.objects[PARTITION.segment_key(row.base_offset, row.segment_id, kind)] = b"content"
        self.publish(self.manifest.with_copied(rows))

    def __call__(self, steps):
        answer = None
        while True:
            try:
                request = steps.send(answer)
                self.requests.append(request)
                if self.fails_at == len(self.requests):
                    steps.throw(StoreError("no answer"))
                answer = self.world.apply(request)
            except StopIteration as end:
                return end.value

    def take_over(self, epoch):
        chain = Chain(PARTITION, epoch, bytes([epoch]) * 16)
        self(chain.take_over(same_payload))
        return chain

    def publish(self, manifest):
        manifest, parts = divide_into_parts(manifest, self.manifest, 0, part_count=self.part_count)
        for part, content in parts:
            self.objects[PARTITION.part_key(part.base_offset, part.part_id)] = content
        self(self.chain.publish(encode_manifest(manifest, 0)))
        self.manifest = manifest
        self.deletion.set_manifest(manifest, self.now_s)

    def mark(self, log_start):
        """Retention moves the log start."""
        self.publish(self.manifest.with_log_start(log_start, 0, 1))

    def wait(self, seconds=DELAY_S):
        """Let time pass, and run what is due then."""
        self.now_s += seconds
        if self.deletion.is_due(self.now_s, DELAY_S):
            self(self.deletion.find_objects(self.manifest, self.now_s, DELAY_S))
            assert not self(self.deletion.delete_found(1_000))
        gone = set(self.deletion.gone)
        if gone:
            self.publish(self.manifest.without_segments(gone))
        return sorted(one.int - 1 for one in gone)

    def pin(self, start, end, content=None):
        key = PARTITION.pin_key(uuid.uuid4())
        self.objects[key] = encode_pin(Pin(start, end, "a test")) if content is None else content
        return key

    def orphan(self, number=9):
        """Put the object of an upload that nobody publishes."""
        key = PARTITION.segment_key(100 * number, uuid.uuid4(), LOG)
        self.objects[key] = b"orphan"
        return key

    def segments(self):
        """The numbers of the segments of which the store has both objects; the objects agree."""
        kinds = [
            {
                number
                for number in range(300)
                if PARTITION.segment_key(100 * number, segment(number).segment_id, kind) in self.objects
            }
            for kind in (LOG, INDEXES)
        ]
        assert kinds[0] == kinds[1]
        return sorted(kinds[0])


def test_a_marked_segment_is_deleted_after_the_delay_and_then_leaves_the_manifest():
    store = Store()
    store.mark(200)
    assert store.wait(DELAY_S - 1) == []
    assert store.segments() == [0, 1, 2]
    assert store.wait(1) == [0, 1]
    assert store.segments() == [2]
    assert [row.base_offset for row in store.manifest.segments] == [200]
    assert store.manifest.log_start == 200
    assert store.wait(10 * DELAY_S) == []


def test_the_delay_of_each_segment_begins_with_its_own_mark():
    store = Store()
    store.mark(100)
    store.wait(DELAY_S / 2)
    store.mark(200)
    assert store.wait(DELAY_S / 2) == [0]
    assert store.wait(DELAY_S / 2) == [1]


def test_the_delay_begins_again_with_a_broker_that_takes_over():
    store = Store()
    store.mark(200)
    store.now_s += DELAY_S - 1
    store.chain = store.take_over(2)
    store.deletion = ObjectDeletion(PARTITION, store.chain, store.manifest, store.now_s)
    assert store.wait(1) == []
    assert store.wait(DELAY_S) == [0, 1]


def test_the_log_file_is_deleted_after_the_indexes():
    """Otherwise a crash between the two leaves indexes that nothing needs, and a reader a log file without indexes."""
    store = Store()
    store.mark(100)
    store.wait()
    deleted = [request.key.rpartition(".")[2] for request in store.requests if isinstance(request, Delete)]
    assert deleted[:2] == [INDEXES, LOG]


def test_a_failed_request_is_repeated_and_nothing_stays():
    for number in range(1, 8):
        store = Store()
        store.mark(200)
        store.fails_at = len(store.requests) + number
        with pytest.raises(StoreError):
            store.wait()
        assert [row.base_offset for row in store.manifest.segments] == [0, 100, 200]
        assert store.wait(0) == [0, 1]
        assert store.segments() == [2]


def test_a_deletion_goes_on_with_what_was_found_before():
    """Also if the broker publishes meanwhile; nothing is listed again."""
    store = Store(6)
    store.mark(500)
    store.now_s += DELAY_S
    store(store.deletion.find_objects(store.manifest, store.now_s, DELAY_S))
    count = sum(isinstance(one, List) for one in store.requests)
    for number in range(0, 4, 2):
        assert store(store.deletion.delete_found(2)), "more is left"
        found = set(store.deletion.gone)
        assert found == {segment(one).segment_id for one in (number, number + 1)}
        store.publish(store.manifest.without_segments(found))
        assert store.deletion.is_due(store.now_s, DELAY_S)
        store(store.deletion.find_objects(store.manifest, store.now_s, DELAY_S))
    assert not store(store.deletion.delete_found(2))
    assert store.deletion.gone == {segment(4).segment_id}
    assert sum(isinstance(one, List) for one in store.requests) == count
    assert store.segments() == [5]


# -- pins ------------------------------------------------------------------------------------------------------


def test_a_pin_protects_the_segments_that_it_overlaps_until_it_is_deleted():
    store = Store(4)
    pin = store.pin(150, 160)
    store.mark(300)
    assert store.wait() == [0, 2]
    assert store.segments() == [1, 3]
    count = len(store.requests)
    assert store.wait(PIN_PAUSE_S - 1) == []
    assert len(store.requests) == count, "the pins are not listed all the time"
    del store.objects[pin]
    assert store.wait(1) == [1]


def test_a_pin_that_nobody_renews_is_deleted_and_protects_no_more():
    store = Store()
    pin = store.pin(0, 300)
    store.mark(200)
    assert store.wait() == []  # The pin is listed for the first time.
    assert store.wait(VALID_S - 1) == []
    assert pin in store.objects
    assert store.wait(PIN_PAUSE_S) == [0, 1]
    assert pin not in store.objects


def test_a_pin_that_is_renewed_protects_on():
    store = Store()
    key = store.pin(0, 300)
    store.mark(200)
    for _ in range(10):
        assert store.wait(VALID_S / 2) == []
        del store.objects[key]
        key = store.pin(0, 300)


@pytest.mark.parametrize("content", [b"{", b'{"version": 99, "start": 0, "end": 0, "reader": ""}'])
def test_a_pin_that_cannot_be_read_protects_everything(content):
    store = Store()
    store.pin(0, 0, content)
    store.mark(200)
    assert store.wait() == []
    assert store.wait(VALID_S + PIN_PAUSE_S) == [0, 1]


# -- orphans ---------------------------------------------------------------------------------------------------


def settle(store):
    """The sweeps after the start are over."""
    for _ in range(3):
        store.wait()


def test_an_orphan_is_deleted_in_the_second_sweep():
    store = Store()
    orphan = store.orphan()
    store.wait(DELAY_S)
    assert orphan in store.objects
    store.wait(DELAY_S - 1)
    assert orphan in store.objects
    store.wait(1)
    assert orphan not in store.objects
    assert named_keys(PARTITION, store.manifest) <= store.objects.keys()


def test_nothing_is_listed_without_a_reason():
    store = Store()
    settle(store)
    count = len(store.requests)
    store.wait(100 * DELAY_S)
    assert len(store.requests) == count
    orphan = store.orphan()
    store.deletion.expect_orphans(store.now_s)
    settle(store)
    assert orphan not in store.objects


def test_an_upload_that_the_store_applies_late_is_found():
    store = Store()
    settle(store)
    store.deletion.expect_orphans(store.now_s)
    store.now_s += DELAY_S
    store.deletion.expect_orphans(
        store.now_s
    )  # Another upload fails, and the sweep of the first failure does not see it.
    store.wait(0)
    store.now_s += LATE_S - 1
    orphan = store.orphan()
    settle(store)
    assert orphan not in store.objects


def test_an_object_that_is_published_between_two_sweeps_stays():
    store = Store()
    row = segment(3)
    for kind in (LOG, INDEXES):
        store.objects[PARTITION.segment_key(row.base_offset, row.segment_id, kind)] = b"content"
    store.wait(DELAY_S)
    store.publish(store.manifest.with_copied([row]))
    settle(store)
    assert store.segments() == [0, 1, 2, 3]


def test_a_pin_protects_orphans():
    store = Store()
    orphan, pin = store.orphan(), store.pin(0, 1)
    settle(store)
    assert orphan in store.objects
    del store.objects[pin]
    settle(store)
    assert orphan not in store.objects


def test_segments_that_the_manifest_names_no_more_are_swept():
    """The manifest of a coordinator's log drops the oldest marks when it has too many."""
    store = Store()
    settle(store)
    store.mark(200)
    store.publish(store.manifest.without_segments({segment(0).segment_id}))
    for _ in range(4):
        store.wait()
    assert store.segments() == [2]


def test_a_part_that_no_manifest_names_is_deleted():
    store = Store(10, part_count=2)
    settle(store)
    parts = {key for key in store.objects if "/part/" in key}
    assert len(parts) > 2
    store.mark(500)
    settle(store)
    left = {key for key in store.objects if "/part/" in key}
    assert left == {PARTITION.part_key(part.base_offset, part.part_id) for part in store.manifest.parts}
    assert parts - left


def test_keys_of_others_stay():
    store = Store()
    keys = [f"{PARTITION.directory}/notes", f"{PARTITION.directory}/x/0.log"]
    store.objects |= dict.fromkeys(keys, b"x")
    settle(store)
    assert store.objects.keys() >= set(keys)


# -- the chain -------------------------------------------------------------------------------------------------


def test_old_manifests_are_deleted():
    store = Store()
    for _ in range(2 * MANIFEST_COUNT_MAX):
        store.publish(store.manifest)
        store.wait(0)
    links = [key for key in store.objects if "/manifest/" in key]
    assert MANIFESTS_KEPT < len(links) <= 1 + MANIFEST_COUNT_MAX
    assert decode_manifest(store(last_manifest(PARTITION))).segments == store.manifest.segments


def test_a_fenced_broker_deletes_nothing():
    """Not even what it has listed as an orphan: the broker that has fenced it may be uploading."""
    store = Store()
    store.mark(200)
    first = store.orphan()
    store.wait(DELAY_S / 2)
    store.take_over(2)
    second = store.orphan(10)
    before = dict(store.objects)
    with pytest.raises(FencedError):
        store.wait(DELAY_S / 2)
    assert store.objects == before
    assert {first, second} <= store.objects.keys()


def test_a_broker_that_is_fenced_during_a_sweep_deletes_nothing():
    """The other broker takes over between the listing of the objects and that of the chain."""
    store = Store()
    store.orphan()
    store.wait()
    store.now_s += DELAY_S
    steps = store.deletion.find_objects(store.manifest, store.now_s, DELAY_S)
    listed = store.world.apply(next(steps))
    store.take_over(2)
    before = dict(store.objects)
    request = steps.send(listed)
    with pytest.raises(FencedError):
        steps.send(store.world.apply(request))
    assert store.objects == before


def test_nothing_is_deleted_while_the_last_manifest_is_unknown():
    """The publication may have been applied: what it names must not be swept as an orphan."""
    store = Store()
    row = segment(3)
    orphan = PARTITION.segment_key(row.base_offset, row.segment_id, LOG)
    store.objects[orphan] = b"content"
    steps = store.chain.publish(encode_manifest(store.manifest.with_copied([row]), 0))
    request = next(steps)
    assert isinstance(request, Create)
    store.world.apply(request)
    with pytest.raises(StoreError):
        steps.throw(StoreError("no answer"))
    settle(store)
    assert orphan in store.objects
    store.publish(store.manifest)
    settle(store)
    assert orphan not in store.objects


def test_marks_are_the_first_segments_of_a_manifest():
    """`follow` relies on it."""
    store = Store()
    store.mark(200)
    states = [row.state for row in store.manifest.segments]
    assert states == [SegmentState.DELETE_STARTED, SegmentState.DELETE_STARTED, SegmentState.COPY_FINISHED]
