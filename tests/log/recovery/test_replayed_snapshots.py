"""The producer snapshots that a replay finds: which of them stay, and which are removed."""

from stablelog.log.verify import verify_directory
from tests.log.timeline import DIRECTORY, Log


def snapshots_in(disk):
    return {int(name[:20]) for name in disk.list_dir(DIRECTORY) if name.endswith((".snapshot", ".producers"))}


def test_of_stray_snapshots_only_those_that_a_start_can_use_survive():
    """Scenario 17: at the beginnings of segments, and the newest one; none past the log's end."""
    log = Log(segment_bytes=400)
    for _ in range(20):
        log.write("P1 P2")
        log.partition.log.take_snapshot()
        log.sync()
    log.partition.close()
    bases = {segment.base_offset for segment in log.partition.segments()}
    assert snapshots_in(log.disk) == bases - {0} | {40}
    stray = log.disk.read_bytes(DIRECTORY / f"{40:020d}.snapshot")
    for suffix in ("snapshot", "producers"):
        log.disk.write_atomic(DIRECTORY / f"{99:020d}.{suffix}", stray)
    log.partition = log.open()
    assert snapshots_in(log.disk) == bases - {0} | {40}
    assert log.partition.end_offset == 40
    assert log.stable_offset == 0


def test_a_snapshot_that_does_not_describe_the_rebuilt_time_index_is_removed():
    """The close added an entry with the greatest timestamp to the time index; a replay from an earlier segment has no such entry."""
    log = Log().write("P1 P1c")
    log.partition.roll(log.now_ms)
    log.write("P1 P1a P2")
    log.partition.close()
    known = list(log.partition.log.producers)
    log.disk.lose(DIRECTORY / f"{0:020d}.summary")
    log.partition = log.open()
    assert not any(name.startswith(f"{5:020d}.") for name in log.disk.list_dir(DIRECTORY))
    assert list(verify_directory(log.disk, DIRECTORY)) == []
    assert list(log.partition.log.producers) == known
    log.reopen()
    assert f"{5:020d}.producers" in log.disk.list_dir(DIRECTORY)
    assert list(verify_directory(log.disk, DIRECTORY)) == []


def test_a_snapshot_that_describes_the_rebuilt_indexes_is_kept():
    log = Log(index_interval_bytes=1).write("P1 P1c")
    log.partition.roll(log.now_ms)
    log.write("P1 P1a P2")
    log.partition.log.take_snapshot()
    log.write("P2", sync=True)
    log.disk.lose(DIRECTORY / f"{0:020d}.summary")
    log.partition.close(clean=False)
    log.partition = log.open()
    assert f"{5:020d}.producers" in log.disk.list_dir(DIRECTORY)
    assert list(verify_directory(log.disk, DIRECTORY)) == []


def test_a_snapshot_of_which_a_crash_has_left_one_file_is_not_counted_as_whole():
    log = Log().write("P1 P1c")
    log.partition.roll(log.now_ms)
    log.write("P1 P1a P2")
    log.partition.close()
    whole = {name for name in log.disk.list_dir(DIRECTORY) if name.endswith((".snapshot", ".producers"))}
    log.disk.lose(DIRECTORY / f"{5:020d}.producers")
    log.partition = log.open(clean=False)
    assert [txn.first_offset for txn in log.partition.log.open_transactions()] == [4]
    log.reopen()
    assert {
        name for name in log.disk.list_dir(DIRECTORY) if name.endswith((".snapshot", ".producers"))
    } >= whole
    assert list(verify_directory(log.disk, DIRECTORY)) == []
