"""Marker orders: instructions to write a marker. Each says which marker ends which transaction, and in which
partitions.

The coordinator makes a marker order when it decides the end of a transaction. The broker writes the marker into the
partitions once the decision is durable. After a crash, `MarkerOrder.decides` tells which open transaction of a partition
an earlier order was for.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from stablelog.batch.markers import MarkerType
from stablelog.coordinators.transactions.log_ends import NO_ENDS, LogEnd
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.transaction import NO_EPOCH
from stablelog.types import TopicPartition

# Stands in place of a transactional id in a marker order whose marker completes no transaction of the commit log.
REPAIR: Final = ""


class TransactionInPartition(NamedTuple):
    """A transaction that is open in a partition.

    Attributes:
        producer_id: the producer id of its records.
        producer_epoch: the producer epoch of its records.
        first_offset: the offset of its first record; -1 if unknown.
        leader_epoch: the leader epoch of the batch with its first record; -1 if unknown.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int = -1
    leader_epoch: int = -1


class MarkerOrder(NamedTuple):
    """A marker order: the instruction to write one marker, which ends one transaction, into partitions.

    Attributes:
        transactional_id: the id of the transaction. The broker calls `markers_done` with this id when the marker is
            written. It is `REPAIR` for a marker that only repairs a partition which lacks it: the broker does not call
            `markers_done` then, because no transaction becomes complete.
        producer_id: the producer id of the marker.
        producer_epoch: the producer epoch of the marker; the transaction's records may have a lower one.
        type: whether the marker commits or aborts.
        group: the name of the transaction group, which is topics whose commits have one order.
        commit_sequence: the number of the commit in its transaction group; -1 for an abort.
        coordinator_epoch: the epoch of the coordinator.
        partitions: the partitions that get the marker.
        transaction_version: 2 if the marker must have a higher epoch than the records.
        transaction_epoch: the producer epoch of the transaction's records.
        ends: the end offset of each partition at the time of the decision, if the marker has the same producer epoch as
            the records; empty otherwise.
        settled_epoch: a leader epoch (it grows with each start of the broker). All transactions with this producer id
            and epoch that began under a lower leader epoch had ended before the decision, so the marker is for none of
            them. -1 if the commit log contains no such epoch.
        repeated: whether the broker made the decision before its last start. The coordinator has then read the decision
            from the commit log and made this order again, and some partitions may have the marker already.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    type: MarkerType
    group: str
    commit_sequence: int
    coordinator_epoch: int
    partitions: PartitionSet
    transaction_version: int
    transaction_epoch: int
    ends: Mapping[TopicPartition, LogEnd] = NO_ENDS
    settled_epoch: int = NO_EPOCH
    repeated: bool = False

    def decides(self, target: TopicPartition, found: TransactionInPartition) -> bool:
        """Return whether the marker of this order ends a transaction that is open in a partition.

        The open transaction must have the producer id and the producer epoch of the decided one. That is enough if the
        decision raises the producer's epoch, because an epoch then belongs to one transaction only. Most decisions
        raise it; with transaction version 2, all do.

        A commit or an abort with transaction version 1 (TV1) keeps the epoch, so the producer's next transaction in the
        partition has the same id and epoch. If the broker has restarted since the decision, the open transaction may be
        the decided one or the next one. A TV1 decision therefore contains the end offset of each partition at the time
        of the decision (`ends`): the decided transaction begins before this offset, and the next one begins there or
        later. An open transaction whose first offset is unknown counts as the decided one. If the decision has no end
        offsets, the two cannot be told apart, and the marker ends no transaction. Only Apache Kafka writes such
        decisions: see `TransactionMetadata.lacks_ends`.

        Two offsets tell which transaction began first only if both are of the same leader epoch: a crash may lose
        records, and the next start of the broker, with a higher leader epoch, gives their offsets to other records. So
        the leader epoch of the open transaction's first batch is first compared with that of the end offset. If it is
        lower, the open transaction is the decided one; if it is higher, the open transaction is the next one. The
        offsets are compared only if the two leader epochs are equal. An unknown leader epoch (-1) counts as lower than
        every known one, because the transaction then began before the first entry of the partition's list of leader
        epochs.

        Args:
            target: the partition.
            found: the open transaction.
        """
        if (found.producer_id, found.producer_epoch) != (self.producer_id, self.transaction_epoch):
            return False
        if 0 <= found.leader_epoch < self.settled_epoch:
            return False
        if self.transaction_epoch != self.producer_epoch:
            return True
        if self.transactional_id != REPAIR and not self.repeated:
            # The transaction was decided after the broker started. The producer begins no other transaction before the
            # markers of the decision are written, so the open transaction is the decided one.
            return True
        end = self.ends.get(target)
        if end is None:
            return False
        if found.first_offset < 0:
            return True
        if found.leader_epoch == end.leader_epoch:
            return found.first_offset < end.end_offset
        return found.leader_epoch < end.leader_epoch
