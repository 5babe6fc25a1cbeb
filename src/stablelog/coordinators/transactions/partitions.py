"""The partitions of a transaction: those that its producer added, and those where a crash has left it open.

Markers and the records of the commit log, the coordinator's log, become durable separately. So after a crash a
partition may have an open transaction that is complete according to the commit log, or that the commit log does not
contain. `Reconciliation` decides whether such a transaction is ended or adopted as its producer's current one.

Source: docs/decisions/0003-transactions.md, "Markers that a crash has lost".
"""

from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.answers import Decision, Draft
from stablelog.coordinators.transactions.ending import TransactionEnder
from stablelog.coordinators.transactions.marker_orders import REPAIR, MarkerOrder, TransactionInPartition
from stablelog.coordinators.transactions.recovery import markers_for
from stablelog.coordinators.transactions.states import TransactionEvent, TransactionState, next_state
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import TransactionMetadata
from stablelog.errors import RefusedError
from stablelog.types import TopicPartition


def with_partitions(
    transactional_id: str,
    txn: TransactionMetadata,
    wanted: frozenset[TopicPartition],
    version: int,
    now_ms: int,
) -> TransactionMetadata:
    """Return the state of a transactional id with the partitions in `wanted` added to its transaction; `txn` itself if
    it has them all.

    If no transaction is open, this begins one.

    Args:
        transactional_id: the transactional id.
        txn: its state.
        wanted: the partitions to add.
        version: the transaction version of the request.
        now_ms: broker time, which never goes back, in ms.

    Raises:
        RefusedError: no partition can be added in this state.
    """
    state = next_state(txn.state, TransactionEvent.ADD)
    assert state is TransactionState.ONGOING
    if txn.is_kept:
        raise RefusedError(
            ErrorCode.invalid_txn_state,
            f"{transactional_id} has taken over an open transaction: commit or abort it before "
            "the next one begins",
        )
    if txn.state is state and wanted <= txn.partitions:
        return txn
    return TransactionMetadata(
        txn.producer_id,
        txn.producer_epoch,
        txn.timeout_ms,
        state,
        txn.partitions.with_added(wanted),
        update_ms=now_ms,
        start_ms=txn.start_ms if txn.state is state else now_ms,
        previous_producer_id=txn.previous_producer_id,
        last_producer_epoch=txn.last_producer_epoch,
        transaction_version=version,
        settled_epoch=txn.settled_epoch,
    )


class Reconciliation:
    """Compares the transactions that are open in a partition with the commit log (the coordinator's log), when the
    partition was opened after a crash. Decides which of these transactions are ended and which are continued.

    Args:
        table: the transactional ids of a transaction group (topics and producers with one commit log).
        ending: makes the decisions that end transactions.
    """

    def __init__(self, table: TransactionTable, ending: TransactionEnder) -> None:
        self._table = table
        self._ending = ending
        # By transactional id: partitions with an open transaction that is the producer's next one. They are added to
        # that transaction when all markers of the last transaction are written.
        self._adopted: dict[str, set[TopicPartition]] = {}

    def reconcile(
        self,
        target: TopicPartition,
        found: Sequence[TransactionInPartition],
        held: Sequence[MarkerOrder],
        *,
        now_ms: int,
    ) -> Decision[None]:
        """Return the markers that the opened partition `target` needs. `found` are its open transactions, and `held`
        the marker orders (instructions to write a marker) that have waited for it: see
        `TransactionCoordinator.reconcile`.
        """
        draft = Draft(now_ms)
        history = self._table.history
        producer_ids = {txn.producer_id for txn in found} | {order.producer_id for order in held}
        past = history.take_decisions(
            target, producer_ids, lambda txn: self._ending.marker_order(REPAIR, txn)
        )
        markers, unexplained = markers_for(target, found, past, held, history.end_rank)
        for txn in unexplained:
            self._table.skip_producer_id(txn.producer_id)
            if not self._adopt(target, txn, draft):
                draft.markers.append(self._ending.abort_order_for(target, txn))
        draft.markers.extend(markers)
        return draft.decision(None)

    def take_adopted(self, transactional_id: str) -> frozenset[TopicPartition]:
        """Return the partitions in which `reconcile` has found a transaction open that will be the next one of this id,
        and forget them here.

        The caller adds them to the transaction when it begins.
        """
        return frozenset(self._adopted.pop(transactional_id, ()))

    def _adopt(self, target: TopicPartition, found: TransactionInPartition, draft: Draft) -> bool:
        """Adopt a transaction that is open in the partition `target` and that no record of the commit log (the
        coordinator's log) ends: make it the current transaction of its producer.

        Returns:
            True if the transaction is adopted; False if it cannot be the current transaction of its producer.
        """
        transactional_id = self._table.owner_of(found.producer_id)
        if transactional_id is None:
            return False
        txn = self._table.require_state(transactional_id)
        shown = (found.producer_id, found.producer_epoch)
        if 0 <= found.leader_epoch < txn.settled_epoch:
            # The coordinator has recorded that the producer's transactions from before `settled_epoch` have ended. This
            # is one of them: it is open in the partition only because its marker is missing there.
            return False
        if txn.state is TransactionState.ONGOING:
            if shown != (txn.producer_id, txn.producer_epoch):
                return False
            if target not in txn.partitions:
                value = txn._replace(partitions=txn.partitions.with_added({target}))
                self._table.put(transactional_id, value, draft.records)
            return True
        if txn.state.is_decided:
            return self._adopt_later(transactional_id, txn, target, found)
        if shown != txn.client:
            return False
        value = with_partitions(
            transactional_id, txn, frozenset({target}), txn.transaction_version, draft.now_ms
        )
        self._table.put(transactional_id, value, draft.records)
        return True

    def _adopt_later(
        self,
        transactional_id: str,
        txn: TransactionMetadata,
        target: TopicPartition,
        found: TransactionInPartition,
    ) -> bool:
        """Adopt later a transaction that is open in the partition `target`, while the last transaction of its producer
        is decided and not complete: remember the partition for the producer's next transaction.

        Returns:
            True if the open transaction is this last transaction or can be the next one; False otherwise.
        """
        shown = (found.producer_id, found.producer_epoch)
        if not self._table.is_repeated(transactional_id):
            # The producer's last transaction was decided after the broker's start. If it is the open transaction, its
            # marker will end it. Otherwise the caller has to abort the open transaction.
            return target in txn.partitions and shown == (txn.producer_id, txn.transaction_epoch)
        if shown != txn.client or (
            target not in txn.partitions and 0 <= found.leader_epoch < txn.decided_under
        ):
            return False
        self._adopted.setdefault(transactional_id, set()).add(target)
        return True
