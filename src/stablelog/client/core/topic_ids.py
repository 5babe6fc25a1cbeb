"""The ids of the topics to which a producer has sent batches. A topic that is deleted and created again has a new id,
and lacks the earlier records of the producer.
"""

from uuid import UUID

from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.client.topics import TopicDescription


class TopicIds:
    """The topic id of each topic to which a producer has sent batches, by which it notices that a topic was deleted and
    created again.
    """

    def __init__(self) -> None:
        self._ids: dict[str, UUID | None] = {}

    def check_topic(self, topic: TopicDescription) -> None:
        """Check that a topic has the same id as at the first call, which stores the id. Otherwise it is a new topic of
        the same name, which lacks the earlier records of the producer.

        Raises:
            RefusedError: the topic was deleted and created again since.
        """
        if self._ids.setdefault(topic.name, topic.topic_id) != topic.topic_id:
            raise UnknownTopicOrPartitionError(
                f"topic {topic.name!r} was deleted and created again. The records that this producer wrote before are "
                "lost, and this producer writes no more records to the topic"
            )
