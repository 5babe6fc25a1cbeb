"""The partitions and topics that a program has paused in a reader."""

from collections.abc import Iterable

from stablelog.errors import UsageError
from stablelog.types import TopicPartition


class PausedPartitions:
    """The paused partitions and topics of one reader. A paused topic is paused with all its partitions, also with those
    that are added later.
    """

    def __init__(self) -> None:
        self._topics: set[str] = set()
        self._partitions: set[TopicPartition] = set()

    def pause(self, topic: str, partition: int | None) -> None:
        """Pause a partition, or all partitions of a topic if `partition` is None."""
        if partition is None:
            self._topics.add(topic)
        else:
            self._partitions.add((topic, partition))

    def resume(self, topic: str, partition: int | None) -> None:
        """Resume a partition, so that it is read again. With `partition` None, resume the topic and all its partitions,
        even those that were paused one by one.

        Raises:
            UsageError: the whole topic is paused, so that one partition of it cannot be resumed.
        """
        if partition is None:
            self._topics.discard(topic)
            self._partitions = {one for one in self._partitions if one[0] != topic}
        elif topic in self._topics:
            raise UsageError(
                f"{topic}-{partition} cannot be resumed alone, because all partitions of {topic} were paused: resume {topic!r}, "
                "and pause its other partitions"
            )
        else:
            self._partitions.discard((topic, partition))

    def select_paused(self, targets: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Return those partitions of `targets` that are paused, by themselves or with their whole topic."""
        return frozenset(one for one in targets if one in self._partitions or one[0] in self._topics)
