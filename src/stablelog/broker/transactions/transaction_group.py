"""One transaction group of the broker: this module executes the decisions of the group's transaction coordinator.

The records of a decision are appended to the commit log. Once they are durable, the decision's markers are appended to
the partitions, in the order of the decisions and in one write for each partition. Then the client gets its response.
The producer's next transaction therefore never reaches a partition before the markers of the last one.

Words: to *settle* a partition is to compare, when it is opened, its open transactions with the coordinator's decisions,
and to write the markers that the partition lacks. A commit is *resolved* if all its markers are durable, and so are
those of every earlier commit of the group (docs/glossary.md).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

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
from stablelog.coordinators.record_fields import Record
from stablelog.coordinators.transactions.coordinator import TransactionCoordinator
from stablelog.coordinators.transactions.decisions import (
    REPAIR,
    Decision,
    MarkerOrder,
    OpenTransaction,
    TransactionConfig,
)
from stablelog.coordinators.transactions.log_ends import OFFSET_UNKNOWN
from stablelog.coordinators.transactions.producer_ids import ProducerIds, ProducerIdSpace
from stablelog.errors import DiskError, RefusedError, UnavailableError
from stablelog.log.partition import Partition
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
OrderKey = tuple[str, int, int]
# The maximum number of transactions that are reported to the coordinator as complete in one turn of the event loop.
REPORTED_AT_ONCE = 100
# The number of partitions of these transactions after which no further one is reported in the same turn.
REPORTED_PARTITION_COUNT = 2_000


class TransactionGroup:
    """The transactions of one group: its coordinator, its commit log, and the markers that are not written yet.

    Args:
        name: name of the group; empty for the default one.
        config: the coordinator's settings.
        journal: the commit log, with the markers and responses that wait until it is durable.
        id_space: the producer ids of all groups.
        topics: the list of topics.
        partitions: the open partitions, which markers are written to.
        groups: the consumer groups, whose offsets a transaction may commit.

    Attributes:
        durable_sequence: the commit sequence of the last commit whose decision is durable; 0 for none.
        committing: held while a joint commit is decided, which may take several turns of the event loop.
    """

    def __init__(
        self,
        name: str,
        config: TransactionConfig,
        journal: Journal,
        *,
        id_space: ProducerIdSpace,
        topics: TopicList,
        partitions: OpenPartitions,
        groups: BrokerGroups,
        runtime: Runtime,
    ) -> None:
        self.name = name
        self.journal = journal
        self._topics = topics
        self._partitions = partitions
        self._groups = groups
        self._flush = runtime.flush
        self._reserve = runtime.reserve
        self._tasks = runtime.tasks
        self._now_ms = runtime.clock.now_ms
        self._recorded_count = 0  # The number of changes of the coordinator's state that are in the journal.
        self._queue = MarkerQueue()
        # The markers that are written to all their partitions. The coordinator does not know it yet.
        self._written: deque[MarkerOrder] = deque()
        self._held_back: dict[TopicPartition, list[MarkerOrder]] = {}
        # By open partition: the markers of earlier decisions that the partition lacks because the disk is full, and the
        # number of its first markers in `_held_back` that they replace. They are written before all other markers that
        # wait for the partition.
        self._settling: dict[TopicPartition, tuple[list[MarkerOrder], int]] = {}
        # By marker order: the partitions that still lack the marker.
        self._waiting_for: dict[OrderKey, set[TopicPartition]] = {}
        self._durability = MarkerDurability(partitions)
        self.durable_sequence = 0
        self.committing = asyncio.Lock()
        self._appended_sequence = 0
        self.coordinator = TransactionCoordinator(
            config,
            group=name,
            coordinator_epoch=topics.leader_epoch,
            producer_ids=ProducerIds(space=id_space),
            end_offsets=self._end_offsets,
            marker_barrier=self._durability.barrier,
        )
        journal.bound_by(
            lambda: self.coordinator.table.item_count + sum(topic.partition_count for topic in topics)
        )

    def _end_offsets(self, targets: Sequence[TopicPartition]) -> list[int]:
        """Return the end offsets of partitions: 0 if a partition is not open, OFFSET_UNKNOWN if it does not exist."""
        ends: list[int] = []
        last_name: str | None = None
        partitions: Mapping[int, Partition] = {}
        count = 0
        for name, index in targets:
            if name != last_name:
                last_name, topic = name, self._topics.get(name)
                partitions = {} if topic is None else self._partitions.of_topic(topic)
                count = 0 if topic is None else topic.partition_count
            partition = partitions.get(index)
            if partition is not None:
                ends.append(partition.end_offset)
            else:
                ends.append(0 if index < count else OFFSET_UNKNOWN)
        return ends

    def load(self) -> None:
        """Rebuild the coordinator's state from the commit log; markers wait until their partitions are open.

        When the broker takes over a directory of Apache Kafka, it adds records to the commit log. They are durable on
        return. They tell the transactions that Kafka had decided from the transactions that producers begin later.

        Raises:
            DamageError: the commit log is damaged.
            UnavailableError: the disk refuses the records that have to be added.
        """
        self.journal.replay(lambda key, value, _producer_id: self.coordinator.table.replay(key, value))
        self._recorded_count = self.coordinator.table.change_count
        self.durable_sequence = self._appended_sequence = self.coordinator.table.sequences.last
        decision = self.coordinator.loaded(self._now_ms())
        self._append(decision)
        if decision.answer:
            self.journal.sync()
        done = []
        for order in decision.markers:
            targets = {target for target in order.partitions if self._exists(target)}
            self._hold_back(order, targets)
            if not targets:
                done.append(order)
        self._report_done(done)
        for target in self.coordinator.table.history.partitions():
            if not self._exists(target):
                self.settle(target, [], None)

    def awaited(self) -> set[TopicPartition]:
        """Return the partitions that are not open yet and may need markers of transactions that were decided before the
        broker started.
        """
        return {*self.coordinator.table.history.partitions(), *self._held_back}

    @property
    def settling(self) -> Collection[TopicPartition]:
        """Open partitions that lack markers of earlier transactions, because the disk is full. A batch of the
        producer's next transaction that was written before such a marker would be taken for a part of the transaction
        that the marker ends.
        """
        return self._settling.keys()

    def waits_at(self, target: TopicPartition) -> bool:
        """Whether markers wait until this partition is open or the disk has space."""
        return target in self._held_back or target in self._settling

    def unsettled_commits(self) -> list[TopicPartition]:
        """Return the partitions that may lack a commit marker since the last crash, and are not opened yet.

        A commit is resolved when all its markers are durable, and those of all earlier commits of the group too. While
        this method returns any partition, the broker does not know the last resolved commit.
        """
        return [
            target
            for target, sequence in self.coordinator.table.history.partitions().items()
            if sequence >= 0
        ]

    def _exists(self, target: TopicPartition) -> bool:
        topic = self._topics.get(target[0])
        return topic is not None and target[1] < topic.partition_count

    def _hold_back(self, order: MarkerOrder, targets: set[TopicPartition]) -> None:
        for target in targets:
            self._keep_for(target, [order])

    # -- decisions ---------------------------------------------------------------------------------------------

    def apply(self, decision: Decision[Answer]) -> Answer:
        """Append a decision's records, and return its answer at once.

        The markers of the decision are written when its records are durable.
        """
        self._append(decision)
        if decision.markers:
            self._write_when_durable(decision, None)
        return decision.answer

    async def carry_out(self, decision: Decision[Answer]) -> Answer:
        """Append a decision's records, wait until they are durable and its markers are written. Return its answer."""
        done = self.begin_to_carry_out(decision)
        await self.finished(done)
        return decision.answer

    async def finished(self, done: "asyncio.Future[None] | None") -> None:
        """Wait until what `begin_to_carry_out` has begun is durable, and its markers are written."""
        await (self.journal.settled() if done is None else done)

    def begin_to_carry_out(self, decision: Decision[Any]) -> "asyncio.Future[None] | None":
        """Append a decision's records. Return a future that is done when its markers, and those of all earlier
        decisions, are written; None if it has no markers.
        """
        self._append(decision)
        if not decision.markers:
            return None
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._write_when_durable(decision, done)
        return done

    async def marked(self) -> None:
        """Wait until the markers of all decisions so far are written, or are held back."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._write_when_durable(Decision(None), done)
        await done

    async def may_commit(self) -> None:
        """Wait while a long joint commit is being decided, unless the broker has failed and cannot decide it."""
        while self.coordinator.joint.acceptance.is_pending and self.committing.locked():
            async with self.committing:
                pass

    def _append(self, decision: Decision[Any]) -> None:
        self._record(decision.records)
        sequence = self.coordinator.table.sequences.last
        if sequence > self._appended_sequence:
            self._appended_sequence = sequence
            self.journal.after(lambda: self._commits_durable(sequence))

    def _commits_durable(self, sequence: int) -> None:
        self.durable_sequence = sequence

    @property
    def resolved_commit_sequence(self) -> int:
        """The greatest resolved commit sequence: no crash can undo these commits or lose one of their markers."""
        settling = {sequence for sequence, _ in self._settling_commits()}
        unmarked = min({*self._durability.awaited(), *settling}, default=self.durable_sequence + 1)
        return min(self.coordinator.table.resolved_sequence, self.durable_sequence, unmarked - 1)

    def unresolved(self) -> list[tuple[int, str, str, int]]:
        """The missing markers of unresolved commits: (commit sequence, transactional id, topic, partition).

        The markers are sorted by these fields. The transactional id is empty if the marker is written but not durable
        yet, if the disk has no space for a marker that a crash has lost, or if a crash may have lost the marker and the
        partition was not opened since the broker's start.
        """
        held = {
            (order.commit_sequence, order.transactional_id, *target)
            for target, orders in self._held_back.items()
            for order in orders
            if order.commit_sequence >= 0
        }
        awaited = {
            (sequence, "", partition.topic, partition.index)
            for sequence, ends in self._durability.awaited().items()
            for partition, _ in ends
        }
        settling = {(sequence, "", *target) for sequence, target in self._settling_commits()}
        unsettled = {
            (sequence, "", *target)
            for target, sequence in self.coordinator.table.history.partitions().items()
            if sequence >= 0 and all(order[2:] != target for order in held)
        }
        return sorted(held | awaited | settling | unsettled)

    def _settling_commits(self) -> Iterator[tuple[int, TopicPartition]]:
        """Yield the commits from before the broker's start whose markers an open partition lacks because the disk is
        full.
        """
        for target, (orders, _) in self._settling.items():
            for order in orders:
                if order.transactional_id == REPAIR and order.commit_sequence >= 0:
                    yield order.commit_sequence, target

    def _write_when_durable(self, decision: Decision[Any], done: "asyncio.Future[None] | None") -> None:
        self.journal.after(lambda: self._queue.add(decision, done))
        # If the records of the decision are durable already, write its markers now. Otherwise this call writes nothing,
        # and a later call writes them.
        self.write_decided()

    def write_decided(self, *, to_the_end: bool = False) -> None:
        """Write the markers of all decisions that became durable: one append for each partition.

        The markers of many partitions are written in several turns of the loop. Later decisions are written after them,
        so that each partition gets its markers in the order of the decisions.

        Args:
            to_the_end: write everything now, as at a stop.
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
        decided = self._queue.end()
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
        self._report_done([order for order in orders if _key(order) not in self._waiting_for])
        if self._written:
            self._tasks.soon("transactions", self._report_written)

    def _write_or_hold_back(self, target: TopicPartition, orders: list[MarkerOrder]) -> None:
        if not self._exists(target):
            return  # The marker is not needed: the topic was deleted, and with it the transaction's records.
        topic = self._topics.get(target[0])
        if topic is not None and topic.group != self.name and topic.name != CONSUMER_OFFSETS_TOPIC:
            # The marker is not needed: the topic was deleted, and created again in another transaction group.
            return
        partition = self._partitions.get(*target)
        if partition is None or target in self._held_back or not self._write(partition, orders):
            self._keep_for(target, orders)

    def _keep_for(self, target: TopicPartition, orders: list[MarkerOrder]) -> None:
        """Keep markers, in order, until their partition can be written."""
        self._held_back.setdefault(target, []).extend(orders)
        for order in orders:
            self._waiting_for.setdefault(_key(order), set()).add(target)

    def _write(self, partition: Partition, orders: list[MarkerOrder]) -> bool:
        """Write markers to a partition, in order and with one append.

        Returns:
            Whether the markers are written. If not, either the partition has failed, and the next start writes them
            from the commit log; or the disk is full, and they may be written later.
        """
        if not orders:
            return True
        if partition is self._groups.journal.partition and self._groups.journal.is_waiting:
            # Earlier records of the offsets log wait for disk space: a marker must not get into the log before them.
            return False
        writes = [marker_write(order) for order in orders]
        try:
            outcomes = self._reserve.attempt(lambda: partition.append_markers(writes, **self.journal.times()))
        except UnavailableError as error:
            if not isinstance(error, DiskError) or not error.is_full or partition.failure is not None:
                self._tasks.partition_scope(partition).fail(error)
            return False
        except Exception as error:  # noqa: BLE001 - the exception fails this partition only
            self._tasks.report_unexpected("transactions", self._tasks.partition_scope(partition), error)
            return False
        self._note_written(partition, orders, outcomes)
        return True

    def retry(self) -> None:
        """Write the commit log's records that wait for disk space, then the markers, as far as the disk has space."""
        self.journal.retry()
        for target in list(self._held_back):
            partition = self._partitions.get(*target)
            if partition is not None and partition.failure is None:
                self._retry_markers(target, partition)

    def _retry_markers(self, target: TopicPartition, partition: Partition) -> None:
        held = self._held_back[target]
        first, count = self._settling.get(target, ([], 0))
        if self._write(partition, first + held[count:]):
            self._settling.pop(target, None)
            del self._held_back[target]
            self._report_marked(target, held)

    def _note_written(
        self, partition: Partition, orders: list[MarkerOrder], outcomes: Sequence[object]
    ) -> None:
        self._flush.dirty(partition)
        self._durability.note(partition, [o.commit_sequence for o in orders if o.commit_sequence >= 0])
        for order, outcome in zip(orders, outcomes, strict=True):
            if isinstance(outcome, RefusedError):
                # The partition refuses the marker: a producer with a higher epoch, or a later coordinator, has ended
                # the transaction already.
                log.warning(
                    "the marker of producer %d for %s-%d is not needed: %s",
                    order.producer_id,
                    partition.topic,
                    partition.index,
                    outcome,
                )
            if partition.topic == CONSUMER_OFFSETS_TOPIC:
                self._groups.transaction_ended(order.producer_id, commit=order.type is MarkerType.COMMIT)

    def _report_done(self, orders: Iterable[MarkerOrder]) -> None:
        """Report to the coordinator that all markers of these orders are written.

        The coordinator's records about that are appended as one batch.
        """
        records: list[Record] = []
        for order in orders:
            if order.transactional_id != REPAIR:
                records += self.coordinator.markers_done(
                    order.transactional_id, order.producer_id, order.producer_epoch, now_ms=self._now_ms()
                ).records
        self._record(records)
        self._durability.forget_durable()

    def _record(self, records: list[Record]) -> None:
        self.journal.append(records)
        self._recorded_count = self.coordinator.table.change_count

    @property
    def is_recorded(self) -> bool:
        """Whether every change of the coordinator's state was passed to the journal, which writes the commit log.

        The result is False if an unexpected exception ended a decision in the middle. The coordinator must then serve
        no more requests: its state may contain a commit that the commit log does not have, and that a crash would undo.
        Within a turn of the event loop, the result may also be False while a decision is being made.
        """
        return self._recorded_count == self.coordinator.table.change_count

    def settle(
        self, target: TopicPartition, found: Sequence[OpenTransaction], partition: Partition | None
    ) -> None:
        """Compare a partition's open transactions with the decisions, and write the markers that the partition lacks.

        Args:
            target: the partition's name.
            found: the open transactions of this group in the partition.
            partition: the open partition, before any other write to it; None if the partition does not exist any more.
        """
        held = self._held_back.pop(target, [])
        decision = self.coordinator.reconcile(target, found, held=held, now_ms=self._now_ms())
        self._append(decision)
        self._settling.pop(target, None)
        if partition is None or self._write(partition, decision.markers):
            self._report_marked(target, held)
        else:
            self._held_back[target] = held
            self._settling[target] = (decision.markers, len(held))

    def _report_marked(self, target: TopicPartition, held: Iterable[MarkerOrder]) -> None:
        """Note that a partition has the markers that waited for it (`held`), or does not need them any more."""
        done = []
        # Other markers of these orders are being written to other partitions: `_report_written` reports the orders.
        in_writing = {_key(order) for decision, _ in self._queue.in_writing for order in decision.markers}
        for order in held:
            left = self._waiting_for.get(_key(order), set())
            left.discard(target)
            if (
                not left
                and self._waiting_for.pop(_key(order), None) is not None
                and _key(order) not in in_writing
            ):
                done.append(order)
        self._report_done(done)


def _key(order: MarkerOrder) -> OrderKey:
    return order.transactional_id, order.producer_id, order.producer_epoch
