"""What a partition does at the limits of a disk: many buffers in one write, no room, writes that cannot be undone."""

import errno

import pytest

from stablelog.batch.markers import Marker, MarkerType
from stablelog.env.local_disk import BUFFERS_MAX, LocalDisk
from stablelog.errors import DiskError, UnavailableError
from stablelog.log.model import MarkerWrite
from stablelog.log.verify import verify_directory
from stablelog.testing.sim_disk import SimDisk
from tests.log.compaction.test_policy import KeyedLog
from tests.log.timeline import Log

MANY = BUFFERS_MAX + 1


@pytest.fixture(params=["local", "simulated"])
def place(request, tmp_path):
    """A disk and a partition's directory on it."""
    local = request.param == "local"
    return {"disk": LocalDisk() if local else SimDisk(), "directory": tmp_path.absolute() / "t-0"}


@pytest.mark.extended
@pytest.mark.parametrize("end", [MarkerType.COMMIT, MarkerType.ABORT])
def test_markers_of_any_number_of_transactions_are_one_write(place, end):
    log = Log(**place)
    for producer_id in range(MANY):
        log.append(producer_id)
    writes = [MarkerWrite(producer_id, 0, Marker(end, 0)) for producer_id in range(MANY)]
    outcomes = log.partition.append_markers(writes, now_ms=log.now_ms)
    log.sync()
    assert [outcome.first_offset for outcome in outcomes] == [MANY + at for at in range(MANY)]
    assert log.stable_offset == log.partition.end_offset == 2 * MANY
    log.reopen(clean=False)
    assert len(log.all_aborted()) == (MANY if end is MarkerType.ABORT else 0)
    assert log.stable_offset == log.partition.end_offset == 2 * MANY
    log.partition.close()


def test_a_compacted_segment_may_keep_any_number_of_batches(place):
    log = KeyedLog(**place)
    for number in range(MANY):
        log.put((b"%d" % number, b"v"))
    log.put((b"0", b"new"))
    log.write("")
    log.compact()
    assert log.partition.segments()[0].record_count == MANY
    assert list(verify_directory(place["disk"], place["directory"])) == []
    log.partition.close()


def full(disk, words):
    """Let every call fail whose path has one of these words in its name."""

    def fault(what, path):
        writes = what in ("writing", "allocating", "making", "syncing")
        return errno.ENOSPC if writes and any(word in path.name for word in words) else None

    disk.fault = fault


@pytest.mark.parametrize("words", [["summary"], ["producers"], ["snapshot"], ["leader-epoch"]])
def test_a_full_disk_keeps_no_record_from_being_durable_for_a_file_that_can_be_rebuilt(words):
    log = Log(segment_bytes=400)
    full(log.disk, words)
    log.write("P1 P1 P1a " * 10)
    partition = log.partition
    assert partition.high_watermark == partition.end_offset == 30
    assert len(partition.segments()) > 3
    assert partition.has_pending_writes
    if words != ["leader-epoch"]:
        assert not partition.segments()[0].durable, (
            "a segment is not released before all that describes it is there"
        )
    log.disk.fault = None
    log.sync()
    assert not partition.has_pending_writes
    assert all(segment.durable for segment in partition.segments()[:-1])
    assert list(verify_directory(log.disk, log.directory)) == []
    log.reopen(clean=False)
    assert len(log.all_aborted()) == 10


def test_a_crash_on_a_full_disk_finds_the_records_without_the_files_that_are_missing():
    log = Log(segment_bytes=400)
    full(log.disk, ["summary", "producers", "snapshot"])
    log.write("P1 P2 P1a P2c " * 10)
    log.disk.fault = None
    log.partition.close(clean=False)
    log.partition = log.open()
    assert log.stable_offset == log.partition.end_offset == 40
    assert len(log.all_aborted()) == 10


def test_a_sync_that_fails_is_an_error():
    log = Log()
    log.write("-", sync=False)
    full(log.disk, [".log"])
    with pytest.raises(DiskError):
        log.partition.sync_work().run()


def test_a_write_that_cannot_be_undone_fails_the_partition():
    """Whole batches of the failed write could stand behind the next one, with its offsets."""
    log = Log().write("- -")
    log.disk.fails_late = True
    log.disk.fail_at = log.disk.steps + 1
    with pytest.raises(DiskError) as raised:
        log.write("-", sync=False)
    assert not raised.value.undone
    log.disk.fail_at = None
    with pytest.raises(UnavailableError, match="needs a restart"):
        log.write("-", sync=False)
    log.disk.fails_late = False
    log.partition.close(clean=False)
    log.partition = log.open()
    assert log.partition.end_offset == 2
    log.write("-")
    assert log.partition.high_watermark == 3


def test_a_write_that_finds_no_room_is_undone_and_the_next_one_goes_on():
    log = Log().write("- -")
    full(log.disk, [".log"])
    with pytest.raises(DiskError) as raised:
        log.write("-", sync=False)
    assert raised.value.is_full
    log.disk.fault = None
    log.write("-")
    assert log.partition.high_watermark == 3


@pytest.mark.parametrize("word", ["producers", "snapshot"])
def test_no_summary_is_written_before_the_snapshot_of_its_segments_end(word):
    """A summary keeps recovery from reading its segment: only the snapshot knows of transactions that began in it."""
    log = Log(segment_bytes=400)
    full(log.disk, [word])
    log.write("P1 - - - - - - - - -")
    assert len(log.partition.segments()) > 1
    assert not [name for name in log.disk.list_dir(log.directory) if name.endswith(".summary")]


@pytest.mark.parametrize("word", ["producers", "snapshot"])
def test_recovery_writes_no_summary_before_the_snapshot_either(word):
    log = Log(segment_bytes=400)
    log.write("P1 - - - - - - - - -")
    log.partition.close(clean=False)
    for name in log.disk.list_dir(log.directory):
        if name.endswith((".summary", ".producers", ".snapshot")):
            log.disk.remove(log.directory / name)
    full(log.disk, [word])
    with pytest.raises(DiskError):
        log.open()
    assert not [name for name in log.disk.list_dir(log.directory) if name.endswith(".summary")]
