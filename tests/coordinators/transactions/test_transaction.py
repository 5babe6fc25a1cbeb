"""What the state of a transactional id says of its producer and of its transaction."""

import pytest

from stablelog.coordinators.transactions.log_ends import LogEnds
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.transaction import TWO_PHASE_TIMEOUT_MS, TransactionMetadata

T0 = ("t", 0)
OPEN = TransactionMetadata(
    5, 2, 60_000, TransactionState.ONGOING, PartitionSet({T0}), update_ms=20, start_ms=10
)
DECIDED = OPEN._replace(state=TransactionState.PREPARE_COMMIT, producer_epoch=3, transaction_epoch=2)
KEEPING_EPOCH = DECIDED._replace(producer_epoch=2)  # with transaction version 1
ENDS = LogEnds.from_offsets(7, [T0], [100])


@pytest.mark.parametrize(
    ("successor", "client"),
    [
        ({}, (5, 2)),
        ({"next_producer_id": 6, "next_producer_epoch": 4}, (6, 4)),
        ({"next_producer_id": 6}, (6, 0)),
        ({"next_producer_id": 0}, (0, 0)),
    ],
)
def test_the_next_request_has_the_id_of_the_successor_if_there_is_one(successor, client):
    assert OPEN._replace(**successor).client == client


def test_the_predecessor_is_the_id_and_epoch_before():
    assert OPEN.predecessor == (-1, -1)
    assert OPEN._replace(previous_producer_id=4, last_producer_epoch=9).predecessor == (4, 9)


def test_a_decision_that_keeps_the_epoch_says_under_which_leader_epoch_it_was_made():
    assert DECIDED.decided_under == -1
    assert KEEPING_EPOCH._replace(ends=ENDS).decided_under == 7


@pytest.mark.parametrize(
    ("txn", "lacks"),
    [
        (OPEN, False),
        (DECIDED, False),
        (KEEPING_EPOCH, True),
        (KEEPING_EPOCH._replace(ends=ENDS), False),
        (KEEPING_EPOCH._replace(state=TransactionState.COMPLETE_COMMIT), False),
        (KEEPING_EPOCH._replace(state=TransactionState.PREPARE_ABORT), True),
    ],
)
def test_only_a_pending_decision_that_keeps_the_epoch_can_lack_the_ends_of_its_partitions(txn, lacks):
    assert txn.lacks_ends is lacks


def test_times_after_the_present_become_the_present():
    assert OPEN.latest_ms == 20
    assert OPEN._replace(start_ms=30).latest_ms == 30
    assert OPEN.with_clamped_times(20) == OPEN
    assert OPEN.with_clamped_times(15) == OPEN._replace(update_ms=15)
    assert OPEN.with_clamped_times(5) == OPEN._replace(update_ms=5, start_ms=5)


def test_only_the_longest_timeout_is_none():
    assert TWO_PHASE_TIMEOUT_MS == 2_147_483_647, "as Kafka marks it"
    assert OPEN._replace(timeout_ms=TWO_PHASE_TIMEOUT_MS).is_two_phase
    assert not OPEN._replace(timeout_ms=TWO_PHASE_TIMEOUT_MS - 1).is_two_phase


def test_a_transaction_is_kept_for_a_successor_only_while_it_is_open():
    kept = OPEN._replace(next_producer_id=6, next_producer_epoch=0)
    assert kept.is_kept
    assert not OPEN.is_kept
    assert not kept._replace(state=TransactionState.PREPARE_COMMIT).is_kept
