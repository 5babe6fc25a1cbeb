"""The end of a transaction: its epoch, commit sequence (number of the commit) and markers. The decision to end a
transaction is one record in the commit log, the log of the coordinator. The record holds the outcome, the commit
sequence and the identity (producer id and epoch) of the producer's next transaction. Markers, responses and the answers
to repeated requests follow from this record, also after a restart.

Source: KIP-98, KIP-890, KIP-939.
"""

from collections.abc import Callable, Sequence
from typing import Final

from stablelog.batch.markers import MarkerType
from stablelog.coordinators.record_fields import Record
from stablelog.coordinators.transactions.answers import Draft
from stablelog.coordinators.transactions.log_ends import NO_ENDS, OFFSET_UNKNOWN, LogEnds
from stablelog.coordinators.transactions.marker_orders import REPAIR, MarkerOrder, TransactionInPartition
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.states import TransactionEvent, TransactionState, next_state
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TV1,
    ProducerIdAndEpoch,
    TransactionMetadata,
)
from stablelog.types import TopicPartition
from stablelog.wire.extension.children import child_of

EPOCH_MAX: Final = 2**15 - 1  # The highest epoch of a marker.
# The highest epoch of a client: one less than that of a marker, so that a client with this epoch can still be fenced.
CLIENT_EPOCH_MAX: Final = EPOCH_MAX - 1

EndOffsets = Callable[[Sequence[TopicPartition]], Sequence[int]]


def ends_unknown(partitions: Sequence[TopicPartition]) -> Sequence[int]:
    """Return OFFSET_UNKNOWN for each partition.

    A caller of `TransactionEnder` that does not know the end offsets of partitions passes this function as
    `end_offsets`.
    """
    return [OFFSET_UNKNOWN] * len(partitions)


class TransactionEnder:
    """Ends the transactions of one transaction group, which is topics and producers with one order of commits.

    Args:
        table: the group's transactional ids.
        group: the name of the transaction group.
        coordinator_epoch: epoch of the coordinator, for the markers.
        end_offsets: a function that returns the present end offset of each given partition; OFFSET_UNKNOWN for a
            partition whose end offset is unknown.
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

    def next_identity(self, client: ProducerIdAndEpoch, records: list[Record]) -> ProducerIdAndEpoch:
        """Return a producer's next producer id and epoch: the next epoch, or a new producer id if the epochs have run
        out.

        Producer ids are reserved in blocks. If the new one begins a block, add the record that reserves the block to
        `records`.
        """
        if client.producer_epoch < CLIENT_EPOCH_MAX:
            return ProducerIdAndEpoch(client.producer_id, client.producer_epoch + 1)
        return ProducerIdAndEpoch(self._table.take_producer_id(records), 0)

    def first_identity(self, transactional_id: str, records: list[Record]) -> ProducerIdAndEpoch:
        """Return the producer id and epoch of a new transactional id.

        The id may be that of a child, which is one transaction of a joint commit (several transactions that are
        committed together). A child gets the producer id of an earlier child that is committed and that the coordinator
        has forgotten, with a greater epoch. If no such producer id is free, or if its epochs have run out, the child
        gets a new producer id. A transactional id that is no child always gets a new producer id.

        Producer ids are reserved in blocks. If a new one begins a block, add the record that reserves the block to
        `records`.
        """
        spare = self._table.take_spare_identity() if child_of(transactional_id) is not None else None
        if spare is None:
            return ProducerIdAndEpoch(self._table.take_producer_id(records), 0)
        return self.next_identity(spare, records)

    def decide(
        self,
        transactional_id: str,
        txn: TransactionMetadata,
        state: TransactionState,
        draft: Draft,
        *,
        version: int,
        raise_epoch: bool,
        owner_may_ask: bool,
        commit_sequence: int | None = None,
    ) -> TransactionMetadata:
        """Decide the end of a transaction: add the record of the decision, and the marker order (the instruction to
        write a marker to the transaction's partitions).

        Args:
            transactional_id: the transactional id.
            txn: its state before the decision.
            state: its state after the decision: PREPARE_COMMIT or PREPARE_ABORT, or complete if no partition needs a
                marker.
            draft: the decision that is being made, to which the record and the marker order are added.
            version: the transaction version of the request.
            raise_epoch: whether the producer gets a new epoch after the transaction.
            owner_may_ask: whether the owner of the id (its present producer) may still send a request with its old
                epoch, such as InitProducerId, to learn the new one. If False, such a request is refused.
            commit_sequence: the number of the commit in its transaction group, given for a joint commit, all
                transactions of which share one number; None to take the next number.

        Returns:
            The new state.
        """
        client = txn.client
        successor = self.next_identity(client, draft.records) if raise_epoch else client
        same_id = successor.producer_id == txn.producer_id
        if same_id:
            marker_epoch = successor.producer_epoch
        # The producer gets a new producer id. The marker of the old id has an epoch above all epochs that this id has
        # had.
        else:
            marker_epoch = 1 + (client if client.producer_id == txn.producer_id else txn).producer_epoch
        assert txn.producer_epoch <= marker_epoch <= EPOCH_MAX
        assert marker_epoch > txn.producer_epoch or not raise_epoch
        if state is not TransactionState.PREPARE_COMMIT:
            commit_sequence = NO_SEQUENCE
        elif commit_sequence is None:
            commit_sequence = self._table.sequences.assign_next()
        previous_producer_id, last_producer_epoch = txn.predecessor
        if raise_epoch:
            previous_producer_id = client.producer_id
            last_producer_epoch = client.producer_epoch if owner_may_ask else NO_EPOCH
        value = TransactionMetadata(
            txn.producer_id,
            marker_epoch,
            txn.timeout_ms,
            state,
            txn.partitions,
            update_ms=draft.now_ms,
            start_ms=txn.start_ms if txn.state is TransactionState.ONGOING else draft.now_ms,
            previous_producer_id=previous_producer_id,
            last_producer_epoch=last_producer_epoch,
            next_producer_id=NO_PRODUCER_ID if same_id else successor.producer_id,
            # As in Kafka, a record has the next producer epoch only if the transaction is kept for another producer
            # (KIP-939). If the epochs of a producer id have run out, the next producer id begins with epoch 0, which is
            # not written.
            next_producer_epoch=successor.producer_epoch if txn.is_kept and not same_id else NO_EPOCH,
            transaction_version=version,
            commit_sequence=commit_sequence,
            transaction_epoch=txn.producer_epoch,
            ends=self._ends(txn) if marker_epoch == txn.producer_epoch else NO_ENDS,
            settled_epoch=txn.settled_epoch,
        )
        if state.is_decided:
            draft.markers.append(self.marker_order(transactional_id, value))
        else:
            value = completed_state(value, state, draft.now_ms)
        self._table.put(transactional_id, value, draft.records)
        return value

    def _ends(self, txn: TransactionMetadata) -> LogEnds:
        # The lookup of thousands of end offsets takes half the time if the partitions of a topic follow each other.
        partitions = txn.partitions.in_order
        return LogEnds.from_offsets(self._coordinator_epoch, partitions, self._end_offsets(partitions))

    def marker_order(self, transactional_id: str, txn: TransactionMetadata) -> MarkerOrder:
        """Return the marker order of a decided transaction, which says what marker the broker is to write into which
        partitions.
        """
        assert txn.state.is_decided
        return MarkerOrder(
            transactional_id=transactional_id,
            producer_id=txn.producer_id,
            producer_epoch=txn.producer_epoch,
            type=MarkerType.COMMIT if txn.state is TransactionState.PREPARE_COMMIT else MarkerType.ABORT,
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
        txn: TransactionMetadata,
        event: TransactionEvent,
        draft: Draft,
        *,
        raise_epoch: bool = True,
        owner_may_ask: bool,
        commit_sequence: int | None = None,
    ) -> None:
        """End the open transaction without an EndTxn request of its producer. The transaction keeps its version (TV1
        or TV2).

        Args:
            transactional_id: the transactional id.
            txn: its state.
            event: why the transaction ends, such as its timeout. It determines whether the transaction is committed.
            draft: the decision that is being made. The record of the end is added to it, and the marker order, which is
                the instruction to write the end markers.
            raise_epoch: whether the producer gets a new epoch after the transaction.
            owner_may_ask: whether the owner of the id (its present producer) may still send a request with its old
                epoch, such as InitProducerId, to learn the new one. If False, such a request is refused.
            commit_sequence: the number of the commit in its transaction group, given for a joint commit, all
                transactions of which share one number; None to take the next number.

        Raises:
            RefusedError: no transaction is open. Nothing has changed.
        """
        state = next_state(txn.state, event)
        assert state is not None
        self.decide(
            transactional_id,
            txn,
            state,
            draft,
            version=txn.transaction_version,
            raise_epoch=raise_epoch,
            owner_may_ask=owner_may_ask,
            commit_sequence=commit_sequence,
        )

    def fence(
        self, transactional_id: str, txn: TransactionMetadata, draft: Draft, *, owner_may_ask: bool
    ) -> None:
        """Abort the open transaction and raise the epoch, so that the producer's requests with its epoch are refused.

        `owner_may_ask` says whether the owner of the id (its present producer) can still learn the new epoch: by
        InitProducerId with its old one.

        Raises:
            RefusedError: no transaction is open. Nothing has changed.
        """
        self.end(transactional_id, txn, TransactionEvent.FENCE, draft, owner_may_ask=owner_may_ask)

    def abort_order_for(self, target: TopicPartition, found: TransactionInPartition) -> MarkerOrder:
        """Return the marker order (an instruction to write a marker) that aborts a transaction which is open in the
        partition `target` and which no producer can continue.

        The marker usually has a higher epoch than the transaction's records, so that the partition refuses late writes
        of the transaction. If a producer still uses the epoch of the records, the marker has this same epoch, because
        after a higher one the partition would also refuse the producer's new records.
        """
        epoch = min(found.producer_epoch + 1, EPOCH_MAX)
        transactional_id = self._table.owner_of(found.producer_id)
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
            partitions=PartitionSet({target}),
            transaction_version=TV1,
            transaction_epoch=found.producer_epoch,
        )


def completed_state(txn: TransactionMetadata, state: TransactionState, now_ms: int) -> TransactionMetadata:
    """Return the state that a decided transaction has after all its markers are written.

    The new state keeps the fields that are needed to answer a repeated EndTxn or InitProducerId.
    """
    assert state.is_complete
    return TransactionMetadata(
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
