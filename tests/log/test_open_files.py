"""How many sealed segments are open at a time, over all partitions of a broker."""

from pathlib import Path

from stablelog.log.partition import Isolation
from stablelog.log.segment import OpenFiles
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import Log


def read_all(log):
    partition, offset = log.partition, log.partition.start_offset
    while offset < partition.end_offset:
        offset = partition.read(offset, 1, Isolation.READ_COMMITTED).end_offset


def open_log_count(disk):
    return sum(file._path.suffix == ".log" for file in disk._open)


def test_partitions_that_have_joined_share_one_limit():
    disk, shared = SimDisk(), OpenFiles(3)
    logs = [Log(disk, directory=Path(f"/data/t-{index}"), segment_bytes=1024) for index in range(4)]
    for log in logs:
        log.write("- " * 60)
        read_all(log)
        assert len(log.partition.segments()) > 4
        log.partition.open_files.join(shared)
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
