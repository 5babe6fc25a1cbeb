"""Opening of the coordinators' logs, which must be open before the broker serves requests: the offsets log
(`__consumer_offsets`), and the commit log of each transaction group (the topics whose commits have one order).
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from stablelog.broker.runtime import Runtime
from stablelog.broker.topics.topic import Topic
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.coordinators.log_names import commit_log_of, group_of_log
from stablelog.errors import RefusedError
from stablelog.log.partition import Partition
from stablelog.wire.extension.transaction_groups import DEFAULT_GROUP

THREADS: Final = 8
# If there are at most this many partitions of logs, they are opened one after the other; more, by several threads.
FEW: Final = 8
CONFIGS: Final = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}


class CoordinatorTopics:
    """Creates and opens the internal topics in which the coordinators store their records.

    Args:
        topic_files: creates and opens the topics.
    """

    def __init__(self, topic_files: TopicFiles, runtime: Runtime) -> None:
        self._topic_files = topic_files
        self._topics = topic_files.topics
        self._reserve = runtime.reserve

    def open_commit_logs(self) -> dict[str, list[Partition]]:
        """Open the commit log of each transaction group (the topics whose commits have one order): the log in which the
        group's transaction coordinator stores its decisions. Return the partitions of each log by the name of the
        group.
        """
        logs = [topic for topic in self._topics if group_of_log(topic.name) is not None]
        missing = [(topic, index) for topic in logs for index in range(topic.partition_count)]
        # Open several logs at a time, because opening a log mostly waits for the disk.
        if len(missing) > FEW:
            with ThreadPoolExecutor(THREADS, thread_name_prefix="commit logs") as threads:
                list(threads.map(lambda at: self._open(*at), missing))
        groups = {group for topic in logs if (group := group_of_log(topic.name)) is not None}
        return {group: self.open(commit_log_of(group)) for group in sorted(groups | {DEFAULT_GROUP})}

    def open(self, name: str) -> list[Partition]:
        """Open the coordinator log of this name, and return its partitions. A missing log is created durably.

        Raises:
            RefusedError: the log cannot be created.
            DamageError: the log is damaged.
        """
        topic = self._topics.get(name) or self._make(name)
        for index in range(topic.partition_count):
            if index not in self._topic_files.partitions.of_topic(topic):
                self._open(topic, index)
        opened = self._topic_files.partitions.of_topic(topic)
        return [opened[index] for index in range(topic.partition_count)]

    def _make(self, name: str) -> Topic:
        while True:
            try:
                return self._topic_files.create(name, 1, CONFIGS)
            except RefusedError as refused:
                if not self._reserve.make_room(refused):
                    raise

    def _open(self, topic: Topic, index: int) -> None:
        self._reserve.attempt(lambda: self._topic_files.open_partition(topic, index), frees=True)
