"""DescribeTopicPartitions: pages of topics with their partitions, in the order of the names."""

import asyncio

import pytest
from kio.schema.describe_topic_partitions.v0.request import Cursor, TopicRequest
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import describe_topic_partitions
from stablelog.errors import UnavailableError
from tests.broker.desk import opened

DESCRIBE = 75
PARTITION_COUNTS = {"a": 2, "b": 3, "c": 1}
OWN = ["__consumer_offsets", "__transaction_state"]
NONE = ErrorCode.none
ALL = 2000


def at_desk(conversation, **more):
    async def work():
        async with opened(topics=(), **more) as desk:
            for name, count in PARTITION_COUNTS.items():
                desk.broker.topic_files.create(name, count, {})
            await conversation(desk)

    asyncio.run(asyncio.wait_for(work(), 100))


async def described(desk, names, limit=ALL, cursor=None):
    """The topics by name as partition indexes or an error's name; and the next cursor."""
    answer = await desk.ask(
        DESCRIBE,
        0,
        topics=tuple(TopicRequest(name=name) for name in names),
        response_partition_limit=limit,
        cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    found = [
        (topic.name, [partition.partition_index for partition in topic.partitions])
        if topic.error_code is NONE
        else (topic.name, topic.error_code.name)
        for topic in answer.topics
    ]
    following = answer.next_cursor
    return found, following and (following.topic_name, following.partition_index)


A, B, C = ("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])
UNKNOWN, INVALID = "unknown_topic_or_partition", "invalid_request"


# What a node of Kafka 4.2.1 with the topics a, b and c returned.
@pytest.mark.parametrize(
    ("names", "limit", "cursor", "found", "following"),
    [
        ("ab", ALL, None, [A, B], None),
        ("ba", ALL, None, [A, B], None),
        ("aa", ALL, None, [A], None),
        (["nope"], ALL, None, [("nope", UNKNOWN)], None),
        (["a b"], ALL, None, [("a b", "invalid_topic_exception")], None),
        (["a", "nope", "b", "zz"], 3, None, [A, ("b", [0])], ("b", 1)),
        (["a", "nope", "b", "zz"], 5, None, [A, B], ("nope", 0)),
        ("abc", 3, None, [A, ("b", [0])], ("b", 1)),
        ("abc", 2, None, [A], ("b", 0)),
        ("abc", 5, None, [A, B], ("c", 0)),
        ("abc", 6, None, [A, B, C], None),
        ("abc", 1, ("a", 1), [("a", [1])], ("b", 0)),
        ("abc", ALL, ("b", 1), [("b", [1, 2]), C], None),
        ("abc", ALL, ("b", 3), [("b", []), C], None),
        ("abc", ALL, ("b", 99), [("b", []), C], None),
        ("abc", ALL, ("b", -1), [(name, INVALID) for name in "abc"], None),
        ("ac", ALL, ("b", 1), [("a", INVALID), ("c", INVALID)], None),
        ("ac", ALL, ("nope", 0), [("a", INVALID), ("c", INVALID)], None),
        (["a", "nope", "c"], ALL, ("nope", 0), [("nope", UNKNOWN)], None),
        ("a", 0, None, [("a", [0])], ("a", 1)),
        ("a", -1, None, [("a", [0])], ("a", 1)),
        ("a", 2**31 - 1, None, [A], None),
        ("a", -(2**31), None, [("a", [0])], ("a", 1)),
        ([], ALL, ("b", 1), [("b", [1, 2]), C], None),
        ([], 1, ("b", 1), [("b", [1])], ("b", 2)),
        ([], ALL, ("bb", 1), [C], None),
        ([], ALL, ("d", 0), [], None),
        ([], ALL, ("b", -1), [], None),
    ],
)
def test_a_page_is_that_of_apache_kafka(names, limit, cursor, found, following):
    async def conversation(desk):
        assert await described(desk, names, limit, cursor) == (found, following)

    at_desk(conversation)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 8, 100])
def test_pages_together_are_all_topics(limit):
    async def conversation(desk):
        pages, cursor = [], None
        while True:
            found, cursor = await described(desk, [], limit, cursor)
            assert 0 < sum(len(indexes) for _, indexes in found) <= limit
            pages += [(name, index) for name, indexes in found for index in indexes]
            if cursor is None:
                break
        all_topics = {**PARTITION_COUNTS, **dict.fromkeys(OWN, 1)}
        assert pages == [(name, index) for name in sorted(all_topics) for index in range(all_topics[name])]

    at_desk(conversation)


def test_the_broker_limits_a_page_itself(monkeypatch):
    monkeypatch.setattr(describe_topic_partitions, "PAGE_SIZE_MAX", 4)

    async def conversation(desk):
        assert await described(desk, "abc", ALL) == ([A, ("b", [0, 1])], ("b", 2))

    at_desk(conversation)


def test_each_field_is_told():
    async def conversation(desk):
        desk.broker.fail_partition(desk.broker.partitions.require("b", 1), UnavailableError("the disk fails"))
        answer = await desk.ask(
            DESCRIBE,
            0,
            topics=(TopicRequest(name="b"), TopicRequest(name=OWN[0]), TopicRequest(name="nope")),
            response_partition_limit=ALL,
            cursor=None,
        )
        own, topic, unknown = answer.topics
        assert (own.name, own.is_internal, topic.is_internal, unknown.is_internal) == (
            OWN[0],
            True,
            False,
            False,
        )
        assert topic.topic_id == desk.broker.topics.get("b").topic_id
        assert unknown.topic_id is None
        assert {one.topic_authorized_operations for one in answer.topics} == {3576}
        for partition in topic.partitions:
            is_offline = partition.partition_index == 1
            assert partition.leader_epoch == desk.broker.topics.leader_epoch
            assert (partition.replica_nodes, partition.isr_nodes) == ((1,), (1,))
            assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((), ())
            assert partition.leader_id == (-1 if is_offline else 1)
            assert partition.offline_replicas == ((1,) if is_offline else ())
            assert (partition.error_code is NONE) != is_offline

    at_desk(conversation)


@pytest.mark.extended
def test_many_unknown_names_are_answered_and_others_go_on_meanwhile():
    async def conversation(desk):
        names = [f"{number:05}" for number in range(40_000)]
        asked = asyncio.ensure_future(described(desk, names))
        turns = 0
        while not asked.done():
            await asyncio.sleep(0)
            turns += 1
        found, following = await asked
        assert (len(found), following) == (40_000, None)
        assert turns > 10

    at_desk(conversation)
