"""The handlers of the consumer group APIs, from bytes to bytes in every version that is spoken."""

import asyncio
import dataclasses
import importlib
import io
import struct
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v9.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.leave_group.v5.request import LeaveGroupRequest, MemberIdentity
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.offset_commit.v9.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_delete.v0.request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kio.schema.offset_fetch.v9.request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kio.schema.sync_group.v5.request import SyncGroupRequest, SyncGroupRequestAssignment
from kio.serial import entity_reader, entity_writer

from stablelog.broker.apis import Context
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.network.session import Session
from stablelog.broker.topics.partition_state import PartitionState
from stablelog.coordinators.consumer_groups.answers import GroupConfig, GroupDecision, OffsetCommit
from stablelog.coordinators.consumer_groups.consumer_protocol.target_assignment import compute_target
from stablelog.coordinators.consumer_groups.coordinator import GroupCoordinator
from stablelog.coordinators.consumer_groups.records import read_offset_value
from stablelog.wire.messages import decode_request, encode_response, message_class
from stablelog.wire.versions import adapt
from tests.broker.desk import NO_RESERVE
from tests.declared_apis import APIS

MODULES = {
    8: "offset_commit",
    9: "offset_fetch",
    11: "join_group",
    12: "heartbeat",
    13: "leave_group",
    14: "sync_group",
    15: "describe_groups",
    16: "list_groups",
    42: "delete_groups",
    47: "offset_delete",
    68: "consumer_group_heartbeat",
    69: "consumer_group_describe",
}


class GroupsOnPaper:
    """The broker's groups, but durable at once."""

    def __init__(self) -> None:
        self.coordinator = GroupCoordinator(GroupConfig(initial_rebalance_delay_ms=0))
        self.records: list[tuple[bytes, bytes | None]] = []

    def apply_decision(self, decision: GroupDecision[Any]) -> None:
        self.records += decision.records
        for token, answer in decision.answers:
            token.set_result(answer)  # type: ignore[attr-defined]

    async def carry_out_decision(self, decision: GroupDecision[Any]) -> Any:
        self.apply_decision(decision)
        return decision.answer

    async def wait_until_durable(self) -> None:
        pass

    def assign_soon(self, group_id: str, topics: Any) -> None:
        while (plan := self.coordinator.consumers.begin_plan(group_id, topics)) is not None:
            self.apply_decision(
                self.coordinator.consumers.apply_target(group_id, plan, compute_target(plan, topics))
            )

    def new_token(self) -> Any:
        return asyncio.get_running_loop().create_future()

    async def wait_for_response(self, token: Any) -> Any:
        return await token


class OneTopic:
    """The broker's partitions: topic `t` with two partitions, of which one is opening."""

    def state(self, name: str, index: int) -> PartitionState:
        known = {("t", 0): PartitionState.OPEN, ("t", 1): PartitionState.OPENING}
        return known.get((name, index), PartitionState.UNKNOWN)


@dataclass
class Broker:
    groups: GroupsOnPaper = field(default_factory=GroupsOnPaper)
    partitions: OneTopic = field(default_factory=OneTopic)
    reserve: DiskReserve = NO_RESERVE

    def now_ms(self) -> int:
        return 0


def client(version: int) -> Context:
    return Context(version, 1, "client", asyncio.Lock(), Session(host="/127.0.0.1"))


def in_version(api_key: int, version: int, request: Any) -> Any:
    older = message_class(api_key, version, "request")
    if api_key == 9 and version < 8:
        (group,) = request.groups
        topic_class = importlib.import_module(older.__module__).OffsetFetchRequestTopic
        topics = None if group.topics is None else tuple(adapt(topic, topic_class) for topic in group.topics)
        if topics is None and version < 2:
            topics = ()
        stable = {"require_stable": request.require_stable} if version == 7 else {}
        return older(group_id=group.group_id, topics=topics, **stable)
    if api_key == 13 and version < 3:
        return older(group_id=request.group_id, member_id=request.members[0].member_id)
    return adapt(request, older)


async def ask(broker: Any, api_key: int, version: int, request: Any, **older_fields: Any) -> Any:
    """Send a request in a version, through bytes, and read the answer from bytes.

    `older_fields` are set where the version has them.
    """
    body = io.BytesIO()
    request = in_version(api_key, version, request)
    known = {name: value for name, value in older_fields.items() if hasattr(request, name)}
    request = dataclasses.replace(request, **known)
    entity_writer(type(request))(body, request)
    flexible = b"\x00" if type(request).__flexible__ else b""
    frame = struct.pack(">hhih", api_key, version, 1, -1) + flexible + body.getvalue()
    _, decoded = decode_request(APIS[api_key], version, memoryview(frame))
    handler = importlib.import_module(f"stablelog.broker.apis.{MODULES[api_key]}")
    response = await handler.handle(broker, decoded, client(version))
    header, content = encode_response(APIS[api_key], version, 1, response)
    assert header.startswith(struct.pack(">i", 1))
    answer, size = entity_reader(message_class(api_key, version, "response"))(content, 0)
    assert size == len(content)
    return answer


def versions(api_key: int) -> list[int]:
    return list(APIS[api_key].served_versions)


def a_join(member_id: str = "", **fields: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        **{
            "group_id": "g",
            "session_timeout": timedelta(seconds=10),
            "rebalance_timeout": timedelta(seconds=60),
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": (JoinGroupRequestProtocol(name="range", metadata=b"\x00\x00\x00\x00\x00\x00"),),
            **fields,
        }
    )


async def with_a_member(broker: Broker) -> str:
    joined = await ask(broker, 11, 3, a_join())
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=(SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"work"),),
    )
    assert (await ask(broker, 14, 5, sync)).assignment == b"work"
    member_id: str = joined.member_id
    return member_id


def a_commit(*offsets: tuple[str, int, int], **fields: Any) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        **{
            "group_id": "g",
            "member_id": "",
            "topics": tuple(
                OffsetCommitRequestTopic(
                    name=name,
                    partitions=(
                        OffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset, committed_metadata=None
                        ),
                    ),
                )
                for name, index, offset in offsets
            ),
            **fields,
        }
    )


def run(conversation: Coroutine[Any, Any, None]) -> None:
    asyncio.run(conversation)


@pytest.mark.parametrize("version", versions(11))
def test_a_member_joins_and_learns_its_generation(version: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        joined = await ask(broker, 11, version, a_join())
        if version >= 4:
            assert joined.error_code is ErrorCode.member_id_required
            joined = await ask(broker, 11, version, a_join(joined.member_id))
        assert joined.error_code is ErrorCode.none
        assert joined.generation_id == 1
        assert joined.leader == joined.member_id
        assert joined.member_id.startswith("client-")
        assert joined.protocol_name == "range"
        assert [member.metadata for member in joined.members] == [b"\x00\x00\x00\x00\x00\x00"]

    run(conversation())


@pytest.mark.parametrize("version", versions(11))
def test_a_refused_join_can_be_said_in_every_version(version: int) -> None:
    async def conversation() -> None:
        joined = await ask(Broker(), 11, version, a_join("stranger"))
        assert joined.error_code is ErrorCode.unknown_member_id
        assert joined.protocol_name == (None if version >= 7 else "")
        assert joined.generation_id == -1

    run(conversation())


@pytest.mark.parametrize("version", versions(14))
def test_a_member_gets_its_assignment(version: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        member_id = await with_a_member(broker)
        sync = SyncGroupRequest(group_id="g", generation_id=1, member_id=member_id, assignments=())
        assert (await ask(broker, 14, version, sync)).assignment == b"work"
        sync = SyncGroupRequest(group_id="g", generation_id=9, member_id=member_id, assignments=())
        assert (await ask(broker, 14, version, sync)).error_code is ErrorCode.illegal_generation

    run(conversation())


@pytest.mark.parametrize("version", versions(12))
def test_a_heartbeat_is_answered(version: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        member_id = await with_a_member(broker)
        for generation, code in ((1, ErrorCode.none), (2, ErrorCode.illegal_generation)):
            heartbeat = HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
            assert (await ask(broker, 12, version, heartbeat)).error_code is code

    run(conversation())


@pytest.mark.parametrize("version", versions(13))
def test_a_member_leaves_and_a_stranger_cannot(version: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        member_id = await with_a_member(broker)
        for code in (ErrorCode.none, ErrorCode.unknown_member_id):
            leave = LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id=member_id),))
            left = await ask(broker, 13, version, leave)
            assert (left.members[0] if version >= 3 else left).error_code is code

    run(conversation())


@pytest.mark.parametrize("version", versions(15))
def test_groups_are_described_and_a_missing_one_is_dead(version: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        member_id = await with_a_member(broker)
        request = DescribeGroupsRequest(groups=("g", "h"), include_authorized_operations=True)
        one, none = (await ask(broker, 15, version, request)).groups
        assert (one.group_state, one.protocol_type, one.protocol_data) == ("Stable", "consumer", "range")
        assert [(m.member_id, m.client_id, m.member_assignment) for m in one.members] == [
            (member_id, "client", b"work")
        ]
        assert none.group_state == "Dead"
        assert none.error_code is (ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none)
        if version >= 3:
            assert one.authorized_operations == 0b110101001000

    run(conversation())


@pytest.mark.parametrize("version", versions(16))
def test_groups_are_listed(version: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        await with_a_member(broker)
        await ask(broker, 8, 9, a_commit(("t", 0, 5), group_id="simple"))
        listed = await ask(
            broker, 16, version, ListGroupsRequest(states_filter=("stable",) if version >= 4 else ())
        )
        assert [group.group_id for group in listed.groups] == (["g"] if version >= 4 else ["g", "simple"])
        if version >= 5:
            listed = await ask(broker, 16, version, ListGroupsRequest(types_filter=("consumer",)))
            assert listed.groups == ()

    run(conversation())


@pytest.mark.parametrize("version", versions(42))
def test_groups_are_deleted_each_for_itself(version: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        await with_a_member(broker)
        await ask(broker, 8, 9, a_commit(("t", 0, 5), group_id="simple"))
        deleted = await ask(broker, 42, version, DeleteGroupsRequest(groups_names=("g", "simple", "nobody")))
        assert [(result.group_id, result.error_code) for result in deleted.results] == [
            ("g", ErrorCode.non_empty_group),
            ("simple", ErrorCode.none),
            ("nobody", ErrorCode.group_id_not_found),
        ]

    run(conversation())


@pytest.mark.parametrize("version", versions(8))
def test_offsets_are_committed_where_there_is_a_partition(version: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        committed = await ask(broker, 8, version, a_commit(("t", 0, 5), ("t", 2, 5), ("u", 0, 5)))
        assert [topic.partitions[0].error_code for topic in committed.topics] == [
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.unknown_topic_or_partition,
        ]
        request = a_commit(("t", 0, 5), group_id="nobody", member_id="m", generation_id_or_member_epoch=1)
        (topic,) = (await ask(broker, 8, version, request)).topics
        missing = ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation
        assert topic.partitions[0].error_code is missing

    run(conversation())


@pytest.mark.parametrize("version", versions(8))
def test_the_retention_that_old_versions_ask_for_is_kept_with_the_offset(version: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        await ask(broker, 8, version, a_commit(("t", 0, 5)), retention_time=timedelta(milliseconds=1234))
        await ask(broker, 8, version, a_commit(("t", 1, 5)))
        expiries = [read_offset_value(value).expire_ms for _, value in broker.groups.records if value]
        assert expiries == ([1234, -1] if version <= 4 else [-1, -1])

    run(conversation())


@pytest.mark.parametrize("version", versions(9))
def test_offsets_are_fetched_some_or_all(version: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        await ask(broker, 8, 9, a_commit(("t", 0, 5), ("t", 1, 6)))
        asked = (OffsetFetchRequestTopics(name="t", partition_indexes=(1, 7)),)
        for topics, expected in ((asked, [(1, 6), (7, -1)]), (None, [(0, 5), (1, 6)])):
            request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=topics),))
            answer = await ask(broker, 9, version, request)
            (topic,) = answer.topics if version < 8 else answer.groups[0].topics
            assert [(p.partition_index, p.committed_offset) for p in topic.partitions] == expected
            assert all(p.error_code is ErrorCode.none for p in topic.partitions)

    run(conversation())


@pytest.mark.parametrize("version", [7, 8, 9])
def test_offsets_of_an_open_transaction_are_unstable(version: int) -> None:
    async def conversation() -> None:
        broker = Broker()
        coordinator = broker.groups.coordinator
        decision = coordinator.txn_commit_offsets("g", {("t", 0): OffsetCommit(5)}, now_ms=0)
        coordinator.txn_offsets_appended(7, decision.records, now_ms=0)
        asked = (OffsetFetchRequestTopics(name="t", partition_indexes=(0,)),)
        group = OffsetFetchRequestGroup(group_id="g", topics=asked)
        for stable, code in ((True, ErrorCode.unstable_offset_commit), (False, ErrorCode.none)):
            answer = await ask(broker, 9, version, OffsetFetchRequest(groups=(group,), require_stable=stable))
            (topic,) = answer.topics if version < 8 else answer.groups[0].topics
            assert topic.partitions[0].error_code is code
            assert topic.partitions[0].committed_offset == -1

    run(conversation())


def test_offsets_are_deleted_unless_their_topic_is_read() -> None:
    def a_deletion(group_id: str) -> OffsetDeleteRequest:
        partitions = tuple(OffsetDeleteRequestPartition(partition_index=index) for index in (0, 9))
        return OffsetDeleteRequest(
            group_id=group_id, topics=(OffsetDeleteRequestTopic(name="t", partitions=partitions),)
        )

    async def conversation() -> None:
        broker = Broker()
        await ask(broker, 8, 9, a_commit(("t", 0, 5)))
        (topic,) = (await ask(broker, 47, 0, a_deletion("g"))).topics
        codes = [partition.error_code for partition in topic.partitions]
        assert codes == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
        assert broker.groups.records[-1][1] is None
        missing = await ask(broker, 47, 0, a_deletion("nobody"))
        assert (missing.error_code, missing.topics) == (ErrorCode.group_id_not_found, ())

    run(conversation())
