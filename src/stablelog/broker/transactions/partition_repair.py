"""Gives each partition the markers that it lacks, when the partition is opened after a start of the broker.

A crash can lose markers that were written and not durable, and an earlier run of the broker may have stopped before it
wrote all markers of a decision. So when a partition is opened, each transaction group that may have open transactions
in it compares these transactions with its decisions (`TransactionGroup.repair_partition`). If the disk is full, the
markers wait, and nothing else may be written to the partition before them.
"""

from collections.abc import Iterable

from stablelog.broker.topics.topic_list import TopicList
from stablelog.broker.transactions.transaction_group import TransactionGroup
from stablelog.broker.transactions.transaction_groups import TransactionGroups
from stablelog.commit_order.view import CommitOrder
from stablelog.coordinators.log_names import CONSUMER_OFFSETS_TOPIC
from stablelog.coordinators.transactions.marker_orders import TransactionInPartition
from stablelog.coordinators.transactions.producer_ids import GIVEN_ID_MAX
from stablelog.log.partition import Partition
from stablelog.types import TopicPartition
from stablelog.wire.extension.transaction_groups import DEFAULT_GROUP, group_of


class PartitionRepair:
    """Repairs the partitions that may lack markers of transactions that were decided before the broker started.

    Args:
        groups: the transaction groups (topics and producers with one order of commits), rebuilt from their commit logs.
        topics: the list of topics.
    """

    def __init__(self, groups: TransactionGroups, topics: TopicList) -> None:
        self._groups = groups
        self._topics = topics
        # By partition that is not open yet: the names of the groups that have to compare its open transactions with
        # their decisions.
        self._unopened: dict[TopicPartition, set[str]] = {}
        for group in groups:
            for target in group.unopened_partitions():
                self._unopened.setdefault(target, set()).add(group.name)
        # The open partitions that lack markers because the disk is full.
        self._incomplete: set[TopicPartition] = set()

    def partition_opened(self, partition: Partition) -> None:
        """Write the markers that an opened partition lacks, as far as the disk has space.

        The caller calls this before anything else writes to the partition.
        """
        target = (partition.topic, partition.index)
        self._groups.id_space.skip_past(partition.log.producers.greatest_id(GIVEN_ID_MAX))
        found = [
            TransactionInPartition(txn.producer_id, txn.producer_epoch, txn.first_offset, txn.leader_epoch)
            for txn in partition.log.open_transactions()
        ]
        topic = self._topics.get(partition.topic)
        own_name = DEFAULT_GROUP if topic is None else topic.group
        own = self._groups.get(own_name) or self._groups.default
        if isinstance(partition.view, CommitOrder):
            own.continue_after_commit(partition.view.latest_sequence, partition.topic, partition.index)
        self._move_ids_of_open(own, found)
        concerned = self._groups_of_partition(target, own_name)
        for group in concerned:
            if group is not own:
                theirs = [
                    txn
                    for txn in found
                    if group.coordinator.table.may_own_transaction(target, txn.producer_id)
                ]
                found = [txn for txn in found if txn not in theirs]
                group.repair_partition(target, theirs, partition)
        # The transaction group of the partition's topic also ends open transactions that no group knows.
        own.repair_partition(target, found, partition)
        if any(target in group.incomplete_partitions() for group in (own, *concerned)):
            self._incomplete.add(target)

    def partition_deleted(self, target: TopicPartition, group_name: str) -> None:
        """Drop the markers that wait for a deleted partition, in every transaction group (each has its own
        coordinator).

        Args:
            target: the partition.
            group_name: the transaction group of its topic.
        """
        waiting = [group for group in self._groups if group.waits_at(target)]
        for group in {*self._groups_of_partition(target, group_name), *waiting}:
            group.repair_partition(target, [], None)
        self._find_incomplete()

    def retry(self) -> None:
        """Try again to write the records of decisions and the markers that wait for disk space. Stop if the disk is
        full again.
        """
        for group in self._groups:
            group.retry()
        self._find_incomplete()

    def lacks_markers(self, target: TopicPartition) -> bool:
        """Return whether this open partition lacks markers of transactions that were decided before the broker started.

        These markers wait for disk space. Until they are written, nothing else may be written to the partition.
        """
        return target in self._incomplete

    @property
    def are_all_marked(self) -> bool:
        """Whether all open partitions are marked: none lacks a marker of a transaction that was decided before the
        broker started.
        """
        return not self._incomplete

    def _find_incomplete(self) -> None:
        self._incomplete = {target for group in self._groups for target in group.incomplete_partitions()}

    def _groups_of_partition(self, target: TopicPartition, group_name: str) -> list[TransactionGroup]:
        """Return the transaction groups (each has a coordinator) that may have open transactions in a partition. The
        caller compares these transactions with the decisions of the groups.

        The partition is open now, so it is also removed from `_unopened`, the partitions that may still lack markers
        because they were not opened since the broker's start.

        Args:
            target: the partition.
            group_name: the transaction group of its topic.
        """
        if target[0] == CONSUMER_OFFSETS_TOPIC:
            return list(self._groups)
        names = self._unopened.pop(target, set()) | {group_name}
        groups = (self._groups.get(name) for name in sorted(names))
        return [group for group in groups if group is not None]

    def _move_ids_of_open(self, group: TransactionGroup, found: Iterable[TransactionInPartition]) -> None:
        """Move the transactional ids of open transactions to the transaction group (topics and producers with one
        commit log) that each id names, from the default group, which holds the ids of groups that do not exist yet.

        The broker had moved these ids before a crash, and the crash has lost the record of it. They are moved again, so
        that the producers can continue their transactions.

        Args:
            group: the transaction group of the opened partition.
            found: the transactions that are open in the partition.
        """
        default = self._groups.default
        for txn in found if group is not default else ():
            owner = default.coordinator.table.owner_of(txn.producer_id)
            if owner is not None and group_of(owner) == group.name:
                self._groups.find_group(owner)
