"""The transaction groups of the broker: created, found by name, and checked against topics.

A group consists of its commit log and of the state that is built from this log (`transaction_group`). The default group
always exists. The broker creates another group when a producer first uses a transactional id of that group. After a
start the groups are those whose commit logs exist. A transaction writes only to topics of its own group. The commits in
a partition therefore belong to one group, and their commit sequences define cuts through the partition. Committed
offsets of consumers belong to no group.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.broker.durability.journal import Journal
from stablelog.broker.groups import BrokerGroups
from stablelog.broker.monitoring.metrics import Sample
from stablelog.broker.runtime import Runtime
from stablelog.broker.topics.open_partitions import OpenPartitions
from stablelog.broker.topics.topic_list import TopicList
from stablelog.broker.transactions.transaction_group import TransactionGroup
from stablelog.commit_order.view import CommitOrder
from stablelog.coordinators.log_names import CONSUMER_OFFSETS_TOPIC
from stablelog.coordinators.transactions.decisions import OpenTransaction
from stablelog.coordinators.transactions.producer_ids import GIVEN_ID_MAX, ProducerIdSpace
from stablelog.coordinators.transactions.transaction import Transaction
from stablelog.errors import RefusedError
from stablelog.log.partition import Partition
from stablelog.types import TopicPartition
from stablelog.wire.extension.transaction_groups import (
    DEFAULT_GROUP,
    NAME_RULE,
    group_in_words,
    group_of,
    is_group_name,
)

log = logging.getLogger(__name__)

CROSSINGS_TOLD_MAX: Final = (
    1000  # The number of pairs (group, topic of another group) for which the refusal of a write is logged.
)


class Transactions:
    """All transaction groups of a broker.

    Args:
        make_log: creates or opens the commit log of a group; durable on return.
        topics: the list of topics.
        partitions: the open partitions, which markers are written to.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        make_log: Callable[[str], list[Partition]],
        topics: TopicList,
        partitions: OpenPartitions,
        groups: BrokerGroups,
    ) -> None:
        self._runtime = runtime
        self._config = runtime.config.transaction_config()
        self._count_max: int = runtime.config["stablelog.max.transaction.groups"]
        self._make_log = make_log
        self._topics = topics
        self._partitions = partitions
        self._consumer_groups = groups
        self._reserve = runtime.reserve
        self._clock = runtime.clock
        self._id_space = ProducerIdSpace()
        self._groups: dict[str, TransactionGroup] = {}
        self._by_log: dict[Partition, TransactionGroup] = {}
        # By partition: the groups that have to compare its open transactions with their decisions when it is opened.
        self._awaited: dict[TopicPartition, set[str]] = {}
        self._lacking: set[TopicPartition] = set()  # The partitions for which `lacks_markers` returns True.
        self._crossings: set[tuple[str, str]] = set()

    # -- the groups ----------------------------------------------------------------------------------------

    def load(self, logs: Mapping[str, list[Partition]]) -> None:
        """Rebuild the groups from their commit logs; markers wait until their partitions are open."""
        for name, partitions in logs.items():
            self._open(name, partitions).load()
        for group in self:
            for target in group.awaited():
                self._awaited.setdefault(target, set()).add(group.name)
        if len(self._groups) > 1:
            for transactional_id in self.default.coordinator.table.idle_ids():
                group = self._groups.get(group_of(transactional_id), self.default)
                if group is not self.default and transactional_id in group.coordinator.table:
                    self._forget_held(transactional_id)

    def _open(self, name: str, partitions: list[Partition]) -> TransactionGroup:
        journal = Journal(partitions, self._runtime.flush, self._reserve, self._clock)
        group = self._groups[name] = TransactionGroup(
            name,
            self._config,
            journal,
            id_space=self._id_space,
            topics=self._topics,
            partitions=self._partitions,
            groups=self._consumer_groups,
            runtime=self._runtime,
        )
        self._by_log[journal.partition] = group
        return group

    def __iter__(self) -> Iterator[TransactionGroup]:
        return iter(list(self._groups.values()))

    def samples(self) -> Iterator[Sample]:
        """Yield the last and the resolved commit sequence of each group."""
        for group in self:
            last, resolved = group.coordinator.table.sequences.last, group.resolved_commit_sequence
            yield Sample("stablelog_last_commit_sequence", (group.name,), last)
            yield Sample("stablelog_resolved_commit_sequence", (group.name,), resolved)

    @property
    def default(self) -> TransactionGroup:
        """The default group."""
        return self._groups[DEFAULT_GROUP]

    def get(self, name: str) -> TransactionGroup | None:
        """The group of this name; None if no transaction of the group has begun yet."""
        return self._groups.get(name)

    def _make(self, name: str, while_full: WhileFull) -> TransactionGroup:
        """Make a transaction group that does not exist, with an empty, durable commit log.

        Raises:
            RefusedError: the name is not valid for a group, there are too many groups, or the disk is full.
        """
        self._check_new(name)
        self._reserve.check(while_full)
        try:
            partitions = self._make_log(name)
        except RefusedError as why:
            if self._reserve.note(why):
                raise RefusedError(ErrorCode.coordinator_load_in_progress, self._reserve.state()) from why
            raise _not_made(f"{group_in_words(name)} cannot be created: {why}") from why
        log.info("created %s", group_in_words(name))
        return self._open(name, partitions)

    def _check_new(self, name: str) -> None:
        """Check whether a group that does not exist may begin.

        Raises:
            RefusedError: the name is not valid for a group, or there are too many groups or partitions.
        """
        if not is_group_name(name):
            raise RefusedError(
                ErrorCode.invalid_request, f"{name!r} is not a valid name of a transaction group: {NAME_RULE}"
            )
        if len(self._groups) > self._count_max:
            raise _not_made(
                f"{group_in_words(name)} would be one more than stablelog.max.transaction.groups={self._count_max} "
                "allows; the part of a transactional id before its first slash names the group"
            )
        try:
            self._topics.reservations.check_count(1)
        except RefusedError as why:
            raise _not_made(f"{group_in_words(name)} cannot be created: {why}") from why

    def for_joint(self, name: str, while_full: WhileFull) -> TransactionGroup:
        """Return the transaction group of a joint commit. A group that does not exist begins, if it has a topic.

        Args:
            name: name of the group; empty for the default one.
            while_full: how the API of the request refuses while the disk is full.

        Raises:
            RefusedError: no topic belongs to the group, the name is not valid for a group, there are too many groups, or
                the disk is full.
        """
        group = self._groups.get(name)
        if group is not None:
            return group
        if is_group_name(name) and all(topic.group != name for topic in self._topics):
            raise RefusedError(
                ErrorCode.invalid_request,
                f"no topic belongs to {group_in_words(name)}: name the group of the topic, or create a topic with "
                f"stablelog.group={name}",
            )
        return self._make(name, while_full)

    # -- transactional ids ---------------------------------------------------------------------------------

    # A group begins with its first transaction, because a wrong transactional id would otherwise leave a commit log for
    # ever. Until then, the default group holds the transactional ids of the group: their producers get a producer id, are
    # fenced, and expire there. When such an id begins a transaction, or the group has begun, the group takes the id over.
    # The default group forgets the id when the group's record of it is durable. After a crash in between, both have the
    # id, and that of the group counts.
    #
    # The default group also has the transactions of a directory of Apache Kafka, whatever their ids are. An open one can
    # be ended there, by its producer or a later one of the id. After its end, the default group holds the id.

    def for_producer(self, transactional_id: str | None) -> TransactionGroup:
        """Return the group that gives a producer its producer id: the default group as long as the group of the
        transactional id has not begun.

        Raises:
            RefusedError: the group could not begin, because there are too many groups or partitions.
        """
        if transactional_id is None:
            return self.default
        name = group_of(transactional_id)
        held = self._held(transactional_id)
        if name not in self._groups and (held is None or not held.state.is_open):
            self._check_new(name)
        return self.find(transactional_id) or self.default

    def find(self, transactional_id: str) -> TransactionGroup | None:
        """Return the group that has a transactional id; None if the group has not begun and the id is unknown."""
        name = group_of(transactional_id)
        group = self._groups.get(name)
        if group is not None and (name == DEFAULT_GROUP or transactional_id in group.coordinator.table):
            return group
        held = self._held(transactional_id)
        if held is None:
            return group
        if group is None or held.state.is_open:
            return self.default
        self._take_over(group, transactional_id)
        return group

    def of_id(self, transactional_id: str) -> TransactionGroup:
        """Return the group that has a transactional id.

        Raises:
            RefusedError: the group has not begun, and no producer has the id.
        """
        group = self.find(transactional_id)
        if group is None:
            raise RefusedError(
                ErrorCode.invalid_producer_id_mapping,
                f"no producer uses the transactional id {transactional_id!r}",
            )
        return group

    def begun(
        self, transactional_id: str, producer_id: int, producer_epoch: int, while_full: WhileFull
    ) -> TransactionGroup:
        """Return the group of a transactional id whose producer adds to its transaction. The first such request begins
        the group.

        The group does not begin if another producer has the id: the coordinator of the returned group refuses the
        request.

        Args:
            transactional_id: the transactional id.
            producer_id: producer id of the request.
            producer_epoch: producer epoch of the request.
            while_full: how the API of the request refuses while the disk is full.

        Raises:
            RefusedError: no producer has the id; or the id has an open transaction of Apache Kafka; or the group cannot
                begin, because there are too many groups, or the disk is full.
        """
        group = self._groups.get(group_of(transactional_id))
        if group is None or transactional_id not in group.coordinator.table:
            held = self._held(transactional_id)
            if held is not None and held.state.is_open:
                raise RefusedError(
                    ErrorCode.invalid_txn_state,
                    f"{transactional_id!r} has an open transaction of Apache Kafka: commit or abort it first",
                )
            if group is None and held is not None and held.client == (producer_id, producer_epoch):
                self._make(group_of(transactional_id), while_full)
        return self.of_id(transactional_id)

    def _held(self, transactional_id: str) -> Transaction | None:
        """Return the state of an id that the default group holds for another group; None without one.

        A transaction of this id is open only if Apache Kafka has begun it.
        """
        if group_of(transactional_id) == DEFAULT_GROUP:
            return None
        return self.default.coordinator.table.get(transactional_id)

    def _take_over(self, group: TransactionGroup, transactional_id: str) -> None:
        """Move an id that the default group holds to its own group."""
        txn = self.default.coordinator.table.known(transactional_id)
        group.apply(group.coordinator.producers.take_over(transactional_id, txn, now_ms=self._clock.now_ms()))
        group.journal.after(lambda: self._forget_held(transactional_id))

    def _forget_held(self, transactional_id: str) -> None:
        held = self._held(transactional_id)
        if held is not None and not held.state.is_open:
            default = self.default
            default.apply(default.coordinator.producers.forget(transactional_id, now_ms=self._clock.now_ms()))

    def _take_over_open(self, group: TransactionGroup, found: Iterable[OpenTransaction]) -> None:
        """Take over held ids whose producers have transactions in an opened partition. A crash has lost the records of
        the first take-over; the producers can continue their transactions.
        """
        for txn in found if group is not self.default else ():
            owner = self.default.coordinator.table.owner(txn.producer_id)
            if owner is not None and group_of(owner) == group.name:
                self.find(owner)

    def describe(self, transactional_id: str) -> Transaction | None:
        """The coordinator's description of a transactional id; None if it is unknown.

        The default group may hold ids that name another group.
        """
        group = self._groups.get(group_of(transactional_id), self.default)
        found = group.coordinator.table.get(transactional_id)
        return found if found is not None else self.default.coordinator.table.get(transactional_id)

    def are_committing(self, producer_id: int) -> bool:
        """Whether a group has decided to commit the open transaction of a producer id, whose markers are not all written
        yet.
        """
        return any(group.coordinator.joint.is_committing(producer_id) for group in self._groups.values())

    # -- topics of the groups ------------------------------------------------------------------------------

    def check_topic(self, transactional_id: str, name: str) -> None:
        """Refuse a transaction's write to a topic of another group.

        The error code is TOPIC_AUTHORIZATION_FAILED: after this code clients abort the transaction and keep the
        producer. The message is sent in responses that have a field for it, and is logged once by the broker.

        Raises:
            RefusedError: topic_authorization_failed.
        """
        topic = self._topics.get(name)
        own = group_of(transactional_id)
        if topic is None or topic.group == own or name == CONSUMER_OFFSETS_TOPIC:
            return
        fitting_id = f"that begins with {topic.group + '/'!r}" if topic.group else "without a slash"
        fitting_group = own or "''"
        refused = RefusedError(
            ErrorCode.topic_authorization_failed,
            f"transactional id {transactional_id!r} belongs to {group_in_words(own)} by the name before its first slash, "
            f"and topic {name!r} to {group_in_words(topic.group)}: a transaction writes to topics of its own group. Use an "
            f"id {fitting_id}, or a topic made with stablelog.group={fitting_group}",
        )
        if (own, name) not in self._crossings and len(self._crossings) < CROSSINGS_TOLD_MAX:
            self._crossings.add((own, name))
            log.warning("%s", refused)
        raise refused

    # -- partitions ----------------------------------------------------------------------------------------

    def advanced(self, partition: Partition) -> None:
        """Handle a new high watermark of a partition.

        If the partition is a commit log, write the markers and send the responses that waited until it is durable.
        """
        group = self._by_log.get(partition)
        if group is not None:
            group.journal.settle()
            group.write_decided()

    def write_decided(self) -> None:
        """Write the markers of all durable decisions now, because the broker stops."""
        for group in self:
            group.write_decided(to_the_end=True)

    def partition_opened(self, partition: Partition) -> None:
        """Compare the open transactions of an opened partition with the decisions, and write missing markers.

        The caller calls this before anything else writes to the partition.
        """
        target = (partition.topic, partition.index)
        self._id_space.skip_past(partition.producer_state.greatest_id(GIVEN_ID_MAX))
        found = [
            OpenTransaction(txn.producer_id, txn.producer_epoch, txn.first_offset, txn.leader_epoch)
            for txn in partition.log.open_transactions()
        ]
        topic = self._topics.get(partition.topic)
        own_name = DEFAULT_GROUP if topic is None else topic.group
        own = self._groups.get(own_name, self.default)
        if isinstance(partition.view, CommitOrder):
            self.meet_sequence(own, partition.view.latest_sequence, partition.topic, partition.index)
        self._take_over_open(own, found)
        concerned = self._concerned(target, own_name)
        for group in concerned:
            if group is not own:
                theirs = [txn for txn in found if group.coordinator.table.knows(target, txn.producer_id)]
                found = [txn for txn in found if txn not in theirs]
                group.settle(target, theirs, partition)
        # The transaction group of the partition's topic also ends open transactions that no group knows.
        own.settle(target, found, partition)
        if any(target in group.settling for group in (own, *concerned)):
            self._lacking.add(target)

    def partitions_opened(self) -> None:
        """Note that the broker has opened all partitions that can be opened."""
        for group in self:
            group.coordinator.table.partitions_opened()

    def _note_lacking(self) -> None:
        """Recompute which open partitions lack markers of transactions that were decided before the broker started."""
        self._lacking = {target for group in self._groups.values() for target in group.settling}

    def lacks_markers(self, target: TopicPartition) -> bool:
        """Whether this partition lacks markers of transactions that were decided before the broker started.

        These markers wait for disk space. Until they are written, nothing else may be written to the partition.
        """
        return target in self._lacking

    @property
    def are_all_marked(self) -> bool:
        """Whether every open partition has all markers of transactions that were decided before the broker started."""
        return not self._lacking

    async def marked(self, target: TopicPartition) -> bool:
        """Wait until the markers of all decisions so far are written. Return whether this partition lacks none of them
        because the disk is full.
        """
        for group in self:
            await group.marked()
        return not any(group.waits_at(target) for group in self)

    @staticmethod
    def meet_sequence(group: TransactionGroup, sequence: int, topic_name: str, index: int) -> None:
        """Note the commit sequence of a marker that was found in a partition.

        Log an error if the group's commit log does not contain this commit.
        """
        sequences = group.coordinator.table.sequences
        last = sequences.last
        if sequences.met(sequence):
            log.error(
                "%s-%d has commit %d in its markers, and the commit log of %s ends at commit %d: the commit log has lost "
                "its end, or is from an older backup. New commits get sequences above %d; `stablelog repair` checks all "
                "partitions",
                topic_name,
                index,
                sequence,
                group_in_words(group.name),
                last,
                sequence,
            )

    def retry(self) -> None:
        """Write the records and markers that wait for disk space, as far as the disk has space."""
        for group in self:
            group.retry()
        self._note_lacking()

    def partition_gone(self, target: TopicPartition, group_name: str) -> None:
        """Drop, in every group, the markers that wait for a deleted partition. Its topic belongs to `group_name`."""
        for group in {*self._concerned(target, group_name), *(one for one in self if one.waits_at(target))}:
            group.settle(target, [], None)
        self._note_lacking()

    def _concerned(self, target: TopicPartition, group_name: str) -> list[TransactionGroup]:
        """Return the groups that may have open transactions in a partition whose topic belongs to `group_name`.

        The groups do not wait for the partition any more: the caller compares its transactions with their decisions.
        """
        if target[0] == CONSUMER_OFFSETS_TOPIC:
            return list(self)
        names = self._awaited.pop(target, set()) | {group_name}
        return [self._groups[name] for name in sorted(names) if name in self._groups]


def _not_made(why: str) -> RefusedError:
    """Make the error for a transaction group that cannot be created.

    The error is also logged, because InitProducerId responses have no message field.
    """
    log.warning("%s", why)
    return RefusedError(ErrorCode.policy_violation, why)
