"""Which markers does a partition still need after a crash?

Markers are written when the decision is durable, and the transaction counts as complete at once: nobody waits for
the markers to be durable, too. So a crash may keep "complete" in the commit log and take the marker out of a
partition, in which the transaction is then open again. The commit log knows better: all decisions since its last
trimming stand in it. A trimming deletes decisions only when their markers are durable.

On start all decisions are read into a `DecisionHistory`. When a partition has been opened, `markers_for` compares
the transactions that are open in it with what was decided, and says in the order of the decisions which markers
are to be written again. What fits no decision was never decided: the coordinator adopts or aborts it.

Apache Kafka completes a transaction only behind its markers, and a TV1 decision of Kafka's does not say where its
partitions ended. Such a decision is no part of the history; if it is pending, the takeover writes it again with that
place (`TransactionTable.loaded`).

Source: docs/decisions/0003-transactions.md, "Markers that a crash took back", "Kafka's decisions".
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from stablelog.coordinators.transactions.decisions import MarkerOrder, OpenTransaction
from stablelog.coordinators.transactions.records import (
    NO_SEQUENCE,
    Record,
    Transaction,
    decode_transaction,
    transaction_key,
)
from stablelog.types import TopicPartition


class _Decided(NamedTuple):
    rank: int  # place among the decisions
    transactional_id: str
    value: bytes  # of the record: decoded only if it is asked for


class Ranked(NamedTuple):
    """A marker order and its place among the decisions."""

    rank: int
    order: MarkerOrder


class DecisionHistory:
    """What the commit log says was decided, by the partitions that may have lost the markers."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, dict[int, list[_Decided]]] = {}
        self._least: dict[TopicPartition, int] = {}  # of the commit sequences, where there are any
        self._count = 0

    def remember(self, transactional_id: str, value: bytes, txn: Transaction) -> None:
        """A record of a decision was read."""
        decided = _Decided(self._count, transactional_id, value)
        self._count += 1
        for partition in txn.partitions:
            self._partitions.setdefault(partition, {}).setdefault(txn.producer_id, []).append(decided)
            if txn.commit_sequence != NO_SEQUENCE:
                self._least.setdefault(partition, txn.commit_sequence)

    def take(
        self, partition: TopicPartition, to_order: Callable[[Transaction], MarkerOrder]
    ) -> "Callable[[int], list[Ranked]]":
        """Take out what was decided in a partition: for each producer id its decisions, in order."""
        producers = self._partitions.pop(partition, {})
        self._least.pop(partition, None)

        def of(producer_id: int) -> list[Ranked]:
            return [
                Ranked(decided.rank, to_order(decode_transaction(decided.value)))
                for decided in producers.get(producer_id, ())
            ]

        return of

    def knows(self, partition: TopicPartition, producer_id: int) -> bool:
        """Whether something was decided in a partition for this producer, and not taken out."""
        return producer_id in self._partitions.get(partition, ())

    def knows_producer(self, producer_id: int) -> bool:
        """Whether something was decided for this producer in any partition, and not taken out."""
        return any(producer_id in producers for producers in self._partitions.values())

    def records(self) -> Iterator[Record]:
        """What has not been taken out, as records in order: a trimmed commit log has to keep it."""
        decisions = {
            d for producers in self._partitions.values() for found in producers.values() for d in found
        }
        for decided in sorted(decisions):
            yield transaction_key(decided.transactional_id), decided.value

    def exceeds(self, count_max: int) -> bool:
        """Whether `records` yields more than `count_max` records. Takes time by that number, not by theirs."""
        ranks: set[int] = set()
        for producers in self._partitions.values():
            for found in producers.values():
                for decided in found:
                    ranks.add(decided.rank)
                    if len(ranks) > count_max:
                        return True
        return False

    def transactional_ids(self) -> set[str]:
        """Whose decisions `records` holds."""
        return {
            d.transactional_id
            for producers in self._partitions.values()
            for found in producers.values()
            for d in found
        }

    def partitions(self) -> dict[TopicPartition, int]:
        """Those that have not been taken out, each with the least number of its commits; -1 where it has none."""
        return {partition: self._least.get(partition, NO_SEQUENCE) for partition in self._partitions}

    @property
    def least_sequence(self) -> int | None:
        """The least number of a commit that may have lost a marker; None if none may."""
        return min(self._least.values(), default=None)

    @property
    def end_rank(self) -> int:
        """Where decisions rank that were made since the start."""
        return self._count

    def __len__(self) -> int:
        return len(self._partitions)


def markers_for(
    target: TopicPartition,
    found: Sequence[OpenTransaction],
    past: Callable[[int], list[Ranked]],
    held: Sequence[MarkerOrder],
    end_rank: int,
) -> tuple[list[MarkerOrder], list[OpenTransaction]]:
    """The markers that `target` needs, in the order of the decisions, and the open transactions that fit none.

    Args:
        target: the partition.
        found: the transactions that are open in it, one for a producer id.
        past: for a producer id what was decided for `target` before the start, as repairs.
        held: orders for `target` that could not be written yet, in order.
        end_rank: the rank of what was decided since the start.
    """
    open_of = {txn.producer_id: txn for txn in found}
    assert len(open_of) == len(found), f"two open transactions of one producer in {target}"
    wanted: list[Ranked] = []
    unexplained: list[OpenTransaction] = []
    held_of: dict[int, list[Ranked]] = {producer_id: [] for producer_id in open_of}
    for position, order in enumerate(held):
        held_of.setdefault(order.producer_id, []).append(Ranked(end_rank + position, order))
    for producer_id, waiting in held_of.items():
        before = past(producer_id)
        if waiting and waiting[0].order.repeated and before:
            # The last decision in the commit log is the one that is held: the order for it completes a transaction.
            waiting[0] = Ranked(before.pop().rank, waiting[0].order)
        # An order from before the start is needed only where it finds its transaction open: otherwise its marker is
        # in the log, perhaps with later ones behind it, or there was nothing to mark.
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
