"""Which open transaction a marker order ends."""

import pytest

from stablelog.batch.markers import MarkerType
from stablelog.coordinators.transactions.log_ends import LogEnds
from stablelog.coordinators.transactions.marker_orders import MarkerOrder, TransactionInPartition
from stablelog.coordinators.transactions.partition_set import PartitionSet

T0, T1 = ("t", 0), ("t", 1)
RAISING = MarkerOrder("a", 5, 3, MarkerType.COMMIT, "", 9, 0, PartitionSet({T0}), 2, 2, repeated=True)
KEEPING = RAISING._replace(
    producer_epoch=2, ends=LogEnds.from_offsets(7, [T0], [100])
)  # transaction version 1


@pytest.mark.parametrize("identity", [(5, 1), (5, 3), (6, 2)])
def test_a_marker_ends_only_transactions_of_its_producer_and_epoch(identity):
    assert not RAISING.decides(T0, TransactionInPartition(*identity))
    assert not KEEPING.decides(T0, TransactionInPartition(*identity))


def test_a_marker_with_a_higher_epoch_ends_the_transaction_wherever_it_is():
    assert RAISING.decides(T0, TransactionInPartition(5, 2, 10**9, 99))
    assert RAISING.decides(T1, TransactionInPartition(5, 2))


@pytest.mark.parametrize(
    ("first_offset", "leader_epoch", "decides"),
    [
        (99, 7, True),
        (100, 7, False),
        (10**9, 6, True),
        (0, 8, False),
        (50, -1, True),
        (-1, 8, True),
        (-1, -1, True),
    ],
)
def test_a_marker_with_the_same_epoch_ends_what_began_before_the_end_of_the_partition(
    first_offset, leader_epoch, decides
):
    assert KEEPING.decides(T0, TransactionInPartition(5, 2, first_offset, leader_epoch)) is decides


def test_a_marker_with_the_same_epoch_ends_nothing_in_a_partition_without_an_end():
    assert not KEEPING.decides(T1, TransactionInPartition(5, 2, 0, 0))


def test_a_decision_from_after_the_start_ends_the_open_transaction_without_its_ends():
    """Its producer begins no other one before the markers are written."""
    assert KEEPING._replace(repeated=False, ends={}).decides(T0, TransactionInPartition(5, 2, 10**9, 99))
    assert not KEEPING._replace(transactional_id="", repeated=False).decides(
        T0, TransactionInPartition(5, 2, 10**9, 99)
    )


def test_a_transaction_from_before_the_settled_leader_epoch_was_ended_by_an_earlier_decision():
    settled = KEEPING._replace(settled_epoch=6)
    assert not settled.decides(T0, TransactionInPartition(5, 2, 10, 5))
    assert settled.decides(T0, TransactionInPartition(5, 2, 10, 6))


def test_a_transaction_of_which_only_the_producer_is_known_has_neither_offset_nor_leader_epoch():
    assert TransactionInPartition(5, 2) == (5, 2, -1, -1)
