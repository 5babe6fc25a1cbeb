"""The examination of a damaged log names the batch that has changed."""

import itertools

import pytest

from stablelog.batch.records import Record, encode_batch
from stablelog.log.recovery.damage import Expected
from stablelog.log.recovery.repair import examine
from stablelog.testing.sim_disk import SimDisk
from tests.log.recovery.test_repair import EXPECTED, damaged, state
from tests.log.test_damage import changed, headers, path_of, several_segments
from tests.log.timeline import DIRECTORY, NOW_MS


def with_epochs(epochs):
    """A log of one segment, of a batch for each leader epoch. No CRC covers them."""
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    batches = [
        encode_batch([Record(0, NOW_MS, None, b"")], base_offset=at, leader_epoch=epoch)
        for at, epoch in enumerate(epochs)
    ]
    disk.write_atomic(path_of(0), b"".join(batches))
    return disk, len(batches[0])


def test_of_leader_epochs_that_do_not_rise_the_one_that_was_too_great_or_the_one_that_is_too_small_is_named():
    expected = Expected(leader_epoch=5, gapless_epoch=0)
    for epochs in itertools.product(range(4), repeat=4):
        disk, size = with_epochs(epochs)
        damage = examine(disk, DIRECTORY, expected)
        known = [0, *epochs]  # the log begins with epoch 0
        falls = next((at for at in range(1, 4) if epochs[at] < epochs[at - 1]), None)
        if falls is None:
            assert damage is None, epochs
            continue
        before = known[falls - 1]
        was_too_great = epochs[falls - 1] > before and epochs[falls] >= before
        assert damage.position == size * (falls - was_too_great), epochs
        assert damage.end_offset == falls - was_too_great


def test_a_gap_that_a_changed_offset_makes_is_cut_with_its_batch():
    """What is left has no gap, so the segment may grow."""
    log = several_segments()
    path = path_of(log.bases[0])
    position, header = headers(log, path)[2]
    assert header.base_offset == 2
    changed(log, path, position + 7)  # it says 3, as the one behind it does
    expected = Expected(leader_epoch=1, gapless_epoch=0)
    damage = examine(log.disk, DIRECTORY, expected)
    assert (damage.position, damage.end_offset, damage.has_gaps) == (position, 2, False)


@pytest.mark.parametrize("which", [0, 2])
def test_the_batch_whose_leader_epoch_has_changed_is_where_a_sealed_segment_is_cut(which):
    """Only the summary's CRC tells that one has changed; the first that is unlike the one before it is taken."""
    for place in range(len(headers(several_segments(), path_of(several_segments().bases[which])))):
        log = several_segments()
        path = path_of(log.bases[which])
        position, header = headers(log, path)[place]
        changed(log, path, position + 15)
        damage = examine(log.disk, DIRECTORY, Expected())
        after_first = place or headers(log, path)[1][0]  # what the first one is unlike, nothing tells
        assert damage.path == path
        if place:
            assert (damage.position, damage.end_offset) == (position, header.base_offset)
        else:
            assert damage.position == after_first


def test_a_whole_log_has_no_damage():
    log = several_segments()
    before = state(log.disk)
    assert examine(log.disk, DIRECTORY, EXPECTED) is None
    assert state(log.disk) == before


@pytest.mark.parametrize("which", [0, 2, -1], ids=["first", "middle", "growing"])
@pytest.mark.parametrize("at", [4, 5, 6, 7, 8, 11, 12, 15, 16, 30, 50])
def test_what_a_cut_would_lose_is_counted(which, at):
    log = damaged(which, at=at)
    before = state(log.disk)
    damage = examine(log.disk, DIRECTORY, EXPECTED)
    assert state(log.disk) == before
    assert (damage.path, damage.position, damage.end_offset) == (log.path, log.position, log.offset)
    # No CRC covers the leader epoch: a batch in which only that has changed has its records.
    lost = [*([log.header] if 12 <= at < 16 else []), *log.behind]
    assert damage.batch_count == len(lost)
    assert damage.record_count == sum(one.record_count for one in lost if not one.is_control)
    assert damage.marker_count == sum(one.is_control for one in lost)
    assert damage.last_offset == max(one.last_offset for one in lost)
    assert damage.later == tuple(base for base in log.bases if path_of(base) > log.path)
