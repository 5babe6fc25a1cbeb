"""Which partitions are part of a transaction: those that were asked for, and those where a crash has left it open?

The second need care. Markers and commit log are made durable apart, so that a partition that has been opened may hold a
transaction that its coordinator takes for complete, or has never heard of. `Comparison` says of each what becomes of it.

Source: docs/decisions/0003-transactions.md, "Markers that a crash took back".
"""

from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.decisions import REPAIR, Decision, MarkerOrder, OpenTransaction
from stablelog.coordinators.transactions.ending import Ending
from stablelog.coordinators.transactions.records import Record, Transaction
from stablelog.coordinators.transactions.recovery import markers_for
from stablelog.coordinators.transactions.states import Event, State, next_state
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.errors import Refused
from stablelog.types import TopicPartition


def with_partitions(
    transactional_id: str, txn: Transaction, wanted: frozenset[TopicPartition], version: int, now_ms: int
) -> Transaction:
    """The transaction with these partitions, too; it begins with the first. The same object if it has them all.

    Args:
        transactional_id: whose transaction.
        txn: its state.
        wanted: the partitions.
        version: the dialect in which they are asked for.
        now_ms: broker time.

    Raises:
        Refused: in this state it takes none.
    """
    state = next_state(txn.state, Event.ADD)
    assert state is State.ONGOING
    if txn.is_kept:
        raise Refused(
            ErrorCode.invalid_txn_state,
            f"{transactional_id} has a transaction that was kept; commit or abort it before the next one",
        )
    if txn.state is state and wanted <= txn.partitions:
        return txn
    return Transaction(
        txn.producer_id,
        txn.producer_epoch,
        txn.timeout_ms,
        state,
        txn.partitions | wanted,
        update_ms=now_ms,
        start_ms=txn.start_ms if txn.state is state else now_ms,
        previous_producer_id=txn.previous_producer_id,
        last_producer_epoch=txn.last_producer_epoch,
        transaction_version=version,
        settled_epoch=txn.settled_epoch,
    )


class Comparison:
    """Compares what is open in partitions with what the commit log says.

    Args:
        table: the group's transactional ids.
        ending: ends transactions.
    """

    def __init__(self, table: TransactionTable, ending: Ending) -> None:
        self._table = table
        self._ending = ending
        # Partitions to be added to an id's next transaction as soon as the last one is complete.
        self._adopted: dict[str, set[TopicPartition]] = {}

    def reconcile(
        self,
        target: TopicPartition,
        found: Sequence[OpenTransaction],
        held: Sequence[MarkerOrder],
        *,
        now_ms: int,
    ) -> Decision[None]:
        """See `TransactionCoordinator.reconcile`."""
        history = self._table.history
        past = history.take(target, lambda txn: self._ending.order(REPAIR, txn))
        markers, unexplained = markers_for(target, found, past, held, history.end_rank)
        records: list[Record] = []
        aborts: list[MarkerOrder] = []
        for txn in unexplained:
            self._table.met_producer(txn.producer_id)
            if not self._adopt(target, txn, records, now_ms=now_ms):
                aborts.append(self._ending.abort_of_unknown(target, txn))
        return Decision(None, records, aborts + markers)

    def take_adopted(self, transactional_id: str) -> frozenset[TopicPartition]:
        """Partitions in which the id's next transaction was found, now that the last one is complete."""
        return frozenset(self._adopted.pop(transactional_id, ()))

    def _adopt(
        self, target: TopicPartition, found: OpenTransaction, records: list[Record], *, now_ms: int
    ) -> bool:
        """Take what fits no decision for the current transaction of its producer, if it can be that."""
        transactional_id = self._table.owner(found.producer_id)
        if transactional_id is None:
            return False
        txn = self._table.get(transactional_id)
        assert txn is not None
        shown = (found.producer_id, found.producer_epoch)
        if 0 <= found.leader_epoch < txn.settled_epoch:
            return False  # of an earlier transaction, which was decided without it
        if txn.state is State.ONGOING:
            if shown != (txn.producer_id, txn.producer_epoch):
                return False
            if target not in txn.partitions:
                self._table.put(transactional_id, txn._replace(partitions=txn.partitions | {target}), records)
            return True
        if txn.state.is_decided:
            return self._adopt_later(transactional_id, txn, target, found)
        if shown != txn.client:
            return False
        value = with_partitions(transactional_id, txn, frozenset({target}), txn.transaction_version, now_ms)
        self._table.put(transactional_id, value, records)
        return True

    def _adopt_later(
        self, transactional_id: str, txn: Transaction, target: TopicPartition, found: OpenTransaction
    ) -> bool:
        """The producer's last transaction is decided: what is open is that one, or the next."""
        shown = (found.producer_id, found.producer_epoch)
        if not self._table.is_repeated(transactional_id):
            # Decided since the start: its marker is on the way, or it was decided without these records.
            return target in txn.partitions and shown == (txn.producer_id, txn.transaction_epoch)
        if shown != txn.client or (
            target not in txn.partitions and 0 <= found.leader_epoch < txn.decided_under
        ):
            return False
        self._adopted.setdefault(transactional_id, set()).add(target)
        return True
