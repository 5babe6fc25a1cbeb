import errno
import random
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest

from stablelog.batch.header import Codec
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import (
    DamageError,
    UnavailableError,
    UnknownFormatError,
)
from stablelog.log import retention as log_retention
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.opening import open_partition
from stablelog.log.partition import Isolation, Origin
from stablelog.log.recovery import replay
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


def failing_index(log):
    """Have every write to a transaction index fail for lack of room."""
    log.disk.fault = lambda what, path: (
        errno.ENOSPC if path.suffix == ".txnindex" and what == "writing" else None
    )


def test_an_index_that_was_not_written_before_a_crash_is_made_from_the_log():
    log = write("P1 P1 P2")
    failing_index(log)
    log.end(1, commit=False)
    log.disk.fault = None
    log.partition = log.open()
    assert [txn.first_offset for txn in log.partition.log.segments.active.txn_index] == [0]
    assert log.stable_offset == 2


def test_a_producer_whose_data_is_deleted_goes_on_with_its_sequence():
    """Scenario 30."""
    log = Log(segment_bytes=200)
    for _ in range(10):
        log.append(1, transactional=False)
    log.sync()
    log.partition.deletion.delete_records(9)
    log.partition.roll(log.now_ms)
    assert log.append(1, sequence=10, transactional=False).first_offset == 10


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
    work = partition.sync_work()
    work.run()
    partition.finish_sync(work)
    held = partition.read(0, 1, Isolation.READ_UNCOMMITTED).buffers[0]
    partition.deletion.delete_records(9)
    partition.deletion.remove_deleted(1 << 60)
    assert decode_records(held)[0].value == b"0"
    partition.close()


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
    assert log.partition.sync_work().writes
    log.partition.close()
    names = log.disk.list_dir(DIRECTORY)
    assert {f"{0:020d}.summary", f"{3:020d}.snapshot", f"{3:020d}.producers"} <= set(names)
    log.partition = log.open(clean=True)
    assert list(verify_directory(log.disk, DIRECTORY)) == []


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


def test_a_segment_that_recovery_sealed_can_be_deleted_without_its_open_transaction_being_forgotten():
    log = Log(segment_bytes=300)
    log.write("P1 P2 P2 P2 P2 P2 P1")
    log.reopen(clean=False)
    before_offset = log.partition.segments()[1].base_offset
    log.partition.deletion.delete_records(before_offset)
    log.partition = log.open()
    assert [txn.first_offset for txn in log.partition.log.open_transactions()] == [0, 1]


@pytest.mark.parametrize("order", ["offset", "commit"])
def test_a_closed_partition_takes_no_call_and_touches_no_file(order):
    """Its directory may have been deleted, and made again for another topic of the name."""
    log = write("- P1 P1c P2 - - P2a " + "- " * 30, segment_bytes=400, retention_bytes=400, order=order)
    log.sync()
    partition = log.partition
    work = partition.sync_work()
    partition.append(plain(NOW_MS), now_ms=NOW_MS)
    work = partition.sync_work()
    assert partition.deletion.apply_retention(NOW_MS) > 0
    partition.close(clean=False)
    log.disk.fault = lambda what, path: pytest.fail(f"{what} {path}")
    for call in (
        lambda: partition.append(plain(NOW_MS), now_ms=NOW_MS),
        lambda: partition.append_markers([], now_ms=NOW_MS),
        lambda: partition.roll(NOW_MS),
        partition.sync_work,
        lambda: partition.finish_sync(work),
        partition.assume_synced,
        partition.log.prove_segments,
        lambda: partition.read(partition.end_offset, 1, Isolation.READ_COMMITTED),
        lambda: partition.replication.end_offset_for_epoch(0),
        lambda: partition.deletion.delete_records(partition.high_watermark),
        lambda: partition.deletion.apply_retention(NOW_MS),
        lambda: partition.deletion.remove_deleted(1 << 62),
        lambda: partition.deletion.expire_producers(1 << 62),
        lambda: partition.compaction.begin_pass(NOW_MS, key_count_max=10),
        lambda: partition.compaction.put_in_place(None),
        lambda: partition.compaction.end_pass(None),
        lambda: partition.replication.truncate_to(0),
    ):
        with pytest.raises(UnavailableError, match="is closed"):
            call()
    assert "is closed" in str(partition.failure)
    assert not any(partition.has_segment(segment) for segment in partition.segments())
    partition.close()


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
    epochs.assign_epoch(0, 0)
    epochs.assign_epoch(7, 1)
    log.disk.write_atomic(DIRECTORY / EPOCH_FILE, epochs.encode())
    log.partition = log.open(clean=True)
    assert log.partition.replication.end_offset_for_epoch(0) == (0, 3)


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


def test_the_file_of_leader_epochs_is_kafkas():
    epochs = LeaderEpochs()
    epochs.assign_epoch(0, 0)
    epochs.assign_epoch(3, 12)
    assert epochs.encode() == b"0\n2\n0 0\n3 12\n"
    assert LeaderEpochs.decode(epochs.encode()).entries == epochs.entries
    with pytest.raises(UnknownFormatError):
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
    epochs.assign_epoch(4, 30)  # behind the log's end
    log.disk.write_atomic(DIRECTORY / EPOCH_FILE, epochs.encode())
    log.partition = log.open(leader_epoch=5)
    assert log.disk.read_bytes(DIRECTORY / EPOCH_FILE) == written


def test_bytes_of_another_log_without_a_batch_are_refused():
    log = Log()
    with pytest.raises(DamageError, match="contain no whole batch"):
        log.partition.append(bytes(20), now_ms=NOW_MS, origin=Origin.REPLICATION)
    assert log.partition.end_offset == 0


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


def test_open_transactions_are_told_with_their_epoch_and_age_the_oldest_first():
    log = Log()
    log.write("- - -")
    log.reopen(leader_epoch=3)
    assert log.partition.log.producers.oldest_open_started_ms is None
    assert log.partition.log.open_transactions() == []
    for producer in (2, 1):
        log.now_ms += 5
        log.append(producer, epoch=producer)
    log.sync()
    told = [astuple(each) for each in log.partition.log.open_transactions()]
    assert told == [(2, 2, 3, NOW_MS + 5, 3), (1, 1, 4, NOW_MS + 10, 3)]
    assert log.partition.log.producers.oldest_open_started_ms == NOW_MS + 5
    log.end(2, commit=True, epoch=2)
    assert log.partition.log.producers.oldest_open_started_ms == NOW_MS + 10


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
