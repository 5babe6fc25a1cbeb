"""Decisions of the transaction coordinator: records, marker orders and responses.

The broker carries a decision out in three steps. It appends the records to the commit log. When they and all earlier
records are durable, it writes the markers to the partitions. Then it sends the response.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from stablelog.batch.markers import MarkerType
from stablelog.coordinators.record_fields import Record
from stablelog.coordinators.transactions.log_ends import NO_ENDS, LogEnd
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.transaction import NO_EPOCH, NO_PRODUCER_ID
from stablelog.types import TopicPartition

Answer = TypeVar("Answer")

# Stands in place of a transactional id in a marker order whose marker completes no transaction of the commit log.
REPAIR: Final = ""


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """The coordinator's settings.

    Attributes:
        transaction_timeout_ms_max: the longest timeout that a producer may ask for (`transaction.max.timeout.ms`).
        transactional_id_expiration_ms: the time without use after which an id is forgotten
            (`transactional.id.expiration.ms`).
        two_phase_commit_enable: whether transactions may outlive their producers
            (`transaction.two.phase.commit.enable`).
        strict: whether TV1 is refused (`stablelog.transaction.strict`). With TV1, an EndTxn that was delayed in the
            network can end the producer's next transaction; a broker cannot detect it.
    """

    transaction_timeout_ms_max: int = 15 * 60 * 1000
    transactional_id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    two_phase_commit_enable: bool = False
    strict: bool = False


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition.

    Attributes:
        producer_id: producer id of its records.
        producer_epoch: producer epoch of its records.
        first_offset: offset of its first record; -1 if unknown.
        leader_epoch: leader epoch of the batch with that record; -1 if unknown.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int = -1
    leader_epoch: int = -1


class MarkerOrder(NamedTuple):
    """An order to write one marker into partitions.

    Attributes:
        transactional_id: the id for which the broker calls `markers_done` when the marker is written; `REPAIR` for no
            call.
        producer_id: producer id of the marker.
        producer_epoch: producer epoch of the marker; the transaction's records may have a lower one.
        type: whether the marker commits or aborts.
        group: the transaction group.
        commit_sequence: the commit sequence; -1 for an abort.
        coordinator_epoch: epoch of the coordinator.
        partitions: the partitions that get the marker.
        transaction_version: 2 if the marker's epoch must be above that of the records.
        transaction_epoch: producer epoch of the records that the marker ends.
        ends: the end offsets of the partitions at the time of the decision, if the marker has the same producer epoch
            as the transaction's records.
        settled_epoch: a leader epoch. Transactions with this producer epoch that began under a lower leader epoch had
            ended before the decision.
        repeated: whether the decision was made before the last start of the broker.
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

    def decides(self, target: TopicPartition, found: OpenTransaction) -> bool:
        """Whether this marker ends the transaction that was found open in `target`.

        A decision with a higher epoch than its transaction's records names that transaction by its epoch. A TV1
        decision keeps the epoch, so it needs the end offset of each partition: the producer's next transaction begins
        there or later. A TV1 decision without these offsets ends no transaction that is found after a start. Only
        Apache Kafka writes such decisions, see `Transaction.lacks_ends`.

        An unknown leader epoch (-1) counts as older than every known one: the first offset lies before the first
        entry of the partition's leader epochs.
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


@dataclass(frozen=True, slots=True)
class Decision(Generic[Answer]):
    """A decision of the transaction coordinator. The broker carries out its parts in the order of the attributes.

    Attributes:
        records: for the commit log, in one batch: a crash keeps or loses all of them.
        markers: for the partitions, once the records are durable.
        answer: sent once the records, and all earlier ones, are durable and the markers are written.
    """

    answer: Answer
    records: list[Record] = field(default_factory=list)
    markers: list[MarkerOrder] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Draft:
    """The records and markers of a decision that is being made.

    Attributes:
        now_ms: broker time.
    """

    now_ms: int
    records: list[Record] = field(default_factory=list)
    markers: list[MarkerOrder] = field(default_factory=list)

    def decision(self, answer: Answer) -> Decision[Answer]:
        """Return the completed decision, with this answer."""
        return Decision(answer, self.records, self.markers)


class InitAnswer(NamedTuple):
    """Answer to InitProducerId.

    `ongoing_producer_id` and `ongoing_producer_epoch` are those of the open transaction that the producer takes over
    (KIP-939); -1 without such a transaction.
    """

    error: ErrorCode = ErrorCode.none
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    ongoing_producer_id: int = NO_PRODUCER_ID
    ongoing_producer_epoch: int = NO_EPOCH


class EndAnswer(NamedTuple):
    """Answer to EndTxn.

    With TV2 the answer has the producer id and epoch of the producer's next requests; with TV1 -1.
    """

    error: ErrorCode = ErrorCode.none
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class Listed(NamedTuple):
    """A transactional id in the answer to ListTransactions. `state` is Kafka's name of the id's state."""

    transactional_id: str
    producer_id: int
    state: str
