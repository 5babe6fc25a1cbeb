"""The handlers of ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69), from bytes to bytes in every version."""

import asyncio
import threading
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_heartbeat.v1.request import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from stablelog.broker import groups
from stablelog.broker.apis import consumer_group_heartbeat
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.security.access import Access, DenialLog
from stablelog.coordinators.consumer_groups.consumer_protocol import target_assignment
from stablelog.coordinators.consumer_groups.consumer_protocol.target_assignment import compute_target
from stablelog.coordinators.patterns import name_matcher
from stablelog.security.authorizer import Authorizer
from stablelog.wire.acls import AclBinding, Operation, Pattern, PatternType, Permission, ResourceType
from tests.broker.apis.test_group_apis import GroupsOnPaper, ask, client, run, versions
from tests.broker.desk import NO_RESERVE
from tests.broker.holding import HOLD_S_MAX, Hold, longest
from tests.broker.upkeep.test_maintenance import until, working

TOPIC_ID = uuid.UUID(int=7)


@dataclass
class Topic:
    name: str
    topic_id: uuid.UUID
    partition_count: int


class Topics:
    """The broker's topics: `t` with two partitions, and an internal one."""

    version = 0

    def __init__(self) -> None:
        self._by_name = {
            "t": Topic("t", TOPIC_ID, 2),
            "__consumer_offsets": Topic("__consumer_offsets", uuid.UUID(int=8), 1),
        }
        self._renew()

    def __iter__(self) -> Any:
        return iter(self._by_name.values())

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        return next((one.name for one in self if one.topic_id == topic_id), None)

    def add(self, *names: str) -> None:
        for name in names:
            self._by_name[name] = Topic(name, uuid.uuid4(), 1)
        self._renew()

    def _renew(self) -> None:
        self.reservations = SimpleNamespace(existing=frozenset(self._by_name))
        self.version += 1

    def delete(self, name: str) -> None:
        del self._by_name[name]
        self._renew()


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


class GroupsInThreads(GroupsOnPaper):
    """Groups whose large target assignments are computed in a thread, as the broker's are: one plan of a group at a time.
    Two would replace each other's plan again and again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.computing: list[asyncio.Task[None]] = []

    def assign_soon(self, group_id: str, topics: Any) -> None:
        if not all(task.done() for task in self.computing):
            return  # The tests have one group.

        async def assign() -> None:
            while (plan := self.coordinator.consumers.begin_plan(group_id, topics)) is not None:
                target = await asyncio.to_thread(compute_target, plan, topics)
                self.apply_decision(self.coordinator.consumers.apply_target(group_id, plan, target))

        self.computing.append(asyncio.ensure_future(assign()))


def own_rights(principal: str, *, allowed: str) -> Access:
    """The rights of a principal that may use all groups, and describe the topics with a prefix."""
    rules = [
        AclBinding(
            Pattern(kind, name, PatternType.PREFIXED), principal, "*", Operation.READ, Permission.ALLOW
        )
        for kind, name in ((ResourceType.GROUP, "g"), (ResourceType.TOPIC, allowed))
    ]
    return Access(Authorizer(rules), DenialLog(lambda: 0), principal, "127.0.0.1", "ConsumerGroupHeartbeat")


async def beat(broker: Broker, access: Access | None, member_id: str, epoch: int, **fields: Any) -> Any:
    """Send a heartbeat without bytes."""
    if epoch == 0:
        fields = {"subscribed_topic_names": (), "topic_partitions": ()} | fields
    request = a_heartbeat(member_id, epoch, **fields)
    answer = await consumer_group_heartbeat.handle(broker, request, client(1)._replace(access=access))
    assert answer.error_code is ErrorCode.none, answer.error_message
    return answer


def test_each_pattern_is_resolved_with_the_rights_of_its_own_member() -> None:
    """Also if another member's heartbeat is the first one after a topic was created."""

    async def conversation() -> None:
        broker = Broker()
        members = {
            "alice": own_rights("User:alice", allowed=""),
            "mallory": own_rights("User:mallory", allowed="t"),
        }
        epochs, owned = {}, {}
        for name, access in members.items():
            epochs[name] = (await beat(broker, access, name, 0, subscribed_topic_regex=".*")).member_epoch
        for order in (("alice", "mallory"), ("mallory", "alice")):
            broker.topics.add(f"secret-{order[0]}")
            for name in order * 4:
                answer = await beat(
                    broker, members[name], name, epochs[name], topic_partitions=owned.get(name, ())
                )
                epochs[name] = answer.member_epoch
                if answer.assignment is not None:
                    owned[name] = tuple(
                        TopicPartitions(topic_id=one.topic_id, partitions=one.partitions)
                        for one in answer.assignment.topic_partitions
                    )
            found = {name: {broker.topics.name_of(one.topic_id) for one in owned[name]} for name in members}
            assert found["mallory"] <= {"t"}
            assert found["alice"] >= {"__consumer_offsets", f"secret-{order[0]}"}

    run(conversation())


@pytest.mark.extended
def test_a_pattern_is_compared_in_turns_and_only_with_new_topics(
    holds: list[Hold], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(groups=GroupsInThreads())
    broker.topics.add(*(f"{number:0249}" for number in range(2_000)))

    async def conversation() -> None:
        compared = []

        def counting(pattern: str) -> Any:
            matches = name_matcher(pattern)
            return lambda name: compared.append(name) or matches(name)

        monkeypatch.setattr(consumer_group_heartbeat, "name_matcher", counting)
        pattern = "".join(f"[^{chr(0x4E00 + at)}]?" for at in range(50))
        others = asyncio.ensure_future(beat(broker, None, "other", 0, subscribed_topic_regex="t"))
        epoch = (await beat(broker, None, "own", 0, subscribed_topic_regex=pattern)).member_epoch
        await others
        assert len(compared) == 2 * len(list(broker.topics))
        compared.clear()
        epoch = (await beat(broker, None, "own", epoch)).member_epoch
        await beat(broker, None, "third", 0, subscribed_topic_regex=pattern)
        assert not compared, "members with equal patterns and rights share the result"
        broker.topics.add("u")
        broker.topics.delete("t")
        await beat(broker, None, "own", epoch)
        assert compared == ["u"]
        await asyncio.gather(*broker.groups.computing)
        assert longest(holds)[0] < HOLD_S_MAX, longest(holds)

    run(conversation())


@pytest.mark.extended
def test_a_large_target_assignment_is_computed_between_requests(holds: list[Hold]) -> None:
    """3 members with different patterns that select 3,000 topics: computed at once, it takes 50 ms each time."""
    broker = Broker(groups=GroupsInThreads())
    broker.topics.add(*(f"topic-{number:04d}" for number in range(3_000)))

    async def conversation() -> None:
        for name in ("a", "b", "c"):
            await beat(broker, None, name, 0, subscribed_topic_regex=f"topic-.*|{name}")
        await asyncio.gather(*broker.groups.computing)
        group = broker.groups.coordinator.table.groups["g"]
        assert sum(map(len, group.target.values())) == 3_000

    run(conversation())
    assert longest(holds)[0] < HOLD_S_MAX, longest(holds)


def test_the_broker_computes_a_large_target_assignment_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_assignment, "UNDIVIDED_MAX", -1)
    threads = []

    def computing(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return compute_target(*given)

    monkeypatch.setattr(groups, "compute_target", computing)

    async def conversation() -> None:
        async with working() as (desk, _):
            epoch = 0
            for _ in range(2):
                request = a_heartbeat("own", epoch)
                answer = await consumer_group_heartbeat.handle(desk.broker, request, client(1))
                epoch = answer.member_epoch
                await until(lambda: not desk.broker.groups.coordinator.consumers.is_planned("g"))
            assert answer.assignment.topic_partitions
            assert threads
            assert threading.main_thread() not in threads

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
