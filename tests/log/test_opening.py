"""A partition's log is opened, or made."""

import pytest

from stablelog.errors import DamageError
from stablelog.log.files.listing import Listing
from stablelog.log.model import LogConfig
from stablelog.log.opening import open_partition
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import DIRECTORY, NOW_MS, Log, write


def opened(disk, **arguments):
    defaults = {"topic": "t", "partition": 3, "clean": True, "now_ms": NOW_MS}
    return open_partition(disk, DIRECTORY, LogConfig(), **defaults | arguments)


def test_a_directory_that_is_not_there_is_made():
    disk = SimDisk()
    partition = opened(disk)
    assert disk.is_dir(DIRECTORY)
    assert (partition.topic, partition.index) == ("t", 3)
    assert (partition.start_offset, partition.end_offset) == (0, 0)


def test_with_a_listing_of_the_caller_the_directory_must_exist():
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    opened(disk, listing=Listing(disk, DIRECTORY)).close(clean=False)
    with pytest.raises(FileNotFoundError):
        Listing(disk, DIRECTORY.with_name("t-1"))


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_has_its_records_again(clean):
    log = write("- P1 P1c -")
    log.partition.close(clean=clean)
    partition = opened(log.disk, clean=clean, recovery_point=0)
    assert (partition.end_offset, partition.high_watermark) == (4, 4)


def test_on_return_the_whole_log_is_durable():
    log = Log().write("- -", sync=False)
    log.partition.close(clean=False)
    assert opened(log.disk, clean=False, recovery_point=0).sync_work() is None


def test_the_log_begins_where_the_data_directory_says_if_that_is_later():
    log = write("- - - -")
    log.partition.close()
    assert opened(log.disk, log_start_offset=3).start_offset == 3


def test_a_partition_that_had_a_log_is_not_taken_for_a_new_one():
    with pytest.raises(DamageError, match="is missing"):
        opened(SimDisk(), is_established=True)
