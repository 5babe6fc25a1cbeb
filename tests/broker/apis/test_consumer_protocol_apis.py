"""The handlers of ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69), from bytes to bytes in every version."""

import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_heartbeat.v1.request import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from stablelog.broker.durability.disk_reserve import DiskReserve
from tests.broker.apis.test_group_apis import GroupsOnPaper, ask, run, versions
from tests.broker.desk import NO_RESERVE

TOPIC_ID = uuid.UUID(int=7)


@dataclass
class Topic:
    name: str
    topic_id: uuid.UUID
    partition_count: int


class Topics:
    """The broker's topics: `t` with two partitions, and an internal one."""

    version = 1

    def __init__(self) -> None:
        self._by_name = {
            "t": Topic("t", TOPIC_ID, 2),
            "__consumer_offsets": Topic("__consumer_offsets", uuid.UUID(int=8), 1),
        }

    def __iter__(self) -> Any:
        return iter(self._by_name.values())

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        return next((one.name for one in self if one.topic_id == topic_id), None)

    def delete(self, name: str) -> None:
        del self._by_name[name]
        self.version += 1


@dataclass
class Broker:
    groups: GroupsOnPaper = field(default_factory=GroupsOnPaper)
    topics: Topics = field(default_factory=Topics)
    reserve: DiskReserve = NO_RESERVE

    def now_ms(self) -> int:
        return 0


def a_heartbeat(member_id: str = "", epoch: int = 0, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    joining = {"subscribed_topic_names": ("t",), "topic_partitions": ()} if epoch == 0 else {}
    return ConsumerGroupHeartbeatRequest(
        **{
            "group_id": "g",
            "member_id": member_id,
            "member_epoch": epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": i32Timedelta.parse(timedelta(seconds=10)),
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": None,
            **joining,
            **fields,
        }
    )


def describing(*groups: str, operations: bool = False) -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(group_ids=groups, include_authorized_operations=operations)


async def joined(broker: Broker, version: int, **fields: Any) -> Any:
    """Join with the member id that a client of this version sends. Returns the response."""
    answer = await ask(broker, 68, version, a_heartbeat("" if version == 0 else "own", **fields))
    assert answer.error_code is ErrorCode.none, answer.error_message
    return answer


@pytest.mark.parametrize("version", versions(68))
def test_a_member_joins_and_its_id_is_the_brokers_or_its_own(version: int) -> None:
    async def conversation() -> None:
        answer = await joined(Broker(), version)
        assert (answer.member_id == "own") == (version >= 1)
        assert answer.member_id
        assert answer.member_epoch == 1
        assert answer.heartbeat_interval == timedelta(seconds=5)
        (given,) = answer.assignment.topic_partitions
        assert (given.topic_id, given.partitions) == (TOPIC_ID, (0, 1))

    run(conversation())


@pytest.mark.parametrize("version", versions(68))
def test_a_member_without_news_gets_no_assignment_and_leaves(version: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        member_id = (await joined(broker, version)).member_id
        owned = (TopicPartitions(topic_id=TOPIC_ID, partitions=(0, 1)),)
        quiet = await ask(broker, 68, version, a_heartbeat(member_id, 1, topic_partitions=owned))
        assert (quiet.error_code, quiet.member_epoch, quiet.assignment) == (ErrorCode.none, 1, None)
        left = await ask(broker, 68, version, a_heartbeat(member_id, -1))
        assert (left.error_code, left.member_epoch) == (ErrorCode.none, -1)
        stranger = await ask(broker, 68, version, a_heartbeat(member_id, 1))
        assert stranger.error_code is ErrorCode.unknown_member_id
        assert stranger.error_message

    run(conversation())


@pytest.mark.parametrize("version", versions(68))
def test_an_epoch_of_the_future_is_fenced(version: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        member_id = (await joined(broker, version)).member_id
        answer = await ask(broker, 68, version, a_heartbeat(member_id, 9))
        assert answer.error_code is ErrorCode.fenced_member_epoch

    run(conversation())


@pytest.mark.parametrize("version", versions(68))
def test_an_assignor_that_the_broker_lacks_is_refused(version: int) -> None:
    async def conversation() -> None:
        request = a_heartbeat("" if version == 0 else "own", server_assignor="mine")
        answer = await ask(Broker(), 68, version, request)
        assert answer.error_code is ErrorCode.unsupported_assignor
        assert "uniform" in answer.error_message

    run(conversation())


@pytest.mark.parametrize(("pattern", "count"), [("t|__consumer.*", 2), ("t", 1), ("t|u", 1)])
def test_an_expression_selects_internal_topics_too(pattern: str, count: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        answer = await joined(broker, 1, subscribed_topic_names=(), subscribed_topic_regex=pattern)
        assert len(answer.assignment.topic_partitions) == count
        ((member,),) = [group.members for group in (await ask(broker, 69, 1, describing("g"))).groups]
        assert member.subscribed_topic_regex == pattern

    run(conversation())


@pytest.mark.parametrize("version", versions(69))
def test_a_group_is_described_and_a_missing_one_has_an_error(version: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        await joined(broker, 1, server_assignor="range")
        one, none = (await ask(broker, 69, version, describing("g", "h", operations=True))).groups
        assert (one.error_code, one.group_id, one.group_state) == (ErrorCode.none, "g", "Stable")
        assert (one.group_epoch, one.assignment_epoch, one.assignor_name) == (1, 1, "range")
        assert one.authorized_operations == 0b110101001000
        (member,) = one.members
        assert (member.member_id, member.member_epoch, member.client_id) == ("own", 1, "client")
        assert (member.client_host, member.subscribed_topic_names) == ("/127.0.0.1", ("t",))
        for assignment in (member.assignment, member.target_assignment):
            (given,) = assignment.topic_partitions
            assert (given.topic_id, given.topic_name, given.partitions) == (TOPIC_ID, "t", (0, 1))
        if version >= 1:
            assert member.member_type == 1
        assert none.error_code is ErrorCode.group_id_not_found
        assert none.error_message == "There is no consumer group h."

    run(conversation())


@pytest.mark.parametrize("version", versions(69))
def test_an_assignment_is_described_without_deleted_topics(version: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        await joined(broker, 1)
        broker.topics.delete("t")
        (group,) = (await ask(broker, 69, version, describing("g"))).groups
        (member,) = group.members
        assert member.assignment.topic_partitions == ()
        assert group.authorized_operations == -(1 << 31)

    run(conversation())
