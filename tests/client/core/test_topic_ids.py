"""A producer writes to the topics to which it has sent batches, and not to later topics of their names."""

import uuid

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.topic_ids import TopicIds
from stablelog.client.topics import TopicDescription
from stablelog.errors import RefusedError


def topic(name, topic_id):
    return TopicDescription(name, topic_id and uuid.UUID(int=topic_id), {}, is_internal=False)


def test_the_same_topic_is_accepted_again_and_so_are_others():
    ids = TopicIds()
    for one in (topic("t", 1), topic("u", 2), topic("t", 1)):
        ids.check_topic(one)


@pytest.mark.parametrize("later", [2, None])
def test_another_topic_of_the_same_name_is_refused(later):
    ids = TopicIds()
    ids.check_topic(topic("t", 1))
    with pytest.raises(
        RefusedError, match=r"topic 't' was deleted and created again. The records .* are lost"
    ) as refused:
        ids.check_topic(topic("t", later))
    assert refused.value.code is ErrorCode.unknown_topic_or_partition
    ids.check_topic(topic("t", 1))
