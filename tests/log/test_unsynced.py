"""What has to reach the disk: nothing is left out, and what relies on something comes behind it."""

import errno

import pytest

from stablelog.errors import DiskError
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
    work = log.partition.unsynced()
    with Watched(log.disk) as steps:
        work.run()
    names = next(at for at, step in enumerate(steps) if step.startswith("sync directory"))
    assert any(step.startswith("sync ") and step.endswith(".log") for step in steps[:names])
    assert not any(step.startswith("sync ") and step.endswith(".log") for step in steps[names:])
    assert [path.suffix for files in work.writes for path in files].count(".summary") == 1
    assert len(steps) > names + 1


def test_a_work_that_nobody_says_was_run_is_part_of_the_next():
    log = rolled()
    first = log.partition.unsynced()
    log.write("-", sync=False)
    second = log.partition.unsynced()
    assert second.end_offset == first.end_offset + 1
    assert set(first.files) <= set(second.files)
    assert list(second.writes)[: len(first.writes)] == list(first.writes)
    assert second.directory == first.directory is not None
    second.run()
    log.partition.synced(second)
    assert log.partition.high_watermark == second.end_offset
    log.write("-", sync=False)
    third = log.partition.unsynced()
    assert (list(third.writes), third.directory, len(third.files)) == ([], None, 1)


def test_there_is_no_work_where_all_is_durable():
    log = Log().write("-")
    assert log.partition.unsynced() is None
    assert not log.partition.has_pending_writes
    log.partition.roll(log.now_ms)
    assert log.partition.has_pending_writes


def test_a_work_whose_sync_failed_is_never_run_again():
    log = Log()
    log.write("-", sync=False)
    work = log.partition.unsynced()
    log.disk.fault = lambda what, _path: errno.EIO if what == "syncing" else None
    with pytest.raises(DiskError):
        work.run()
    log.disk.fault = None
    with pytest.raises(DiskError):
        work.run()
    log.write("-", sync=False)
    with pytest.raises(DiskError):
        log.partition.unsynced().run()
