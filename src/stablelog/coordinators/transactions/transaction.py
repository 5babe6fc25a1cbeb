"""The state of a transactional id: an immutable object with the content of the id's latest record in the coordinator's
log.
"""

from typing import Final, NamedTuple

from stablelog.coordinators.transactions.log_ends import NO_ENDS, LogEnds
from stablelog.coordinators.transactions.partition_set import NO_PARTITIONS, PartitionSet
from stablelog.coordinators.transactions.states import TransactionState

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIME: Final = -1
# The timeout by which Kafka marks a two-phase transaction (KIP-939), which never times out.
TWO_PHASE_TIMEOUT_MS: Final = 2**31 - 1
TV1: Final = 1
TV2: Final = 2


class ProducerIdAndEpoch(NamedTuple):
    """A producer id and a producer epoch, by which a request identifies its producer."""

    producer_id: int
    producer_epoch: int


class TransactionMetadata(NamedTuple):
    """The state of a transactional id.

    Attributes:
        producer_id: the producer id of the transaction's records.
        producer_epoch: the epoch of the records; after the decision, the epoch of the markers.
        timeout_ms: the maximum duration of a transaction; `TWO_PHASE_TIMEOUT_MS` for no maximum.
        state: see `TransactionState`.
        partitions: partitions that the transaction has written to, or may write to. Empty once it is complete.
        update_ms: the time of this record.
        start_ms: the time at which the transaction began; -1 if the present producer has begun no transaction yet.
        previous_producer_id: the producer id that the producer had before its last change of epoch or id.
        last_producer_epoch: the epoch that the producer had with `previous_producer_id`. A request with these two gets
            an answer with the current id and epoch. -1 if such a request must be refused.
        next_producer_id: the producer id that the client must use if it is not `producer_id`; -1 otherwise. There are
            two cases: a new producer continues the open transaction of an earlier one (KIP-939); or the epochs have run
            out, so that the next transaction has another producer id.
        next_producer_epoch: the epoch of `next_producer_id`; -1 means 0.
        transaction_version: 0 and 1 for TV1, 2 for TV2.
        commit_sequence: the number of the commit in its transaction group (topics with one order of commits); -1 if the
            transaction is not committed.
        transaction_epoch: after the decision, the epoch of the transaction's records; -1 otherwise.
        ends: the end offsets of the partitions at the time of the decision, in the order of `PartitionSet.in_order`.
            Only a decision that keeps the producer's epoch has them.
        settled_epoch: a leader epoch. All transactions with this producer epoch that began under a lower leader epoch
            are over. -1 if there is none. See `transactions.recovery`.
        unknown_tags: tagged fields that this release does not know; they are written again with the record.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: PartitionSet = NO_PARTITIONS
    update_ms: int = NO_TIME
    start_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_EPOCH
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_EPOCH
    transaction_version: int = 0
    commit_sequence: int = NO_SEQUENCE
    transaction_epoch: int = NO_EPOCH
    ends: LogEnds = NO_ENDS
    settled_epoch: int = NO_EPOCH
    unknown_tags: tuple[tuple[int, bytes], ...] = ()

    @property
    def client(self) -> ProducerIdAndEpoch:
        """The producer id and epoch with which the producer must send its next request."""
        if self.next_producer_id == NO_PRODUCER_ID:
            return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)
        return ProducerIdAndEpoch(self.next_producer_id, max(self.next_producer_epoch, 0))

    @property
    def predecessor(self) -> ProducerIdAndEpoch:
        """The producer id and epoch that the producer had before either of them was last changed.

        The epoch is -1 if requests with the earlier id and epoch are refused.
        """
        return ProducerIdAndEpoch(self.previous_producer_id, self.last_producer_epoch)

    @property
    def decided_under(self) -> int:
        """The leader epoch at the time of the decision; -1 if no decision is made, or if the decision raises the
        producer epoch, because it then contains no end offsets.
        """
        return self.ends.leader_epoch if self.ends else NO_EPOCH

    @property
    def lacks_ends(self) -> bool:
        """Whether this is a decision of Apache Kafka that has no end offsets and keeps the producer epoch.

        The producer's next transaction has the same producer id and epoch, and no end offset tells the two apart: such
        a decision can therefore not say whether an open transaction is the one that it ends (see
        `transactions.recovery`).
        """
        return self.state.is_decided and self.transaction_epoch == self.producer_epoch and not self.ends

    @property
    def latest_ms(self) -> int:
        """The later of two times: that of the record, and that at which the transaction began."""
        return max(self.start_ms, self.update_ms)

    def with_clamped_times(self, now_ms: int) -> "TransactionMetadata":
        """Return the same state, with times later than `now_ms` replaced by `now_ms`."""
        return self._replace(start_ms=min(self.start_ms, now_ms), update_ms=min(self.update_ms, now_ms))

    @property
    def is_two_phase(self) -> bool:
        """Whether the id uses two-phase commit (KIP-939): its transactions never time out, and may stay open after
        their producer has stopped.
        """
        return self.timeout_ms == TWO_PHASE_TIMEOUT_MS

    @property
    def is_kept(self) -> bool:
        """Whether a new producer has kept the open transaction of an earlier producer (KIP-939).

        The new producer can commit or abort this transaction, but cannot add records to it.
        """
        return self.state is TransactionState.ONGOING and self.next_producer_id != NO_PRODUCER_ID
