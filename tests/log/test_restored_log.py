"""Whether a log is the one that a restore has made."""

from types import SimpleNamespace

import pytest

from stablelog.batch.header import empty_batch
from stablelog.batch.records import Record, encode_batch
from stablelog.log.files.restored import Restored
from stablelog.log.restored_log import is_restored_log
from tests.log.timeline import NOW_MS, Log


def restored_log(*, empty_at=3, end=8, leader_epoch=2):
    """A log with records up to an offset, a batch without records to another one, and records behind it."""
    log = Log()
    batches = [
        encode_batch([Record(0, NOW_MS, None, b"")] * empty_at, base_offset=0, leader_epoch=1),
        empty_batch(empty_at, end, leader_epoch=leader_epoch),
        encode_batch([Record(0, NOW_MS, None, b"")] * 2, base_offset=end, leader_epoch=leader_epoch),
    ]
    log.partition.replication.append(b"".join(batches), NOW_MS)
    log.sync()
    return log


def restored(*ranges, leader_epoch=2):
    return Restored(ranges, 0, -1, 0, leader_epoch)


def test_a_log_with_the_batch_without_records_is_the_restored_one():
    assert is_restored_log(restored_log().partition, restored((3, 8)))


@pytest.mark.parametrize(
    "record",
    [
        restored(),
        restored((3, 8), leader_epoch=3),
        restored((10, 12)),
        restored((8, 9)),
        restored((1, 3), leader_epoch=1),
    ],
    ids=["nothing left out", "other epoch", "behind the end", "records there", "records of an earlier epoch"],
)
def test_another_log_is_not(record):
    assert not is_restored_log(restored_log().partition, record)


def test_the_last_of_several_restores_counts():
    assert is_restored_log(restored_log().partition, restored((1, 2), (3, 8)))
    assert not is_restored_log(restored_log().partition, restored((3, 8), (8, 9)))


def test_of_a_log_that_begins_behind_the_batch_the_leader_epochs_tell():
    partition = restored_log().partition
    later = SimpleNamespace(log=partition.log, start_offset=8, end_offset=partition.end_offset)
    assert is_restored_log(later, restored((3, 8)))
    assert not is_restored_log(later, restored((3, 8), leader_epoch=1))
