"""What has to reach the disk: nothing is left out, and what relies on something comes behind it."""

import errno
import random

import pytest

from stablelog.errors import DiskError, UnavailableError
from stablelog.log import sync_work
from tests.log.timeline import Log


class Watched:
    """A disk's steps while a work is run."""

    def __init__(self, disk):
        self.steps = []
        self._disk, self._step = disk, disk.step

    def __enter__(self):
        self._disk.step = self._note
        return self.steps

    def __exit__(self, *_):
        self._disk.step = self._step

    def _note(self, what, torn=None, path=None):
        self.steps.append(what)
        self._step(what, torn, path)


def rolled():
    """A log whose first segment was sealed, and nothing of it synced."""
    log = Log().write("-", sync=True)
    log.write("P1 P1c", sync=False)
    log.partition.roll(log.now_ms)
    return log.write("-", sync=False)


def test_files_come_before_names_and_names_before_what_is_written_of_them():
    log = rolled()
    work = log.partition.sync_work()
    with Watched(log.disk) as steps:
        work.run()
    names = next(at for at, step in enumerate(steps) if step.startswith("sync directory"))
    assert any(step.startswith("sync ") and step.endswith(".log") for step in steps[:names])
    assert not any(step.startswith("sync ") and step.endswith(".log") for step in steps[names:])
    assert [path.suffix for files in work.writes for path in files].count(".summary") == 1
    assert len(steps) > names + 1


def test_a_work_that_nobody_says_was_run_is_part_of_the_next():
    log = rolled()
    first = log.partition.sync_work()
    log.write("-", sync=False)
    second = log.partition.sync_work()
    assert second.end_offset == first.end_offset + 1
    assert set(first.files) <= set(second.files)
    assert list(second.writes)[: len(first.writes)] == list(first.writes)
    assert second.directory == first.directory is not None
    second.run()
    log.partition.finish_sync(second)
    assert log.partition.high_watermark == second.end_offset
    log.write("-", sync=False)
    third = log.partition.sync_work()
    assert (list(third.writes), third.directory, len(third.files)) == ([], None, 1)


def test_there_is_no_work_where_all_is_durable():
    log = Log().write("-")
    assert log.partition.sync_work() is None
    assert not log.partition.has_pending_writes
    log.partition.roll(log.now_ms)
    assert log.partition.has_pending_writes


def test_a_work_whose_sync_failed_is_never_run_again():
    log = Log()
    log.write("-", sync=False)
    work = log.partition.sync_work()
    log.disk.fault = lambda what, _path: errno.EIO if what == "syncing" else None
    with pytest.raises(DiskError):
        work.run()
    log.disk.fault = None
    with pytest.raises(DiskError):
        work.run()
    log.write("-", sync=False)
    with pytest.raises(DiskError):
        log.partition.sync_work().run()


def snapshots(log):
    return sorted(int(name[:20]) for name in log.disk.list_dir(log.directory) if name.endswith(".producers"))


def no_room_for_snapshots(what, path):
    return errno.ENOSPC if what == "writing" and ".producers" in path.name else None


def test_older_snapshots_go_when_newer_ones_are_written_and_not_before():
    log = Log()
    for number in (1, 2, 3, 4):
        log.write("P1")
        log.partition.log.take_snapshot()
        log.sync()
        assert snapshots(log) == list(range(max(number - 1, 1), number + 1)), "the newest, and one before it"
    log.disk.fault = no_room_for_snapshots
    log.write("P1", sync=False)
    log.partition.log.take_snapshot()
    log.sync()
    assert log.partition.high_watermark == 5
    assert snapshots(log) == [3, 4]
    log.disk.fault = None
    log.write("P1")
    assert snapshots(log) == [4, 5]


def test_a_stop_that_finds_no_room_for_its_snapshot_leaves_the_older_ones():
    log = Log().write("P1")
    log.partition.log.take_snapshot()
    log.sync()
    log.write("P1 P2")
    log.disk.fault = no_room_for_snapshots
    log.partition.close()
    log.disk.fault = None
    assert snapshots(log) == [1]
    log.partition = log.open(clean=True)
    assert [txn.first_offset for txn in log.partition.log.open_transactions()] == [0, 2]
    log.reopen()
    assert snapshots(log) == [3]


@pytest.mark.parametrize("seed", range(6))
def test_the_name_of_a_segment_is_durable_with_the_first_sync_behind_its_records(seed):
    """Also where no other name has changed."""
    log = Log().write("-")
    log.partition.log.take_snapshot()
    log.sync()
    log.partition.roll(log.now_ms)
    log.write("-")
    after = Log(log.disk.crash(random.Random(seed)), recovery_point=2)
    assert [segment.base_offset for segment in after.partition.segments()] == [0, 1]
    assert after.partition.end_offset == 2


def test_what_is_not_written_comes_before_what_is_to_be_written_since():
    log = Log().write("-")
    log.partition.log.take_snapshot()
    work = log.partition.sync_work()
    log.disk.fault = no_room_for_snapshots
    work.run()
    log.disk.fault = None
    log.write("-", sync=False)
    log.partition.log.take_snapshot()
    log.partition.finish_sync(work)
    assert snapshots(log) == []
    named = [sorted(int(path.stem) for path in files) for files in log.partition.sync_work().writes]
    assert named == [[1, 1], [2, 2]]


@pytest.mark.parametrize("seed", range(6))
def test_each_segment_is_synced_however_short_the_one_before_it_is(seed):
    log = Log()
    for _ in range(3):
        log.write("-")
        log.partition.roll(log.now_ms)
        log.sync()
    log.write("-").write("-")
    after = Log(log.disk.crash(random.Random(seed)), recovery_point=5)
    assert after.partition.end_offset == 5
    assert [segment.base_offset for segment in after.partition.segments()] == [0, 1, 2, 3]
    assert all(segment.durable for segment in log.partition.segments()[:-1])


def test_a_work_is_large_where_it_writes_more_than_a_bound(monkeypatch):
    log = rolled()
    size = sum(len(content) for files in log.partition.sync_work().writes for content in files.values())
    for bound, is_large in ((size - 1, True), (size, False), (size + 1, False)):
        monkeypatch.setattr(sync_work, "LARGE_SIZE", bound)
        assert log.partition.sync_work().is_large is is_large


def test_a_closed_partition_tells_nobody_that_it_has_failed():
    log, told = Log().write("-"), []
    log.partition.availability.on_failure = told.append
    log.partition.close()
    log.partition.availability.mark_failed(UnavailableError("too late"))
    assert told == []
