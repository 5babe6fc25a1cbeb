"""A sealed segment is proven before it is read, and damage of its files is named."""

import pytest

from stablelog.batch.header import headers_in
from stablelog.errors import DamageError, UnprovenError
from stablelog.log.files.names import INDEX, TIMEINDEX
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.sealed_segment import SealedSegment
from stablelog.log.verify import verify_directory
from stablelog.testing.sim_disk import SimDisk
from tests.log.segments.test_growing_segment import NAME, durable, grown
from tests.log.test_damage import (
    ALL,
    COMMITTED,
    changed,
    headers,
    path_of,
    read_everything,
    read_proven,
    several_segments,
)
from tests.log.timeline import DIRECTORY


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_nothing_is_read_from_a_segment_before_it_is_proven(clean):
    log = several_segments(clean=clean)
    log.partition = log.open(clean=clean, prove=False)
    with pytest.raises(UnprovenError) as raised:
        log.partition.read(0, 100, COMMITTED)
    assert raised.value.path == path_of(0)
    for _ in raised.value.prove():
        pass
    assert log.partition.read(0, 100, COMMITTED).buffers
    with pytest.raises(UnprovenError):
        log.partition.read(log.bases[1], 100, COMMITTED)
    log.partition.log.prove_segments()
    assert read_everything(log, ALL)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("which", [0, 2, -1], ids=["first", "middle", "growing"])
@pytest.mark.parametrize("at", [0, 7, 8, 11, 13, 16, 18, 22, 24, 30, 40, 46, 52, 54, 60])
def test_a_changed_header_of_a_sealed_segment_is_named_and_nothing_is_served(clean, which, at):
    """The transactional bit at 22, the producer id at 46, the length at 11, the base offset at 7: any of them misleads."""
    log = several_segments(clean=True)
    base = log.bases[which]
    contents = {other: log.disk.read_bytes(path_of(other)) for other in log.bases}
    whole = {
        contents[other][at : at + found.size]
        for other in log.bases
        for at, found in headers(log, path_of(other))
    }
    position, _ = headers(log, path_of(base))[1]
    changed(log, path_of(base), position + at)
    try:
        log.partition = log.open(clean=clean, prove=False, gapless_epoch=0, recovery_point=log.end_offset)
    except DamageError as refused:
        names = str(refused)
    else:
        names = ""
        for start in range(log.end_offset):
            for isolation in (COMMITTED, ALL):
                try:
                    served = read_proven(log, start, isolation)
                except DamageError as refused:
                    names += str(refused)
                else:
                    assert {bytes(served[at : at + found.size]) for at, found in headers_in(served)} <= whole
    assert path_of(base).name in names
    assert all(path_of(other).name not in names for other in log.bases if other != base)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("which", [0, 2], ids=["first", "middle"])
@pytest.mark.parametrize("batch_count", [0, 1])
def test_a_sealed_log_file_that_ends_early_behind_a_whole_batch_is_refused(clean, which, batch_count):
    """The gap to the next segment, of which there is a snapshot, looks like one that compaction has left."""
    log = several_segments(clean=clean)
    path = path_of(log.bases[which])
    size = headers(log, path)[batch_count][0]
    log.disk.damage(path, log.disk.read_bytes(path)[:size])
    with pytest.raises(DamageError, match=f"{path} has only {size} bytes"):
        log.open(clean=clean, is_established=True, leader_epoch=1, recovery_point=log.end_offset)
    assert path in {finding.path for finding in verify_directory(log.disk, DIRECTORY)}


def test_a_damaged_segment_is_not_proven_again():
    log = several_segments(clean=True)
    changed(log, path_of(log.bases[2]), 15)
    log.partition = log.open(clean=True, prove=False)
    ahead = log.partition.log.segments.unproven_ahead(log.bases[2])
    assert ahead is not None
    with pytest.raises(DamageError, match=f"{log.bases[2]:020d}.log"):
        list(ahead.prove())
    assert log.partition.log.segments.unproven_ahead(log.bases[2]) is None


def entries(index):
    return [index[place] for place in range(len(index))]


@pytest.mark.parametrize("seed", range(5))
def test_indexes_that_are_rebuilt_are_those_that_were_written(seed):
    """But for the last entry of the time index, which a sealing adds."""
    disk = SimDisk()
    growing = grown(disk, seed=seed)
    offsets, times = entries(growing.offset_index), entries(growing.time_index)
    assert len(offsets) > 5
    durable(growing.seal(growing.end_offset, OpenFiles()), disk)
    summary = growing.make_summary(growing.end_offset)
    for suffix in (INDEX, TIMEINDEX):
        disk.remove(NAME.path(suffix))
    opened = SealedSegment(disk, NAME, summary, OpenFiles())
    assert (entries(opened.offset_index), entries(opened.time_index)) == (offsets, times)
