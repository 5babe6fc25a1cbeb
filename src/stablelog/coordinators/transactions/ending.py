"""How does a transaction end: with which epoch, which number and which markers?

A decision is one record. It holds the outcome, the commit's number and the identity of the producer's next
transaction; everything that follows (markers, answers, what to say when asked again) can be read from it, also
after a restart.

Source: KIP-98, KIP-890, KIP-939.
"""

from collections.abc import Callable, Sequence
from typing import Final

from stablelog.batch.markers import MarkerType
from stablelog.coordinators.transactions.decisions import REPAIR, MarkerOrder, OpenTransaction
from stablelog.coordinators.transactions.log_ends import NO_ENDS, OFFSET_UNKNOWN, LogEnds, in_order
from stablelog.coordinators.transactions.records import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Identity,
    Record,
    Transaction,
)
from stablelog.coordinators.transactions.states import Event, State, next_state
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.types import TopicPartition
from stablelog.wire.extension.children import child_of

EPOCH_MAX: Final = 2**15 - 1  # of a marker
CLIENT_EPOCH_MAX: Final = EPOCH_MAX - 1  # so that whoever has it can still be fenced
FIRST_DIALECT: Final = 1
SECOND_DIALECT: Final = 2

EndOffsets = Callable[[Sequence[TopicPartition]], Sequence[int]]


def ends_unknown(partitions: Sequence[TopicPartition]) -> Sequence[int]:
    """Where partitions end, for those who cannot know."""
    return [OFFSET_UNKNOWN] * len(partitions)


class Ending:
    """Ends transactions of one group.

    Args:
        table: the group's transactional ids.
        group: the transaction group.
        coordinator_epoch: travels with the markers.
        end_offsets: end offsets of partitions now; OFFSET_UNKNOWN for one of which it is not known.
    """

    def __init__(
        self,
        table: TransactionTable,
        group: str,
        coordinator_epoch: int,
        end_offsets: EndOffsets,
    ) -> None:
        self._table = table
        self._group = group
        self._coordinator_epoch = coordinator_epoch
        self._end_offsets = end_offsets

    def raised(self, client: Identity, records: list[Record]) -> Identity:
        """The identity after this one: the next epoch, or a new id once the epochs have run out."""
        if client.producer_epoch < CLIENT_EPOCH_MAX:
            return Identity(client.producer_id, client.producer_epoch + 1)
        return Identity(self._table.take_producer_id(records), 0)

    def first_identity(self, transactional_id: str, records: list[Record]) -> Identity:
        """The identity of a transactional id that is not known yet, with the record that it may need.

        A child of a joint commit gets the producer id of a forgotten child, under an epoch that nobody has had, or a
        new one if there is none or its epochs have run out. Any other transactional id gets a new one.
        """
        spare = self._table.take_spare_identity() if child_of(transactional_id) is not None else None
        if spare is None:
            return Identity(self._table.take_producer_id(records), 0)
        return self.raised(spare, records)

    def decide(
        self,
        transactional_id: str,
        txn: Transaction,
        state: State,
        records: list[Record],
        *,
        version: int,
        raise_epoch: bool,
        owner_may_ask: bool,
        commit_sequence: int | None = None,
        now_ms: int,
    ) -> tuple[Transaction, list[MarkerOrder]]:
        """Decide the transaction: one record, with the commit's number, and the markers that follow from it.

        Args:
            transactional_id: whose transaction.
            txn: its state.
            state: what follows: decided, or complete if there is nothing to mark.
            records: takes the decision's records.
            version: the dialect in which it was asked for.
            raise_epoch: whether the producer's epoch ends with the transaction.
            owner_may_ask: whether a producer that shows the old epoch may be told the new one.
            commit_sequence: of a commit that has its number already, because others share it.
            now_ms: broker time.
        """
        client = txn.client
        successor = self.raised(client, records) if raise_epoch else client
        same_id = successor.producer_id == txn.producer_id
        if same_id:
            marker_epoch = successor.producer_epoch
        else:  # above every epoch that anyone has had under the id
            marker_epoch = 1 + (client if client.producer_id == txn.producer_id else txn).producer_epoch
        assert txn.producer_epoch <= marker_epoch <= EPOCH_MAX
        assert marker_epoch > txn.producer_epoch or not raise_epoch
        if state is not State.PREPARE_COMMIT:
            commit_sequence = NO_SEQUENCE
        elif commit_sequence is None:
            commit_sequence = self._table.take_sequence()
        previous_producer_id, last_producer_epoch = txn.predecessor
        if raise_epoch:
            previous_producer_id = client.producer_id
            last_producer_epoch = client.producer_epoch if owner_may_ask else NO_EPOCH
        value = Transaction(
            txn.producer_id,
            marker_epoch,
            txn.timeout_ms,
            state,
            txn.partitions,
            update_ms=now_ms,
            start_ms=txn.start_ms if txn.state is State.ONGOING else now_ms,
            previous_producer_id=previous_producer_id,
            last_producer_epoch=last_producer_epoch,
            next_producer_id=NO_PRODUCER_ID if same_id else successor.producer_id,
            # Kafka writes an epoch only beside a kept transaction's; where the epochs ran out it means 0.
            next_producer_epoch=successor.producer_epoch if txn.is_kept and not same_id else NO_EPOCH,
            transaction_version=version,
            commit_sequence=commit_sequence,
            transaction_epoch=txn.producer_epoch,
            ends=self._ends(txn) if marker_epoch == txn.producer_epoch else NO_ENDS,
            settled_epoch=txn.settled_epoch,
        )
        if not state.is_decided:
            value = completed(value, state, now_ms)
        self._table.put(transactional_id, value, records)
        return value, [self.order(transactional_id, value)] if state.is_decided else []

    def _ends(self, txn: Transaction) -> LogEnds:
        # In order: thousands of partitions are found in half the time where neighbours follow each other.
        partitions = in_order(txn.partitions)
        return LogEnds.under(self._coordinator_epoch, partitions, self._end_offsets(partitions))

    def order(self, transactional_id: str, txn: Transaction) -> MarkerOrder:
        """The markers of a decided transaction."""
        assert txn.state.is_decided
        return MarkerOrder(
            transactional_id=transactional_id,
            producer_id=txn.producer_id,
            producer_epoch=txn.producer_epoch,
            type=MarkerType.COMMIT if txn.state is State.PREPARE_COMMIT else MarkerType.ABORT,
            group=self._group,
            commit_sequence=txn.commit_sequence,
            coordinator_epoch=self._coordinator_epoch,
            partitions=txn.partitions,
            transaction_version=txn.transaction_version,
            transaction_epoch=txn.transaction_epoch,
            ends=txn.ends,
            settled_epoch=txn.settled_epoch,
        )

    def end(
        self,
        transactional_id: str,
        txn: Transaction,
        event: Event,
        records: list[Record],
        *,
        raise_epoch: bool = True,
        owner_may_ask: bool,
        commit_sequence: int | None = None,
        now_ms: int,
    ) -> list[MarkerOrder]:
        """End the open transaction without its producer's asking, in the dialect that it was begun in: see `decide`.

        Raises:
            Refused: none is open. Nothing was changed.
        """
        state = next_state(txn.state, event)
        assert state is not None
        _, markers = self.decide(
            transactional_id,
            txn,
            state,
            records,
            version=txn.transaction_version,
            raise_epoch=raise_epoch,
            owner_may_ask=owner_may_ask,
            commit_sequence=commit_sequence,
            now_ms=now_ms,
        )
        return markers

    def fence(
        self,
        transactional_id: str,
        txn: Transaction,
        records: list[Record],
        *,
        owner_may_ask: bool,
        now_ms: int,
    ) -> list[MarkerOrder]:
        """Abort the open transaction with an epoch that its producer does not have.

        Raises:
            Refused: none is open. Nothing was changed.
        """
        return self.end(
            transactional_id, txn, Event.FENCE, records, owner_may_ask=owner_may_ask, now_ms=now_ms
        )

    def abort_of_unknown(self, target: TopicPartition, found: OpenTransaction) -> MarkerOrder:
        """An abort for what nobody can go on with.

        Its epoch is higher than that of the records, so that late writes are refused, unless the same epoch is
        still somebody's.
        """
        epoch = min(found.producer_epoch + 1, EPOCH_MAX)
        transactional_id = self._table.owner(found.producer_id)
        txn = None if transactional_id is None else self._table.get(transactional_id)
        if txn is not None and txn.client == (found.producer_id, found.producer_epoch):
            epoch = found.producer_epoch
        return MarkerOrder(
            transactional_id=REPAIR,
            producer_id=found.producer_id,
            producer_epoch=epoch,
            type=MarkerType.ABORT,
            group=self._group,
            commit_sequence=NO_SEQUENCE,
            coordinator_epoch=self._coordinator_epoch,
            partitions=frozenset({target}),
            transaction_version=FIRST_DIALECT,
            transaction_epoch=found.producer_epoch,
        )


def completed(txn: Transaction, state: State, now_ms: int) -> Transaction:
    """A decided transaction with all its markers: what remains is what its producer may ask for again."""
    assert state.is_complete
    return Transaction(
        *txn.client,
        txn.timeout_ms,
        state,
        update_ms=now_ms,
        start_ms=txn.start_ms,
        previous_producer_id=txn.previous_producer_id,
        last_producer_epoch=txn.last_producer_epoch,
        transaction_version=txn.transaction_version,
        commit_sequence=txn.commit_sequence,
        settled_epoch=txn.decided_under,
    )
