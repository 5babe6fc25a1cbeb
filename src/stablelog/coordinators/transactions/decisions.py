"""What does the transaction coordinator say: its decisions, orders and answers.

A decision is carried out in three steps, by whoever asked for it: its records go into the commit log; when they,
and all that was put there before, are durable, its markers go into the partitions; then its answer may be given.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from stablelog.batch.markers import MarkerType
from stablelog.coordinators.transactions.log_ends import NO_ENDS, LogEnd
from stablelog.coordinators.transactions.records import NO_EPOCH, NO_PRODUCER_ID, Record
from stablelog.types import TopicPartition

Answer = TypeVar("Answer")

REPAIR: Final = ""  # instead of a transactional id: an order that completes no transaction


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """The coordinator's settings.

    Attributes:
        transaction_timeout_ms_max: the longest timeout a producer may ask for (`transaction.max.timeout.ms`).
        transactional_id_expiration_ms: after so long without use an id is forgotten
            (`transactional.id.expiration.ms`).
        two_phase_commit_enable: whether transactions may outlive their producers
            (`transaction.two.phase.commit.enable`).
        strict: whether the first dialect is refused (`stablelog.transaction.strict`). In it, an EndTxn that was
            delayed in the network can end the producer's next transaction; no broker can tell.
    """

    transaction_timeout_ms_max: int = 15 * 60 * 1000
    transactional_id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    two_phase_commit_enable: bool = False
    strict: bool = False


class OpenTransaction(NamedTuple):
    """An open transaction that was found in a partition.

    Attributes:
        producer_id: of its records.
        producer_epoch: of its records.
        first_offset: of its first record; -1 if not known.
        leader_epoch: of the batch with that record; -1 if not known.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int = -1
    leader_epoch: int = -1


class MarkerOrder(NamedTuple):
    """Write this marker into these partitions.

    Attributes:
        transactional_id: whose `markers_done` is to be reported; empty (`REPAIR`) if nobody's is.
        producer_id: of the marker.
        producer_epoch: of the marker; the transaction's records may have a lower one.
        type: how the transaction ended.
        group: the transaction group.
        commit_sequence: number of the commit (g); -1 for an abort.
        coordinator_epoch: of the coordinator.
        partitions: where to.
        transaction_version: 2 if the marker's epoch must be above that of the records.
        transaction_epoch: of the records that the marker ends.
        ends: where the partitions ended at the decision, if the marker has the epoch of the records.
        settled_epoch: what the producer began with this epoch under a lower leader epoch was over before.
        repeated: whether the decision was made before the last start.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    type: MarkerType
    group: str
    commit_sequence: int
    coordinator_epoch: int
    partitions: frozenset[TopicPartition]
    transaction_version: int
    transaction_epoch: int
    ends: Mapping[TopicPartition, LogEnd] = NO_ENDS
    settled_epoch: int = NO_EPOCH
    repeated: bool = False

    def decides(self, target: TopicPartition, found: OpenTransaction) -> bool:
        """Whether this marker ends the transaction that was found open in `target`.

        A decision with a higher epoch than its transaction's records names that transaction by its epoch. A TV1
        decision keeps the epoch, so it needs the place where each partition ended: the producer's next transaction
        begins there or later. A TV1 decision without that place decides nothing that is found after a start. Only
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
            return True  # the producer begins nothing before the markers of a new decision are written
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
    """What is to be done, in this order.

    Attributes:
        records: for the commit log, all in one batch: all of them are kept in a crash, or none.
        markers: for the partitions, once the records are durable.
        answer: to be given once the records, and all earlier ones, are durable and the markers are written.
    """

    answer: Answer
    records: list[Record] = field(default_factory=list)
    markers: list[MarkerOrder] = field(default_factory=list)


class InitAnswer(NamedTuple):
    """To InitProducerId. The ongoing transaction is the one that was kept, -1 if there is none."""

    error: ErrorCode = ErrorCode.none
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    ongoing_producer_id: int = NO_PRODUCER_ID
    ongoing_producer_epoch: int = NO_EPOCH


class EndAnswer(NamedTuple):
    """To EndTxn. In the second dialect with what the producer has to show from now on, -1 in the first."""

    error: ErrorCode = ErrorCode.none
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class Listed(NamedTuple):
    """A transactional id in a list. See `Description`."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class Description:
    """A transactional id, for people.

    Attributes:
        transactional_id: the id.
        state: Kafka's name of the state.
        producer_id: of the open or last transaction.
        producer_epoch: of it.
        client_producer_id: what the producer that holds the id has to show; differs for a kept transaction.
        client_producer_epoch: likewise.
        timeout_ms: how long a transaction may be open; 2147483647 for ever.
        start_ms: when the open transaction began; -1 if none is open.
        update_ms: when the state last changed.
        partitions: of the open transaction.
        transaction_version: the producer's dialect.
        commit_sequence: of the last commit (g), if the last transaction was one; -1 otherwise.
        is_two_phase: whether the transaction is never timed out.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    client_producer_id: int
    client_producer_epoch: int
    timeout_ms: int
    start_ms: int
    update_ms: int
    partitions: frozenset[TopicPartition]
    transaction_version: int
    commit_sequence: int
    is_two_phase: bool
