"""A log that is durable up to its end is opened and closed with few calls; what was lost or added is met."""

import random
from collections import Counter

import pytest

from stablelog.errors import DamageError
from stablelog.log.partition import Isolation
from stablelog.log.verify import verify_directory
from stablelog.testing.sim_faults import SimulatedCrash
from tests.log.timeline import DIRECTORY, Log, aborted_in

LOG, INDEX, TIMEINDEX, TXNINDEX = (
    DIRECTORY / f"{0:020d}{suffix}" for suffix in (".log", ".index", ".timeindex", ".txnindex")
)


def log_with_snapshot(words="P1 P1a P2 -", more=""):
    """A log with a snapshot at its end, and with more behind it that is synced."""
    log = Log().write(words)
    log.partition.log.take_snapshot()
    log.sync()
    return log.write(more)


def test_it_is_opened_without_a_change_of_the_disk():
    log = log_with_snapshot()
    end = log.partition.end_offset
    log.partition.close(clean=False)
    steps = log.disk.steps
    log.partition = log.open(recovery_point=end, is_established=True)
    assert log.disk.steps == steps
    assert len(log.disk.open_files) == 1, "the log file is open, and no index"
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
    assert len(log.disk.open_files) == 1
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
    assert log.disk.content(LOG) == log.disk.durable(LOG)
    assert log.partition.log.synced_offset == 3


def test_records_behind_the_recorded_end_are_durable_once_it_is_open():
    log = Log().write("-")
    log.append(1, transactional=False)  # and not synced
    log.partition.close(clean=False)
    assert log.disk.content(LOG) != log.disk.durable(LOG)
    log.partition = log.open(recovery_point=1, is_established=True)
    assert log.disk.content(LOG) == log.disk.durable(LOG)


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
    assert len(log.disk.open_files) == 1
    assert [txn.producer_id for txn in log.all_aborted()] == [1, 2, 1]
    log.write("P3 P3a")
    log.partition.log.take_snapshot()
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
    with pytest.raises(DamageError, match="the disk has lost records"):
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
    assert len(log.disk.open_files) == 1
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
        assert len(log.disk.open_files) == 1, "the log file is open, and no index"
    assert ("reading", TXNINDEX) not in calls, "a partition may have a million aborts"
    log.partition.log.take_snapshot()
    log.sync()
    assert log.disk.content(TXNINDEX) == log.disk.durable(TXNINDEX)
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
    assert log.partition.deletion.apply_retention(log.now_ms) > 0
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
    log.partition.log.take_snapshot()
    log.sync()
    assert not len(log.disk.content(TIMEINDEX))
    log.partition.close()
    assert len(log.disk.content(TIMEINDEX)) == 12


def test_a_close_syncs_what_only_the_system_has():
    log = log_with_snapshot()
    log.append(1)
    log.partition.assume_synced()
    log.partition.log.take_snapshot()
    steps = log.disk.steps
    log.partition.close()
    assert log.disk.steps > steps


def names(log):
    return [name.partition(".")[2] for name in log.disk.list_dir(DIRECTORY) if name[0] == "0"]


def test_a_close_behind_a_few_records_without_producers_writes_no_snapshot():
    log = Log().write("- - -")
    log.partition.close()
    assert names(log) == ["index", "log", "timeindex"]
    log.disk = log.disk.crash(random.Random(0))
    assert names(log) == ["index", "log", "timeindex"]
    assert len(log.disk.content(TIMEINDEX)) == 12
    log.partition = log.open(clean=True)
    assert log.partition.end_offset == 3


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("clean", [True, False])
def test_entries_that_closes_have_added_to_the_time_index_stay(snapshot, clean):
    """A replay makes none of them. The file is not written again."""
    log = Log(index_interval_bytes=150)
    if snapshot:
        log.write("- - -")
        log.partition.log.take_snapshot()
        log.sync()
    for _ in range(3):
        log.now_ms += 10
        log.write("- - -")
        log.reopen()
    log.now_ms += 10
    log.write("-" if clean else "- - -")
    log.partition.close(clean=clean)
    end, content, steps = log.partition.end_offset, bytes(log.disk.content(TIMEINDEX)), log.disk.steps
    assert len(content) >= 36
    log.partition = log.open(clean=clean, recovery_point=end, is_established=True)
    assert log.disk.steps == steps
    index = log.partition.log.segments.active.time_index
    assert bytes(index.content())[: len(content)] == content
    pairs = [index[at] for at in range(len(index))]
    assert pairs == sorted(set(pairs))
    if not clean:
        assert pairs[-1][0] == log.now_ms, "what the replay has found behind them stands there, too"
    log.now_ms += 10
    log.write("-")
    log.reopen()
    assert bytes(log.disk.content(TIMEINDEX))[: len(content)] == content
    assert list(verify_directory(log.disk, DIRECTORY)) == []


@pytest.mark.parametrize("size", [10, 40_000])
def test_entries_stay_however_much_stands_before_the_snapshot(size):
    """Only what was written behind it is read for them."""
    log = Log()
    for _ in range(3):
        log.append(1, size=size)
        log.now_ms += 10
    log.partition.log.take_snapshot()
    log.sync()
    for _ in range(2):
        log.now_ms += 10
        log.write("-")
    older = [DIRECTORY / f"{3:020d}{suffix}" for suffix in (".producers", ".snapshot")]
    kept = {path: log.disk.read_bytes(path) for path in older}
    log.partition.close()
    for path, content in kept.items():  # as if the close had come no further
        log.disk.write_atomic(path, content)
        log.disk.lose(DIRECTORY / f"{5:020d}{path.suffix}")
    content, steps = bytes(log.disk.content(TIMEINDEX)), log.disk.steps
    log.partition = log.open(recovery_point=5, is_established=True)
    assert log.disk.steps == steps
    assert log.disk.content(TIMEINDEX) == content


@pytest.mark.parametrize(
    "places", [(0, 1, 2), (1, 0, 2), (0, 2, 1), (0, 0, 1), (0, 1, 1), (2,), (1, 2), (2, 1, 0)]
)
def test_entries_that_the_log_confirms_stay_if_they_rise(places):
    log = Log()
    for _ in range(3):
        log.write("-")
        log.reopen()
        log.now_ms += 10
    log.partition.close()
    content = bytes(log.disk.content(TIMEINDEX))
    assert len(content) == 36
    entries = [content[at : at + 12] for at in (0, 12, 24)]
    changed = b"".join(entries[place] for place in places)
    log.disk.damage(TIMEINDEX, changed)
    log.partition = log.open(clean=True)
    rises = list(places) == sorted(set(places))
    assert bytes(log.disk.content(TIMEINDEX)) == (changed if rises else b"")
    log.partition.close()
    assert bytes(log.disk.content(TIMEINDEX)) == (changed if rises else entries[2])
    assert list(verify_directory(log.disk, DIRECTORY)) == []


@pytest.mark.parametrize("damage", [bytes(12), b"\xff" * 12, "other offset", b"\xff" * 8 + bytes(4)])
def test_an_entry_of_the_time_index_that_the_log_does_not_confirm_is_replaced(damage):
    log = Log().write("- - -")
    log.partition.close()
    content = bytes(log.disk.content(TIMEINDEX))
    log.disk.damage(TIMEINDEX, content[:-1] + b"\1" if isinstance(damage, str) else damage)
    log.partition = log.open(clean=True)
    assert not len(log.disk.content(TIMEINDEX))
    log.partition.close()
    assert log.disk.content(TIMEINDEX) == content


@pytest.mark.parametrize("is_written", [False, True])
def test_a_close_of_a_log_without_a_snapshot_is_repeated_without_a_change_of_the_disk(is_written):
    log = Log().write("- - -" if is_written else "")
    log.reopen()
    steps, calls = log.disk.steps, []
    log.disk.fault = lambda what, path: calls.append((what, path))
    log.partition.close()
    assert (log.disk.steps, calls) == (steps, [])
    log.partition = log.open(clean=True, is_established=True)
    assert log.disk.steps == steps


def test_a_second_close_syncs_the_time_index_and_nothing_else():
    log = Log().write("-")
    log.reopen()
    log.now_ms += 1
    log.write("-")
    calls = []
    log.disk.fault = lambda what, path: calls.append((what, path.name))
    log.partition.close()
    what_matters = ("reading", "writing", "syncing", "syncing the directory", "listing", "removing")
    assert [(what, name) for what, name in calls if what in what_matters] == [
        ("reading", INDEX.name),
        ("reading", TIMEINDEX.name),
        ("writing", TIMEINDEX.name),
        ("syncing", TIMEINDEX.name),
    ]
    assert log.disk.content(TIMEINDEX) == log.disk.durable(TIMEINDEX)


@pytest.mark.parametrize("sessions", [1, 3])
def test_a_close_behind_many_records_without_producers_writes_a_snapshot(sessions):
    """However many stops there were in between: a start replays little."""
    log = Log()
    while log.partition.size <= 4096:
        assert not any(name.endswith(".producers") for name in log.disk.list_dir(DIRECTORY))
        log.write("- " * (60 // sessions))
        log.reopen()
    end = log.partition.end_offset
    assert names(log) == ["index", "log", "timeindex", "producers", "snapshot"]
    log.write("-")
    log.reopen()
    assert log.disk.exists(DIRECTORY / f"{end:020d}.producers"), "the next start replays one record behind it"
    assert log.partition.end_offset == end + 1


def test_a_close_behind_producers_that_have_expired_says_that_they_have():
    log = Log(producer_id_expiration_ms=1000).write("P1 P1a")
    log.reopen()
    log.now_ms += 100_000
    assert sum(log.partition.deletion.expire_producers(log.now_ms)) == 1
    log.write("-")
    log.reopen()
    assert list(log.partition.log.producers) == []


def test_a_close_says_that_producers_have_expired_that_the_start_met_in_the_log():
    log = Log(producer_id_expiration_ms=1000).write("P1 P1c - -")
    log.reopen(clean=False, is_established=True)
    log.now_ms += 100_000
    assert sum(log.partition.deletion.expire_producers(log.now_ms)) == 1
    log.reopen()
    assert list(log.partition.log.producers) == []


@pytest.mark.parametrize("lost", [".producers", ".snapshot"])
def test_a_close_writes_a_snapshot_of_which_a_power_loss_has_kept_one_file(lost):
    """Kafka's file does not say when producers wrote, and ours alone is none for Kafka."""
    log = log_with_snapshot("P1 P1c P2")
    end = log.partition.end_offset
    log.partition.close()
    log.disk.remove(DIRECTORY / f"{end:020d}{lost}")
    log.partition = log.open(recovery_point=end, is_established=True)
    log.partition.close()
    assert log.disk.exists(DIRECTORY / f"{end:020d}{lost}")
    assert list(verify_directory(log.disk, DIRECTORY)) == []


def closed_after_a_kill(batches):
    """A log whose broker was killed when it had written its index files, and whose next broker has closed it."""
    log = Log(index_interval_bytes=1).write(batches)
    log.partition.log.segments.active.growing.write_files()
    log.partition.close(clean=False)
    log.partition = log.open(recovery_point=3, is_established=True)
    log.partition.close()
    return log


def test_the_name_of_an_index_file_that_a_kill_left_is_durable_with_the_next_snapshot():
    log = closed_after_a_kill("P1 P1c P2")
    after = log.disk.crash(random.Random(1))
    assert {LOG.name, INDEX.name, TIMEINDEX.name} <= set(after.list_dir(DIRECTORY))


def test_snapshots_past_the_end_of_a_truncated_log_are_forgotten():
    log = log_with_snapshot("P1 P1c P2 -")
    end = log.partition.end_offset
    log.partition.replication.truncate_to(2)
    log.write("- -")
    assert log.partition.end_offset == end
    log.partition.close()
    assert log.disk.exists(DIRECTORY / f"{end:020d}.producers")
    assert list(verify_directory(log.disk, DIRECTORY)) == []


def test_a_close_after_a_kill_syncs_the_index_files_that_the_killed_broker_wrote():
    log = closed_after_a_kill("- - -")
    for suffix in (".index", ".timeindex"):
        path = DIRECTORY / f"{0:020d}{suffix}"
        assert len(log.disk.content(path)) > 0
        assert log.disk.content(path) == log.disk.durable(path)
    assert ".index" in "".join(log.disk.crash(random.Random(1)).list_dir(DIRECTORY))


def test_a_close_lists_no_directory_and_leaves_the_newest_snapshot_alone():
    log = Log().write("P1")
    for _ in range(3):
        log.reopen()
        log.write("P1 P1c P1")
        log.partition.log.take_snapshot()
        log.write("P1")
        calls = []
        log.disk.fault = lambda what, path, calls=calls: calls.append(what)
        log.partition.close()
        log.disk.fault = None
        assert "listing" not in calls
        assert calls.count("syncing the directory") == 0
        assert names(log) == ["index", "log", "timeindex", "producers", "snapshot"]
        log.partition = log.open(clean=True)


def state(partition):
    """What is to survive a stop, whether it ends or not."""
    return (
        partition.end_offset,
        list(partition.log.producers),
        [txn.first_offset for txn in partition.log.open_transactions()],
        [txn.producer_id for txn in aborted_in(partition, 0, partition.last_stable_offset)],
    )


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 300])
@pytest.mark.parametrize(
    ("before", "more"),
    [("", "- -"), ("- -", "-"), ("", "P1 P1a P2 -"), ("P1 P1c", "P1 P2 P2a P1c P3"), ("P1", "- " * 70)],
)
def test_a_crash_at_each_step_of_a_close_loses_nothing(before, more, segment_bytes, power):
    """Nothing that was acknowledged, and nothing of the producers."""
    crash_at, is_over = 0, False
    while not is_over:
        crash_at += 1
        log = Log(segment_bytes=segment_bytes).write(before)
        log.reopen()
        log.now_ms += 1
        log.write(more)
        wanted, end = state(log.partition), log.partition.end_offset
        log.disk.crash_at = log.disk.steps + crash_at
        try:
            log.partition.close()
            is_over = True
        except SimulatedCrash:
            pass
        log.disk.crash_at = None
        if power:
            log.disk = log.disk.crash(random.Random(crash_at))
        log.partition = log.open(clean=is_over, recovery_point=end, is_established=True)
        assert state(log.partition) == wanted, crash_at
        log.write("- P9 P9a")
        log.reopen()
        assert log.partition.end_offset == end + 3
        assert list(verify_directory(log.disk, DIRECTORY)) == []
    assert crash_at > 2
