"""One transaction group (topics and producers with one order of commits) of the broker: this module carries out the
decisions of the group's transaction coordinator.

The records of a decision are appended to the commit log. When they are durable, `marker_writer` appends the decision's
markers to the partitions. Then the client gets its response. The producer's next transaction therefore never reaches a
partition before the markers of the last one.

A crash can lose markers that were written and not durable. So when a partition is opened, the coordinator compares the
transactions that are open in it with its decisions, and the partition gets the markers that it lacks
(`TransactionGroup.repair_partition`).

A commit is *resolved* when all its markers are durable, and so are those of every earlier commit of the group
(docs/reference/glossary.md).
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from stablelog.broker.durability.journal import Journal
from stablelog.broker.groups import BrokerGroups
from stablelog.broker.runtime import Runtime
from stablelog.broker.topics.open_partitions import OpenPartitions
from stablelog.broker.topics.topic_list import TopicList
from stablelog.broker.transactions.marker_writer import CommitMarker, MarkerWriter
from stablelog.coordinators.record_fields import Record
from stablelog.coordinators.transactions.answers import Decision
from stablelog.coordinators.transactions.config import TransactionConfig
from stablelog.coordinators.transactions.coordinator import TransactionCoordinator
from stablelog.coordinators.transactions.log_ends import OFFSET_UNKNOWN
from stablelog.coordinators.transactions.marker_orders import REPAIR, MarkerOrder, TransactionInPartition
from stablelog.coordinators.transactions.producer_ids import ProducerIds, ProducerIdSpace
from stablelog.log.partition import Partition
from stablelog.types import TopicPartition
from stablelog.wire.extension.transaction_groups import group_in_words

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class TransactionGroup:
    """One transaction group (topics and producers with one order of commits): its coordinator, its commit log, and the
    writer of its markers.

    Args:
        name: name of the group; empty for the default group.
        config: the coordinator's settings.
        journal: the commit log, with the markers and responses that wait until it is durable.
        id_space: the producer ids of all groups.
        topics: the list of topics.
        partitions: the open partitions, which markers are written to.
        groups: the consumer groups, whose offsets a transaction may commit.

    Attributes:
        durable_sequence: the number of the last commit whose decision is durable; 0 if there is none.
        committing: a lock that is held while a joint commit (of several transactions together) is decided, which may
            take several turns of the event loop.
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
        self._now_ms = runtime.clock.now_ms
        self._recorded_count = 0  # The number of changes of the coordinator's state that are in the journal.
        self._markers = MarkerWriter(
            name,
            journal,
            topics=topics,
            partitions=partitions,
            groups=groups,
            runtime=runtime,
            report_complete=self._report_complete,
        )
        self.durable_sequence = 0
        self.committing = asyncio.Lock()
        self._appended_sequence = 0
        self.coordinator = TransactionCoordinator(
            config,
            group=name,
            coordinator_epoch=topics.leader_epoch,
            producer_ids=ProducerIds(space=id_space),
            end_offsets=self._end_offsets,
            marker_barrier=self._markers.barrier,
        )
        journal.limit_waiting_by(
            lambda: self.coordinator.table.item_count + sum(topic.partition_count for topic in topics)
        )

    def _end_offsets(self, targets: Sequence[TopicPartition]) -> list[int]:
        """Return the end offset of each partition for the record of a decision: 0 if the partition is not open,
        OFFSET_UNKNOWN if it does not exist.
        """
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
        """Rebuild the coordinator's state from the commit log. Markers of decided transactions wait until their partitions
        are open.

        When the broker takes over a data directory of Apache Kafka, it adds records to the commit log, which are durable
        on return. These records distinguish the transactions that Kafka had decided from those that producers begin
        later.

        Raises:
            DamageError: the commit log is damaged.
            UnavailableError: the disk refuses the records that have to be added.
        """
        self.journal.replay(lambda key, value, _producer_id: self.coordinator.table.replay(key, value))
        self._recorded_count = self.coordinator.table.change_count
        self.durable_sequence = self._appended_sequence = self.coordinator.table.sequences.last
        decision = self.coordinator.finish_replay(self._now_ms())
        self._append(decision)
        if decision.answer:
            self.journal.sync()
        done = []
        for order in decision.markers:
            targets = {target for target in order.partitions if self._exists(target)}
            self._markers.hold_back(order, targets)
            if not targets:
                done.append(order)
        self._report_complete(done)
        for target in self.coordinator.table.history.partitions():
            if not self._exists(target):
                self.repair_partition(target, [], None)

    def unopened_partitions(self) -> set[TopicPartition]:
        """Return the partitions that are not open yet (not recovered since the start) and may need markers of
        transactions that were decided before the broker started.
        """
        return {*self.coordinator.table.history.partitions(), *self._markers.waiting_partitions()}

    def incomplete_partitions(self) -> Collection[TopicPartition]:
        """Return the open partitions that lack markers of transactions from before the broker's start, because the disk
        is full. Nothing else may be written to them before these markers.
        """
        return self._markers.incomplete_partitions()

    def waits_at(self, target: TopicPartition) -> bool:
        """Return whether markers for this partition wait: until the partition is open (recovered after a start), or
        until the disk has space.
        """
        return self._markers.waits_at(target)

    def unopened_partitions_with_commits(self) -> list[TopicPartition]:
        """Return the partitions that are not open yet and may lack a commit marker that a crash has lost.

        While there is such a partition, the broker does not know the last resolved commit (up to which all markers of
        all commits are durable).
        """
        return [
            target
            for target, sequence in self.coordinator.table.history.partitions().items()
            if sequence >= 0
        ]

    def _exists(self, target: TopicPartition) -> bool:
        topic = self._topics.get(target[0])
        return topic is not None and target[1] < topic.partition_count

    # -- decisions ---------------------------------------------------------------------------------------------

    def apply(self, decision: Decision[Answer]) -> Answer:
        """Append the records of a decision to the commit log, and return the answer of the decision at once.

        The markers of the decision are written later, when its records are durable.
        """
        self._append(decision)
        if decision.markers:
            self._markers.write_when_durable(decision, None)
        return decision.answer

    async def carry_out(self, decision: Decision[Answer]) -> Answer:
        """Append the records of a decision to the commit log, wait until they are durable and the decision's markers
        are written, and return the decision's answer.
        """
        done = self.begin_to_carry_out(decision)
        await self.wait_until_carried_out(done)
        return decision.answer

    async def wait_until_carried_out(self, done: "asyncio.Future[None] | None") -> None:
        """Wait until a decision is durable and its markers are written.

        Args:
            done: the result of `begin_to_carry_out` for this decision; None if the decision has no markers, so that
                only its records must become durable.
        """
        await (self.journal.wait_until_durable() if done is None else done)

    def begin_to_carry_out(self, decision: Decision[Any]) -> "asyncio.Future[None] | None":
        """Append the records of a decision to the commit log, without waiting for the disk. The markers follow when
        they are durable.

        Returns:
            A future that is done when the markers of this decision and of all earlier decisions are written; None if
            this decision has no markers. The caller passes it to `wait_until_carried_out`.
        """
        self._append(decision)
        if not decision.markers:
            return None
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._markers.write_when_durable(decision, done)
        return done

    async def wait_for_markers(self) -> None:
        """Wait for the markers of all decisions that were made before this call.

        A marker counts as soon as it is written. It also counts if it cannot be written now, because its partition is
        not open or the disk is full.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._markers.write_when_durable(Decision(None), done)
        await done

    async def wait_for_joint_commit(self) -> None:
        """Wait while a long joint commit (of many transactions together) is being decided, unless the broker has failed
        and cannot decide it.
        """
        while self.coordinator.joint.accepted_children.is_pending and self.committing.locked():
            async with self.committing:
                pass

    def _append(self, decision: Decision[Any]) -> None:
        self._record(decision.records)
        sequence = self.coordinator.table.sequences.last
        if sequence > self._appended_sequence:
            self._appended_sequence = sequence
            self.journal.run_when_durable(lambda: self._commits_durable(sequence))

    def _commits_durable(self, sequence: int) -> None:
        self.durable_sequence = sequence

    @property
    def resolved_commit_sequence(self) -> int:
        """The number of the last resolved commit, up to which all markers of all commits in the group are durable: no
        crash can undo one of these commits, or lose one of their markers.
        """
        unmarked = min(self._markers.undurable_commits(), default=self.durable_sequence + 1)
        return min(self.coordinator.table.resolved_sequence, self.durable_sequence, unmarked - 1)

    def missing_commit_markers(self) -> list[CommitMarker]:
        """Return the commit markers that are not durable yet, for which the commits are not resolved: each as (number
        of the commit, transactional id, topic, partition index), sorted.

        The transactional id is empty in three cases: the marker is written but not durable yet; the disk has no space
        for a marker that a crash has lost; or a crash may have lost the marker, and the partition was not opened since
        the broker's start.
        """
        waiting = self._markers.waiting_commit_markers()
        unopened = {
            (sequence, "", *target)
            for target, sequence in self.coordinator.table.history.partitions().items()
            if sequence >= 0 and all(marker[2:] != target for marker in waiting)
        }
        return sorted(waiting | self._markers.undurable_commit_markers() | unopened)

    def write_decided(self, *, to_the_end: bool = False) -> None:
        """Write the markers of all decisions that have become durable.

        Args:
            to_the_end: whether all markers are written in this turn of the event loop, as a stop of the broker needs
                it. Otherwise many markers are written in several turns.
        """
        self._markers.write_decided(to_the_end=to_the_end)

    def retry(self) -> None:
        """Retry the writes that wait for disk space, as far as the disk has space now: first the records of the commit
        log, then the markers.
        """
        self.journal.retry()
        self._markers.retry()

    def _report_complete(self, orders: Iterable[MarkerOrder]) -> None:
        """Report to the coordinator that these marker orders (instructions to write a marker) are complete: the marker
        of each is written to all partitions of its transaction.

        The records in which the coordinator notes this are appended as one batch.
        """
        records: list[Record] = []
        for order in orders:
            if order.transactional_id != REPAIR:
                records += self.coordinator.markers_done(
                    order.transactional_id, order.producer_id, order.producer_epoch, now_ms=self._now_ms()
                ).records
        self._record(records)

    def _record(self, records: list[Record]) -> None:
        self.journal.append(records)
        self._recorded_count = self.coordinator.table.change_count

    @property
    def is_recorded(self) -> bool:
        """Whether every change of the coordinator's state was passed to the journal, which writes it to the commit log.

        The result is False if an unexpected exception ended a decision in the middle. The coordinator must then serve
        no more requests: its state may contain a commit that the commit log does not have, and that a crash would undo.
        Within a turn of the event loop, the result may also be False while a decision is being made.
        """
        return self._recorded_count == self.coordinator.table.change_count

    def repair_partition(
        self, target: TopicPartition, found: Sequence[TransactionInPartition], partition: Partition | None
    ) -> None:
        """Write the markers that an opened partition lacks: compare its open transactions with the decisions.

        Args:
            target: the partition's name.
            found: the open transactions of this group in the partition.
            partition: the open partition, before any other write to it; None if the partition does not exist any more.
        """
        waiting = self._markers.take_waiting(target)
        decision = self.coordinator.reconcile(target, found, held=waiting, now_ms=self._now_ms())
        self._append(decision)
        self._markers.write_missing(partition, target, decision.markers, waiting)

    def continue_after_commit(self, sequence: int, topic_name: str, index: int) -> None:
        """Let the coordinator number its next commits above the commit that was found in a marker of a partition.

        Log an error if the commit log does not contain the found commit.

        Args:
            sequence: the number of the commit, as the marker contains it.
            topic_name: the topic of the partition, for the error.
            index: the index of the partition, for the error.
        """
        sequences = self.coordinator.table.sequences
        last = sequences.last
        if sequences.observe_marker(sequence):
            log.error(
                "partition %s-%d has a marker of commit %d, but the commit log of %s ends at commit %d: "
                "the commit log has lost its end, or is from an older backup. New commits get numbers "
                "above %d; `stablelog repair` checks all partitions",
                topic_name,
                index,
                sequence,
                group_in_words(self.name),
                last,
                sequence,
            )
