"""The list of topics: which topics there are, and which of them are being created or deleted or get more partitions.

The list is the content of `cluster.json` in memory. This module decides, and does no input or output: `topic_files`
reads and writes the file, and `open_partitions` has the partitions that are open.
"""

import uuid
from collections.abc import Collection, Iterator, Mapping

from kio.schema.errors import ErrorCode

from stablelog.broker.settings.config import BrokerConfig, check_change
from stablelog.broker.topic_names import check_clients_may_write, is_internal
from stablelog.broker.topics.topic import Topic
from stablelog.broker.topics.topic_reservations import Reservations
from stablelog.data_directory.catalog import Catalog, DeletedTopic, encode_catalog
from stablelog.errors import RefusedError


class TopicList:
    """The topics of a broker.

    A change of the list has three steps. A method `reserve_...` checks it and reserves the topic's name. Then the
    caller does its work with files, during which no other request can change the topic. Then it changes the list by
    `add`, `grow` or `remove`, and calls `end_reservation`.

    Args:
        config: the broker's settings, each of which applies to the topics that do not set it themselves.

    Attributes:
        version: a number that changes whenever a topic is created, grows or is deleted.
        cluster_id: id of the cluster that the data directory belongs to.
        leader_epoch: the broker's leader epoch; each start of the broker has a greater one.
        established_epoch: the leader epoch of the first start after which each partition had all files of stablelog;
            None while the broker takes over a directory of Apache Kafka.
        reservations: the names of topics that are being created, grown or deleted.
        deleted: the deleted topics that may still have objects in the object store, by topic id.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._topics: dict[str, Topic] = {}
        self._names: dict[uuid.UUID, str] = {}
        self.version = 0
        self.cluster_id = ""
        self.leader_epoch = -1
        self.established_epoch: int | None = None
        self.deleted: dict[uuid.UUID, DeletedTopic] = {}
        self.reservations = Reservations(self._topics, config)

    def fill(self, catalog: Catalog) -> None:
        """Fill the empty list with the content of the file `cluster.json`."""
        assert not self._topics
        self.cluster_id = catalog.cluster_id
        self.leader_epoch = catalog.leader_epoch
        self.established_epoch = catalog.established_epoch
        self.deleted = {topic.topic_id: topic for topic in catalog.deleted}
        for topic in catalog.topics:
            self.add(Topic(topic.name, topic.topic_id, topic.partition_count, topic.configs))

    def encoded(self) -> bytes:
        """Return the content of the file `cluster.json` for the present list."""
        return encode_catalog(
            self.cluster_id,
            self.leader_epoch,
            self.established_epoch,
            [topic.listed for topic in self._topics.values()],
            self.deleted.values(),
        )

    # -- looking up --------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._topics.values()))

    @property
    def names(self) -> Collection[str]:
        """The names of the topics."""
        return self._topics.keys()

    def get(self, name: str) -> Topic | None:
        """Return the topic of this name; None if there is none."""
        return self._topics.get(name)

    def named(self, name: str) -> Topic:
        """Return the topic of this name.

        Raises:
            RefusedError: no topic has this name.
        """
        topic = self._topics.get(name)
        if topic is None:
            raise RefusedError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        return topic

    def name_of(self, topic_id: uuid.UUID | None) -> str | None:
        """Return the name of the topic with this id; None if there is none."""
        return self._names.get(topic_id) if topic_id is not None else None

    # -- reservations ------------------------------------------------------------------------------------------

    def reserve_new(
        self,
        name: str,
        partition_count: int,
        configs: Mapping[str, str],
        *,
        topic_id: uuid.UUID,
        own: bool = False,
    ) -> Topic:
        """Reserve the name of a new topic, and return the topic, which has no partitions and is not in the list yet.

        Args:
            name: the topic's name.
            partition_count: the number of partitions that the caller creates.
            configs: the settings of the topic itself. The broker's settings for new topics are added, unless the topic
                is internal.
            topic_id: a fresh id.
            own: whether the broker itself creates the topic, which is internal then.

        Raises:
            RefusedError: the name, the count or a setting is not valid, or the topic exists; nothing changed.
        """
        if not is_internal(name):
            configs = {**self._config.creation_configs(), **configs}
        self.reservations.check_new(name, partition_count, configs, own=own)
        self.reservations.reserve(name, partition_count)
        return Topic(name, topic_id, 0, dict(configs))

    def reserve_growth(self, name: str, partition_count: int) -> Topic:
        """Reserve the growth of a topic to `partition_count` partitions, and return the topic as it is now, without the
        new partitions.

        Raises:
            RefusedError: the topic does not exist, has that many partitions already, or is getting more partitions now;
                nothing changed.
        """
        topic = self.named(name)
        more = partition_count - topic.partition_count
        if more <= 0:
            raise RefusedError(
                ErrorCode.invalid_partitions,
                f"topic {name} has {topic.partition_count} partitions, and the request asks for "
                f"{partition_count}: the number of partitions can only grow",
            )
        self.reservations.check_count(more)
        self.reservations.reserve(name, more)
        return topic

    def reserve_deletion(self, name: str) -> Topic:
        """Reserve the name of a topic that is to be deleted, and return the topic.

        Raises:
            RefusedError: the topic does not exist, is an internal topic, or is getting more partitions now; nothing
                changed.
        """
        topic = self.named(name)
        check_clients_may_write(name)
        self.reservations.reserve(name, 0)
        return topic

    def end_reservation(self, topic: Topic) -> None:
        """End the reservation of a topic's name, whether or not the list has changed."""
        self.reservations.release(topic.name)

    # -- changing ----------------------------------------------------------------------------------------------

    def add(self, topic: Topic) -> None:
        """Add a topic to the list."""
        assert topic.name not in self._topics
        self.version += 1
        self._topics[topic.name] = topic
        self._names[topic.topic_id] = topic.name
        self.reservations.add_existing(topic.name)

    def remove(self, topic: Topic) -> None:
        """Remove a topic from the list."""
        self.version += 1
        del self._topics[topic.name]
        del self._names[topic.topic_id]
        self.reservations.remove_existing(topic.name)

    def grow(self, topic: Topic, more: int) -> None:
        """Increase the partition count of a topic. A negative `more` undoes an increase, because the list with it could
        not be written to disk.
        """
        self.version += 1
        topic.partition_count += more

    def check_configs(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Check new settings of a topic.

        Raises:
            UsageError: a setting is not valid, or fixed when a topic is created.
        """
        check_change(topic.configs, configs)
        self._config.check_tiered(configs, topic.configs)
