"""A crash at every operation of a random history: what was acknowledged is there, nothing aborted is seen."""

import contextlib
import random

import pytest

from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.errors import RefusedError
from stablelog.log.partition import Isolation
from stablelog.log.verify import verify_directory
from stablelog.testing.sim_faults import SimulatedCrash
from tests.log.timeline import DIRECTORY, Log

HISTORIES = 25
STEPS = 40


class History:
    """What was done to a log, and what of it was acknowledged."""

    def __init__(self, seed, disk=None):
        self.chance = random.Random(seed)
        self.log = Log(disk, segment_bytes=700, index_interval_bytes=150, snapshot_bytes=600)
        self.written = []  # (offset, value, producer or None) in the order of the offsets
        self.ended = {}  # first offset of a transaction -> committed?
        self.open = {}  # producer -> first offset
        self.acknowledged = 0
        self.decided = 0  # markers below this are durable

    def step(self):
        log, chance = self.log, self.chance
        choice = chance.random()
        if choice < 0.5:
            producer = chance.randint(1, 3)
            appended = log.append(producer, count=chance.randint(1, 3), size=chance.randint(1, 60))
            self.open.setdefault(producer, appended.first_offset)
            self.written.append((appended.first_offset, appended.last_offset, producer, self.open[producer]))
        elif choice < 0.6:
            log.write("-", sync=False)
            self.written.append((log.partition.end_offset - 1, log.partition.end_offset - 1, None, None))
        elif choice < 0.8 and self.open:
            producer = chance.choice(sorted(self.open))
            commit = chance.random() < 0.5
            first = self.open.pop(producer)
            self.ended[first] = (
                commit,
                log.partition.end_offset,
            )  # a crash in it may leave the marker, or not
            log.end(producer, commit=commit)
        elif choice < 0.95:
            self.acknowledge()
        elif choice < 0.97:
            log.partition.roll(log.now_ms)
        else:
            self.acknowledge()
            log.partition.deletion.delete_records(
                chance.randint(log.partition.start_offset, log.partition.high_watermark)
            )

    def acknowledge(self):
        self.log.sync()
        self.acknowledged = self.log.partition.high_watermark


def committed_by_the_client(partition, start):
    """What the Java client makes of the reads from `start` on: offsets of the records that it hands to its user."""
    found = []
    while True:
        read = partition.read(start, 300, Isolation.READ_COMMITTED)
        if not read.buffers:
            return found
        aborted = sorted(read.aborted, key=lambda txn: txn.first_offset)
        aborted_producers = set()
        for at, header in headers_in(read.buffers[0]):
            while aborted and aborted[0].first_offset <= header.last_offset:
                aborted_producers.add(aborted.pop(0).producer_id)
            if header.is_control:
                aborted_producers.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted_producers):
                found += [r.offset for r in decode_records(read.buffers[0], at) if r.offset >= start]
        start = read.end_offset


def check(history, disk, start_offset, recovery_point):
    """Open what the crash left, and hold it against the history."""
    before = {name: disk.read_bytes(DIRECTORY / name) for name in disk.list_dir(DIRECTORY)}
    log = Log(
        disk, recovery_point=recovery_point, segment_bytes=700, index_interval_bytes=150, snapshot_bytes=600
    )
    partition = log.partition
    assert partition.end_offset >= history.acknowledged, before.keys()
    assert partition.high_watermark == partition.end_offset
    end = partition.end_offset
    start = max(partition.start_offset, start_offset)
    wanted = []
    for first, last, producer, txn in history.written:
        if last >= end:
            continue
        fate = history.ended.get(txn)
        decided = producer is None or (fate is not None and fate[1] < end)
        if not decided:
            assert partition.last_stable_offset <= max(txn, partition.start_offset)
        elif producer is None or fate[0]:
            wanted += [offset for offset in range(first, last + 1) if start <= offset]
    visible = partition.last_stable_offset
    # What was being written at the crash may be there, too.
    known_end = max([0, *(last + 1 for _, last, _, _ in history.written)])
    seen = [offset for offset in committed_by_the_client(partition, start) if offset < known_end]
    assert seen == [offset for offset in wanted if offset < visible]
    assert list(verify_directory(disk, DIRECTORY)) == []
    return log


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_what_was_acknowledged_survives_a_crash_at_every_operation(seed):
    whole = History(seed)
    for _ in range(STEPS):
        whole.step()
    for crash_at in range(1, whole.log.disk.steps + 1, 3):
        history = History.__new__(History)
        disk = type(whole.log.disk)()
        disk.crash_at = crash_at
        start_offset = 0
        try:
            history.__init__(seed, disk)
            for _ in range(STEPS):
                history.step()
                start_offset = history.log.partition.start_offset
        except SimulatedCrash:
            pass
        chance = random.Random(seed * 1000 + crash_at)
        disk.crash_at = None
        if not hasattr(history, "log"):
            continue
        # Crash once more while the first crash is being put right.
        after = disk.crash(chance)
        after.crash_at = chance.randint(1, 30)
        recovery_point = chance.choice((0, history.acknowledged))
        try:
            log = check(history, after, history.log.partition.start_offset, recovery_point)
        except SimulatedCrash:
            after.crash_at = None
            log = check(history, after.crash(chance), start_offset, recovery_point)
        log.disk.crash_at = None
        try:
            log.write("- -")
        except RefusedError as refused:
            raise AssertionError(f"seed {seed}, crash at {crash_at}") from refused


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
def test_a_crash_while_a_crash_is_put_right_forgets_no_leader_epoch(power):
    """An epoch that began in a segment which recovery seals is in the file before the next start passes over it."""

    def crashed(crash_at):
        """What is left of a broker of epoch 0 and one of epoch 1, whose last segments are not sealed yet."""
        log = Log(segment_bytes=400)
        log.write("- " * 3)
        log.reopen(clean=False, leader_epoch=1)
        log.write("- " * 20, sync=False)
        for file in log.partition.sync_work().files:
            file.sync()
        log.disk.sync_dir(log.directory)
        log.partition.close(clean=False)
        log.disk.crash_at = log.disk.steps + crash_at
        return log

    crash_at, is_over = 0, False
    while not is_over:
        crash_at += 1
        log = crashed(crash_at)
        try:
            log.open(leader_epoch=2)
            is_over = True
        except SimulatedCrash:
            pass
        log.disk.crash_at = None
        if power:
            log.disk = log.disk.crash(random.Random(crash_at))
        log.partition = log.open(leader_epoch=3)
        assert log.partition.replication.end_offset_for_epoch(0) == (0, 3)
        assert log.partition.replication.end_offset_for_epoch(1) == (1, 23)
    assert crash_at > 20


@pytest.mark.extended
@pytest.mark.parametrize("rolls", [0, 1, 2])
@pytest.mark.parametrize("under_way", [False, True], ids=["no sync under way", "a sync under way"])
def test_where_the_operating_system_counts_a_log_start_is_durable_after_what_lies_before_it(rolls, under_way):
    """DeleteRecords ahead of the synced end, in a log whose last segments are not synced, and a power loss at any time."""
    for seed in range(60):
        chance = random.Random(seed)
        log = Log().write("- P1 P1c P3 -")
        log.write("- - P2 P2c -", sync=False)
        for _ in range(rolls):
            log.partition.roll(log.now_ms)
            if under_way:
                log.partition.sync_work()
            log.write("- P1 P1a", sync=False)
        log.partition.assume_synced()
        before = log.partition.log.synced_offset
        start = chance.randint(before, log.partition.high_watermark)
        whole = seed % 2  # the others crash on the way
        log.disk.crash_at = log.disk.steps + (1000 if whole else chance.randint(1, 8))
        with contextlib.suppress(SimulatedCrash):
            log.partition.deletion.delete_records(start)
        recovery_point = chance.choice((before, log.partition.log.synced_offset))
        log.disk = log.disk.crash(chance)
        log.partition = log.open(is_established=True, recovery_point=recovery_point, leader_epoch=1)
        assert log.partition.start_offset in ((start,) if whole else (0, start))
        assert log.partition.end_offset >= max(log.partition.start_offset, recovery_point)
        assert list(verify_directory(log.disk, DIRECTORY)) == []


def test_an_emptied_index_is_durable_before_the_summary_of_its_segment():
    index = DIRECTORY / f"{0:020d}.index"
    log = Log(index_interval_bytes=120).write("P1 P1 P1 P1c")
    log.partition.close()
    log.partition = log.open(clean=True)
    assert log.disk.durable(index)
    log.partition.replication.truncate_to(0)
    log.sequences.clear()
    log.write("P1")
    log.partition.roll(log.now_ms)
    log.sync()
    assert log.disk.exists(index.with_suffix(".summary"))
    assert log.disk.durable(index) == b""
