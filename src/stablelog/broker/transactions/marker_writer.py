"""Writes the markers that the decisions of a transaction group's coordinator require to the partitions. (A transaction
group is topics and producers with one order of commits.)

A marker is written when its decision is durable. Each partition gets its markers in the order of the decisions, and one
append writes all markers that are due for a partition. A marker that cannot be written yet waits: the partition is not
open after a start, or the disk is full. The transaction stays incomplete until all its markers are written.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from stablelog.batch.markers import MarkerType
from stablelog.broker.durability.journal import Journal
from stablelog.broker.groups import BrokerGroups
from stablelog.broker.loop.turns import Turn
from stablelog.broker.runtime import Runtime
from stablelog.broker.topics.open_partitions import OpenPartitions
from stablelog.broker.topics.topic_list import TopicList
from stablelog.broker.transactions.marker_durability import MarkerDurability
from stablelog.broker.transactions.marker_queue import MarkerQueue, marker_write
from stablelog.coordinators.log_names import CONSUMER_OFFSETS_TOPIC
from stablelog.coordinators.transactions.answers import Decision
from stablelog.coordinators.transactions.marker_orders import REPAIR, MarkerOrder
from stablelog.coordinators.transactions.spare_ids import Barrier
from stablelog.errors import DiskError, RefusedError, UnavailableError
from stablelog.log.partition import Partition
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)

# A commit marker: (commit sequence, transactional id, topic, partition).
CommitMarker = tuple[int, str, str, int]
OrderKey = tuple[str, int, int]
# The maximum number of transactions that are reported to the coordinator as complete in one turn of the event loop.
REPORTED_AT_ONCE = 100
# The number of partitions of these transactions after which no further one is reported in the same turn.
REPORTED_PARTITION_COUNT = 2_000


class MarkerWriter:
    """Writes the markers of one transaction group (topics and producers with one order of commits).

    Args:
        group: name of the transaction group.
        journal: the group's commit log. A marker is written when the record of its decision is durable in this log.
        topics: the list of topics.
        partitions: the open partitions, which the markers are written to.
        groups: the consumer groups, whose offsets a transaction may commit.
        report_complete: called with the marker orders (each is an instruction to write one marker) that are written to
            all their partitions.
    """

    def __init__(
        self,
        group: str,
        journal: Journal,
        *,
        topics: TopicList,
        partitions: OpenPartitions,
        groups: BrokerGroups,
        runtime: Runtime,
        report_complete: Callable[[Iterable[MarkerOrder]], None],
    ) -> None:
        self._group = group
        self._journal = journal
        self._topics = topics
        self._partitions = partitions
        self._groups = groups
        self._flush = runtime.flush
        self._reserve = runtime.reserve
        self._tasks = runtime.tasks
        self._report_complete = report_complete
        self._queue = MarkerQueue()
        # The markers that are written to all their partitions. The coordinator does not know it yet.
        self._written: deque[MarkerOrder] = deque()
        # By partition: the markers that wait until the partition is open or the disk has space, in order.
        self._waiting: dict[TopicPartition, list[MarkerOrder]] = {}
        # By open partition: the markers of earlier decisions that the partition lacks because the disk is full, and the
        # number of its first markers in `_waiting` that they replace. They are written before all other markers that
        # wait for the partition.
        self._missing: dict[TopicPartition, tuple[list[MarkerOrder], int]] = {}
        # By marker order: the partitions that still lack the marker.
        self._lacking: dict[OrderKey, set[TopicPartition]] = {}
        self._durability = MarkerDurability(partitions)

    # -- what is not written or not durable ------------------------------------------------------------------------

    def waits_at(self, target: TopicPartition) -> bool:
        """Return whether markers for this partition wait: until the partition is open (recovered after a start), or
        until the disk has space.
        """
        return target in self._waiting or target in self._missing

    def waiting_partitions(self) -> Collection[TopicPartition]:
        """Return the partitions for which markers wait: until the partition is open (recovered after a start), or until
        the disk has space.
        """
        return self._waiting.keys()

    def incomplete_partitions(self) -> Collection[TopicPartition]:
        """Return the open partitions that lack markers of transactions from before the broker's start, because the disk
        is full.

        Nothing else may be written to such a partition. A batch of the producer's next transaction, written before the
        missing marker, would be taken for a part of the transaction that the marker ends.
        """
        return self._missing.keys()

    def is_written(self, order: MarkerOrder) -> bool:
        """Return whether the marker of this marker order (the instruction to write it) is written to all partitions of
        its transaction.
        """
        return _key(order) not in self._lacking

    def undurable_commits(self) -> set[int]:
        """Return the commit sequences (numbers) of the commits that have a marker which is not durable: it is written
        and not durable yet, or an open partition lacks it because the disk is full.
        """
        return {*self._durability.undurable_commits(), *(sequence for sequence, _ in self._missing_commits())}

    def waiting_commit_markers(self) -> set[CommitMarker]:
        """Return the commit markers that wait: until their partition is open (recovered after a start), or until the
        disk has space.
        """
        return {
            (order.commit_sequence, order.transactional_id, *target)
            for target, orders in self._waiting.items()
            for order in orders
            if order.commit_sequence >= 0
        }

    def undurable_commit_markers(self) -> set[CommitMarker]:
        """Return the commit markers that are not durable: those of the commits in `undurable_commits`. The
        transactional id in each of them is empty, because it is unknown here.
        """
        undurable: set[CommitMarker] = {
            (sequence, "", partition.topic, partition.index)
            for sequence, ends in self._durability.undurable_commits().items()
            for partition, _ in ends
        }
        return undurable | {(sequence, "", *target) for sequence, target in self._missing_commits()}

    def _missing_commits(self) -> Iterator[tuple[int, TopicPartition]]:
        """Yield (commit sequence, partition) for each missing commit marker: the commit with this number was decided
        before the broker's start, and its marker could not be written to the open partition, because the disk is full.
        """
        for target, (orders, _) in self._missing.items():
            for order in orders:
                if order.transactional_id == REPAIR and order.commit_sequence >= 0:
                    yield order.commit_sequence, target

    def barrier(self) -> Barrier:
        """Return a function that tells whether all markers that were written before the call of `barrier` are durable.
        The function returns None if it can never find out, for example because a partition has failed.
        """
        return self._durability.barrier()

    # -- writing ---------------------------------------------------------------------------------------------------

    def write_when_durable(self, decision: Decision[Any], done: "asyncio.Future[None] | None") -> None:
        """Write the markers of a decision when its records are durable in the commit log. Then set the result of `done`,
        the future of the request that waits for the markers.
        """
        self._journal.run_when_durable(lambda: self._queue.add(decision, done))
        # If the records of the decision are durable already, write its markers now. Otherwise this call writes nothing,
        # and a later call writes them.
        self.write_decided()

    def hold_back(self, order: MarkerOrder, targets: set[TopicPartition]) -> None:
        """Hold the marker of a marker order (the instruction to write it) back for these partitions, until they are
        open.
        """
        for target in targets:
            self._keep_for(target, [order])

    def write_decided(self, *, to_the_end: bool = False) -> None:
        """Write the markers of all decisions that have become durable: one append for each partition.

        The markers of many partitions are written in several turns of the loop. Later decisions are written after them,
        so that each partition gets its markers in the order of the decisions.

        Args:
            to_the_end: whether all markers are written in this turn of the event loop, as a stop of the broker needs
                it.
        """
        if not self._queue.in_writing or to_the_end:
            # An unexpected error between two markers stops the broker: otherwise the remaining markers would never be
            # written.
            with self._tasks.guard("transactions", self._tasks.broker):
                self._write_on(Turn(), to_the_end=to_the_end)
                if to_the_end:
                    self._report_written(to_the_end=True)

    def _write_on(self, turn: Turn, *, to_the_end: bool = False) -> None:
        while self._queue:
            for target, orders in self._queue.next_portion():
                self._write_or_hold_back(target, orders)
            if self._queue.is_given_out:
                self._end_writing()
            if turn.is_over and not to_the_end and self._queue:
                self._tasks.soon("transactions", lambda: self._write_on(Turn()))
                return

    def _end_writing(self) -> None:
        decided = self._queue.end_writing()
        for _, done in decided:
            if done is not None and not done.done():
                done.set_result(None)
        # Send the responses first. The coordinator notes in the next turn of the event loop that these transactions are
        # complete, still before it can get the next request of a client.
        self._written += [order for decision, _ in decided for order in decision.markers]
        self._tasks.soon("transactions", self._report_written)

    def _report_written(self, *, to_the_end: bool = False) -> None:
        orders: list[MarkerOrder] = []
        partition_count = 0
        while self._written and (
            to_the_end or (len(orders) < REPORTED_AT_ONCE and partition_count < REPORTED_PARTITION_COUNT)
        ):
            orders.append(self._written.popleft())
            partition_count += len(orders[-1].partitions)
        self._complete([order for order in orders if self.is_written(order)])
        if self._written:
            self._tasks.soon("transactions", self._report_written)

    def _write_or_hold_back(self, target: TopicPartition, orders: list[MarkerOrder]) -> None:
        topic = self._topics.get(target[0])
        if topic is None or target[1] >= topic.partition_count:
            return  # The marker is not needed: the topic was deleted, and with it the transaction's records.
        if topic.group != self._group and topic.name != CONSUMER_OFFSETS_TOPIC:
            # The marker is not needed: the topic was deleted, and created again in another transaction group.
            return
        partition = self._partitions.get(*target)
        if partition is None or target in self._waiting or not self._write(partition, orders):
            self._keep_for(target, orders)

    def _keep_for(self, target: TopicPartition, orders: list[MarkerOrder]) -> None:
        """Keep marker orders (instructions to write a marker) for a partition, in the order of their decisions, until
        the partition can be written.
        """
        self._waiting.setdefault(target, []).extend(orders)
        for order in orders:
            self._lacking.setdefault(_key(order), set()).add(target)

    def _write(self, partition: Partition, orders: list[MarkerOrder]) -> bool:
        """Write markers to a partition with one append, in the order of `orders`.

        Returns:
            Whether the markers are written. If not, either the partition has failed, and the next start of the broker
            writes them, because their decisions are in the coordinator's log; or the disk is full, and they may be
            written later.
        """
        if not orders:
            return True
        if partition is self._groups.journal.partition and self._groups.journal.is_waiting:
            # Earlier records of the offsets log wait for disk space: a marker must not get into the log before them.
            return False
        writes = [marker_write(order) for order in orders]
        try:
            outcomes = self._reserve.attempt(
                lambda: partition.append_markers(writes, **self._journal.marker_times())
            )
        except UnavailableError as error:
            if not isinstance(error, DiskError) or not error.is_full or partition.failure is not None:
                self._tasks.partition_scope(partition).fail(error)
            return False
        except Exception as error:  # noqa: BLE001 - the exception fails this partition only
            self._tasks.report_unexpected("transactions", self._tasks.partition_scope(partition), error)
            return False
        self._after_write(partition, orders, outcomes)
        return True

    def retry(self) -> None:
        """Try again to write the markers that wait for disk space. Those for which the disk still has no space continue
        to wait.
        """
        for target in list(self._waiting):
            partition = self._partitions.get(*target)
            if partition is not None and partition.failure is None:
                self._retry_markers(target, partition)

    def _retry_markers(self, target: TopicPartition, partition: Partition) -> None:
        held = self._waiting[target]
        first, count = self._missing.get(target, ([], 0))
        if self._write(partition, first + held[count:]):
            self._missing.pop(target, None)
            del self._waiting[target]
            self._report_marked(target, held)

    def _after_write(
        self, partition: Partition, orders: list[MarkerOrder], outcomes: Sequence[object]
    ) -> None:
        self._flush.mark_dirty(partition)
        self._durability.add_markers(partition, [o.commit_sequence for o in orders if o.commit_sequence >= 0])
        for order, outcome in zip(orders, outcomes, strict=True):
            if isinstance(outcome, RefusedError):
                # The partition refuses the marker: a producer with a higher epoch, or a later coordinator, has ended
                # the transaction already.
                log.warning(
                    "the marker of producer %d for %s-%d is not written, because the partition does not "
                    "need it: %s",
                    order.producer_id,
                    partition.topic,
                    partition.index,
                    outcome,
                )
            if partition.topic == CONSUMER_OFFSETS_TOPIC:
                self._groups.transaction_ended(order.producer_id, commit=order.type is MarkerType.COMMIT)

    def take_waiting(self, target: TopicPartition) -> list[MarkerOrder]:
        """Remove and return the marker orders (instructions to write a marker) that wait for a partition, in the order
        of their decisions. The caller passes them to `write_missing`, which writes those that the partition still
        needs.
        """
        return self._waiting.pop(target, [])

    def write_missing(
        self,
        partition: Partition | None,
        target: TopicPartition,
        orders: list[MarkerOrder],
        waiting: list[MarkerOrder],
    ) -> None:
        """Write the markers that a partition needs after it was opened. If the disk is full, they wait.

        Args:
            partition: the open partition, before any other write to it; None if the partition does not exist any more.
            target: the partition's name.
            orders: the markers that the partition needs, in the order in which they are written. They include those of
                `waiting` that it still needs.
            waiting: the result of `take_waiting`.
        """
        self._missing.pop(target, None)
        if partition is None or self._write(partition, orders):
            self._report_marked(target, waiting)
        else:
            self._waiting[target] = waiting
            self._missing[target] = (orders, len(waiting))

    def _complete(self, orders: Iterable[MarkerOrder]) -> None:
        """Report to the coordinator that these marker orders (instructions to write a marker) are complete: the marker
        of each is written to all partitions of its transaction.
        """
        self._report_complete(orders)
        self._durability.forget_durable()

    def _report_marked(self, target: TopicPartition, held: Iterable[MarkerOrder]) -> None:
        """Report the transactions that are complete now, because a partition has the markers that waited for it, or does
        not need them any more.

        Args:
            target: the partition.
            held: the markers that waited for it.
        """
        done = []
        # Other markers of these orders are being written to other partitions: `_report_written` reports the orders.
        in_writing = {_key(order) for decision, _ in self._queue.in_writing for order in decision.markers}
        for order in held:
            left = self._lacking.get(_key(order), set())
            left.discard(target)
            if (
                not left
                and self._lacking.pop(_key(order), None) is not None
                and _key(order) not in in_writing
            ):
                done.append(order)
        self._complete(done)


def _key(order: MarkerOrder) -> OrderKey:
    return order.transactional_id, order.producer_id, order.producer_epoch
