"""A request with many entries is divided: other tasks run between two of its entries.

Each turn of the loop is over at once, so a divided request takes at least as many turns as it has entries.
"""

import asyncio
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import leave_group, offset_delete, produce, write_txn_markers
from stablelog.broker.loop import turns
from stablelog.coordinators.consumer_groups import coordinator as group_coordinator
from stablelog.coordinators.consumer_groups.answers import JoinAnswer, JoinedMember
from stablelog.coordinators.consumer_groups.joining import PROTOCOL_COUNT_MAX
from stablelog.wire.produce import encode_produce_response
from tests.broker.desk import batch, opened

COUNT = 60
NONE = ErrorCode.none


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", -1)
    monkeypatch.setattr(write_txn_markers, "AT_ONCE_MAX", 2)
    monkeypatch.setattr(offset_delete, "DELETED_AT_ONCE", 1)
    monkeypatch.setattr(leave_group, "LEAVING_AT_ONCE", 1)
    monkeypatch.setattr(group_coordinator, "TICK_RECORDS_MAX", 1)


async def turns_of(work):
    """The result of the work, and the number of turns of the loop that it took."""
    task, count = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.sleep(0)
        count += 1
    return await task, count


def partitions_of(name, index_name, indexes, **more):
    return {name: "t", "partitions": [{index_name: index, **more} for index in indexes]}


def markers(count):
    topic = {"name": "t", "partition_indexes": tuple(range(count))}
    marker = {"producer_id": 7, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
    return 27, 1, {"markers": [marker | {"topics": [topic]}]}


def markers_of_producers(count):
    topic = {"name": "t", "partition_indexes": (0,)}
    marker = {"producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0, "topics": [topic]}
    return 27, 1, {"markers": [marker | {"producer_id": number} for number in range(count)]}


def leader_epochs(count):
    topic = partitions_of("topic", "partition", range(count), current_leader_epoch=-1, leader_epoch=0)
    return 23, 4, {"replica_id": -2, "topics": [topic]}


def leader_epochs_of_topics(count):
    part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    topics = [{"topic": f"no-{number}", "partitions": [part]} for number in range(count)]
    return 23, 4, {"replica_id": -2, "topics": topics}


def offset_deletes(count):
    topic = partitions_of("name", "partition_index", range(count))
    return 47, 0, {"group_id": "g", "topics": [topic]}


def log_dirs(count):
    return 35, 4, {"topics": [{"topic": "t", "partitions": tuple(range(count))}]}


def coordinators(count):
    return 10, 4, {"key_type": 0, "coordinator_keys": tuple(f"g{number}" for number in range(count))}


def group_descriptions(count):
    groups = tuple(f"g{number}" for number in range(count))
    return 15, 5, {"groups": groups, "include_authorized_operations": False}


def group_deletions(count):
    return 42, 2, {"groups_names": tuple(f"g{number}" for number in range(count))}


def topic_deletions(count):
    topics = [{"name": f"no-{number}", "topic_id": None} for number in range(count)]
    return 20, 6, {"topics": topics, "timeout": timedelta(seconds=1)}


def config_changes(count):
    config = {"name": "retention.ms", "config_operation": 0, "value": "1000000"}
    resources = [
        {"resource_type": 2, "resource_name": f"no-{number}", "configs": [config]} for number in range(count)
    ]
    return 44, 1, {"resources": resources, "validate_only": False}


def leaving(count):
    members = [
        {"member_id": f"m{number}", "group_instance_id": None, "reason": None} for number in range(count)
    ]
    return 13, 5, {"group_id": "g", "members": members}


async def commit_offsets(desk, group, count):
    topic = partitions_of(
        "name",
        "partition_index",
        range(count),
        committed_offset=1,
        committed_leader_epoch=-1,
        committed_metadata="m",
    )
    values = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [topic],
    }
    answer = await desk.ask_with(8, 8, values)
    assert {part.error_code for part in answer.topics[0].partitions} == {NONE}


@pytest.mark.parametrize(
    "request_of",
    [
        markers,
        markers_of_producers,
        leader_epochs,
        leader_epochs_of_topics,
        offset_deletes,
        log_dirs,
        coordinators,
        group_descriptions,
        group_deletions,
        topic_deletions,
        config_changes,
        leaving,
    ],
)
def test_others_run_between_two_entries(request_of):
    async def conversation():
        async with opened(partitions=COUNT) as desk:
            await commit_offsets(desk, "g", COUNT)
            await desk.ask_with(*request_of(1))  # imports the API's modules
            await desk.durable()
            _, turn_count = await turns_of(desk.ask_with(*request_of(COUNT)))
            assert turn_count >= COUNT

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_a_group_with_many_offsets_is_deleted_in_turns():
    async def conversation():
        async with opened(partitions=COUNT) as desk:
            await commit_offsets(desk, "big", COUNT)
            await desk.ask_with(42, 2, {"groups_names": ("warm",)})
            answer, turn_count = await turns_of(desk.ask_with(42, 2, {"groups_names": ("big", "big", "no")}))
            assert [(one.group_id, one.error_code) for one in answer.results] == [
                ("big", NONE),
                ("no", ErrorCode.group_id_not_found),
            ]
            assert turn_count >= COUNT
            table = desk.broker.groups.coordinator.table
            assert "big" not in table.groups
            assert not table.offsets.committed("big")

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_many_groups_are_listed_in_turns():
    async def conversation():
        async with opened() as desk:
            for number in range(COUNT):
                await commit_offsets(desk, f"g{number:02}", 1)
            listed = {"states_filter": (), "types_filter": ()}
            answer, turn_count = await turns_of(desk.ask_with(16, 5, listed))
            assert [group.group_id for group in answer.groups] == [f"g{number:02}" for number in range(COUNT)]
            assert turn_count >= COUNT

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_the_leader_of_many_members_is_answered_in_turns(monkeypatch):
    async def conversation():
        async with opened() as desk:
            members = tuple(JoinedMember(f"m{number}", None, b"") for number in range(COUNT))

            async def joined(_token):
                return JoinAnswer(NONE, "m0", 1, "consumer", "range", "m0", members=members)

            monkeypatch.setattr(desk.broker.groups, "wait_for_response", joined)
            values = {
                "group_id": "g",
                "session_timeout": timedelta(seconds=10),
                "rebalance_timeout": timedelta(seconds=10),
                "member_id": "",
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b""}],
            }
            answer, turn_count = await turns_of(desk.ask_with(11, 4, values))
            assert [member.member_id for member in answer.members] == [member.member_id for member in members]
            assert turn_count >= COUNT

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_answers_in_slices_are_those_of_one_slice():
    async def conversation():
        async with opened(partitions=2) as desk:
            await commit_offsets(desk, "g", 2)
            answer = await desk.ask_with(*offset_deletes(4))
            unknown = ErrorCode.unknown_topic_or_partition
            found = [(part.partition_index, part.error_code) for part in answer.topics[0].partitions]
            assert found == [(0, NONE), (1, NONE), (2, unknown), (3, unknown)]
            assert not desk.broker.groups.coordinator.table.offsets.committed("g")
            missing = await desk.ask_with(47, 0, {"group_id": "no", "topics": []})
            assert missing.error_code is ErrorCode.group_id_not_found
            left = await desk.ask_with(*leaving(3))
            assert [one.error_code for one in left.members] == [ErrorCode.unknown_member_id] * 3
            none_left = await desk.ask_with(13, 5, {"group_id": "no", "members": []})
            assert none_left.error_code is ErrorCode.unknown_member_id
            marked = await desk.ask_with(*markers(3))
            found = [part.error_code for part in marked.markers[0].topics[0].partitions]
            assert found == [NONE, NONE, unknown]
            dirs = await desk.ask_with(*log_dirs(3))
            assert [part.partition_index for part in dirs.results[0].topics[0].partitions] == [0, 1]

    asyncio.run(asyncio.wait_for(conversation(), 60))


@pytest.mark.parametrize("acks", [-1, 7])
def test_a_produce_request_of_many_partitions_is_handled_in_turns_and_answered_through_a_thread(
    acks, monkeypatch
):
    """Two turns for each partition: one for the append, one for the check that it is durable."""
    monkeypatch.setattr(produce, "ENTRY_COUNT_MAX", COUNT)
    encoded = []

    async def noted(threads, work, *arguments):
        encoded.append(work)
        return work(*arguments)

    monkeypatch.setattr(produce, "in_thread", noted)

    async def ask(desk, count):
        data = [{"index": index, "records": batch(b"v")} for index in range(count)]
        values = {"transactional_id": None, "acks": acks, "timeout": timedelta(seconds=1)}
        return await desk.ask_with(0, 9, values | {"topic_data": [{"name": "t", "partition_data": data}]})

    async def conversation():
        async with opened(partitions=COUNT) as desk:
            await ask(desk, 1)
            assert not encoded
            answer, turn_count = await turns_of(ask(desk, COUNT))
            found = answer.responses[0].partition_responses
            assert [part.index for part in found] == list(range(COUNT))
            wanted = NONE if acks == -1 else ErrorCode.invalid_required_acks
            assert {part.error_code for part in found} == {wanted}
            assert encoded == [encode_produce_response]
            assert turn_count >= 2 * COUNT or acks == 7

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_a_member_with_too_many_protocols_is_refused():
    async def conversation():
        async with opened() as desk:
            protocols = [{"name": f"p{number}", "metadata": b""} for number in range(PROTOCOL_COUNT_MAX + 1)]
            values = {
                "group_id": "g",
                "session_timeout": timedelta(seconds=10),
                "rebalance_timeout": timedelta(seconds=10),
                "member_id": "",
                "protocol_type": "consumer",
            }
            answer = await desk.ask_with(11, 4, values | {"protocols": protocols})
            assert answer.error_code is ErrorCode.invalid_request
            answer = await desk.ask_with(11, 4, values | {"protocols": protocols[1:]})
            assert answer.error_code is ErrorCode.member_id_required

    asyncio.run(asyncio.wait_for(conversation(), 60))
