"""Reads the last commit sequence (number of a commit in its transaction group) of each commit-ordered partition, after
a start and before any commit is decided.

A commit log that was restored from an older backup, or that has lost its end, contains fewer commits than the markers
in the partitions. A coordinator that continued from such a commit log would assign the commit sequences of the missing
commits a second time. So the coordinator decides no commit until the broker has read the last commit of every
commit-ordered partition of the transaction group. Until then clients get an error code after which they retry. The last
commit is read from the files of the partition, before the partition is open. If a partition is damaged, the broker
reads as much of its files as possible.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from stablelog.broker.loop.tasks import Scope
from stablelog.broker.loop.threads import in_thread
from stablelog.broker.runtime import Runtime
from stablelog.broker.topics.partition_state import PartitionState
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.broker.transactions.transaction_group import TransactionGroup
from stablelog.broker.transactions.transaction_groups import TransactionGroups
from stablelog.commit_order.last_commit import NO_COMMIT
from stablelog.errors import StablelogError
from stablelog.types import TopicPartition
from stablelog.wire.extension.transaction_groups import group_in_words

log = logging.getLogger(__name__)

READING_THREADS = 2


class LastCommits:
    """Reads the number of the last commit of each commit-ordered partition (its readers get transactions in the order
    of the commits) that is not open yet.

    From the construction of this object until `read` has finished, the transaction groups with such partitions decide
    no commit.

    Args:
        topic_files: reads the files of the partitions.
        transactions: the transaction groups (topics whose commits have one order) that the topics belong to.
    """

    def __init__(self, topic_files: TopicFiles, transactions: TransactionGroups, runtime: Runtime) -> None:
        self._topic_files = topic_files
        self._transactions = transactions
        self._tasks = runtime.tasks
        self._unread = {group: self._partitions(group) for group in transactions}
        for group, partitions in self._unread.items():
            if partitions:
                group.coordinator.table.sequences.are_known = False

    def _partitions(self, group: TransactionGroup) -> list[TopicPartition]:
        return [
            (topic.name, index)
            for topic in self._topic_files.topics
            if topic.group == group.name and topic.is_commit_ordered
            for index in range(topic.partition_count)
            if index not in self._topic_files.partitions.of_topic(topic)
        ]

    async def read(self) -> None:
        """Read the last commit of each partition of a commit-ordered topic, and tell the topic's transaction group
        (topics with one order of commits) the number of the commit.

        When all partitions of a transaction group are read, the group may decide commits again.

        The caller must not open a partition before this call has ended.
        """
        with ThreadPoolExecutor(READING_THREADS, thread_name_prefix="last commits") as threads:
            for group, partitions in self._unread.items():
                found = await asyncio.gather(*(self._read(threads, group, *at) for at in partitions))
                if found:
                    group.continue_after_commit(*max(found))
                group.coordinator.table.sequences.are_known = True

    async def _read(
        self, threads: ThreadPoolExecutor, group: TransactionGroup, topic_name: str, index: int
    ) -> tuple[int, str, int]:
        """Read the last commit of one partition.

        Returns:
            (commit sequence, topic name, index of the partition). The commit sequence, the number of the commit, is -1
            if the partition has no commit or cannot be read; if it cannot be read, the error is logged.
        """
        sequence = NO_COMMIT
        try:
            sequence = await in_thread(
                threads, self._topic_files.directories.last_commit_sequence, topic_name, index
            )
        except (FileNotFoundError, StablelogError) as error:
            # If the partition is unknown now, its topic was deleted during the read. The error is then not logged.
            is_deleted = self._topic_files.partitions.state(topic_name, index) is PartitionState.UNKNOWN
            if not is_deleted:
                log.error(
                    "the last commit of %s-%d cannot be read: %s. So the broker cannot check whether the "
                    "commit log of %s is older than this partition. If the commit log is from an older "
                    "backup, restore the commit log and the partition from the same backup; otherwise a new "
                    "commit may get a number that a commit in the partition already has",
                    topic_name,
                    index,
                    error,
                    group_in_words(group.name),
                )
        except Exception as error:  # noqa: BLE001 - the exception concerns this partition only
            scope = Scope(f"the last commit of {topic_name}-{index} is not known", lambda _why: None)
            self._tasks.report_unexpected("recovery of a partition", scope, error)
        return sequence, topic_name, index
