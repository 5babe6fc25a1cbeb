"""Random lives of a partition with tiered storage, which crash during requests to a hostile store and operations of the disk.

A crash loses bytes that were not synced. A write to the store that was under way is lost, was applied, or is applied after
the next start. After each crash the partition is compared with a log without a remote tier that never crashes:

- No row of a manifest names a missing object, and each object has the bytes of the log. Segments before the log start
  of the last manifest may be gone.
- At the end, when time has passed, the store has no objects but those that the last manifest names.
- The log start offset and the last stable offset never go back.
- No acknowledged record is lost, and readers of both isolation levels get each one once, in order.
"""

import itertools
import random
from operator import attrgetter

import pytest

from stablelog.batch.header import headers_in
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError, StoreError
from stablelog.log.partition import Isolation
from stablelog.testing.sim_faults import SimulatedCrash
from stablelog.testing.sim_objects import HOSTILE, SimObjects, StoreFaults
from stablelog.tier.chain import LinkKind, decode_link
from stablelog.tier.deletion import named_keys
from stablelog.tier.manifest import decode_without_parts
from stablelog.tier.names import INDEXES, LOG, chain_name_of
from stablelog.tier.prefix import Prefix
from tests.broker.tiering.restoring import live_rows
from tests.broker.tiering.world import DELAY_S, World
from tests.scale import examples, seeds

CRASHES = 5  # of each life
PRODUCERS = ("P1", "P2", "P3")
DISK_STEPS_MAX, REQUESTS_MAX = 12, 15  # A crash is during one of so many operations.


class CrashingWorld(World):
    """A partition that is written, copied, shortened and read at random.

    Args:
        seed: of all random choices.

    Attributes:
        crash_count: the crashes up to now.
    """

    def __init__(self, seed, **config):
        self.chance = random.Random(seed)
        self.crash_count = 0
        self.open_producers = set()
        self._writing = None
        self._is_copying = False
        self._start = self._stable = 0  # what a reader has seen
        super().__init__(SimObjects(seed, HOSTILE), words=(), **config)

    # -- one step --------------------------------------------------------------------------------------------------

    def step(self):
        """Do something at random, perhaps with a crash meanwhile."""
        work = self.chance.choices(
            (self.write_some, self.seal, self.copy, self.retain, self.shorten, self.restart, self.wait),
            (5, 3, 5, 3, 1, 1, 1),
        )[0]
        self.store_objects.between = self._meanwhile
        drawn = self.chance.random()
        if drawn < 0.2:
            self.disk.crash_at = self.disk.steps + self.chance.randint(1, DISK_STEPS_MAX)
        elif drawn < 0.4:
            self.store_objects.stop_at = self.chance.randint(1, REQUESTS_MAX)
        try:
            work()
        except SimulatedCrash:
            self.crash_count += 1
            self.store_objects.stop_at = None
            self.power_failure(self.chance)
            self._settle()
        self.disk.crash_at = self.store_objects.stop_at = None
        self.compare()

    def _meanwhile(self, _call, _key):
        """The event loop goes on while a thread waits for the store."""
        drawn = self.chance.random()
        if self._is_copying and drawn < 0.1:
            self.retain()
        elif self._is_copying and drawn < 0.12:
            self.shorten()

    def write_some(self):
        """Write up to four batches and markers, and acknowledge each."""
        for _ in range(self.chance.randint(1, 4)):
            producer = self.chance.choice(PRODUCERS)
            word = self.chance.choice(("-", producer, producer))
            if producer in self.open_producers and self.chance.random() < 0.6:
                word = producer + self.chance.choice("ca")
            self._writing = word
            self.one(word)
            self.sync()
            self._acknowledge(word)

    def _acknowledge(self, word):
        self.plain.write(word)
        self._writing = None
        if word[-1] in "ca":
            self.open_producers.discard(word[:-1])
        elif word != "-":
            self.open_producers.add(word)

    def _settle(self):
        """After a crash: the record that was being written is there, or it is not."""
        if self._writing is not None and self.partition.end_offset > self.plain.partition.end_offset:
            self._acknowledge(self._writing)
        self._writing = None
        self.sequences = dict(self.plain.sequences)

    def seal(self):
        """Seal the last segment."""
        self.partition.roll(self.now_ms)
        self.sync()

    def copy(self):
        """One pass of the copier; the store may be unreachable."""
        self._is_copying = True
        try:
            self.copy_all()
        except StoreError:
            assert self.store_objects.faults is HOSTILE
        finally:
            self._is_copying = False
        # No failure but that of the store is an error.
        assert all(isinstance(failure, StoreError) for failure in self.copier.failed.values())

    def retain(self):
        """Delete the local segments that are in the store, and remove their files."""
        self.drop_local()
        if self.chance.random() < 0.5:
            self.partition.deletion.remove_deleted(self.now_ms + 10**9)

    def shorten(self):
        """Delete records at the beginning of the log."""
        limit = self.partition.last_stable_offset
        offset = self.chance.randint(min(self._start, limit), limit)
        self._start = max(self._start, self.partition.deletion.delete_records(offset))

    def wait(self):
        """Late writes of the store may become due."""
        self.store_objects.sleep(self.chance.uniform(0, HOSTILE.late_s_max))
        self.now_ms = self.plain.now_ms = self.now_ms + 1_000
        self.now_s += self.chance.uniform(0, 2 * DELAY_S)

    # -- what holds ------------------------------------------------------------------------------------------------

    def compare(self):
        """Compare what readers get with what was acknowledged, and check all manifests."""
        partition, plain = self.partition, self.plain.partition
        start, stable = partition.visible_start(Isolation.READ_COMMITTED), partition.last_stable_offset
        assert partition.end_offset == plain.end_offset
        assert stable == plain.last_stable_offset >= self._stable
        assert start >= self._start
        self._start, self._stable = start, stable
        middle = self.chance.randint(start, stable)
        for offset in (start, middle):
            assert self.whole(self, offset) == self.whole(self.plain, offset)
            assert self.uncommitted(self, offset) == self.uncommitted(self.plain, offset)
        self.check_manifests()

    def uncommitted(self, log, offset):
        """What a read-uncommitted reader gets from an offset on."""
        read = log.read if log is self else log.partition.read
        headers = []
        while offset < log.partition.high_watermark:
            found = read(offset, 1 << 20, Isolation.READ_UNCOMMITTED)
            assert found.end_offset > offset
            headers += [header for _, header in headers_in(b"".join(found.buffers))]
            offset = found.end_offset
        return headers

    def check_manifests(self):
        """Check every manifest that was ever published, and that they follow each other."""
        content = self.plain.disk.read_bytes(self.plain.directory / f"{0:020}.log")
        places = {header.base_offset: position for position, header in headers_in(content)}
        places[self.plain.partition.end_offset] = len(content)
        objects = self.store_objects.objects
        store = Prefix(ObjectStore(SimObjects(faults=StoreFaults(latency_s=0), objects=objects)))
        start = end = 0
        links = [decode_link(objects[key]) for key in sorted(objects) if chain_name_of(key) is not None]
        payloads = [payload for kind, payload in links if kind is LinkKind.MANIFEST]
        kept_from = decode_without_parts(payloads[-1]).log_start if payloads else 0
        for payload in payloads:
            try:
                manifest, _ = store.read_manifest(self.remote.partition, payload)
            except DamageError:
                if payload is payloads[-1]:
                    raise
                continue  # The parts of an earlier manifest may be deleted.
            for row in (one for one in live_rows(manifest) if one.end_offset > kept_from):
                name = (row.base_offset, row.segment_id)
                log = objects[self.remote.partition.segment_key(*name, LOG)]
                assert log == content[places[row.base_offset] : places[row.end_offset]]
                assert self.remote.partition.segment_key(*name, INDEXES) in objects
            rows = sorted(live_rows(manifest), key=attrgetter("base_offset"))
            assert all(one.end_offset == after.base_offset for one, after in itertools.pairwise(rows))
            assert manifest.log_start >= start
            assert manifest.end_offset >= end
            start, end = manifest.log_start, manifest.end_offset

    def finish(self):
        """The store is well again: all that is sealed is copied, and leaves the local disk."""
        self.store_objects.faults = StoreFaults()
        self.store_objects.sleep(HOSTILE.late_s_max)
        for producer in sorted(self.open_producers):
            self._writing = f"{producer}c"
            self.one(self._writing)
            self.sync()
            self._acknowledge(self._writing)
        self.restart()
        self.seal()
        self.copy_all()
        assert not self.copier.failed
        self.drop_local()
        self.compare()
        assert self.remote.end_offset == self.partition.end_offset
        assert len(self.names()) == 1
        self.check_deleted()

    def check_deleted(self):
        """When time has passed, the store has the objects that the last manifest names, and no others."""
        for _ in range(4):
            self.now_s += DELAY_S
            self.copy_all()
        assert not self.copier.failed
        manifest, partition = self.published(), self.remote.partition
        assert live_rows(manifest) == list(manifest.segments)
        found = {key for key in self.store_objects.objects if key.startswith(partition.directory)}
        assert {key for key in found if "/manifest/" not in key} == named_keys(partition, manifest)
        self.compare()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("part_count", [1_000, 1], ids=["whole", "in-parts"])
@pytest.mark.parametrize("seed", seeds(examples(6)))
def test_crashes_lose_nothing(seed, part_count, monkeypatch):
    monkeypatch.setattr("stablelog.broker.tiering.copy_plans.PART_COUNT", part_count)
    world = CrashingWorld(seed)
    while world.crash_count < CRASHES:
        world.step()
    world.finish()
