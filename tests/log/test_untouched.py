"""A log that is durable up to its end is opened and closed with few calls; what was lost or added is met."""

import random
from collections import Counter

import pytest

from stablelog.errors import Corrupt
from stablelog.log.partition import Isolation
from tests.log.timeline import DIRECTORY, Log

LOG, TIMEINDEX, TXNINDEX = (DIRECTORY / f"{0:020d}{suffix}" for suffix in (".log", ".timeindex", ".txnindex"))


def log_with_snapshot(words="P1 P1a P2 -", more=""):
    """A log with a snapshot at its end, and with more behind it that is synced."""
    log = Log().write(words)
    log.partition.take_snapshot()
    log.sync()
    return log.write(more)


def test_it_is_opened_without_a_change_of_the_disk():
    log = log_with_snapshot()
    end = log.partition.end_offset
    log.partition.close(clean=False)
    steps = log.disk.steps
    log.partition = log.open(recovery_point=end, is_established=True)
    assert log.disk.steps == steps
    assert len(list(log.disk._open)) == 1, "the log file is open, and no index"
    assert log.partition.end_offset == end
    assert [txn.producer_id for txn in log.all_aborted()] == [1]
    log.write("P2a P3 P3c")
    log.reopen(clean=False, is_established=True)
    assert [txn.producer_id for txn in log.all_aborted()] == [1, 2]


@pytest.mark.parametrize("words", ["", "- -", "P1 P1a P2 - P2c", "- P1 P1a"])
def test_it_is_opened_without_a_change_of_the_disk_where_no_snapshot_tells_of_its_end(words):
    """As after a kill: the broker has recorded up to where the log was durable."""
    log = Log().write(words)
    end, aborted = log.partition.end_offset, log.all_aborted() if words else []
    log.partition.close(clean=False)
    steps = log.disk.steps
    log.partition = log.open(recovery_point=end, is_established=True)
    assert log.disk.steps == steps
    assert len(list(log.disk._open)) == 1
    assert log.partition.end_offset == end
    log.write("P3 P3a P4 P4c")
    log.partition.close()
    log.partition = log.open(clean=True)
    assert [txn.producer_id for txn in log.all_aborted()] == [*(txn.producer_id for txn in aborted), 3]


@pytest.mark.parametrize("recovery_point", [0, 1, None])
def test_records_that_may_not_be_durable_are_synced(recovery_point):
    log = Log().write("- - -")
    log.partition.close(clean=False)
    log.partition = log.open(recovery_point=recovery_point, is_established=True)
    assert log.disk.content(LOG) == log.disk._inode(LOG, "reading").durable
    assert log.partition.synced_offset == 3


def test_records_behind_the_recorded_end_are_durable_once_it_is_open():
    log = Log().write("-")
    log.append(1, transactional=False)  # and not synced
    log.partition.close(clean=False)
    assert log.disk.content(LOG) != log.disk._inode(LOG, "reading").durable
    log.partition = log.open(recovery_point=1, is_established=True)
    assert log.disk.content(LOG) == log.disk._inode(LOG, "reading").durable


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_file_that_is_no_beginning_of_the_index_is_replaced(suffix):
    """As zeros, which a power loss leaves in place of the bytes, or what Kafka has preallocated."""
    log = Log(index_interval_bytes=1).write("- - -")
    log.partition.close(clean=False)
    path = DIRECTORY / f"{0:020d}{suffix}"
    file = log.disk.open(path, create=True)
    file.append(bytes(100))
    file.close()
    log.partition = log.open(recovery_point=3, is_established=True)
    assert log.disk.content(path) != bytes(100)
    assert log.partition.read(2, 1, Isolation.READ_UNCOMMITTED).end_offset == 3


def test_its_directory_is_listed_once_and_no_file_is_opened_twice():
    log = log_with_snapshot()
    log.partition.close()
    calls = Counter()
    log.disk.fault = lambda what, path: calls.update([(what, path)])
    log.partition = log.open(clean=True, is_established=True, prove=False)
    assert calls["listing", DIRECTORY] == 1
    assert [
        path for (what, path), count in calls.items() if what in ("opening", "reading") and count > 1
    ] == []
    assert sum(calls.values()) < 20


def test_it_holds_no_index_open_where_it_was_replayed():
    log = log_with_snapshot(more="P2a P1 P1a -")
    log.reopen(clean=False, is_established=True)
    assert len(list(log.disk._open)) == 1
    assert [txn.producer_id for txn in log.all_aborted()] == [1, 2, 1]
    log.write("P3 P3a")
    log.partition.take_snapshot()
    log.sync()
    log.reopen(clean=False, is_established=True)
    assert len(log.all_aborted()) == 4


def test_records_that_are_gone_behind_the_snapshot_are_missed():
    log = log_with_snapshot()
    size = log.partition.size
    log.write("- -")
    end = log.partition.end_offset
    log.partition.close(clean=False)
    log.disk.damage(LOG, log.disk.content(LOG)[:size])
    with pytest.raises(Corrupt, match="the disk has lost them"):
        log.open(recovery_point=end, is_established=True)


def test_an_abort_that_a_power_loss_took_back_hides_nothing():
    """The entry of an abort reached the disk, and its marker did not; the offsets are those of other records by now."""
    log = log_with_snapshot("P1 P1a P2")
    end, content = log.partition.end_offset, bytes(log.disk.content(LOG))
    log.write("P2a")
    added = bytes(log.disk.content(TXNINDEX))
    log.partition.close(clean=False)
    log.disk.damage(LOG, content)
    log.disk.damage(TXNINDEX, added)
    log.partition = log.open(recovery_point=end, is_established=True)
    log.end(2, commit=True)
    log.sync()
    assert len(log.disk.content(TXNINDEX)) < len(added)
    assert [txn.producer_id for txn in log.all_aborted()] == [1]
    assert log.partition.read(0, 1 << 20, Isolation.READ_COMMITTED).end_offset == log.partition.end_offset


def test_it_holds_no_index_open_after_a_snapshot():
    log = log_with_snapshot()
    assert len(list(log.disk._open)) == 1
    log.write("P2a")
    log.reopen(clean=False, is_established=True)
    assert [txn.producer_id for txn in log.all_aborted()] == [1, 2]


@pytest.mark.parametrize("is_synced", [True, False])
def test_it_holds_no_index_open_after_an_abort(is_synced):
    log = log_with_snapshot()
    calls = []
    log.disk.fault = lambda what, path: calls.append((what, path))
    for words in ("P2a", "P1 P1a", "P2 P3 P3a P2a"):
        log.write(words, sync=is_synced)
        if not is_synced:
            log.partition.assume_synced()
        assert len(list(log.disk._open)) == 1, "the log file is open, and no index"
    assert ("reading", TXNINDEX) not in calls, "a partition may have a million aborts"
    log.partition.take_snapshot()
    log.sync()
    assert log.disk.content(TXNINDEX) == log.disk._inode(TXNINDEX, "reading").durable
    log.reopen(clean=False, is_established=True)
    assert [txn.producer_id for txn in log.all_aborted()] == [1, 2, 1, 3, 2]


def test_it_is_closed_without_a_change_of_the_disk():
    log = Log(retention_ms=1000, file_delete_delay_ms=60_000, segment_bytes=400).write("- P1 P1a - - - -")
    log.reopen()
    steps = log.disk.steps
    log.partition.close()
    assert log.disk.steps == steps
    log.partition = log.open(clean=True)
    log.now_ms += 5000
    assert log.partition.apply_retention(log.now_ms) > 0
    log.partition.close()
    assert not any(name.endswith(".deleted") for name in log.disk.list_dir(DIRECTORY))


@pytest.mark.parametrize("more", ["-", "P2", "P1", "P1a"])
def test_a_close_tells_of_what_was_written_since_the_last_one(more):
    log = log_with_snapshot("P1")
    log.reopen()
    log.write(more)
    log.partition.close()
    end = log.partition.end_offset
    for suffix in (".producers", ".snapshot"):
        assert log.disk.exists(DIRECTORY / f"{end:020d}{suffix}")
    log.partition = log.open(clean=True)
    assert log.partition.end_offset == end


def test_a_close_syncs_neither_a_log_that_is_synced_nor_an_empty_index():
    log = Log().write("- P1 P1a -")
    calls = []
    log.disk.fault = lambda what, path: calls.append(path.suffix) if what == "syncing" else None
    log.partition.close()
    assert sorted(calls) == [".timeindex", ".txnindex"]
    again = Log(log.disk.crash(random.Random(0)))
    assert again.partition.end_offset == 4
    assert [txn.producer_id for txn in again.all_aborted()] == [1]


def test_a_close_completes_the_time_index_behind_a_snapshot():
    log = Log(index_interval_bytes=1 << 20)
    log.append(1, transactional=False, time_ms=log.now_ms + 7)
    log.partition.take_snapshot()
    log.sync()
    assert not len(log.disk.content(TIMEINDEX))
    log.partition.close()
    assert len(log.disk.content(TIMEINDEX)) == 12


def test_a_close_syncs_what_only_the_system_has():
    log = log_with_snapshot()
    log.append(1)
    log.partition.assume_synced()
    log.partition.take_snapshot()
    steps = log.disk.steps
    log.partition.close()
    assert log.disk.steps > steps
