import errno
import random
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import Codec, headers_in, read_header
from stablelog.batch.records import QUICK_SIZE_MAX, Record, decode_records, encode_batch
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import (
    DamageError,
    DiskError,
    NewerFormatError,
    OffsetOutOfRangeError,
    RefusedError,
    UnavailableError,
)
from stablelog.log import retention as log_retention
from stablelog.log.append import with_append_time
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.opening import open_partition
from stablelog.log.partition import Isolation, Origin
from stablelog.log.producer_state.snapshots import Snapshots
from stablelog.log.recovery import replay
from stablelog.log.search import times as lookups
from stablelog.log.search.times import finished
from stablelog.log.segments import scan
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.segment import Segment
from stablelog.log.verify import verify_directory
from tests.log.timeline import DIRECTORY, NOW_MS, Log, write

EVERY = (Isolation.LOG_END, Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED)


def plain(*timestamps, codec=Codec.NONE, value=b"x"):
    return encode_batch([Record(0, timestamp, None, value) for timestamp in timestamps], codec=codec)


def test_an_undecided_record_is_never_handed_out():
    """Scenario 24: whatever the high watermark does, a read-committed read returns not a byte of it."""
    log = Log()
    for n in range(30):
        log.append(n)
        log.sync()
        assert log.partition.read(0, 1 << 20, Isolation.READ_COMMITTED).size == 0
        assert log.partition.read(0, 1 << 20, Isolation.READ_UNCOMMITTED).end_offset == n + 1


def test_deleting_past_the_start_of_a_transaction_leaves_the_stable_offset_at_the_log_start():
    """Scenario 25: never below it, and never back."""
    log = write("P1 " + "- " * 60, segment_bytes=400)
    assert log.stable_offset == 0
    log.partition.deletion.delete_records(40)
    assert log.stable_offset == log.partition.start_offset == 40
    log.write("- P2 P2a P1c")
    assert log.stable_offset == log.partition.end_offset


@pytest.mark.parametrize("limit", [{"retention_bytes": 400}, {"retention_ms": 0}], ids=["size", "time"])
def test_retention_leaves_the_records_of_an_open_transaction_until_it_ends(limit):
    """A prepared transaction may be open for longer than records are kept. Its commit shows all of them."""
    log = write("- " * 12 + "P1 " + "- " * 60, segment_bytes=400, file_delete_delay_ms=0, **limit)
    assert log.partition.deletion.apply_retention(log.now_ms + 1) == 2
    assert 0 < log.partition.start_offset <= 12, "what is before the transaction is deleted"
    log.write("P1 P1c")
    found = log.partition.read(log.partition.start_offset, 1 << 20, Isolation.READ_COMMITTED)
    assert 12 in [header.base_offset for _, header in headers_in(b"".join(found.buffers))]
    assert log.partition.deletion.apply_retention(log.now_ms + 1) > 2
    assert log.partition.start_offset > 12


def test_retention_leaves_a_transaction_whose_marker_a_crash_can_take():
    log = write("P1 " + "- " * 60, segment_bytes=400, retention_bytes=400, file_delete_delay_ms=0)
    log.write("P1c", sync=False)
    assert log.partition.deletion.apply_retention(log.now_ms) == 0


def failing_index(log):
    """Have every write to a transaction index fail for lack of room."""
    log.disk.fault = lambda what, path: (
        errno.ENOSPC if path.suffix == ".txnindex" and what == "writing" else None
    )


def test_nothing_becomes_durable_while_the_index_of_an_abort_cannot_be_written():
    """Scenario 26: programs that read the files must not see the marker of an abort before its entry."""
    log = write("P1 P1 P2")
    failing_index(log)
    log.end(1, commit=False)
    log.append(2)
    for look in (log.partition.unsynced, log.partition.assume_synced):
        with pytest.raises(DiskError):
            look()
    assert (log.partition.high_watermark, log.stable_offset) == (3, 0)
    assert log.partition.failure is None
    log.disk.fault = None
    log.sync()
    entries = log.disk.content(DIRECTORY / "00000000000000000000.txnindex")
    assert len(entries) == 34
    assert (log.partition.high_watermark, log.stable_offset) == (5, 2)
    assert log.all_aborted()[0].first_offset == 0


def test_an_index_that_was_not_written_before_a_crash_is_made_from_the_log():
    log = write("P1 P1 P2")
    failing_index(log)
    log.end(1, commit=False)
    log.disk.fault = None
    log.partition = log.open()
    assert [txn.first_offset for txn in log.partition.log.segments.active.txn_index] == [0]
    assert log.stable_offset == 2


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".log"])
def test_a_segment_that_cannot_be_rolled_for_lack_of_room_goes_on_growing(suffix, late):
    """It is rolled when there is room; a write that could not be undone is begun again in the same file."""
    log = write("P1 P2 P2a - - -", segment_bytes=10_000, index_interval_bytes=0)
    log.disk.fails_late = late
    full = [f"{log.partition.end_offset:020d}.log"] if suffix == ".log" else []
    log.disk.fault = lambda what, path: (
        errno.ENOSPC
        if (path.name in full and what == "opening")
        or (suffix != ".log" and path.suffix == suffix and what in ("opening", "writing"))
        else None
    )
    kept = None
    if suffix != ".txnindex":  # it is written with the abort
        with pytest.raises(DiskError) as kept:  # as a log or an answer keeps it, with its traceback
            log.partition.roll(log.now_ms)
    assert log.partition.failure is None
    full.clear()
    log.disk.fault = lambda what, path: errno.ENOSPC if what == "writing" and path.suffix != ".log" else None
    log.write("P1 -", sync=False)
    del kept
    log.disk.fault, log.disk.fails_late = None, False
    log.partition.roll(log.now_ms)
    log.write("- P1a")
    assert len(log.partition.segments()) == 2
    aborted, end = log.all_aborted(), log.partition.end_offset
    log.reopen(clean=False)
    assert (log.all_aborted(), log.partition.end_offset) == (aborted, end)
    assert list(verify_directory(log.disk, DIRECTORY)) == []


@pytest.mark.parametrize("which", ["all", "last"])
def test_rebuilt_indexes_equal_the_original_ones(which):
    """Scenario 27: every index deleted after an unclean stop, over many segments or in the last one only."""
    log = write("P1 P2 P1 P1a P3 P2a - P3c P1 " * 20 + "P1c", segment_bytes=600, index_interval_bytes=100)
    before = log.all_aborted()
    segments = [(s.base_offset, s.record_count, s.committed_count) for s in log.partition.segments()]
    log.partition.close(clean=False)
    last = log.partition.segments()[-1].base_offset
    for name in log.disk.list_dir(DIRECTORY):
        if name.endswith((".index", ".timeindex", ".txnindex", ".summary")) and (
            which == "all" or name.startswith(f"{last:020d}")
        ):
            log.disk.remove(DIRECTORY / name)
    log.partition = log.open()
    assert log.all_aborted() == before
    assert [(s.base_offset, s.record_count, s.committed_count) for s in log.partition.segments()] == segments
    assert list(verify_directory(log.disk, DIRECTORY)) == []


def test_a_bad_batch_behind_what_was_durable_is_cut_with_all_that_follows():
    """Scenario 28: aborts and segments behind it are gone, too."""
    log = write("P1 P1a P2 P2a - -", segment_bytes=1 << 20)
    log.partition.close(clean=False)
    path = DIRECTORY / f"{0:020d}.log"
    content = bytearray(log.disk.read_bytes(path))
    found = read_header(content, 0).size * 1 + 78
    content[found + 70] ^= 1
    log.disk.write_atomic(path, bytes(content))
    log.partition = log.open()
    assert log.partition.end_offset == 2
    assert [txn.producer_id for txn in log.all_aborted()] == [1]


def test_a_bad_batch_in_what_was_durable_keeps_the_partition_closed():
    """What was acknowledged is not thrown away in silence: the file and the place are named."""
    log = write("- " * 100, segment_bytes=400)
    log.partition.close(clean=False)
    path = DIRECTORY / f"{0:020d}.log"
    content = bytearray(log.disk.read_bytes(path))
    content[70] ^= 1
    log.disk.write_atomic(path, bytes(content))
    log.disk.remove(DIRECTORY / f"{0:020d}.summary")
    with pytest.raises(DamageError, match=r"00000000000000000000\.log.*durable"):
        log.open()
    assert log.disk.read_bytes(path) == bytes(content)


def test_a_follower_builds_the_same_index():
    """Scenario 29: from the leader's batches, offsets and all."""
    leader = write("P1 P2 P1 P1a P2 P3 P2c P3a")
    data = leader.partition.read(0, 1 << 20, Isolation.LOG_END).buffers[0]
    follower = Log()
    follower.partition.append(data, now_ms=NOW_MS, origin=Origin.REPLICATION)
    follower.sync()
    assert follower.all_aborted() == leader.all_aborted()
    assert follower.stable_offset == leader.stable_offset
    assert follower.disk.read_bytes(DIRECTORY / f"{0:020d}.log") == leader.disk.read_bytes(
        DIRECTORY / f"{0:020d}.log"
    )


def test_a_producer_whose_data_is_deleted_goes_on_with_its_sequence():
    """Scenario 30."""
    log = Log(segment_bytes=200)
    for _ in range(10):
        log.append(1, transactional=False)
    log.sync()
    log.partition.deletion.delete_records(9)
    log.partition.roll(log.now_ms)
    assert log.append(1, sequence=10, transactional=False).first_offset == 10


def test_lookups_by_time_end_at_what_the_reader_sees():
    """Scenario 31: a time that only an undecided record has is not found."""
    log = Log()
    log.partition.append(plain(100, 200, 300), now_ms=NOW_MS)
    log.partition.append(plain(400), now_ms=NOW_MS)
    log.write("P1")
    committed, uncommitted = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
    assert finished(log.partition.look_up_time(150, committed)) == (1, 200, 0)
    assert finished(log.partition.look_up_time(301, committed)) == (3, 400, 0)
    assert finished(log.partition.look_up_time(401, committed)) is None
    assert finished(log.partition.look_up_time(401, uncommitted)) == (4, NOW_MS, 0)
    assert finished(log.partition.look_up_newest(committed)) is None
    assert finished(log.partition.look_up_newest(uncommitted))[0] == 4
    assert log.partition.visible_end(committed) == 4


@pytest.mark.parametrize("isolation", [Isolation.READ_UNCOMMITTED, Isolation.LOG_END])
def test_a_read_of_everything_carries_no_list_of_aborts(isolation):
    """Scenario 33: null, not empty."""
    log = write("P1 P1a")
    assert log.partition.read(0, 1 << 20, isolation).aborted is None
    assert log.partition.read(2, 1 << 20, isolation).aborted is None


def test_every_alignment_hands_out_whole_batches_and_bounds_them():
    """Scenario 34: the upper bound is never below what was handed out."""
    log = Log(index_interval_bytes=200)
    for n in range(60):
        log.append(1, count=1 + n % 5, transactional=n % 3 == 0) if n % 3 else log.write("P2 P2a")
    log.sync()
    for start in range(log.partition.end_offset):
        for size_max in (1, 79, 200, 1000, 1 << 20):
            found = log.partition.read(start, size_max, Isolation.LOG_END)
            data, at, offset = found.buffers[0], 0, None
            while at < len(data):
                header = read_header(data, at)
                if at == 0:
                    assert header.base_offset <= start <= header.last_offset
                at, offset = at + header.size, header.next_offset
            assert at == len(data)
            assert offset == found.end_offset
            assert len(data) <= size_max or read_header(data).size == len(data)


def test_a_log_start_within_what_is_synced_costs_no_sync():
    log = write("- - -", segment_bytes=100)
    log.disk.fault = lambda what, path: pytest.fail(f"{what} {path}") if what.startswith("syncing") else None
    assert log.partition.deletion.delete_records(2) == 2


def test_a_sync_that_fails_before_the_log_start_moves_fails_the_partition():
    """No later sync can tell which bytes are durable."""
    log = write("- - -").write("- -", sync=False)
    log.partition.assume_synced()
    log.disk.fault = lambda what, _path: errno.EIO if what == "syncing" else None
    with pytest.raises(DiskError):
        log.partition.deletion.delete_records(5)
    assert log.partition.start_offset == 0
    assert log.partition.log.synced_offset == 3
    assert log.partition.failure is not None


@pytest.mark.parametrize("isolation", EVERY)
def test_a_read_outside_the_log_says_where_the_log_is(isolation):
    log = write("- - -")
    log.partition.deletion.delete_records(1)
    for offset in (0, 4, -1):
        with pytest.raises(OffsetOutOfRangeError, match=r"which has the offsets 1 to 3 \(exclusive\)"):
            log.partition.read(offset, 100, isolation)
    assert log.partition.read(3, 100, isolation).size == 0


def test_what_is_handed_out_stays_readable_after_its_segment_is_deleted(tmp_path):
    from stablelog.log.partition import LogConfig

    partition = open_partition(
        LocalDisk(),
        tmp_path / "t-0",
        LogConfig(segment_bytes=300),
        topic="t",
        partition=0,
        clean=True,
        now_ms=1,
    )
    for n in range(10):
        partition.append(plain(n, value=b"%d" % n), now_ms=1)
    work = partition.unsynced()
    work.run()
    partition.synced(work)
    held = partition.read(0, 1, Isolation.READ_UNCOMMITTED).buffers[0]
    partition.deletion.delete_records(9)
    partition.deletion.remove_deleted(1 << 60)
    assert decode_records(held)[0].value == b"0"
    partition.close()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda batch: batch + batch, ErrorCode.invalid_record),
        (lambda batch: (7).to_bytes(8, "big") + batch[8:], ErrorCode.invalid_record),
    ],
)
def test_what_no_client_may_send_is_refused(change, code):
    log = Log()
    with pytest.raises(RefusedError) as caught:
        log.partition.append(change(plain(1, 2)), now_ms=NOW_MS)
    assert caught.value.code is code
    assert log.partition.end_offset == 0


@pytest.mark.parametrize("at", [17, 30, 61, 70])
def test_a_batch_whose_bytes_changed_on_the_way_is_not_written(at):
    log = Log()
    batch = bytearray(plain(1, 2))
    batch[at] ^= 1
    with pytest.raises((DamageError, RefusedError)):
        log.partition.append(bytes(batch), now_ms=NOW_MS)
    assert log.partition.end_offset == 0


def test_a_batch_that_is_too_large_is_refused_by_the_name_of_the_setting():
    log = Log(max_message_bytes=100)
    with pytest.raises(RefusedError, match=r"max\.message\.bytes=100"):
        log.partition.append(plain(1, value=bytes(100)), now_ms=NOW_MS)
    batch = plain(NOW_MS, value=bytes(20))
    log.partition.reconfigure(replace(log.config, max_message_bytes=len(batch) - 1))
    with pytest.raises(RefusedError) as caught:
        log.partition.append(batch, now_ms=NOW_MS)
    assert caught.value.code is ErrorCode.message_too_large
    log.partition.reconfigure(replace(log.config, max_message_bytes=len(batch)))
    assert log.partition.append(batch, now_ms=NOW_MS).last_offset == 0


def test_a_time_too_far_from_the_brokers_is_refused_by_the_name_of_the_setting():
    """A record from the future would keep its segment from retention; Kafka's default allows an hour."""
    log = Log(message_timestamp_before_ms_max=1000)
    log.partition.append(plain(NOW_MS - 1000, NOW_MS + 3_600_000), now_ms=NOW_MS)
    log.partition.append(plain(-1), now_ms=NOW_MS)
    for times, setting in (
        ((NOW_MS - 1001, NOW_MS), "before"),
        ((NOW_MS, NOW_MS + 3_600_001), "after"),
    ):
        with pytest.raises(RefusedError, match=rf"message\.timestamp\.{setting}\.max\.ms") as caught:
            log.partition.append(plain(*times), now_ms=NOW_MS)
        assert caught.value.code is ErrorCode.invalid_timestamp
    with pytest.raises(RefusedError, match=r"declares LogAppendTime"):
        log.partition.append(with_append_time(plain(NOW_MS), NOW_MS), now_ms=NOW_MS)
    assert log.partition.end_offset == 3
    by_broker = Log(message_timestamp_type="LogAppendTime", message_timestamp_before_ms_max=0)
    assert by_broker.partition.append(plain(5, 1 << 60), now_ms=NOW_MS).append_time_ms == NOW_MS


def test_the_brokers_time_takes_the_place_of_the_clients_where_the_topic_says_so():
    log = Log(message_timestamp_type="LogAppendTime")
    assert log.partition.append(plain(5, 6), now_ms=NOW_MS).append_time_ms == NOW_MS
    log.sync()
    read = decode_records(log.partition.read(0, 1 << 20, Isolation.READ_COMMITTED).buffers[0])
    assert [record.timestamp_ms for record in read] == [NOW_MS, NOW_MS]
    log.reopen(clean=False)
    assert log.partition.end_offset == 2


def test_segments_roll_by_size_and_by_the_brokers_time():
    log = Log(segment_bytes=250, segment_ms=1000).write("- - - -")
    assert len(log.partition.segments()) == 2
    log.now_ms += 1000
    log.write("-")
    assert len(log.partition.segments()) == 2, "it is as old as it may be"
    log.now_ms += 1
    log.write("-")
    assert len(log.partition.segments()) == 3
    log.now_ms += 999
    log.write("-")
    log.now_ms += 2
    log.write("-")
    assert len(log.partition.segments()) == 4, "the time begins with the segment"


def test_retention_by_time_takes_whole_segments_and_keeps_what_is_new():
    log = Log(segment_bytes=300, retention_ms=1000).write("- - - - - -")
    log.now_ms += 2000
    log.write("-")
    assert log.partition.deletion.apply_retention(log.now_ms) > 0
    assert log.partition.start_offset == log.partition.segments()[0].base_offset > 0
    assert log.partition.end_offset == 7
    names = log.disk.list_dir(DIRECTORY)
    assert any(name.endswith(".deleted") for name in names)
    log.partition.deletion.remove_deleted(log.now_ms + 60_000)
    assert not any(name.endswith(".deleted") for name in log.disk.list_dir(DIRECTORY))


def test_a_leader_epoch_ends_where_the_next_begins():
    log = write("- -")
    log.reopen(leader_epoch=3)
    log.write("-")
    log.reopen(leader_epoch=5)
    log.write("- -")
    assert log.partition.replication.end_offset_for_epoch(0) == (0, 2)
    assert log.partition.replication.end_offset_for_epoch(1) == (0, 2)
    assert log.partition.replication.end_offset_for_epoch(3) == (3, 3)
    assert log.partition.replication.end_offset_for_epoch(5) == (5, 5)
    assert log.partition.replication.end_offset_for_epoch(9) == (-1, -1)
    log.reopen()
    assert log.partition.replication.end_offset_for_epoch(3) == (3, 3)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_file_of_leader_epochs_that_disagrees_with_the_log_is_told_to_nobody(is_cut):
    log = write("- -")
    log.reopen(leader_epoch=3)
    log.write("- -")
    assert log.partition.replication.end_offset_for_epoch(0) == (0, 2)
    path = DIRECTORY / EPOCH_FILE
    if not is_cut:
        log.partition.close()
    log.disk.write_atomic(path, LeaderEpochs([(0, 0), (3, 1)]).encode())
    if is_cut:
        log.partition.replication.truncate_to(3)
    else:
        log.partition = log.open(clean=True, leader_epoch=3)
    for asked in (0, 3):
        with pytest.raises(DamageError, match=rf"{path} says that leader epoch 3 begins at offset 1"):
            log.partition.replication.end_offset_for_epoch(asked)


def test_leader_epochs_that_are_lost_are_read_in_the_batches_before_the_last_snapshot_too():
    log = write("- -")
    log.partition = log.open(leader_epoch=3)
    log.write("- -")
    log.partition.close()
    log.disk.remove(DIRECTORY / "leader-epoch-checkpoint")
    log.partition = log.open(clean=True, leader_epoch=4)
    assert log.partition.replication.end_offset_for_epoch(0) == (0, 2)
    assert log.partition.replication.end_offset_for_epoch(3) == (3, 4)


def test_a_clean_stop_does_what_a_sync_that_nobody_ran_was_to_do():
    log = write("P1 - -")
    log.partition.roll(log.now_ms)
    log.write("P1", sync=False)
    assert log.partition.unsynced().writes
    log.partition.close()
    names = log.disk.list_dir(DIRECTORY)
    assert {f"{0:020d}.summary", f"{3:020d}.snapshot", f"{3:020d}.producers"} <= set(names)
    log.partition = log.open(clean=True)
    assert list(verify_directory(log.disk, DIRECTORY)) == []


def test_recovery_reads_only_what_came_after_the_last_snapshot():
    log = Log(snapshot_bytes=4096)
    for _ in range(400):
        log.append(1)
        log.sync()
    log.partition.close(clean=False)
    read = []

    class Counting(type(log.disk)):
        pass

    original = log.disk.open

    def opened(path, *, create=False):
        file = original(path, create=create)
        if path.suffix == ".log":
            plain_read = file.read
            file.read = lambda position, size: read.append(position) or plain_read(position, size)
        return file

    log.disk.open = opened
    size = log.partition.size
    log.partition = log.open(prove=False)
    # And the batch with which the open transaction begins, for its leader epoch.
    assert [position for position in read if position < size - 2 * 4096] == [0]
    assert log.partition.end_offset == 400
    assert log.stable_offset == 0


def test_verify_finds_what_was_changed_in_any_file():
    log = write("P1 P1a - P2 P2c " * 30, segment_bytes=900, index_interval_bytes=100)
    log.partition.close()
    assert list(verify_directory(log.disk, DIRECTORY)) == []
    for name in log.disk.list_dir(DIRECTORY):
        path = DIRECTORY / name
        content = log.disk.read_bytes(path)
        if not content or name == "leader-epoch-checkpoint":
            continue
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 0x40
        log.disk.write_atomic(path, bytes(changed))
        assert list(verify_directory(log.disk, DIRECTORY)), f"a flipped bit in {name} was not found"
        log.disk.write_atomic(path, content)


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


def test_a_segment_that_recovery_sealed_can_be_deleted_without_its_open_transaction_being_forgotten():
    log = Log(segment_bytes=300)
    log.write("P1 P2 P2 P2 P2 P2 P1")
    log.reopen(clean=False)
    before_offset = log.partition.segments()[1].base_offset
    log.partition.deletion.delete_records(before_offset)
    log.partition = log.open()
    assert [txn.first_offset for txn in log.partition.log.open_transactions()] == [0, 1]


def event_log(count, **config):
    """A log of transactions, each with one record of the time `NOW_MS - 1,000,000 + number` and a marker of `NOW_MS`."""
    log = Log(**config)
    for number in range(count):
        log.append(1, time_ms=NOW_MS - 1_000_000 + number)
        log.end(1, commit=number % 3 != 2)
    log.sync()
    return log


def test_a_marker_is_no_record_to_a_lookup_by_time():
    log = event_log(10)
    for isolation in (Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED):
        for number in range(10):
            found = finished(log.partition.look_up_time(NOW_MS - 1_000_000 + number, isolation))
            assert found[:2] == (2 * number, NOW_MS - 1_000_000 + number)
        assert finished(log.partition.look_up_time(NOW_MS - 1_000, isolation)) is None
        assert finished(log.partition.look_up_newest(isolation))[:2] == (18, NOW_MS - 999_991)
    log.partition.deletion.delete_records(19)
    assert finished(log.partition.look_up_time(0, Isolation.READ_COMMITTED)) is None
    assert finished(log.partition.look_up_newest(Isolation.READ_COMMITTED)) is None


@pytest.fixture
def steps_of(monkeypatch):
    """Does a lookup whose steps read 20 headers at the most. Returns what it finds, and how many steps and headers it took."""
    monkeypatch.setattr(lookups, "STEP_COUNT_MAX", 20)
    read_count, plain_walk = 0, Segment.walk

    def walk(segment, *more):
        nonlocal read_count
        for found in plain_walk(segment, *more):
            read_count += 1
            yield found

    monkeypatch.setattr(Segment, "walk", walk)

    def steps_of(lookup):
        nonlocal read_count
        step_count, read_count = 0, 0
        while True:
            before = read_count
            try:
                assert next(lookup) is None
            except StopIteration as end:
                return end.value, step_count, read_count
            step_count += 1
            assert read_count - before <= 21

    return steps_of


def test_a_lookup_by_time_reads_so_many_headers_in_a_step_and_none_of_them_twice(steps_of):
    log = event_log(200, segment_bytes=3000, index_interval_bytes=200)
    assert len(log.partition.segments()) > 5
    late = NOW_MS - 1_000
    found, step_count, count = steps_of(log.partition.look_up_time(late, Isolation.READ_COMMITTED))
    assert (found, step_count) == (None, 19)
    assert count <= 400 + 20
    # What was walked is known: no record in it is later than the last one's time.
    assert steps_of(log.partition.look_up_time(late, Isolation.READ_COMMITTED)) == (None, 0, 0)
    found, step_count, count = steps_of(log.partition.look_up_newest(Isolation.READ_COMMITTED))
    assert found[:2] == (398, NOW_MS - 999_801)
    assert count < 50
    log.append(1, time_ms=NOW_MS - 500)
    log.end(1, commit=True)
    log.sync()
    found, step_count, count = steps_of(log.partition.look_up_time(late, Isolation.READ_COMMITTED))
    assert (found[0], count) == (400, 1)


@pytest.mark.parametrize("seed", range(12))
def test_lookups_in_any_order_find_what_a_search_of_all_records_finds(seed, monkeypatch):
    """Lookups remember what they have walked; those of other times and of later starts are as right behind them."""
    chance = random.Random(seed)
    monkeypatch.setattr(lookups, "STEP_COUNT_MAX", chance.choice([1, 3, 1000]))
    log = Log(segment_bytes=chance.choice([500, 1 << 20]), index_interval_bytes=chance.choice([1, 300]))
    rows = []  # (time, offset)
    for number in range(60):
        time_ms = NOW_MS + chance.randint(-20, 20) + number // 3
        count = chance.randint(1, 3)
        first = log.append(1, count=count, transactional=False, time_ms=time_ms).first_offset
        rows += [(time_ms, first + at) for at in range(count)]
    log.sync()
    for _ in range(60):
        if chance.random() < 0.1:
            log.partition.deletion.delete_records(
                min(log.partition.start_offset + chance.randint(1, 9), rows[-1][1])
            )
        start, asked = log.partition.start_offset, NOW_MS + chance.randint(-25, 45)
        known = [(offset, time_ms) for time_ms, offset in rows if offset >= start]
        found = finished(log.partition.look_up_time(asked, Isolation.READ_UNCOMMITTED))
        wanted = next((row for row in known if row[1] >= asked), None)
        assert (found and found[:2]) == wanted
        if chance.random() < 0.1:  # it walks everything
            newest = finished(log.partition.look_up_newest(Isolation.READ_UNCOMMITTED))
            assert newest[:2] == next(row for row in known if row[1] == max(time_ms for _, time_ms in known))


def test_a_lookup_by_time_goes_on_where_segments_were_deleted_between_two_steps(monkeypatch):
    log = event_log(200, segment_bytes=3000)
    monkeypatch.setattr(lookups, "STEP_COUNT_MAX", 20)
    lookup = log.partition.look_up_time(NOW_MS - 1_000_000 + 150, Isolation.READ_COMMITTED)
    next(lookup)
    log.partition.deletion.delete_records(250)
    log.partition.deletion.remove_deleted(NOW_MS)
    assert finished(lookup)[0] == 300


def test_the_greatest_time_behind_the_log_start_is_found_in_steps(steps_of):
    log = event_log(200)
    log.partition.deletion.delete_records(7)
    found, step_count, _ = steps_of(log.partition.look_up_newest(Isolation.READ_COMMITTED))
    assert found[:2] == (398, NOW_MS - 999_801)
    assert step_count >= 400 // 20


def test_the_greatest_time_of_a_log_that_no_lookup_has_walked_is_found_in_steps(steps_of):
    log = event_log(200, segment_bytes=3000)
    found, step_count, count = steps_of(log.partition.look_up_newest(Isolation.READ_COMMITTED))
    assert found[:2] == (398, NOW_MS - 999_801)
    assert step_count >= 400 // 21
    assert count < 400 + 2 * step_count + 50


def test_the_greatest_time_is_found_where_segments_were_deleted_between_two_steps(monkeypatch):
    monkeypatch.setattr(lookups, "STEP_COUNT_MAX", 20)
    log = event_log(200, segment_bytes=3000)
    log.partition.deletion.delete_records(7)
    lookup = log.partition.look_up_newest(Isolation.READ_COMMITTED)
    next(lookup)
    log.partition.deletion.delete_records(250)
    log.partition.deletion.remove_deleted(NOW_MS)
    assert finished(lookup)[:2] == (398, NOW_MS - 999_801)


def test_a_large_batch_is_looked_into_by_the_caller_of_a_lookup():
    log = Log()
    last = QUICK_SIZE_MAX // 10
    records = [Record(0, NOW_MS + delta, None, b"value") for delta in range(last + 1)]
    log.partition.append(encode_batch(records), now_ms=NOW_MS)
    log.sync()
    log.partition.deletion.delete_records(1)
    for lookup, found in (
        (log.partition.look_up_time(NOW_MS + 500, Isolation.READ_COMMITTED), (500, NOW_MS + 500)),
        (log.partition.look_up_newest(Isolation.READ_COMMITTED), (last, NOW_MS + last)),
    ):
        given, done = 0, None
        with pytest.raises(StopIteration) as end:
            while True:
                work = lookup.send(done)
                given += work is not None
                done = work and work()
        assert given > 0
        assert end.value.value[:2] == found


def test_the_greatest_time_is_one_that_can_be_read():
    log = Log()
    log.partition.append(plain(NOW_MS + 5, NOW_MS + 3), now_ms=NOW_MS)
    log.partition.append(plain(NOW_MS + 1), now_ms=NOW_MS)
    log.sync()
    assert finished(log.partition.look_up_newest(Isolation.READ_COMMITTED))[:2] == (0, NOW_MS + 5)
    log.partition.deletion.delete_records(1)
    assert finished(log.partition.look_up_newest(Isolation.READ_COMMITTED))[:2] == (1, NOW_MS + 3)


def test_a_truncation_into_the_batch_in_which_the_log_begins_takes_its_beginning_along():
    log = Log()
    log.append(1, count=3)
    log.append(1, count=3)
    log.sync()
    log.partition.deletion.delete_records(4)
    log.partition.replication.truncate_to(5)
    assert (log.partition.start_offset, log.partition.end_offset) == (3, 3)
    log.write("-")
    log.reopen(clean=False)
    assert (log.partition.start_offset, log.partition.end_offset) == (3, 4)


@pytest.mark.parametrize("order", ["offset", "commit"])
def test_a_closed_partition_takes_no_call_and_touches_no_file(order):
    """Its directory may have been deleted, and made again for another topic of the name."""
    log = write("- P1 P1c P2 - - P2a " + "- " * 30, segment_bytes=400, retention_bytes=400, order=order)
    log.sync()
    partition = log.partition
    work = partition.unsynced()
    partition.append(plain(NOW_MS), now_ms=NOW_MS)
    work = partition.unsynced()
    assert partition.deletion.apply_retention(NOW_MS) > 0
    partition.close(clean=False)
    log.disk.fault = lambda what, path: pytest.fail(f"{what} {path}")
    for call in (
        lambda: partition.append(plain(NOW_MS), now_ms=NOW_MS),
        lambda: partition.append_markers([], now_ms=NOW_MS),
        lambda: partition.roll(NOW_MS),
        partition.unsynced,
        lambda: partition.synced(work),
        partition.assume_synced,
        partition.log.prove,
        lambda: partition.read(partition.end_offset, 1, Isolation.READ_COMMITTED),
        lambda: partition.aborted_in(0, 1),
        lambda: partition.replication.end_offset_for_epoch(0),
        lambda: partition.deletion.delete_records(partition.high_watermark),
        lambda: partition.deletion.apply_retention(NOW_MS),
        lambda: partition.deletion.remove_deleted(1 << 62),
        lambda: partition.deletion.expire_producers(1 << 62),
        lambda: partition.compaction.begin(NOW_MS, key_count_max=10),
        lambda: partition.compaction.put_in_place(None),
        lambda: partition.compaction.end(None),
        lambda: partition.replication.truncate_to(0),
    ):
        with pytest.raises(UnavailableError, match="is closed"):
            call()
    assert "is closed" in str(partition.failure)
    assert not any(partition.holds(segment) for segment in partition.segments())
    partition.close()


@pytest.mark.parametrize("origin", [*Origin, None], ids=["client", "coordinator", "copy", "marker"])
@pytest.mark.parametrize("where", [(GrowingSegment, "note"), (Snapshots, "appended")], ids=["first", "later"])
def test_an_append_that_an_unexpected_error_interrupts_fails_the_partition(origin, where, monkeypatch):
    """The log file has bytes then of which memory does not know: nothing may be appended behind them."""
    log, reasons = Log().write("- P1"), []
    log.partition.usability.on_failure = reasons.append

    def append():
        if origin is None:
            return log.end(1, commit=False)
        base_offset = log.partition.end_offset if origin is Origin.REPLICATION else 0
        batch = encode_batch([Record(0, NOW_MS, None, b"x")], base_offset=base_offset)
        return log.partition.append(batch, now_ms=NOW_MS, origin=origin)

    with monkeypatch.context() as patch:
        patch.setattr(*where, lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            append()
    for call in (append, lambda: log.partition.read(0, 1, Isolation.LOG_END)):
        with pytest.raises(
            UnavailableError,
            match="t-0 has failed and needs a restart: an append was written and not",
        ):
            call()
    assert reasons == [log.partition.failure], "it is told once"
    log.partition.close()
    log.partition = log.open()
    log.write("- -")
    assert list(verify_directory(log.disk, DIRECTORY)) == []


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("has_producer", [False, True])
@pytest.mark.parametrize("is_assumed", [False, True])
def test_what_a_clean_close_leaves_is_durable_however_little_it_is(is_written, has_producer, is_assumed):
    """Also where everything beside the log file is as the last close has left it."""
    log = write("P1 P1c" if has_producer else "-")
    log.reopen()
    if is_written:
        log.write("-", sync=False)
    if is_assumed:
        log.partition.assume_synced()
    end = log.partition.end_offset
    log.partition.close()
    closed = log.disk
    for seed in range(10):
        log.disk = closed.crash(random.Random(seed))
        partition = log.open(clean=True)
        assert partition.end_offset == end
        partition.close()


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


def test_an_uncommitted_reader_sees_what_is_durable_and_the_log_itself_all():
    log = Log().write("-")
    log.write("- P1", sync=False)
    ends = [log.partition.read(0, 1 << 20, isolation).end_offset for isolation in EVERY]
    assert ends == [3, 1, 1]


def test_what_the_broker_knows_of_the_log_start_counts_where_the_partition_says_less():
    log = write("- " * 10)
    log.reopen(log_start_offset=4)
    assert log.partition.start_offset == 4
    log.reopen(log_start_offset=2)
    assert log.partition.start_offset == 4, "deleted records stay deleted"


def test_leader_epochs_that_have_not_begun_are_made_anew():
    """As a file of another directory says them."""
    log = write("- - -")
    log.partition.close()
    epochs = LeaderEpochs()
    epochs.assign(0, 0)
    epochs.assign(7, 1)
    log.disk.write_atomic(DIRECTORY / EPOCH_FILE, epochs.encode())
    log.partition = log.open(clean=True)
    assert log.partition.replication.end_offset_for_epoch(0) == (0, 3)


@pytest.mark.parametrize("size", [70, 100, 500])
def test_recovery_and_the_proof_of_a_log_read_batches_that_are_larger_than_what_they_read_at_once(
    monkeypatch, size
):
    monkeypatch.setattr(scan, "BATCHES_READ_SIZE", size)
    log = Log()
    for length in (10, 400, 10, 900, 20):
        log.append(1, size=length)
    log.write("P1a")
    log.append(2, size=700)  # which ends with the file
    log.sync()
    log.partition.close(clean=False)
    log.partition = log.open()
    assert log.partition.end_offset == 7
    assert log.stable_offset == 6
    assert len(log.all_aborted()) == 1
    assert list(verify_directory(log.disk, DIRECTORY)) == []


def test_a_summary_that_a_deletion_has_left_before_the_log_start_is_no_finding():
    log = write("- " * 40, segment_bytes=400, file_delete_delay_ms=0)
    names = [name for name in log.disk.list_dir(DIRECTORY) if name.endswith(".summary")]
    first = {name: log.disk.read_bytes(DIRECTORY / name) for name in names[:2]}
    log.partition.deletion.delete_records(30)
    log.partition.deletion.remove_deleted(log.now_ms)
    for name, content in first.items():
        assert not log.disk.exists(DIRECTORY / name)
        log.disk.write_atomic(DIRECTORY / name, content)
    assert list(verify_directory(log.disk, DIRECTORY)) == []


def test_the_offset_index_has_one_entry_for_each_interval():
    log = Log(index_interval_bytes=1000)
    for _ in range(100):
        log.append(1, size=100)
    size = log.partition.size
    log.sync()
    log.partition.roll(log.now_ms)
    entries = len(log.disk.content(DIRECTORY / "00000000000000000000.index")) // 8
    assert size // 1300 <= entries <= size // 1000


def test_the_file_of_leader_epochs_is_kafkas():
    epochs = LeaderEpochs()
    epochs.assign(0, 0)
    epochs.assign(3, 12)
    assert epochs.encode() == b"0\n2\n0 0\n3 12\n"
    assert LeaderEpochs.decode(epochs.encode()).entries == epochs.entries
    with pytest.raises(NewerFormatError):
        LeaderEpochs.decode(b"1\n2\n0 0\n3 12\n")
    for entries in (b"0 5\n3 5\n", b"0 5\n3 4\n", b"3 5\n3 9\n", b"3 5\n2 9\n"):
        with pytest.raises(DamageError):
            LeaderEpochs.decode(b"0\n2\n" + entries)


def test_leader_epochs_are_written_again_where_their_file_is_gone_or_tells_of_what_is_cut():
    log = write("- - -")
    written = log.disk.read_bytes(DIRECTORY / EPOCH_FILE)
    log.partition.close(clean=False)
    log.disk.remove(DIRECTORY / EPOCH_FILE)
    log.partition = log.open()
    assert log.disk.read_bytes(DIRECTORY / EPOCH_FILE) == written
    log.partition.close(clean=False)
    epochs = LeaderEpochs.decode(written)
    epochs.assign(4, 30)  # behind the log's end
    log.disk.write_atomic(DIRECTORY / EPOCH_FILE, epochs.encode())
    log.partition = log.open(leader_epoch=5)
    assert log.disk.read_bytes(DIRECTORY / EPOCH_FILE) == written


def test_bytes_of_another_log_without_a_batch_are_refused():
    log = Log()
    with pytest.raises(DamageError, match="without a whole batch"):
        log.partition.append(bytes(20), now_ms=NOW_MS, origin=Origin.REPLICATION)
    assert log.partition.end_offset == 0


def test_a_closed_log_has_an_entry_of_its_greatest_time_in_the_time_index():
    """Kafka looks nothing up behind the last entry."""
    log = Log(index_interval_bytes=1 << 20)
    for at in range(4):
        log.append(1, time_ms=NOW_MS + at)
    log.sync()
    log.partition.close()
    content = log.disk.read_bytes(DIRECTORY / "00000000000000000000.timeindex")
    assert content[-12:] == (NOW_MS + 3).to_bytes(8, "big") + (3).to_bytes(4, "big")


def test_a_closed_partition_holds_no_descriptor(tmp_path):
    before = len(list(Path("/dev/fd").iterdir()))
    for index in range(3):
        log = Log(LocalDisk(), directory=tmp_path / f"t-{index}", segment_bytes=400)
        log.write("P1 - - - P1a - -")
        log.partition.close(clean=False)
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_recovery_tells_how_far_it_has_come(monkeypatch):
    monkeypatch.setattr(replay, "PROGRESS_SIZE", 100)
    log = write("- " * 20)
    log.partition.close(clean=False)
    told = []
    log.partition = log.open(progress=lambda done, whole: told.append((done, whole)))
    assert len(told) > 3
    assert told == sorted(told)
    assert all(100 <= done <= whole == log.partition.size for done, whole in told)
    log = write("- " * 40, segment_bytes=500)
    log.partition.close(clean=False)
    for path in [path for path in log.disk.files() if path.suffix in (".producers", ".snapshot")]:
        log.disk.lose(path)
    told.clear()
    log.partition = log.open(progress=lambda done, whole: told.append((done, whole)))
    assert len(log.partition.segments()) > 4
    assert [done // 100 for done, _ in told] == list(range(1, log.partition.size // 100 + 1))
    assert {whole for _, whole in told} == {log.partition.size}


def test_files_that_retention_has_taken_go_when_their_delay_is_over_and_not_before():
    log = write("- " * 40, segment_bytes=400, retention_bytes=500, file_delete_delay_ms=1000)
    assert log.partition.deletion.apply_retention(log.now_ms) > 1

    def deleted():
        return [name for name in log.disk.list_dir(DIRECTORY) if name.endswith(".deleted")]

    log.partition.deletion.remove_deleted(log.now_ms + 999)
    assert deleted()
    log.partition.deletion.remove_deleted(log.now_ms + 1000)
    assert not deleted()


def test_open_transactions_are_told_with_their_epoch_and_age_the_oldest_first():
    log = Log()
    log.write("- - -")
    log.reopen(leader_epoch=3)
    assert log.partition.producer_state.oldest_open_started_ms is None
    assert log.partition.log.open_transactions() == []
    for producer in (2, 1):
        log.now_ms += 5
        log.append(producer, epoch=producer)
    log.sync()
    told = [astuple(each) for each in log.partition.log.open_transactions()]
    assert told == [(2, 2, 3, NOW_MS + 5, 3), (1, 1, 4, NOW_MS + 10, 3)]
    assert log.partition.producer_state.oldest_open_started_ms == NOW_MS + 5
    log.end(2, commit=True, epoch=2)
    assert log.partition.producer_state.oldest_open_started_ms == NOW_MS + 10


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_removes_files_of_segments_that_are_not_there(clean):
    log = write("P1 P1a - " * 20, segment_bytes=400)
    log.partition.close(clean=clean)
    stray = {DIRECTORY / f"{7:020d}{suffix}" for suffix in (".index", ".timeindex", ".txnindex")}
    for path in stray:
        log.disk.write_atomic(path, b"")
    log.partition = log.open(clean=clean)
    assert not stray & set(log.disk.files())


def test_retention_counts_the_segments_that_are_durable_as_a_whole():
    @dataclass
    class Sealed:
        end_offset: int
        durable: bool = True

    segments = [Sealed(10), Sealed(20), Sealed(30), Sealed(40)]
    for high_watermark, count in ((9, 0), (10, 1), (19, 1), (20, 2), (30, 3), (45, 3)):
        assert log_retention.count_durable(segments, high_watermark) == count
    segments[1].durable = False
    assert log_retention.count_durable(segments, 45) == 1
