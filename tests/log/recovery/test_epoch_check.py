"""The file of leader epochs is held against the batches of the log."""

import itertools

import pytest

from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DamageError
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.model import Origin
from stablelog.log.recovery.epoch_check import check_epochs, latest_epoch, latest_epoch_of_all
from stablelog.testing.sim_disk import SimDisk
from tests.log.test_damage import path_of
from tests.log.timeline import DIRECTORY, NOW_MS, Log

EPOCH_LOGS = [  # (first offset, last offset, epoch) of each batch, and the bases of the segments
    ([(0, 0, 0), (1, 1, 0), (2, 3, 1), (4, 4, 1), (5, 5, 3), (6, 6, 3)], (0, 4)),
    ([(0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 4), (4, 5, 4)], (0, 2, 3)),
    ([(2, 2, 1), (3, 4, 1), (6, 6, 2), (7, 7, 2)], (2, 7)),
]


def log_of_epochs(batches, bases):
    """A log with these batches in these segments."""
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    disk.write_atomic(path_of(bases[0]), b"")
    log = Log.__new__(Log)
    log.disk, log.directory, log.now_ms = disk, DIRECTORY, NOW_MS
    log.config = Log().config
    log.partition = log.open(clean=True, recovery_point=None)
    for first, last, epoch in batches:
        if first in bases[1:]:
            log.partition.roll(NOW_MS)
        records = [Record(0, NOW_MS, None, b"")] * (last - first + 1)
        batch = encode_batch(records, base_offset=first, leader_epoch=epoch)
        log.partition.append(batch, now_ms=NOW_MS, origin=Origin.REPLICATION)
    log.sync()
    return log


def are_right(entries, batches, bases):
    """Whether the batches are those of which a file of epochs tells, by the rules in words of `check_epochs`."""
    if not entries:
        return True
    end = batches[-1][1] + 1
    first = max(bases[0], entries[0][1])
    holder = next((batch for batch in batches if batch[1] >= first), None)
    if holder is not None and holder[0] >= first:
        told = max((epoch for epoch, start in entries if start <= holder[0]), default=-1)
        if told != holder[2]:
            return False
    for epoch, start in entries:
        if not bases[0] <= start < end:
            continue  # deleted, or nothing was written since
        base = max(one for one in bases if one <= start)
        stop = min((one for one in bases if one > base), default=end)
        holder = next((one for one in batches if one[1] >= start and one[0] < stop), None)
        before = [one for one in batches if base <= one[0] and one[1] < start][-1:]
        if holder is None:
            continue
        gone = holder[0] > start  # compaction may have removed the batch that began there
        if holder[2] < epoch if gone else holder[::2] != (start, epoch):
            return False
        if before and before[0][2] >= epoch and before[0][1] == start - 1:
            return False
    return True


@pytest.mark.parametrize("batches_and_bases", EPOCH_LOGS)
def test_a_file_of_leader_epochs_is_held_against_every_batch_where_one_begins(batches_and_bases):
    batches, bases = batches_and_bases
    log = log_of_epochs(batches, bases)
    pairs = list(itertools.product(range(5), range(8)))
    rising = [
        entries
        for count in range(3)
        for entries in itertools.combinations(pairs, count)
        if all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(entries))
    ]
    true = list(LeaderEpochs.decode(log.disk.read_bytes(DIRECTORY / EPOCH_FILE)).entries)
    rising += [[*true[:at], *true[at + 1 :]] for at in range(len(true))] + [true]
    outcomes = set()
    for entries in rising:
        try:
            check_epochs(LeaderEpochs(list(entries)), log.partition.log.segments, DIRECTORY / EPOCH_FILE)
            is_right = True
        except DamageError:
            is_right = False
        assert is_right == are_right(entries, batches, bases), entries
        outcomes.add(is_right)
    assert outcomes == {True, False}


@pytest.mark.parametrize("batches_and_bases", EPOCH_LOGS)
def test_the_latest_epoch_of_a_closed_log_is_one_of_a_batch_or_one_that_begins_behind_all(batches_and_bases):
    batches, bases = batches_and_bases
    log = log_of_epochs(batches, bases)
    log.partition.close()
    last, path = batches[-1][1], DIRECTORY / EPOCH_FILE
    files = [[], [(2, 9)], [(1, 2), (9, last)], [(1, 2), (9, last + 1)], [(3, 5), (4, 6), (9, 7)], [(0, 0)]]
    files += [
        LeaderEpochs.decode(log.disk.read_bytes(path)).entries,
        [(1, 0), (2, 1)],
        [(7, 1), (8, last + 1)],
    ]
    for known, entries in itertools.product(range(-1, 5), files):
        log.disk.write_atomic(path, LeaderEpochs(list(entries)).encode())
        later = [entry for entry in entries if entry[0] > known]
        from_base = max((base for base in bases if later and base <= later[0][1]), default=bases[0])
        there = {batch[2] for batch in batches if batch[0] >= from_base}
        counted = [epoch for epoch, start in later if epoch in there or start > last]
        assert latest_epoch(log.disk, DIRECTORY, known) == max(counted, default=known), (known, entries)
    for content in (b"rubbish", b"1\n0\n"):
        log.disk.write_atomic(path, content)
        for known in range(-1, 5):
            wanted = max(known, batches[-1][2])
            assert latest_epoch(log.disk, DIRECTORY, known) == wanted
    missing = DIRECTORY.with_name("t-1")
    assert latest_epoch_of_all(log.disk, [missing, DIRECTORY], -1) == batches[-1][2]
