"""The transaction groups of the broker (a group is topics and producers with one order of commits): finds the group of
a transactional id, and creates groups.

A group consists of its commit log and of the state that is built from this log (`transaction_group`). The default group
always exists. The broker creates another group when the first transaction of the group begins. After a start the groups
are those whose commit logs exist. A transaction writes only to topics of its own group (`topic_boundary`). Committed
offsets of consumers belong to no group.
"""

import logging
from collections.abc import Callable, Iterator, Mapping

from kio.schema.errors import ErrorCode

from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.broker.durability.journal import Journal
from stablelog.broker.groups import BrokerGroups
from stablelog.broker.monitoring.metrics import Sample
from stablelog.broker.runtime import Runtime
from stablelog.broker.topics.open_partitions import OpenPartitions
from stablelog.broker.topics.topic_list import TopicList
from stablelog.broker.transactions.topic_boundary import TopicBoundary
from stablelog.broker.transactions.transaction_group import TransactionGroup
from stablelog.coordinators.transactions.producer_ids import ProducerIdSpace
from stablelog.coordinators.transactions.transaction import TransactionMetadata
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


class TransactionGroups:
    """All transaction groups of a broker. A transaction group is topics and producers with one order of commits.

    Args:
        make_log: creates or opens the commit log of a group. The new files are durable on return.
        topics: the list of topics.
        partitions: the open partitions, which markers are written to.
        groups: the consumer groups, whose offsets a transaction may commit.

    Attributes:
        id_space: the producer ids of all groups.
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
        self.id_space = ProducerIdSpace()
        self._groups: dict[str, TransactionGroup] = {}
        self._by_log: dict[Partition, TransactionGroup] = {}
        self._boundary = TopicBoundary(topics)

    # -- the groups ----------------------------------------------------------------------------------------

    def load(self, logs: Mapping[str, list[Partition]]) -> None:
        """Rebuild the groups from their commit logs (the logs of their coordinators), at the start of the broker.

        Markers of decided transactions wait until their partitions are open.

        Args:
            logs: the partitions of each commit log, by the name of the group.
        """
        for name, partitions in logs.items():
            self._open(name, partitions).load()
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
            id_space=self.id_space,
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
        """Yield the metrics of each group: the number of its last commit, and that of its last resolved commit (up to
        which all commit markers are durable).
        """
        for group in self:
            last, resolved = group.coordinator.table.sequences.last, group.resolved_commit_sequence
            yield Sample("stablelog_last_commit_sequence", (group.name,), last)
            yield Sample("stablelog_resolved_commit_sequence", (group.name,), resolved)

    @property
    def default(self) -> TransactionGroup:
        """The default transaction group, to which all topics and transactional ids belong that name no other group."""
        return self._groups[DEFAULT_GROUP]

    def get(self, name: str) -> TransactionGroup | None:
        """Return the transaction group (topics and producers with one order of commits) of this name; None if no
        transaction of the group has begun yet.
        """
        return self._groups.get(name)

    def _make(self, name: str, while_full: WhileFull) -> TransactionGroup:
        """Make a transaction group that does not exist, with an empty commit log (the log of its coordinator), which is
        durable on return.

        Raises:
            RefusedError: the name is not valid for a group, there are too many groups, or the disk is full.
        """
        self._check_new(name)
        self._reserve.check(while_full)
        try:
            partitions = self._make_log(name)
        except RefusedError as why:
            if self._reserve.record_failure(why):
                raise RefusedError(ErrorCode.coordinator_load_in_progress, self._reserve.state()) from why
            raise _not_made(f"{group_in_words(name)} cannot be created: {why}") from why
        log.info("created %s", group_in_words(name))
        return self._open(name, partitions)

    def _check_new(self, name: str) -> None:
        """Check that a transaction group (topics and producers with one order of commits) that does not exist yet may
        be created.

        Raises:
            RefusedError: the name is not valid for a group, or there are too many groups or partitions.
        """
        if not is_group_name(name):
            raise RefusedError(
                ErrorCode.invalid_request, f"{name!r} is not a valid name of a transaction group: {NAME_RULE}"
            )
        if len(self._groups) > self._count_max:
            raise _not_made(
                f"{group_in_words(name)} cannot be created: "
                f"stablelog.max.transaction.groups={self._count_max} allows no more groups. The part of a "
                "transactional id before its first slash names the group. Raise this setting, or use an "
                "id of an existing group"
            )
        try:
            self._topics.reservations.check_count(1)
        except RefusedError as why:
            raise _not_made(f"{group_in_words(name)} cannot be created: {why}") from why

    def group_for_joint_commit(self, name: str, while_full: WhileFull) -> TransactionGroup:
        """Return the transaction group of a joint commit (of several transactions together). Create the group if it
        does not exist and a topic belongs to it.

        Args:
            name: name of the group; empty for the default one.
            while_full: says with which error code the request is refused while the disk is full.

        Raises:
            RefusedError: no topic belongs to the group, the name is not valid for a group, there are too many groups,
                or the disk is full.
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

    # A group is created with its first transaction, because a mistyped transactional id would otherwise leave a commit
    # log for ever. Until then, the default group holds the transactional ids of the group: their producers get a producer
    # id, are fenced, and expire there. When such an id begins a transaction, or the group exists, the group takes the id
    # over. The default group forgets the id when the group's record of the id is durable. After a crash in between, both
    # groups have the id, and the record of its own group counts.
    #
    # The default group also has the transactions of a data directory of Apache Kafka, whatever their ids are. An open one
    # can be ended there, by its producer or by a later producer of the id. After its end, the default group holds the id.

    def group_for_producer(self, transactional_id: str | None) -> TransactionGroup:
        """Return the group whose coordinator answers an InitProducerId request: the group that the transactional id
        names, or the default group while that group does not exist.

        Args:
            transactional_id: the transactional id; None for an idempotent producer.

        Raises:
            RefusedError: the group does not exist, and no transaction could create it later, because there are too many
                groups or partitions.
        """
        if transactional_id is None:
            return self.default
        name = group_of(transactional_id)
        held = self._held(transactional_id)
        if name not in self._groups and (held is None or not held.state.is_open):
            self._check_new(name)
        return self.find_group(transactional_id) or self.default

    def find_group(self, transactional_id: str) -> TransactionGroup | None:
        """Return the transaction group that has a transactional id; None if the group that the id names does not exist
        and no producer has the id.

        If the default group still holds the id on behalf of an existing group, that group takes the id over first.
        """
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

    def require_group(self, transactional_id: str) -> TransactionGroup:
        """Return the transaction group (with its coordinator) that has a transactional id, as `find_group` does, but
        raise an error if there is none.

        Raises:
            RefusedError: the group does not exist, and no producer has the id.
        """
        group = self.find_group(transactional_id)
        if group is None:
            raise RefusedError(
                ErrorCode.invalid_producer_id_mapping,
                f"no producer uses the transactional id {transactional_id!r}: check the id, or send "
                "InitProducerId first",
            )
        return group

    def begin_group(
        self, transactional_id: str, producer_id: int, producer_epoch: int, while_full: WhileFull
    ) -> TransactionGroup:
        """Return the transaction group (topics and producers with one order of commits) in which a transactional id
        begins or continues its transaction. The caller serves a request that adds partitions to the transaction. The
        first such request of a group creates the group.

        The group is created only for the producer that holds the id now. For any other producer, the result is an
        existing group that knows the id, and the coordinator of this group then refuses the caller's request.

        Args:
            transactional_id: the transactional id.
            producer_id: producer id of the request.
            producer_epoch: producer epoch of the request.
            while_full: says with which error code the request is refused while the disk is full.

        Raises:
            RefusedError: no producer has the id; or the id has an open transaction that Apache Kafka began before the
                broker took over Kafka's data directory; or the group cannot be created, because there are too many
                groups, or the disk is full.
        """
        group = self._groups.get(group_of(transactional_id))
        if group is None or transactional_id not in group.coordinator.table:
            held = self._held(transactional_id)
            if held is not None and held.state.is_open:
                raise RefusedError(
                    ErrorCode.invalid_txn_state,
                    f"the transactional id {transactional_id!r} cannot begin a transaction: a transaction "
                    "that Apache Kafka began with this id is still open. Commit or abort the open "
                    "transaction first",
                )
            if group is None and held is not None and held.client == (producer_id, producer_epoch):
                self._make(group_of(transactional_id), while_full)
        return self.require_group(transactional_id)

    def _held(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the state of a transactional id that the default transaction group holds on behalf of another group,
        because that group does not exist yet; None if it holds no such id.

        A transaction of such an id is open only if Apache Kafka began it, before the broker took over Kafka's data
        directory.
        """
        if group_of(transactional_id) == DEFAULT_GROUP:
            return None
        return self.default.coordinator.table.get(transactional_id)

    def _take_over(self, group: TransactionGroup, transactional_id: str) -> None:
        """Move a transactional id from the default group to its own group, which is the transaction group named before
        the first slash of the id.

        The default group holds the id only until its own group exists. It forgets the id when the record of the id is
        durable in the commit log of the own group, so that a crash cannot lose the id.

        Args:
            group: the own group of the id.
            transactional_id: the id, which the default group has.
        """
        txn = self.default.coordinator.table.require_state(transactional_id)
        group.apply(group.coordinator.producers.import_id(transactional_id, txn, now_ms=self._clock.now_ms()))
        group.journal.run_when_durable(lambda: self._forget_held(transactional_id))

    def _forget_held(self, transactional_id: str) -> None:
        held = self._held(transactional_id)
        if held is not None and not held.state.is_open:
            default = self.default
            default.apply(
                default.coordinator.producers.forget_id(transactional_id, now_ms=self._clock.now_ms())
            )

    def describe(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the state of a transactional id for DescribeTransactions; None if no transaction group (each has its
        own coordinator) knows the id.
        """
        group = self._groups.get(group_of(transactional_id), self.default)
        found = group.coordinator.table.get(transactional_id)
        return found if found is not None else self.default.coordinator.table.get(transactional_id)

    def are_committing(self, producer_id: int) -> bool:
        """Return whether the open transaction of a producer id is part of a joint commit (of several transactions
        together) that is being carried out.
        """
        return any(group.coordinator.joint.is_committing(producer_id) for group in self._groups.values())

    # -- topics of the groups ------------------------------------------------------------------------------

    def check_topic(self, transactional_id: str, name: str) -> None:
        """Refuse a transaction's write to a topic, if the topic belongs to another transaction group than the
        transactional id: see `TopicBoundary.check`.

        Raises:
            RefusedError: the topic belongs to another group; the error code is topic_authorization_failed.
        """
        self._boundary.check(transactional_id, name)

    # -- partitions ----------------------------------------------------------------------------------------

    def high_watermark_moved(self, partition: Partition) -> None:
        """Handle a new high watermark of a partition.

        If the partition is a commit log (the log of a transaction coordinator), more decisions are durable: write their
        markers, and send their responses.
        """
        group = self._by_log.get(partition)
        if group is not None:
            group.journal.run_effects()
            group.write_decided()

    def write_decided(self) -> None:
        """Write the markers of all durable decisions to commit or abort, in all transaction groups, before the broker
        stops.
        """
        for group in self:
            group.write_decided(to_the_end=True)

    def all_partitions_opened(self) -> None:
        """Free the memory that is needed only until all partitions are open, such as the decisions from before the
        start.

        The caller has opened all partitions that can be opened.
        """
        for group in self:
            group.coordinator.table.partitions_opened()

    async def wait_until_marked(self, target: TopicPartition) -> bool:
        """Wait until a partition has the markers of all decisions that were made before this call, as far as they can
        be written now.

        Returns:
            True if the partition has all its markers. False if some of them wait until the partition is open or the
            disk has space.
        """
        for group in self:
            await group.wait_for_markers()
        return not any(group.waits_at(target) for group in self)


def _not_made(why: str) -> RefusedError:
    """Return the error for a transaction group (topics and producers with one order of commits) that cannot be created.

    The error is also logged, because InitProducerId responses have no message field.
    """
    log.warning("%s", why)
    return RefusedError(ErrorCode.policy_violation, why)
