"""What a follower does with its log: it appends copied batches, and truncates where the leader's log differs."""

import pytest

from stablelog.batch.header import headers_in
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import (
    DamageError,
    OffsetOutOfRangeError,
    RefusedError,
    UnavailableError,
)
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import Appended, Isolation, Origin
from tests.log.timeline import DIRECTORY, NOW_MS, Log, aborted_in, write


def bytes_of(log):
    return b"".join(log.partition.read(0, 1 << 20, Isolation.LOG_END).buffers)


def batch(base_offset, leader_epoch=0, count=1):
    return encode_batch(
        [Record(0, NOW_MS, None, b"")] * count, base_offset=base_offset, leader_epoch=leader_epoch
    )


def test_copied_batches_keep_their_offsets_and_their_leader_epochs():
    follower = Log()
    assert follower.partition.replication.append(batch(5, 2) + batch(9, 3, count=2), NOW_MS) == Appended(
        5, 10, -1
    )
    assert [(one.base_offset, one.leader_epoch) for _, one in headers_in(bytes_of(follower))] == [
        (5, 2),
        (9, 3),
    ]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (batch(1), RefusedError, "a copied batch begins at offset 1, but the log already reaches offset 1"),
        (batch(2)[:-1], DamageError, "contain no whole batch"),
        (b"", DamageError, "the 0 bytes that were copied contain no whole batch"),
        (
            batch(2)[:-1] + b"x",
            DamageError,
            "the CRC of the copied batch at offset 2 does not match its bytes",
        ),
    ],
)
def test_a_copy_that_is_refused_changes_nothing(content, error, message):
    log = write("- -")
    before = bytes_of(log)
    with pytest.raises(error, match=message):
        log.partition.replication.append(content, NOW_MS)
    assert bytes_of(log) == before


@pytest.mark.parametrize("offset", [4, 5, 100])
def test_a_truncation_at_the_end_or_behind_it_changes_nothing(offset):
    log = write("- - - -")
    log.partition.replication.truncate_to(offset)
    assert log.partition.end_offset == 4


def test_a_truncation_into_a_batch_takes_the_whole_batch():
    log = Log()
    log.append(1, count=5)
    log.sync()
    log.partition.replication.truncate_to(3)
    assert log.partition.end_offset == 0


def test_a_truncation_before_the_log_start_is_refused_with_the_start():
    log = write("- - - -")
    log.partition.deletion.delete_records(3)
    with pytest.raises(
        OffsetOutOfRangeError, match="the log of t-0 cannot be truncated to offset 1: it begins at offset 3"
    ):
        log.partition.replication.truncate_to(1)


def test_a_closed_partition_has_no_replica():
    log = write("-")
    log.partition.close()
    for call in (
        lambda: log.partition.replication.truncate_to(0),
        lambda: log.partition.replication.end_offset_for_epoch(0),
    ):
        with pytest.raises(UnavailableError, match="closed"):
            call()


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


def test_truncation_takes_the_entry_that_ends_there_and_leaves_the_one_before():
    """Scenario 3: the marker at the new end is gone with its entry, one below stays."""
    log = write("P1 P1a P2 P2a")
    log.partition.replication.truncate_to(3)
    assert [txn.producer_id for txn in log.partition.log.open_transactions()] == [2]
    assert log.stable_offset == 2
    assert aborted_in(log.partition, 0, 2) == (AbortedTxn(1, 0, 1, 2),)
    log.partition.replication.truncate_to(2)
    assert aborted_in(log.partition, 0, 2) == (AbortedTxn(1, 0, 1, 2),)


def test_a_log_that_begins_within_a_batch_that_is_cut_begins_at_its_new_end_also_after_a_start():
    log = Log().write("- -")
    log.append(1, count=5)
    log.sync()
    log.partition.deletion.delete_records(4)
    log.partition.replication.truncate_to(4)
    for clean in (False, True):
        assert (log.partition.start_offset, log.partition.end_offset) == (2, 2)
        log.reopen(clean=clean)
