"""The open partitions of the broker, and the reason why each of the other partitions serves no requests."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import Final

from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.topics.partition_state import COMMON, PartitionCodes, PartitionState
from stablelog.broker.topics.topic import Topic
from stablelog.broker.topics.topic_list import TopicList
from stablelog.errors import UnavailableError
from stablelog.log.model import LogConfig
from stablelog.log.partition import Partition
from stablelog.log.segments.open_files import OpenFiles, open_segments_max

_NO_PARTITIONS: Final[Mapping[int, Partition]] = MappingProxyType({})
_NO_REASONS: Final[Mapping[int, str]] = MappingProxyType({})


@dataclass(slots=True)
class _PartitionsOfTopic:
    """The partitions of one topic, by index.

    Attributes:
        log_config: the settings of the partitions' logs, from the settings of the topic and of the broker.
        partitions: the open partitions, including those that have failed since they were opened.
        offline: the reason why a partition could not be opened, by index of the partition.
    """

    log_config: LogConfig
    partitions: dict[int, Partition] = field(default_factory=dict)
    offline: dict[int, str] = field(default_factory=dict)


class OpenPartitions:
    """The open partitions of the topics in the list of topics.

    Args:
        topics: the list of topics.
        config: the broker's settings, each of which applies to the topics that do not set it themselves.
        on_failure: called when an open partition fails, once for each partition, with the partition and the reason.
    """

    def __init__(
        self,
        topics: TopicList,
        config: BrokerConfig,
        on_failure: Callable[[Partition, UnavailableError], None] = lambda _partition, _why: None,
    ) -> None:
        self._topics = topics
        self._config = config
        self._on_failure = on_failure
        self._open_files = OpenFiles(open_segments_max())
        self._by_topic: dict[Topic, _PartitionsOfTopic] = {}

    # -- looking up --------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Partition]:
        """Yield every open partition, including those that have failed since they were opened.

        The caller may await between two partitions: a partition that was deleted or replaced meanwhile is skipped.
        """
        for topic in self._topics:
            for partition in list(self.of_topic(topic).values()):
                if self.is_in_use(partition):
                    yield partition

    def of_topic(self, topic: Topic) -> Mapping[int, Partition]:
        """Return the open partitions of a topic by index, including those that have failed since they were opened."""
        opened = self._by_topic.get(topic)
        return _NO_PARTITIONS if opened is None else opened.partitions

    def get(self, name: str, index: int) -> Partition | None:
        """Return an open partition, which may have failed since it was opened; None if it is not open."""
        topic = self._topics.get(name)
        return None if topic is None else self.of_topic(topic).get(index)

    def require(self, name: str, index: int, codes: PartitionCodes = COMMON) -> Partition:
        """Return an open partition that has not failed.

        Args:
            name: the topic's name.
            index: the partition's index.
            codes: the API's error codes for a partition that is opening, offline or unknown.

        Raises:
            RefusedError: the partition is opening, offline or unknown; the error has the code for that state.
        """
        topic = self._topics.named(name)
        partition = self.of_topic(topic).get(index)
        if partition is not None and partition.failure is None:
            return partition
        raise codes.refusal(self.state_in(topic, index), self._why_not_open(topic, index))

    def is_in_use(self, partition: Partition) -> bool:
        """Return whether a partition is still in use: its topic was not deleted, and no reopened partition has replaced
        it. Callers check this again after each await.
        """
        return self.get(partition.topic, partition.index) is partition

    def state(self, name: str, index: int) -> PartitionState:
        """Return the state of a partition: open, or the reason why it serves no requests."""
        topic = self._topics.get(name)
        return PartitionState.UNKNOWN if topic is None else self.state_in(topic, index)

    def state_in(self, topic: Topic, index: int) -> PartitionState:
        """Return the state of a partition of this topic: open, or the reason why it serves no requests."""
        opened = self._by_topic.get(topic)
        if opened is None:
            return PartitionState.UNKNOWN
        partition = opened.partitions.get(index)
        if partition is not None:
            return PartitionState.OPEN if partition.failure is None else PartitionState.OFFLINE
        if not 0 <= index < topic.partition_count:
            return PartitionState.UNKNOWN
        return PartitionState.OFFLINE if index in opened.offline else PartitionState.OPENING

    def _why_not_open(self, topic: Topic, index: int) -> str:
        """Return the reason why a partition serves no requests, as text for a message."""
        match self.state_in(topic, index):
            case PartitionState.OPENING:
                return f"{topic.name}-{index} is being recovered after a start, and opens by itself"
            case PartitionState.OFFLINE:
                partition = self.of_topic(topic).get(index)
                failure = self.offline_in(topic).get(index, partition and partition.failure)
                return f"{topic.name}-{index} is offline: {failure}. Run `stablelog verify` for details"
            case _:
                return f"{topic.name} has partitions 0 to {topic.partition_count - 1}, not {index}"

    def offline_in(self, topic: Topic) -> Mapping[int, str]:
        """Return the offline partitions of a topic, those that could not be opened: the reason, by partition index."""
        known = self._by_topic.get(topic)
        return _NO_REASONS if known is None else known.offline

    @property
    def offline_count(self) -> int:
        """The number of partitions that could not be opened, or that have failed since they were opened."""
        failed_count = sum(partition.failure is not None for partition in self)
        return failed_count + sum(len(self.offline_in(topic)) for topic in self._topics)

    @property
    def opening_count(self) -> int:
        """The number of partitions that the broker has not opened yet."""
        return sum(
            topic.partition_count - len(self.of_topic(topic).keys() | self.offline_in(topic).keys())
            for topic in self._topics
        )

    @property
    def are_complete(self) -> bool:
        """Whether every partition of every topic is open."""
        return all(len(self.of_topic(topic)) == topic.partition_count for topic in self._topics)

    # -- changing ----------------------------------------------------------------------------------------------

    def log_config(self, topic: Topic) -> LogConfig:
        """Return the settings of the logs of a topic's partitions. The topic may be one that is being created."""
        opened = self._by_topic.get(topic)
        return self._config.log_config(topic.configs) if opened is None else opened.log_config

    def add_topics(self, topics: Iterable[Topic]) -> None:
        """Add topics. Their partitions are not open yet."""
        log_config = self._shared_log_config()
        for topic in topics:
            self._by_topic[topic] = _PartitionsOfTopic(log_config(frozenset(topic.configs.items())))

    def _shared_log_config(self) -> Callable[[frozenset[tuple[str, str]]], LogConfig]:
        # Most topics have the same settings: thousands of topics share the result.
        return cache(lambda configs: self._config.log_config(dict(configs)))

    def connect(self, partitions: Iterable[Partition]) -> None:
        """Connect new partitions to the failure callback, and to the limit of open segment files, which all partitions
        share.

        May run in a thread, as long as nothing else uses the partitions yet.
        """
        for partition in partitions:
            partition.open_files.join_shared(self._open_files)
            partition.availability.on_failure = partial(self._on_failure, partition)

    def add_created(self, topic: Topic, created: Mapping[int, Partition]) -> None:
        """Publish the created partitions of a topic, so that requests can use them. The caller has connected them."""
        self._by_topic[topic].partitions.update(created)
        self.reconfigure([topic])  # Settings may have changed while the partitions were created.

    def add_recovered(self, topic: Topic, partition: Partition) -> None:
        """Publish a recovered partition of a topic, so that requests can use it."""
        opened = self._by_topic[topic]
        partition.config = opened.log_config  # The settings may have changed during recovery.
        opened.offline.pop(partition.index, None)
        self.connect([partition])
        opened.partitions[partition.index] = partition

    def set_offline(self, topic: Topic, index: int, why: str) -> None:
        """Record why a partition could not be opened."""
        self._by_topic[topic].offline[index] = why

    def end_use(self, topic: Topic) -> None:
        """Make every later read and write of a topic's partitions fail, because the topic is being deleted."""
        for partition in self.of_topic(topic).values():
            partition.availability.mark_closed()

    def remove_topic(self, topic: Topic) -> dict[int, Partition]:
        """Remove a deleted topic, and return its open partitions by index."""
        return self._by_topic.pop(topic).partitions

    def reconfigure(self, topics: Iterable[Topic] | None = None) -> None:
        """Apply the present settings, of the topics and of the broker, to the open partitions of these topics; None for
        all topics.
        """
        log_config = self._shared_log_config()
        for topic in self._topics if topics is None else topics:
            opened = self._by_topic[topic]
            opened.log_config = log_config(frozenset(topic.configs.items()))
            for partition in opened.partitions.values():
                partition.config = opened.log_config
