"""The decision that ends a transaction: its epoch, its commit sequence, its markers and its record."""

from collections.abc import Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.markers import MarkerType
from stablelog.coordinators.transactions.answers import Draft
from stablelog.coordinators.transactions.ending import (
    CLIENT_EPOCH_MAX,
    EPOCH_MAX,
    TransactionEnder,
    completed_state,
    ends_unknown,
)
from stablelog.coordinators.transactions.log_ends import NO_ENDS, LogEnd
from stablelog.coordinators.transactions.marker_orders import REPAIR, MarkerOrder, TransactionInPartition
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.producer_ids import ProducerIds, ProducerIdSpace
from stablelog.coordinators.transactions.records import (
    decode_transaction,
    encode_transaction,
    group_key,
    transaction_key,
)
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import ProducerIdAndEpoch, TransactionMetadata
from stablelog.errors import RefusedError
from stablelog.types import TopicPartition
from tests.coordinators.transactions.test_coordinator import T0, T1, coordinator, init


def test_where_a_partition_ends_that_is_not_known_lies_behind_every_offset() -> None:
    c = coordinator()
    who = init(c)
    add_v1 = {"api_version": 3, "transaction_version": 1, "now_ms": 0}
    c.add_partitions("a", who.producer_id, who.producer_epoch, [T0], **add_v1)
    decision = c.end("a", who.producer_id, who.producer_epoch, True, api_version=1, now_ms=0)
    ((_, value),) = decision.records
    assert value is not None
    assert decode_transaction(value).ends[T0] == LogEnd(0, 2**63 - 1)


# -- the parts of a decision -------------------------------------------------------------------------------------------

NOW_MS = 50
TXN = TransactionMetadata(
    0, 2, 60_000, TransactionState.ONGOING, PartitionSet({T0, T1}), start_ms=10, transaction_version=2
)


class Desk:
    """A table with one id, what ends its transactions, and a draft."""

    def __init__(self, txn: TransactionMetadata = TXN, *, block_size: int = 10) -> None:
        self.asked: list[list[TopicPartition]] = []
        space = ProducerIdSpace()
        space.skip_past(99)
        self.table = TransactionTable("g", 1000, ProducerIds(block_size, space), lambda: lambda: True)
        self.ending = TransactionEnder(self.table, "g", 7, self.end_offsets)
        self.draft = Draft(NOW_MS)
        self.table.put("a", txn, [])
        self.txn = txn

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> Sequence[int]:
        self.asked.append(list(partitions))
        return [100 + index for _, index in partitions]

    def decide(
        self, state: TransactionState = TransactionState.PREPARE_COMMIT, **given: Any
    ) -> TransactionMetadata:
        given = {"version": 2, "raise_epoch": True, "owner_may_ask": True, **given}
        return self.ending.decide("a", self.txn, state, self.draft, **given)


def test_a_commit_has_the_next_sequence_the_next_epoch_and_an_order_for_all_partitions() -> None:
    desk = Desk()
    value = desk.decide()
    assert (value.state, value.commit_sequence, value.client) == (TransactionState.PREPARE_COMMIT, 1, (0, 3))
    assert (value.producer_epoch, value.transaction_epoch) == (3, 2), (
        "markers have a higher epoch than the records"
    )
    assert (value.predecessor, value.start_ms, value.update_ms) == ((0, 2), 10, NOW_MS)
    assert (value.ends, desk.asked) == ({}, []), "the epoch tells the transaction apart"
    assert desk.draft.records == [(transaction_key("a"), encode_transaction(value))]
    assert desk.draft.markers == [
        MarkerOrder("a", 0, 3, MarkerType.COMMIT, "g", 1, 7, PartitionSet({T0, T1}), 2, 2, NO_ENDS)
    ]
    assert desk.table.get("a") == value


def test_an_abort_has_no_sequence_and_takes_none() -> None:
    desk = Desk()
    value = desk.decide(TransactionState.PREPARE_ABORT)
    assert value.commit_sequence == -1
    assert desk.draft.markers[0].type is MarkerType.ABORT
    assert desk.table.sequences.last == 0


def test_the_transactions_of_a_joint_commit_share_its_sequence() -> None:
    desk = Desk()
    assert desk.decide(commit_sequence=42).commit_sequence == 42
    assert desk.table.sequences.assigned_count == 0


def test_a_decision_that_keeps_the_epoch_says_where_the_partitions_ended() -> None:
    desk = Desk()
    value = desk.decide(raise_epoch=False, version=1)
    assert (value.client, value.producer_epoch, value.transaction_epoch) == ((0, 2), 2, 2)
    assert value.ends == {T0: (7, 100), T1: (7, 101)}
    assert desk.asked == [[T0, T1]]
    assert desk.draft.markers[0].ends == value.ends


def test_a_producer_that_is_fenced_for_good_cannot_ask_for_its_new_epoch() -> None:
    assert Desk().decide(owner_may_ask=False).predecessor == (0, -1)


def test_an_end_without_partitions_is_complete_at_once() -> None:
    desk = Desk(TXN._replace(state=TransactionState.EMPTY, partitions=PartitionSet()))
    value = desk.decide(TransactionState.COMPLETE_ABORT)
    assert (value.state, value.client, value.transaction_epoch) == (
        TransactionState.COMPLETE_ABORT,
        (0, 3),
        -1,
    )
    assert desk.draft.markers == []
    assert len(desk.draft.records) == 1


def test_behind_the_last_epoch_the_marker_has_one_more_and_the_producer_another_id() -> None:
    desk = Desk(TXN._replace(producer_epoch=CLIENT_EPOCH_MAX))
    value = desk.decide()
    assert (value.producer_id, value.producer_epoch) == (0, EPOCH_MAX)
    assert value.client == (100, 0)
    assert [key for key, _ in desk.draft.records] == [group_key("g"), transaction_key("a")], (
        "the block comes first"
    )


def test_the_next_identity_is_the_next_epoch_while_there_is_one() -> None:
    desk, records = Desk(), []
    assert desk.ending.next_identity(ProducerIdAndEpoch(0, CLIENT_EPOCH_MAX - 1), records) == (
        0,
        CLIENT_EPOCH_MAX,
    )
    assert records == []
    assert desk.ending.next_identity(ProducerIdAndEpoch(0, CLIENT_EPOCH_MAX), records) == (100, 0)
    assert [key for key, _ in records] == [group_key("g")]


def test_where_no_transaction_is_open_none_is_ended_and_nothing_changes() -> None:
    for state in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT):
        desk = Desk(TXN._replace(state=state, partitions=PartitionSet()))
        with pytest.raises(RefusedError) as refused:
            desk.ending.fence("a", desk.txn, desk.draft, owner_may_ask=True)
        assert refused.value.code is ErrorCode.invalid_txn_state
        assert desk.draft == Draft(NOW_MS)


def test_a_fence_aborts_the_open_transaction_and_keeps_its_version() -> None:
    desk = Desk(TXN._replace(transaction_version=1))
    desk.ending.fence("a", desk.txn, desk.draft, owner_may_ask=False)
    fenced = desk.table.require_state("a")
    assert (fenced.state, fenced.client, fenced.predecessor) == (
        TransactionState.PREPARE_ABORT,
        (0, 3),
        (0, -1),
    )
    (order,) = desk.draft.markers
    assert (order.type, order.producer_epoch, order.transaction_version) == (MarkerType.ABORT, 3, 1)


def test_a_transaction_that_nobody_can_continue_is_aborted_in_its_partition_with_a_higher_epoch() -> None:
    desk = Desk()
    order = desk.ending.abort_order_for(T0, TransactionInPartition(55, 4))
    assert order == MarkerOrder(REPAIR, 55, 5, MarkerType.ABORT, "g", -1, 7, PartitionSet({T0}), 1, 4)
    assert desk.ending.abort_order_for(T0, TransactionInPartition(55, EPOCH_MAX)).producer_epoch == EPOCH_MAX


def test_the_epoch_that_a_producer_still_uses_is_not_fenced_by_a_repair() -> None:
    desk = Desk()
    assert desk.ending.abort_order_for(T0, TransactionInPartition(0, 2)).producer_epoch == 2
    assert desk.ending.abort_order_for(T0, TransactionInPartition(0, 1)).producer_epoch == 2


def test_what_is_complete_keeps_what_a_repeated_request_is_answered_with() -> None:
    decided = Desk().decide()
    done = completed_state(decided, TransactionState.COMPLETE_COMMIT, 99)
    assert (done.state, done.client, done.predecessor) == (
        TransactionState.COMPLETE_COMMIT,
        decided.client,
        decided.predecessor,
    )
    assert (done.commit_sequence, done.start_ms, done.update_ms) == (1, 10, 99)
    assert (done.partitions, done.transaction_epoch, done.ends) == (PartitionSet(), -1, NO_ENDS)


def test_what_is_complete_remembers_under_which_leader_epoch_it_kept_its_epoch() -> None:
    decided = Desk().decide(raise_epoch=False, version=1)
    assert completed_state(decided, TransactionState.COMPLETE_COMMIT, 99).settled_epoch == 7


def test_who_does_not_know_the_ends_says_so_for_each_partition() -> None:
    assert list(ends_unknown([T0, T1])) == [2**63 - 1] * 2
