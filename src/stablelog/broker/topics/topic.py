"""A topic: its name, its settings and the number of its partitions."""

import uuid
from dataclasses import dataclass

from stablelog.broker.topic_names import is_internal
from stablelog.data_directory.catalog import ListedTopic
from stablelog.data_directory.topic_settings import group_of_topic, order_of


@dataclass(slots=True, eq=False)
class Topic:
    """A topic of the broker. `OpenPartitions` has those of its partitions that are open.

    Attributes:
        name: the name.
        topic_id: distinguishes the topic from a later one of the same name.
        partition_count: the number of partitions of the topic, whether they are open or not.
        configs: the settings of the topic itself, by Kafka's names.
    """

    name: str
    topic_id: uuid.UUID
    partition_count: int
    configs: dict[str, str]
    _listed: ListedTopic | None = None

    @property
    def listed(self) -> ListedTopic:
        """The topic as the file `cluster.json` contains it. The same object is returned until the topic changes."""
        known = self._listed
        if known is None or known.partition_count != self.partition_count or known.configs != self.configs:
            known = self._listed = ListedTopic(
                self.name, self.topic_id, self.partition_count, dict(self.configs)
            )
        return known

    @property
    def is_internal(self) -> bool:
        """Whether only the broker may write to the topic."""
        return is_internal(self.name)

    @property
    def group(self) -> str:
        """The name of the topic's transaction group (topics whose commits have one order); empty for the default
        group.
        """
        return group_of_topic(self.configs)

    @property
    def is_commit_ordered(self) -> bool:
        """Whether read-committed readers get the topic's records in the order of the commits."""
        return order_of(self.configs) == "commit"
