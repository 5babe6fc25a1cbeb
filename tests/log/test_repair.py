"""Repair: a damaged log is examined without a change, and cut without losing a byte."""

import pytest

from stablelog.errors import Corrupt
from stablelog.log.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.recovery.repair import cut, examine
from stablelog.log.verify import verify_directory
from stablelog.testing.sim_disk import SimulatedCrash
from tests.log.test_damage import DIRECTORY, changed, headers, path_of, several_segments


def damaged(which, place=1, at=30):
    """A closed log with a damaged batch, and the headers of all its batches."""
    log = several_segments(clean=True)
    base = log.bases[which]
    position, header = headers(log, path_of(base))[place]
    log.behind = [found for at, found in headers(log, path_of(base)) if at > position]
    for later in log.bases:
        if later > base:
            log.behind += [found for _, found in headers(log, path_of(later))]
    changed(log, path_of(base), position + at)
    log.path, log.position, log.offset = path_of(base), position, header.base_offset
    return log


def state(disk):
    return {path: disk.read_bytes(path) for path in disk.files()}


def test_a_whole_log_has_no_damage():
    log = several_segments()
    before, seen = state(log.disk), []
    assert examine(log.disk, DIRECTORY, lambda done, whole: seen.append((done, whole))) is None
    assert state(log.disk) == before
    assert seen[-1][0] == seen[-1][1] == sum(log.disk.size(path_of(base)) for base in log.bases)


@pytest.mark.parametrize("which", [0, 2, -1], ids=["first", "middle", "growing"])
@pytest.mark.parametrize("at", [7, 11, 16, 30, 50])
def test_what_a_cut_would_lose_is_counted(which, at):
    log = damaged(which, at=at)
    before = state(log.disk)
    damage = examine(log.disk, DIRECTORY)
    assert state(log.disk) == before
    if at == 7 and damage.position != log.position:
        # An offset that is too high is noticed at the next batch, which goes back.
        assert damage.position > log.position
        return
    assert (damage.path, damage.position, damage.end_offset) == (log.path, log.position, log.offset)
    assert damage.batch_count == len(log.behind)
    assert damage.record_count == sum(one.record_count for one in log.behind if not one.is_control)
    assert damage.marker_count == sum(one.is_control for one in log.behind)
    assert damage.last_offset == max(one.last_offset for one in log.behind)
    assert damage.later == tuple(base for base in log.bases if path_of(base) > log.path)


@pytest.mark.parametrize("which", [0, 2, -1], ids=["first", "middle", "growing"])
def test_a_cut_log_opens_and_what_was_cut_is_kept(which):
    log = damaged(which)
    contents = {base: log.disk.read_bytes(path_of(base)) for base in log.bases}
    with pytest.raises(Corrupt):
        log.open(clean=False, recovery_point=log.end_offset).prove()
    damage = examine(log.disk, DIRECTORY)
    cuts = cut(log.disk, DIRECTORY, damage)
    assert [one.path for one in cuts] == [log.path, *(path_of(base) for base in damage.later)]
    assert sum(one.size for one in cuts) == damage.size
    assert log.disk.read_bytes(log.path.with_suffix(".cut")) == contents[int(log.path.stem)][log.position :]
    for base in damage.later:
        assert log.disk.read_bytes(path_of(base, ".cut")) == contents[base]
    assert examine(log.disk, DIRECTORY) is None
    for clean in (True, False):
        log.partition = log.open(clean=clean, is_established=True, recovery_point=damage.end_offset)
        assert log.partition.end_offset == log.offset
        assert list(verify_directory(log.disk, DIRECTORY)) == []
        log.partition.close(clean=clean)
    log.partition = log.open(recovery_point=damage.end_offset)
    log.write("- P9 P9c")
    assert log.partition.end_offset == log.offset + 3


def test_a_log_whose_start_lies_behind_the_cut_begins_at_its_new_end():
    log = damaged(2)
    log.disk.damage(DIRECTORY / LOG_START_FILE, encode_log_start(log.offset + 3))
    cut(log.disk, DIRECTORY, examine(log.disk, DIRECTORY))
    log.partition = log.open(recovery_point=0)
    assert (log.partition.start_offset, log.partition.end_offset) == (log.offset, log.offset)


@pytest.mark.parametrize("which", [0, -1], ids=["first", "growing"])
def test_a_crash_at_any_operation_of_a_cut_leaves_a_log_that_can_be_cut(which):
    done, crash_at = False, 0
    while not done:
        log, crash_at = damaged(which), crash_at + 1
        damage = examine(log.disk, DIRECTORY)
        log.disk.crash_at = log.disk.steps + crash_at
        try:
            cut(log.disk, DIRECTORY, damage)
            done = True
        except SimulatedCrash:
            log.disk.crash_at = None
            again = examine(log.disk, DIRECTORY)
            if again is not None:
                assert (again.path, again.position) == (log.path, log.position)
                cut(log.disk, DIRECTORY, again)
        log.disk.crash_at = None
        log.partition = log.open(recovery_point=log.offset)
        assert log.partition.end_offset == log.offset
        kept = b"".join(log.disk.read_bytes(path) for path in sorted(log.disk.files()) if ".cut" in path.name)
        assert len(kept) >= damage.size
    assert crash_at > 5


def test_a_partition_without_a_log_file_has_nothing_to_cut():
    log = several_segments()
    for base in log.bases:
        log.disk.lose(path_of(base))
    with pytest.raises(Corrupt, match="Restore its files"):
        examine(log.disk, DIRECTORY)
