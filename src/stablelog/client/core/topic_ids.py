"""The topics to which a producer has sent batches, by their ids. A topic that is deleted and created again has the same
name and another id, and none of the producer's earlier records.
"""

from uuid import UUID

from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.client.topics import Topic


class TopicIds:
    """The ids of topics."""

    def __init__(self) -> None:
        self._ids: dict[str, UUID | None] = {}

    def check(self, topic: Topic) -> None:
        """Remember a topic.

        Raises:
            RefusedError: a topic of the same name is remembered, and this is another one.
        """
        if self._ids.setdefault(topic.name, topic.topic_id) != topic.topic_id:
            raise UnknownTopicOrPartitionError(
                f"topic {topic.name!r} was deleted and created again. The records that were written before are lost, "
                "and no more are written"
            )
