"""Which partitions a transaction has: those that were added, and those where a crash has left it open."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.markers import MarkerType
from stablelog.coordinators.transactions.answers import Decision
from stablelog.coordinators.transactions.marker_orders import TransactionInPartition
from stablelog.coordinators.transactions.partitions import with_partitions
from stablelog.coordinators.transactions.records import (
    decode_transaction,
)
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.transaction import TransactionMetadata
from stablelog.errors import RefusedError
from tests.coordinators.transactions.test_coordinator import T0, T1, coordinator, end, in_state, init


def test_pairs_without_offsets_are_open_transactions_too() -> None:
    c = coordinator()
    decision = c.reconcile(T0, [(4, 2)], now_ms=0)
    assert [(o.producer_id, o.producer_epoch, o.type) for o in decision.markers] == [(4, 3, MarkerType.ABORT)]
    assert init(c).producer_id == 5


def test_a_transaction_that_its_marker_is_on_the_way_to_is_left_alone() -> None:
    """Decided, but not durable yet, so nobody has written or held back the marker."""
    c, who = in_state(TransactionState.ONGOING)
    end(c, who, commit=True)
    assert c.reconcile(T0, [TransactionInPartition(0, 0, 5, 0)], now_ms=0) == Decision(None)
    assert [o.type for o in c.reconcile(T1, [TransactionInPartition(0, 0, 5, 0)], now_ms=0).markers] == [
        MarkerType.ABORT
    ]


def test_an_open_transaction_whose_record_was_lost_is_adopted() -> None:
    for state in (TransactionState.EMPTY, TransactionState.ONGOING):
        c, _ = in_state(state)
        decision = c.reconcile(T1, [TransactionInPartition(0, 0, 5, 0)], now_ms=77)
        assert decision.markers == []
        ((_, value),) = decision.records
        assert value is not None
        adopted = decode_transaction(value)
        assert adopted.state is TransactionState.ONGOING
        assert T1 in adopted.partitions
        assert adopted.start_ms == (77 if state is TransactionState.EMPTY else 0)


def test_an_open_transaction_of_another_epoch_than_the_producers_is_aborted() -> None:
    """Its producer cannot go on with it."""
    for state in (TransactionState.EMPTY, TransactionState.ONGOING):
        c, who = in_state(state)
        other = TransactionInPartition(who.producer_id, who.producer_epoch + 1, 5, 0)
        decision = c.reconcile(T1, [other], now_ms=77)
        assert decision.records == []
        (order,) = decision.markers
        assert order.type is MarkerType.ABORT
        assert T1 not in c.table.get("a").partitions  # type: ignore[union-attr]


TXN = TransactionMetadata(
    5,
    2,
    60_000,
    TransactionState.EMPTY,
    update_ms=20,
    start_ms=10,
    previous_producer_id=4,
    last_producer_epoch=9,
    settled_epoch=3,
)


def test_the_first_partition_begins_a_transaction_and_keeps_what_is_known_of_the_producer() -> None:
    begun = with_partitions("a", TXN, frozenset({T0}), 2, 50)
    assert (begun.state, begun.partitions, begun.transaction_version) == (TransactionState.ONGOING, {T0}, 2)
    assert (begun.start_ms, begun.update_ms) == (50, 50)
    assert (begun.client, begun.predecessor, begun.settled_epoch) == (TXN.client, TXN.predecessor, 3)


def test_later_partitions_join_the_open_transaction_and_do_not_prolong_it() -> None:
    begun = with_partitions("a", TXN, frozenset({T0}), 2, 50)
    both = with_partitions("a", begun, frozenset({T0, T1}), 2, 70)
    assert (both.partitions, both.start_ms, both.update_ms) == ({T0, T1}, 50, 70)
    assert with_partitions("a", both, frozenset({T1}), 2, 90) is both, "nothing has changed"


def test_no_partition_joins_a_transaction_that_its_producer_has_taken_over() -> None:
    kept = TXN._replace(state=TransactionState.ONGOING, next_producer_id=6)
    with pytest.raises(
        RefusedError, match="a has taken over an open transaction: commit or abort it before"
    ) as refused:
        with_partitions("a", kept, frozenset({T0}), 2, 50)
    assert refused.value.code is ErrorCode.invalid_txn_state


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_no_partition_joins_a_transaction_that_is_decided(state: TransactionState) -> None:
    with pytest.raises(RefusedError) as refused:
        with_partitions("a", TXN._replace(state=state), frozenset({T0}), 2, 50)
    assert refused.value.code is ErrorCode.concurrent_transactions


def test_an_open_transaction_from_before_the_settled_leader_epoch_is_not_adopted() -> None:
    """The coordinator has recorded that it has ended: only its marker is missing in this partition."""
    c, who = in_state(TransactionState.EMPTY)
    c.table.put("a", c.table.require_state("a")._replace(settled_epoch=4), [])
    found = TransactionInPartition(who.producer_id, who.producer_epoch, 5, 3)
    assert [order.type for order in c.reconcile(T0, [found], now_ms=0).markers] == [MarkerType.ABORT]
    assert c.reconcile(T1, [found._replace(leader_epoch=4)], now_ms=0).markers == []


def test_the_next_transaction_of_a_decided_one_is_adopted_when_its_markers_are_written() -> None:
    c, who = in_state(TransactionState.ONGOING)
    decision = c.end("a", who.producer_id, who.producer_epoch, True, api_version=5, now_ms=0)
    restarted = coordinator()
    for record in c.table.checkpoint():
        restarted.table.replay(*record)
    restarted.finish_replay(0)
    after = decision.answer
    adopted = restarted.reconcile(
        T1, [TransactionInPartition(after.producer_id, after.producer_epoch, 9, 0)], now_ms=7
    )
    assert (adopted.records, adopted.markers) == ([], [])
    (order,) = decision.markers
    restarted.markers_done("a", order.producer_id, order.producer_epoch, now_ms=8)
    txn = restarted.table.require_state("a")
    assert (txn.state, txn.partitions, txn.start_ms) == (TransactionState.ONGOING, {T1}, 8)
