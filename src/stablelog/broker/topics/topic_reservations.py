"""Reservations of topic names, and of numbers of new partitions, while topics are created, grown or deleted.

The creation and the deletion of many partitions take long, and other requests are served meanwhile. A *reservation*
prevents other requests from creating, growing or deleting a topic of the same name.
"""

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from stablelog.broker.settings.config import BrokerConfig, check_topic_configs
from stablelog.broker.topic_names import check_not_reserved, check_topic_name, without_dots
from stablelog.broker.topics.topic import Topic
from stablelog.errors import RefusedError, UsageError


class Reservations:
    """The topics that are being created, grown or deleted. No other request may change them.

    Args:
        topics: the existing topics by name.
        config: has the setting for the maximum number of partitions.
    """

    def __init__(self, topics: Mapping[str, Topic], config: BrokerConfig) -> None:
        self._topics = topics
        self._config = config
        # The names of topics, by their names in metrics (with `_` in place of `.`).
        self._names: dict[str, str] = {}
        # The number of partitions that are being created, by topic. The key is the topic's name as metrics show it.
        self._counts: dict[str, int] = {}
        self._existing: frozenset[str] | None = None

    @property
    def existing(self) -> frozenset[str]:
        """The names of the existing topics. The same object is returned until a topic is created or deleted."""
        if self._existing is None:
            self._existing = frozenset(self._topics)
        return self._existing

    def add_existing(self, name: str) -> None:
        """Add the name of a topic that was added to the list of topics."""
        self._existing = None
        self._names[without_dots(name)] = name

    def remove_existing(self, name: str) -> None:
        """Remove the name of a topic that was removed from the list of topics."""
        self._existing = None
        self._names.pop(without_dots(name), None)

    def reserve(self, name: str, partition_count: int) -> None:
        """Reserve a name, with a number of new partitions, until `release`.

        Raises:
            RefusedError: the name is reserved; nothing changed.
        """
        if without_dots(name) in self._counts:
            raise RefusedError(
                ErrorCode.reassignment_in_progress,
                f"topic {name} is being created, grown or deleted, so nothing was changed; try again later",
            )
        self._counts[without_dots(name)] = partition_count

    def release(self, name: str) -> None:
        """Release a topic's name and the number of its new partitions: other requests may change a topic of this name
        again.
        """
        del self._counts[without_dots(name)]

    def check_new(
        self, name: str, partition_count: int, configs: Mapping[str, str], *, own: bool = False
    ) -> None:
        """Check that a topic can be created.

        Args:
            name: the topic's name.
            partition_count: the number of its partitions.
            configs: its settings.
            own: whether the broker itself creates the topic, which is internal then.

        Raises:
            RefusedError: the name, the count or a setting is not valid, or the topic exists.
        """
        check_topic_name(name)
        other = self._names.get(without_dots(name))
        if name in self._topics or (other is None and without_dots(name) in self._counts):
            raise RefusedError(ErrorCode.topic_already_exists, f"topic {name!r} exists already")
        if not own:
            check_not_reserved(name)
        # Two internal topics may have equal names in metrics, because the transaction groups a.b and a_b are different.
        if other is not None and not own:
            raise RefusedError(
                ErrorCode.invalid_topic_exception,
                f"{name!r} and {other!r} differ only in . and _, and would have the same name in metrics: choose another name",
            )
        if partition_count < 1:
            raise RefusedError(
                ErrorCode.invalid_partitions,
                f"a topic cannot have {partition_count} partitions: ask for at least 1, or for -1 to get "
                "the broker's default",
            )
        self.check_count(partition_count)
        try:
            check_topic_configs(configs)
            self._config.check_tiered(configs)
        except UsageError as error:
            raise RefusedError(ErrorCode.invalid_config, str(error)) from error

    def check_count(self, more: int) -> None:
        """Check that the broker may have this number of further partitions.

        Raises:
            RefusedError: the broker would have more than stablelog.max.partitions.
        """
        most: int = self._config["stablelog.max.partitions"]
        count = sum(topic.partition_count for topic in self._topics.values()) + sum(self._counts.values())
        if count + more > most:
            raise RefusedError(
                ErrorCode.invalid_partitions,
                f"the request would add {more} partitions to the present {count}, and "
                f"stablelog.max.partitions={most} allows fewer: raise this setting, or delete topics",
            )
