"""Markers that a partition still needs after a crash.

The broker writes markers when the decision is durable. As soon as the markers are written, the coordinator records in
the commit log that the transaction is complete, although the markers may not be durable yet. A crash may keep this
record and lose the marker in a partition. In that partition the transaction is then open again. The commit log contains
all decisions since it was last trimmed. Trimming deletes only decisions whose markers are durable.

When the broker starts, it reads all decisions into a `DecisionHistory`. When a partition has been opened, `markers_for`
compares its open transactions with the decisions, and returns the markers that must be written again, in the order of
the decisions. An open transaction that matches no decision was never decided. The coordinator *adopts* it, which makes
it the current transaction of its producer, or aborts it if it cannot be that transaction.

A decision that Apache Kafka has written with transaction version 1 lacks the end offsets of the partitions, which
distinguish transactions with the same epoch. Such a decision is not part of the history. It is not needed if Kafka has
completed the transaction, because Kafka completes a transaction only after its markers are written. If Kafka has not
completed it, the takeover of the data directory writes the decision again, with end offsets
(`TransactionTable.finish_replay`).

Source: docs/decisions/0003-transactions.md, "Markers that a crash has lost", "Kafka's decisions".
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from stablelog.coordinators.record_fields import Record
from stablelog.coordinators.transactions.marker_orders import MarkerOrder, TransactionInPartition
from stablelog.coordinators.transactions.records import decode_transaction, transaction_key
from stablelog.coordinators.transactions.transaction import NO_SEQUENCE, TransactionMetadata
from stablelog.types import TopicPartition


class RankedMarkerOrder(NamedTuple):
    """A marker order (an instruction to write a marker that ends a transaction) and its rank: the number of the
    decision that it belongs to, in the order in which the decisions were made.
    """

    rank: int
    order: MarkerOrder


class DecisionHistory:
    """The decisions to commit or to abort that the commit log (the coordinator's log) contained at the broker's start,
    by partition.

    A partition is removed when it is opened: until then it may lack the markers of these decisions. `len` is the number
    of partitions.
    """

    def __init__(self) -> None:
        # By partition and producer id: the ranks of the decisions, that is, their numbers in the order of the
        # decisions.
        self._partitions: dict[TopicPartition, dict[int, list[int]]] = {}
        # By partition: the lowest commit sequence of its decisions, if one of them is a commit.
        self._least: dict[TopicPartition, int] = {}
        # By rank of the decision, in order: the transactional id, and the encoded value of the decision's record.
        self._decisions: dict[int, tuple[str, bytes]] = {}
        # The number of partitions of each decision whose markers were not compared yet (`take_decisions`), by the rank of the
        # decision: its number in the order of the decisions.
        self._partition_counts: dict[int, int] = {}
        # The number of decisions that were made before the broker started. Later decisions have this rank or a higher
        # one.
        self.end_rank = 0

    def add_decision(self, transactional_id: str, value: bytes, txn: TransactionMetadata) -> None:
        """Add a decision to the history: the transactional id and the value of its record in the coordinator's log, and
        `txn`, the decoded value.
        """
        rank = self.end_rank
        self.end_rank += 1
        for partition in txn.partitions:
            self._partitions.setdefault(partition, {}).setdefault(txn.producer_id, []).append(rank)
            if txn.commit_sequence != NO_SEQUENCE:
                self._least.setdefault(partition, txn.commit_sequence)
        if txn.partitions:
            self._decisions[rank] = transactional_id, value
            self._partition_counts[rank] = len(txn.partitions)

    def take_decisions(
        self,
        partition: TopicPartition,
        producer_ids: set[int],
        to_order: Callable[[TransactionMetadata], MarkerOrder],
    ) -> dict[int, list[RankedMarkerOrder]]:
        """Remove the decisions that concern a partition from the history, and return those about the given producers.

        Returns:
            By producer id in `producer_ids`, the decisions in the order in which they were made. Each is a marker order
            (what to write to end the transaction), made by `to_order`.
        """
        producers = self._partitions.pop(partition, {})
        self._least.pop(partition, None)
        taken = {
            producer_id: [
                RankedMarkerOrder(rank, to_order(self._decoded(rank))) for rank in producers[producer_id]
            ]
            for producer_id in producer_ids & producers.keys()
        }
        for ranks in producers.values():
            for rank in ranks:
                self._partition_counts[rank] -= 1
                if not self._partition_counts[rank]:
                    del self._partition_counts[rank], self._decisions[rank]
        return taken

    def _decoded(self, rank: int) -> TransactionMetadata:
        return decode_transaction(self._decisions[rank][1])

    def has_decision_in(self, partition: TopicPartition, producer_id: int) -> bool:
        """Whether the history still has a decision about a transaction of this producer in a partition."""
        return producer_id in self._partitions.get(partition, ())

    def has_decision_of(self, producer_id: int) -> bool:
        """Whether the history still has a decision (to commit or abort) about a transaction of this producer in any
        partition.
        """
        return any(producer_id in producers for producers in self._partitions.values())

    def records(self) -> Iterator[Record]:
        """Return an iterator over the records of the decisions in the history, in the order of the decisions.

        The caller appends them again before it deletes the older part of the commit log: some of their partitions have
        not been opened yet and may need the markers.
        """
        for transactional_id, value in self._decisions.values():
            yield transaction_key(transactional_id), value

    @property
    def record_count(self) -> int:
        """The number of records of decisions in the history: those that `records` returns."""
        return len(self._decisions)

    def transactional_ids(self) -> set[str]:
        """The transactional ids of the decisions in the history: those that `records` returns."""
        return {transactional_id for transactional_id, _ in self._decisions.values()}

    def partitions(self) -> dict[TopicPartition, int]:
        """Return the partitions that have decisions in the history, each with the lowest commit sequence (number of a
        commit) among its decisions; -1 if none of them is a commit.
        """
        return {partition: self._least.get(partition, NO_SEQUENCE) for partition in self._partitions}

    @property
    def lowest_sequence(self) -> int | None:
        """Return the lowest commit sequence (number of a commit) among the commits that may have lost a marker; None if
        no commit may have lost one.
        """
        return min(self._least.values(), default=None)

    def __len__(self) -> int:
        return len(self._partitions)


def markers_for(
    target: TopicPartition,
    found: Sequence[TransactionInPartition],
    past: dict[int, list[RankedMarkerOrder]],
    held: Sequence[MarkerOrder],
    end_rank: int,
) -> tuple[list[MarkerOrder], list[TransactionInPartition]]:
    """Decide which markers a partition still needs after a crash, and which of its open transactions match no decision
    in the commit log.

    Args:
        target: the partition.
        found: the open transactions in it, at most one of each producer id.
        past: by producer id, marker orders (each orders one marker) made from the decisions for `target` that are older
            than the broker's start; only for the producer ids in `found` and `held`.
        held: marker orders for `target` that have waited until it was open, in the order of their decisions.
        end_rank: the rank of the first decision since the broker's start.

    Returns:
        A pair: the orders of the markers that `target` needs, in the order in which they must be written; and the open
        transactions that match no decision.
    """
    open_of = {txn.producer_id: txn for txn in found}
    assert len(open_of) == len(found), f"two open transactions of one producer in {target}"
    wanted: list[RankedMarkerOrder] = []
    unexplained: list[TransactionInPartition] = []
    held_of: dict[int, list[RankedMarkerOrder]] = {producer_id: [] for producer_id in open_of}
    for position, order in enumerate(held):
        held_of.setdefault(order.producer_id, []).append(RankedMarkerOrder(end_rank + position, order))
    for producer_id, waiting in held_of.items():
        before = past.get(producer_id, [])
        if waiting and waiting[0].order.repeated and before:
            # The producer's last decision is in the commit log and also in `held`. Use the order in `held`: when its
            # marker is written, the transaction is complete.
            waiting[0] = RankedMarkerOrder(before.pop().rank, waiting[0].order)
        # A marker order that is older than the broker's start is needed only if its transaction is open in the
        # partition. Otherwise the log already has the marker of this order, perhaps followed by later markers, or the
        # transaction has no records in the partition.
        fresh = [ranked for ranked in waiting if not ranked.order.repeated]
        open_txn = open_of.get(producer_id)
        if open_txn is None:
            wanted += fresh
            continue
        lost = next((ranked for ranked in before + waiting if ranked.order.decides(target, open_txn)), None)
        if lost is not None:
            wanted += [lost, *(ranked for ranked in fresh if ranked.rank > lost.rank)]
        else:
            unexplained.append(open_txn)
            wanted += [ranked for ranked in fresh if ranked.order.transaction_epoch > open_txn.producer_epoch]
    return [ranked.order for ranked in sorted(wanted, key=lambda ranked: ranked.rank)], unexplained
