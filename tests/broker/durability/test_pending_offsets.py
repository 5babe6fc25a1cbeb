"""Offsets of open transactions are in the checkpoints of the offsets log: random lives of a log on a simulated disk, which
stops at each operation, against a model that looks at all that was ever written.
"""

import asyncio
import os
import random
from pathlib import Path

import pytest

from stablelog.broker.durability import journal as journal_module
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.durability.flush import GroupFlush
from stablelog.broker.durability.journal import Journal
from stablelog.broker.loop.tasks import Tasks
from stablelog.coordinators.consumer_groups.answers import GroupConfig, OffsetCommit
from stablelog.coordinators.consumer_groups.coordinator import GroupCoordinator
from stablelog.log.verify.directory import verify_directory
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_faults import SimulatedCrash
from tests.log.timeline import DIRECTORY, Log
from tests.scale import seeds

LIVES = int(os.environ.get("STABLELOG_OFFSETS_LIVES", "3"))
CONFIG = GroupConfig(initial_rebalance_delay_ms=0, group_size_max=5, offsets_retention_ms=10**12)
GROUPS = ("g", "h")
PARTITIONS = (("t", 0), ("u", 0), ("u", 1))
PRODUCERS = (1, 2, 3)
STEPS = 60


class ClockOf:
    def __init__(self, log):
        self.now_ms = self.wall_ms = lambda: log.now_ms


def model(events):
    """The committed offsets, and the pending ones, by looking at every event: the later commit wins."""
    committed, pending = {}, {}
    for at, (kind, producer_id, content) in enumerate(events):
        if kind == "commit":
            place, offset = content
            if producer_id is None:
                committed[place] = (at, offset)
            else:
                pending[producer_id, place] = (at, offset)
        elif kind == "end":
            for owner, place in [key for key in pending if key[0] == producer_id]:
                ended = pending.pop((owner, place))
                if content:
                    committed[place] = max(committed.get(place, (-1, -1)), ended)
        else:
            committed.pop(content, None)
            pending = {key: value for key, value in pending.items() if key[1] != content}
    return (
        {place: offset for place, (_, offset) in committed.items()},
        {key: offset for key, (_, offset) in pending.items()},
    )


class Life:
    """A log with its journal and its coordinator, from a start to a stop of the machine."""

    def __init__(self, disk, chance, events, acknowledged):
        self.chance = chance
        self.events = events
        self.acknowledged = acknowledged
        self.log = Log(disk)
        self.start()

    def start(self):
        self.journal = journal_on(self.log)
        self.coordinator = replayed(self.journal)

    def run(self):
        async def steps():
            for _ in range(STEPS):
                await self.step()

        asyncio.run(steps())

    async def step(self):
        kind = self.chance.choice(("write",) * 12 + ("sync", "sync", "checkpoint", "checkpoint", "restart"))
        if kind == "write":
            self.write()
        elif kind == "sync":
            self.sync()
        elif kind == "checkpoint":
            await self.checkpoint()
        else:
            self.sync()
            self.log.reopen(clean=self.chance.random() < 0.5, recovery_point=0)
            self.start()

    def write(self):
        """One batch, so that a crash keeps or loses the whole event."""
        chance, coordinator, now_ms = self.chance, self.coordinator, self.log.now_ms
        group, partition = chance.choice(GROUPS), chance.choice(PARTITIONS)
        producer_id = chance.choice(PRODUCERS)
        kind = chance.choice(("plain", "plain", "pending", "pending", "pending", "end", "remove"))
        if kind in ("plain", "pending"):
            offset = len(self.events)
            asked = {partition: OffsetCommit(offset)}
            owner = None if kind == "plain" else producer_id
            self.events.append(("commit", owner, ((group, partition), offset)))
            if owner is None:
                self.journal.append(coordinator.commit_offsets(group, asked, now_ms=now_ms).records)
            else:
                records = coordinator.txn_commit_offsets(group, asked, now_ms=now_ms).records
                self.journal.append_transactional(records, producer_id, 0)
                coordinator.txn_offsets_appended(producer_id, records, now_ms=now_ms)
        elif kind == "remove":
            decision = coordinator.delete_offsets(group, [partition], now_ms=now_ms)
            self.events.append(("remove", None, (group, partition)))
            self.journal.append(decision.records)
        elif self.log.partition.log.producers.open_transaction(producer_id) is not None:
            commit = chance.random() < 0.5
            self.events.append(("end", producer_id, commit))
            self.log.end(producer_id, commit=commit)
            coordinator.txn_ended(producer_id, commit=commit)

    def sync(self):
        self.log.sync()
        self.journal.run_effects()
        self.acknowledged = len(self.events)

    async def checkpoint(self):
        """Between the slices of a checkpoint other records are written, and some are synced. As in a broker, the log is
        trimmed when all is durable.
        """
        writing = asyncio.ensure_future(self.journal.checkpoint_if_grown(self.coordinator.table.live_state))
        while not writing.done():
            await asyncio.sleep(0)
            if self.chance.random() < 0.5:
                self.write()
            if self.chance.random() < 0.1:
                self.sync()
        before = writing.result()
        if before is not None and self.chance.random() < 0.8:
            self.sync()
            self.journal.trim(before)
            assert self.log.partition.start_offset >= before


def journal_on(log):
    reserve = DiskReserve(log.disk, Path("/data"), 0)
    flush = GroupFlush(to_disk=True, reserve=reserve, tasks=Tasks(pytest.fail))
    return Journal([log.partition], flush, reserve, ClockOf(log))


def replayed(journal):
    coordinator = GroupCoordinator(CONFIG)
    journal.replay(
        coordinator.table.replay,
        lambda producer_id, commit: coordinator.txn_ended(producer_id, commit=commit),
        coordinator.table.offsets.begin_log,
    )
    return coordinator


def found(coordinator):
    offsets = coordinator.table.offsets
    return (
        {(g, p): one.value.offset for g in GROUPS for p, one in offsets.committed(g).items()},
        {
            (producer_id, (g, p)): one.value.offset
            for producer_id in PRODUCERS
            for g in GROUPS
            for p, one in offsets.pending(producer_id, g).items()
        },
    )


def known_events(life, disk):
    """The events that the disk still has: all that were acknowledged, and perhaps some more. Whichever way the open
    transactions end, the offsets are those of the model.
    """
    events = life.events
    for count in range(life.acknowledged, len(events) + 1):
        known = events[:count]
        if found(replayed(journal_on(Log(disk)))) == model(known):
            break
    else:
        raise AssertionError(f"of {events}, {life.acknowledged} of them acknowledged, none are found")
    for commits in (True, False):
        ends = [("end", producer_id, commits) for producer_id in life.chance.sample(PRODUCERS, 3)]
        coordinator = replayed(journal_on(Log(disk)))
        for _, producer_id, commit in ends:
            coordinator.txn_ended(producer_id, commit=commit)
        assert found(coordinator) == model([*known, *ends])
    return known


def at_each_operation(seed, stride):
    disk = SimDisk()
    whole = Life(disk, random.Random(seed), [], 0)
    whole.run()
    for crash_at in range(1 + seed % stride, disk.steps + 1, stride):
        chance = random.Random(seed)
        events, acknowledged, disk = [], 0, SimDisk()
        disk.crash_at = crash_at
        for _ in range(3):
            life = None
            try:
                life = Life(disk, chance, events, acknowledged)
                life.run()
            except SimulatedCrash:
                pass
            disk.crash_at = None
            disk = disk.crash(chance)
            if life is not None:
                events, acknowledged = life.events, life.acknowledged
                events = known_events(life, disk)
                acknowledged = len(events)
            disk.crash_at = disk.steps + chance.randint(1, 200)
        disk.crash_at = None
        assert list(verify_directory(disk, DIRECTORY)) == []


@pytest.fixture
def small_checkpoints(monkeypatch):
    monkeypatch.setattr(journal_module, "CHECKPOINT_SIZE_MIN", 600)
    monkeypatch.setattr(journal_module, "CHECKPOINT_GROWTH", 1)
    monkeypatch.setattr(journal_module, "CHECKPOINT_SLICE_COUNT", 2)


def test_most_lives_of_a_log_trim_it(small_checkpoints):
    """About one life in 200 does not: its checkpoints come just before restarts."""
    lives = [Life(SimDisk(), random.Random(seed), [], 0) for seed in seeds(5)]
    for life in lives:
        life.run()
    assert sum(life.log.partition.start_offset > 0 for life in lives) >= 3


@pytest.mark.extended
@pytest.mark.parametrize("seed", seeds(LIVES))
def test_offsets_of_open_transactions_outlive_a_crash_at_every_operation(seed, small_checkpoints):
    at_each_operation(seed, stride=29)
