"""Several incarnations of one partition on a hostile store: stale copies, restored directories, and brokers that come back.

Each machine has a log of its own, a list of segments, and what its directory has recorded. The shipped chain and the shipped
check of the history decide. A row whose publication was acknowledged is in each later manifest, each manifest is that of the
log of its machine, and no machine takes for true what another one has published.
"""

import os
import uuid
from types import SimpleNamespace

import pytest

from stablelog.errors import DamageError
from stablelog.log.files.restored import Restored
from stablelog.log.indexes.summary import Summary
from stablelog.tier.chain import Chain, claim_epoch, same_payload
from stablelog.tier.history import LocalHistory, proven_manifest
from stablelog.tier.manifest import Manifest
from stablelog.tier.published import Published
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.tier.restored_files import Stored, gap_end, lost_ranges
from tests.tier.chain_world import PARTITION, Broker, World, next_payload

pytestmark = pytest.mark.extended

SEEDS = int(os.environ.get("STABLELOG_CHAIN_SEEDS", "150"))  # those behind the first block by night
BLOCK = 10
END_S = 120.0
MACHINES_MAX = 5


def segment_of(base, end, content):
    summary = Summary(base, end, log_size=100, log_crc=content, record_count=end - base, stable_offset=end)
    return SimpleNamespace(base_offset=base, end_offset=end, size=100, summary=summary)


class Store(World):
    """A hostile store. The payload of a manifest is a number, so that many can be published.

    Attributes:
        manifests: the manifests, by payload.
        refused: how many take-overs were refused because of another history.
        claims_of_refused: how many objects of a chain they have created.
    """

    def __init__(self, seed):
        super().__init__(seed)
        self.manifests = {}
        self.refused = self.claims_of_refused = 0

    def payload_of(self, manifest):
        payload = b"%d" % len(self.manifests)
        self.manifests[payload] = manifest
        return payload


class Machine(Broker):
    """A broker with a disk: its log, and what its directory has recorded."""

    def __init__(self, world, segments=(), recorded=None, restored=None):
        super().__init__(world)
        self.segments, self.recorded, self.restored = list(segments), recorded or Manifest("c"), restored

    def copied(self):
        """A stale copy of its directory."""
        return Machine(self.world, self.segments, self.recorded, self.restored)

    def local(self):
        return LocalHistory("t", "c", tuple(self.segments), 0, 0, self.recorded, self.restored)

    def check(self, payload):
        last = None if payload is None else self.world.manifests[payload]
        try:
            found = proven_manifest(last, self.local())
        except DamageError:
            self.world.refused += 1
            raise
        if last is not None and last.published is not None and last.published.restored == self.restored:
            assert self.segments[-1].end_offset >= last.published.log_end, "its log is only the beginning"
        return found

    def append(self):
        end = self.segments[-1].end_offset if self.segments else 0
        self.segments.append(segment_of(end, end + 3, self.world.random.getrandbits(32)))

    def life(self):
        nonce = self.world.random.randbytes(16)
        epoch = yield from self.insist(lambda: claim_epoch(nonce))
        chain = Chain(PARTITION, epoch, nonce)
        if not self.segments or self.world.random.random() < 0.5:
            self.append()
        before = set(self.world.objects)
        try:
            manifest = (yield from self.insist(lambda: chain.take_over(self.check))).manifest
        except DamageError:
            mine = [key for key in set(self.world.objects) - before if f"/{epoch:010}-" in key]
            self.world.claims_of_refused += len(mine)
            return
        while True:
            self.recorded = manifest
            assert manifest.published is None or manifest.published.restored == self.restored
            self.append()
            waiting = [one for one in self.segments if one.base_offset >= manifest.end_offset]
            rows = [
                RemoteSegment(
                    uuid.UUID(int=self.world.random.getrandbits(128)),
                    *(one.base_offset, one.end_offset, one.size, -1, ((1, one.base_offset),)),
                    summary=one.summary,
                )
                for one in waiting[: self.world.random.randrange(4)]  # The others are not sealed.
            ]
            published = Published(
                self.segments[-1].end_offset, 0, 1, {}, PARTITION.topic_id, 0, self.restored
            )
            manifest = manifest.with_copied(rows)._replace(published=published)
            contents = {one.base_offset: one.summary.log_crc for one in self.segments}
            assert all(contents[row.base_offset] == row.summary.log_crc for row in manifest.segments)
            content = self.world.payload_of(manifest)
            yield from self.insist(lambda content=content: chain.publish(content))
            self.world.acknowledged.append({row.segment_id for row in manifest.segments})

    def restore(self):
        """Make its directory from the last manifest in the store, and publish it."""
        nonce = self.world.random.randbytes(16)
        epoch = yield from self.insist(lambda: claim_epoch(nonce))
        chain = Chain(PARTITION, epoch, nonce)
        payload = yield from self.insist(lambda: chain.take_over(same_payload))
        manifest = Manifest("c") if payload is None else self.world.manifests[payload]
        stored = Stored(PARTITION, manifest, b"", {}, {})
        self.restored = Restored(lost_ranges(stored), 0, -1, 1, epoch * 1_000)
        rows = [segment_of(one.base_offset, one.end_offset, one.summary.log_crc) for one in manifest.segments]
        end = gap_end(stored)
        self.segments = [*rows, segment_of(manifest.end_offset, end, epoch)]
        self.recorded = manifest._replace(
            published=Published(end, 0, 1, {}, PARTITION.topic_id, 0, self.restored)
        )
        content = self.world.payload_of(self.recorded)
        yield from self.insist(lambda: chain.publish(content))
        self.process += 1
        self.start()

    def begin_restore(self):
        self.process += 1
        self.run(self.restore(), self.process)

    def run(self, steps, process, answer=None):
        try:
            super().run(steps, process, answer)
        except StopIteration:
            self.process += 1  # It was refused, and serves its clients without copies.


def lived(seed):
    """Let machines live, be killed, copied and restored. Return the world, and the ids of the last manifest."""
    world = Store(seed)
    machines = [Machine(world)]

    def disturb():
        if world.now_s >= END_S:
            return
        drawn = world.random.random()
        if drawn < 0.15 and len(machines) < MACHINES_MAX:
            machines.append(world.random.choice(machines).copied())
            machines[-1].start()
        elif drawn < 0.3 and len(machines) < MACHINES_MAX:
            machines.append(Machine(world))
            machines[-1].begin_restore()
        else:
            world.random.choice(machines).start()
        world.after(world.random.expovariate(1 / 6), disturb)

    machines[0].start()
    world.after(10, disturb)
    world.run(lambda: world.now_s >= END_S)
    payload = next_payload(world)
    return world, set() if payload is None else {row.segment_id for row in world.manifests[payload].segments}


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(block, marks=pytest.mark.night) for block in range(1, SEEDS // BLOCK))]
)
def test_incarnations_lose_no_acknowledged_row_and_believe_only_what_they_can_prove(block):
    refused = claims = rows = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        world, last = lived(seed)
        for acknowledged in world.acknowledged:
            assert acknowledged <= last, f"seed {seed}: acknowledged rows are lost"
        refused += world.refused
        rows += len(last)
        claims += world.claims_of_refused
    assert refused > BLOCK / 3
    assert claims < refused / 3, "only those claim that find the other history after their first check"
    assert rows > 5 * BLOCK
