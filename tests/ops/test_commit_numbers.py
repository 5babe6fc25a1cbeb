"""Commit sequences and producer ids that were given out: what counts, and from where a coordinator goes on."""

from pathlib import Path

import pytest

from stablelog.batch.records import Record, encode_batch
from stablelog.coordinators.transactions.producer_ids import BLOCK_SIZE, GIVEN_ID_MAX
from stablelog.coordinators.transactions.records import TransactionGroupState
from stablelog.log.indexes.summary import Summary
from stablelog.log.producer_state.producer import ProducerEntry
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.producer_state.snapshots import encode_producers, encode_snapshot
from stablelog.ops.commit_numbers import AssignedNumbers, next_numbers, read_assigned_numbers
from stablelog.testing.sim_disk import SimDisk

PARTITION = Path("/data/t-0")
PRODUCERS = ProducerTable.from_producers(
    [ProducerEntry(7, 0), ProducerEntry(41, 0), ProducerEntry(GIVEN_ID_MAX + 1, 0)]
)
BATCH = encode_batch([Record(5, 0, None, b"v", ())], base_offset=5, producer_id=41, producer_epoch=0)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (f"{5:020d}.log", BATCH),
        (f"{5:020d}.cut", BATCH),
        (f"{5:020d}.cut.1", BATCH),
        (f"{5:020d}.producers", b"".join(encode_producers(PRODUCERS, Summary(0, 5)))),
        (f"{5:020d}.snapshot", b"".join(encode_snapshot(PRODUCERS))),
    ],
)
def test_a_producer_id_counts_wherever_a_partition_shows_it(name, content):
    disk = SimDisk()
    disk.make_dir(PARTITION.parent)
    disk.make_dir(PARTITION)
    disk.write_atomic(PARTITION / name, content)
    for odd in (f"{9:020d}.producers", f"{9:020d}.snapshot", "notes.cut"):
        disk.write_atomic(PARTITION / odd, b"x")
    assert read_assigned_numbers(disk, [PARTITION]).producer_ids_end == 42


@pytest.mark.parametrize(
    ("given", "said", "is_cut", "expected"),
    [
        (AssignedNumbers(), AssignedNumbers(), False, None),
        (AssignedNumbers({"": 5}, 1000), AssignedNumbers({"": 5}, 1000), False, None),
        (AssignedNumbers({}, 7), AssignedNumbers({}, 1000), False, None),
        (AssignedNumbers({}, 1), AssignedNumbers(), False, TransactionGroupState(2 * BLOCK_SIZE, 1)),
        (AssignedNumbers({}, 1000), AssignedNumbers(), False, TransactionGroupState(2 * BLOCK_SIZE, 1)),
        (
            AssignedNumbers({}, 1001),
            AssignedNumbers({"": 3}, 1000),
            False,
            TransactionGroupState(3 * BLOCK_SIZE, 3),
        ),
        (
            AssignedNumbers({"": 6}, 7),
            AssignedNumbers({"": 5}, 1000),
            False,
            TransactionGroupState(2 * BLOCK_SIZE, 6),
        ),
        (AssignedNumbers(), AssignedNumbers(), True, TransactionGroupState(BLOCK_SIZE, 1)),
        (
            AssignedNumbers({"": 5}, 7),
            AssignedNumbers({"": 9}, 2000),
            True,
            TransactionGroupState(3 * BLOCK_SIZE, 9),
        ),
    ],
)
def test_a_record_is_added_where_the_commit_log_says_too_little(given, said, is_cut, expected):
    assert next_numbers(given, {"": said}, "", is_cut=is_cut) == expected


def test_all_commit_logs_tell_which_producer_ids_are_reserved_and_each_may_have_lost_a_block():
    said = {"": AssignedNumbers({}, 1000), "a": AssignedNumbers({}, 3000)}
    assert next_numbers(AssignedNumbers({}, 3000), said, "", is_cut=False) is None
    assert next_numbers(AssignedNumbers({}, 3000), said, "", is_cut=True) == TransactionGroupState(
        5 * BLOCK_SIZE, 1
    )
