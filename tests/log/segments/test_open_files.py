"""How many sealed segments are open at a time, over all partitions of a broker."""

from pathlib import Path

import pytest

from stablelog.log.partition import Isolation
from stablelog.log.segments.open_files import OpenFiles
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import Log


def read_all(log):
    partition, offset = log.partition, log.partition.start_offset
    while offset < partition.end_offset:
        offset = partition.read(offset, 1, Isolation.READ_COMMITTED).end_offset


def open_log_count(disk):
    return sum(file.path.suffix == ".log" for file in disk.open_files)


def test_partitions_that_have_joined_share_one_limit():
    disk, shared = SimDisk(), OpenFiles(3)
    logs = [Log(disk, directory=Path(f"/data/t-{index}"), segment_bytes=1024) for index in range(4)]
    for log in logs:
        log.write("- " * 60)
        read_all(log)
        assert len(log.partition.segments()) > 4
        log.partition.open_files.join_shared(shared)
    growing = len(logs)
    assert open_log_count(disk) <= growing + 3
    for log in logs:
        read_all(log)
        assert open_log_count(disk) <= growing + 3
    for log in logs:
        log.partition.close(clean=False)
    assert open_log_count(disk) == 0
    assert len(shared) == 0


def test_a_shared_limit_that_nobody_uses_yet_is_taken():
    shared = OpenFiles(3)
    log = Log()
    log.partition.close()
    log.partition = log.open(clean=True, open_files=shared)
    assert log.partition.open_files is shared


@pytest.mark.parametrize("name", ["log", "offset_index", "time_index", "txn_index"])
def test_a_segment_of_which_anything_is_read_counts(name):
    """Also one whose log file is not looked at: an index is in memory then."""
    log = Log(segment_bytes=200).write("P1 P1a " * 12)
    log.partition.close()
    open_files = OpenFiles(3)
    log.partition = log.open(clean=True, open_files=open_files)
    sealed = log.partition.segments()[:-1]
    assert len(sealed) > 4
    for segment in sealed:
        segment.evict()
        open_files.forget_segment(segment)
    for count, segment in enumerate(sealed, 1):
        getattr(segment, name)
        getattr(segment, name)
        assert len(open_files) == min(count, 3)
    for segment in sealed:
        open_files.mark_used(segment)
        segment.close()
    assert len(open_files) == 0


def test_of_sealed_segments_the_one_not_used_for_longest_is_closed():
    class Held:
        closed = False

        def evict(self):
            self.closed = True

    open_files, shared = OpenFiles(2), OpenFiles(2)
    one, two, three, four = (Held() for _ in range(4))
    for used in (one, two, one, three):
        open_files.mark_used(used)
    assert [held.closed for held in (one, two, three)] == [False, True, False]
    open_files.forget_segment(one)
    open_files.forget_segment(one)
    assert len(open_files) == 1
    open_files.join_shared(shared)
    for used in (four, three, one):
        open_files.mark_used(used)
    assert [held.closed for held in (one, two, three, four)] == [False, True, False, True]
    assert (len(open_files), len(shared)) == (0, 2)
