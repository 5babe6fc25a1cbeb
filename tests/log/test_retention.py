"""Which segments retention deletes, and when their files are removed."""

import errno

import pytest

from stablelog.errors import RefusedError
from stablelog.log import retention as log_retention
from stablelog.log.model import LogConfig
from stablelog.log.retention import count_too_much, count_too_old
from tests.log.timeline import DIRECTORY, NOW_MS, Log, write


@pytest.mark.parametrize(("retention_ms", "count"), [(-1, 0), (9, 3), (10, 0)])
def test_without_a_limit_no_segment_is_too_old_or_too_much(retention_ms, count):
    log = Log(segment_bytes=1).write("- - -")
    log.partition.roll(NOW_MS)
    config = LogConfig(retention_ms=retention_ms)
    assert count_too_old(log.partition.log.segments, config, NOW_MS + 10, NOW_MS + 10) == count
    sizes = [segment.size for segment in log.partition.segments()]
    for stay, too_much in ((-1, 0), (sum(sizes), 0), (sum(sizes) - sizes[0], 1), (0, 3)):
        assert count_too_much(log.partition.log.segments, LogConfig(retention_bytes=stay)) == too_much


def test_a_record_of_the_first_millisecond_of_1970_has_a_time():
    log = Log(message_timestamp_before_ms_max=1000, retention_ms=1000)
    log.append(1, time_ms=-1, transactional=False)
    with pytest.raises(RefusedError, match="behind the broker's clock"):
        log.append(1, time_ms=0, transactional=False)
    for time_ms, count in ((0, 1), (-1, 0)):
        log = Log(retention_ms=1000)
        log.append(1, time_ms=time_ms, transactional=False)
        log.partition.roll(log.now_ms)
        log.sync()
        assert log.partition.deletion.apply_retention(log.now_ms + 1) == count


def test_the_bytes_of_deleted_segments_are_given_back_when_their_files_are_closed():
    log = Log(segment_bytes=300, retention_ms=1000, file_delete_delay_ms=0).write("- - - - - -")
    log.now_ms += 2000
    log.write("-")
    count = log.partition.deletion.apply_retention(log.now_ms)
    removed = log.partition.deletion.remove_deleted(log.now_ms)
    assert not any(name.endswith(".deleted") for name in log.disk.list_dir(DIRECTORY))
    assert len(removed) == count, "the log file of each"
    assert all(file.size >= 0 for file in removed), "they are open"
    log_retention.close_all(removed)
    assert log.partition.deletion.remove_deleted(log.now_ms) == []


def test_files_that_retention_has_taken_go_when_their_delay_is_over_and_not_before():
    log = write("- " * 40, segment_bytes=400, retention_bytes=500, file_delete_delay_ms=1000)
    assert log.partition.deletion.apply_retention(log.now_ms) > 1

    def deleted():
        return [name for name in log.disk.list_dir(DIRECTORY) if name.endswith(".deleted")]

    log.partition.deletion.remove_deleted(log.now_ms + 999)
    assert deleted()
    log.partition.deletion.remove_deleted(log.now_ms + 1000)
    assert not deleted()


def test_deleted_segments_that_cannot_be_renamed_are_removed_when_they_are_due():
    log = Log(segment_bytes=1, retention_bytes=0, file_delete_delay_ms=1000).write("- - -")
    log.disk.fault = lambda what, path: errno.ENOSPC if what == "renaming" else None
    assert log.partition.deletion.apply_retention(log.now_ms) == 2
    names = log.disk.list_dir(log.directory)
    assert f"{0:020d}.log" in names
    assert log.partition.deletion.remove_deleted(log.now_ms + 999) == []
    assert log.disk.list_dir(log.directory) == names
    removed = log.partition.deletion.remove_deleted(log.now_ms + 1000)
    assert len(removed) == 2
    assert {int(name[:20]) for name in log.disk.list_dir(log.directory) if name[0] == "0"} == {2}
