"""A topic: its name, its settings and its partitions."""

import uuid
from dataclasses import dataclass, field

from stablelog.broker.topic_names import is_internal
from stablelog.broker.topics.partition_state import PartitionState
from stablelog.data_directory.catalog import ListedTopic
from stablelog.data_directory.topic_settings import group_of_topic, order_of
from stablelog.log.model import LogConfig
from stablelog.log.partition import Partition


@dataclass(slots=True, eq=False)
class Topic:
    """A named set of partitions.

    Attributes:
        topic_id: distinguishes the topic from a later one of the same name.
        configs: the settings of the topic itself, by Kafka's names.
        partitions: the open partitions by index, including those that have failed since they were opened.
        offline: by index, the reason why a partition could not be opened.
        partition_count: the number of partitions that the topic should have.
        log_config: the settings of its partitions' logs, from `configs` and the broker's settings. All its partitions
            share the object.
    """

    name: str
    topic_id: uuid.UUID
    partition_count: int
    configs: dict[str, str]
    log_config: LogConfig
    partitions: dict[int, Partition] = field(default_factory=dict)
    offline: dict[int, str] = field(default_factory=dict)
    _listed: ListedTopic | None = None

    def state(self, index: int) -> PartitionState:
        """Return the state of the partition with this index: open, or the reason why it serves no requests."""
        partition = self.partitions.get(index)
        if partition is not None:
            return PartitionState.OPEN if partition.failure is None else PartitionState.OFFLINE
        if not 0 <= index < self.partition_count:
            return PartitionState.UNKNOWN
        return PartitionState.OFFLINE if index in self.offline else PartitionState.OPENING

    @property
    def offline_count(self) -> int:
        """The number of partitions that could not be opened, or that have failed since."""
        return len(self.offline) + sum(one.failure is not None for one in self.partitions.values())

    @property
    def opening_count(self) -> int:
        """The number of partitions that are not open yet."""
        return self.partition_count - len(self.partitions.keys() | self.offline.keys())

    def why_not_open(self, index: int) -> str:
        """Return why no request can be served from a partition, as text for a message."""
        match self.state(index):
            case PartitionState.OPENING:
                return f"{self.name}-{index} is being recovered after a start, and opens by itself"
            case PartitionState.OFFLINE:
                partition = self.partitions.get(index)
                failure = self.offline.get(index, partition and partition.failure)
                return f"{self.name}-{index} is offline: {failure}. Run `stablelog verify` for details"
            case _:
                return f"{self.name} has partitions 0 to {self.partition_count - 1}, not {index}"

    @property
    def listed(self) -> ListedTopic:
        """The topic as the list of topics has it. The object is the same until the topic changes."""
        known = self._listed
        if known is None or known.partition_count != self.partition_count or known.configs != self.configs:
            known = self._listed = ListedTopic(
                self.name, self.topic_id, self.partition_count, dict(self.configs)
            )
        return known

    @property
    def is_internal(self) -> bool:
        """Whether the topic is internal: only the broker writes to it."""
        return is_internal(self.name)

    @property
    def group(self) -> str:
        """The transaction group that the topic belongs to; empty for the default group."""
        return group_of_topic(self.configs)

    @property
    def is_commit_ordered(self) -> bool:
        """Whether read-committed readers get the topic's records in commit order."""
        return order_of(self.configs) == "commit"
