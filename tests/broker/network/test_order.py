"""The requests of one connection take effect in the order in which the client sent them, also without waiting."""

import asyncio
import dataclasses
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import commit_joint
from stablelog.broker.loop import turns
from stablelog.wire.api import ApiKey
from stablelog.wire.messages import message_class
from tests.broker.desk import filled, frame, opened, read_answer
from tests.broker.jump import LENGTH
from tests.broker.test_unexpected_errors import any_request, serving
from tests.declared_apis import APIS

COUNT = 20
NONE = {ErrorCode.none}
FENCED = ErrorCode.producer_fenced
MINUTE = timedelta(minutes=1)
VERSIONS = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 1,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.BEGIN_JOINT: 0,
    ApiKey.COMMIT_JOINT: 0,
    ApiKey.ABORT_JOINT: 0,
}


async def sent_at_once(port, requests):
    """Send (API key, fields) on one connection without waiting, and return the responses."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for key, values in requests:
        message = filled(message_class(key, VERSIONS[key], "request"), values)
        fields = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
        request = frame(key, VERSIONS[key], **fields)
        writer.write(LENGTH.pack(len(request)) + request)
    answers = []
    for key, _ in requests:
        size = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
        answers.append(read_answer(key, VERSIONS[key], await reader.readexactly(size))[0])
    writer.close()
    return answers


def heartbeat(group, epoch):
    asked = {"rebalance_timeout": MINUTE, "subscribed_topic_names": ("t",), "topic_partitions": ()}
    values = {"group_id": group, "member_id": "m", "member_epoch": epoch, **asked}
    return ApiKey.CONSUMER_GROUP_HEARTBEAT, values


def commit(group):
    """A commit that names no member: it is refused while the group has one."""
    where = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    topics = [{"name": "t", "partitions": [where]}]
    values = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
    return ApiKey.OFFSET_COMMIT, values


def creation():
    topics = [
        {"name": f"t{at}", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        for at in range(COUNT)
    ]
    values = {"topics": topics, "timeout": MINUTE}
    return ApiKey.CREATE_TOPICS, values


def deletion():
    values = {"topics": [{"name": f"t{at}", "topic_id": None} for at in range(COUNT)], "timeout": MINUTE}
    return ApiKey.DELETE_TOPICS, values


def test_a_commit_does_not_pass_the_heartbeat_with_which_the_last_member_leaves():
    """Each heartbeat waits until its records are durable; the next one does not wait for that."""

    async def conversation():
        async with serving() as (server, port):
            server.broker.topic_files.create("t", 1, {})
            names = [f"g{at}" for at in range(COUNT)]
            asked = [one for name in names for one in (heartbeat(name, 0), heartbeat(name, -1), commit(name))]
            answers = await sent_at_once(port, asked)
            assert {one.error_code for at, one in enumerate(answers) if at % 3 != 2} == NONE
            assert {one.topics[0].partitions[0].error_code for one in answers[2::3]} == NONE

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_topics_are_created_and_deleted_in_the_order_of_the_requests(monkeypatch):
    """Each request takes many turns of the event loop."""
    monkeypatch.setattr(turns, "TURN_S", -1)

    async def conversation():
        async with serving() as (_, port):
            asked = [creation(), deletion(), creation(), deletion()]
            created, deleted, again, last = await sent_at_once(port, asked)
            assert {one.error_code for answer in (created, again) for one in answer.topics} == NONE
            assert {one.error_code for answer in (deleted, last) for one in answer.responses} == NONE

    asyncio.run(asyncio.wait_for(conversation(), 60))


def joint(api, key, version, run="r", **more):
    return api, {"group": "", "key": key, "version": version, "run": run, **more}


def joint_commit(key, version, run="r"):
    """A commit of offsets. The broker writes them before it decides."""
    where = {"topic": "t", "partition_index": 0, "committed_offset": version, "committed_metadata": ""}
    offsets = [{**where, "group_id": f"{key}-{at}"} for at in range(5)]
    return joint(ApiKey.COMMIT_JOINT, key, version, run, children=(), group_offsets=offsets)


def test_joint_commits_begin_commit_and_abort_in_the_order_of_the_requests(monkeypatch):
    """The broker writes the offsets of a commit in several turns before it decides."""
    monkeypatch.setattr(commit_joint, "OFFSETS_AT_ONCE", 1)

    async def conversation():
        async with serving() as (server, port):
            server.broker.topic_files.create("t", 1, {})
            asked = []
            for key in [f"k{at}" for at in range(COUNT)]:
                asked += [
                    joint(ApiKey.BEGIN_JOINT, key, 1),
                    joint_commit(key, 1),
                    joint(ApiKey.BEGIN_JOINT, key, 1),  # is told that the version is committed
                    joint(ApiKey.ABORT_JOINT, key, 1, children=()),  # so is this one
                    joint(ApiKey.BEGIN_JOINT, key, 2, "other"),
                    joint_commit(key, 2, "r"),  # the version belongs to the other run
                ]
            answers = await sent_at_once(port, asked)
            assert [one.error_code for one in answers] == [*[ErrorCode.none] * 5, FENCED] * COUNT
            told = [one.committed for at, one in enumerate(answers) if at % 6 not in (1, 5)]
            assert told == [False, True, True, False] * COUNT
            assert not any(one.already for one in answers[1::6])

    asyncio.run(asyncio.wait_for(conversation(), 60))


@pytest.mark.parametrize("key", [key for key, api in APIS.items() if api.is_alone])
def test_a_request_that_changes_state_after_an_await_holds_the_later_ones(key):
    async def conversation():
        async with opened() as desk:
            begun, may_end = [], asyncio.Event()

            async def change(_broker, _request, _context):
                begun.append("change")
                await may_end.wait()
                begun.append("changed")

            async def later(_broker, _request, _context):
                begun.append("later")

            both = (key, ApiKey.HEARTBEAT)
            for one in both:
                desk.router.prepare_api(APIS[one], APIS[one].last_version)
            desk.router.handlers |= {key: change, ApiKey.HEARTBEAT: later}
            first, second = (
                asyncio.ensure_future(desk.router.respond(desk.stranger, any_request(one))) for one in both
            )
            for _ in range(5):
                await asyncio.sleep(0)
            may_end.set()
            await asyncio.gather(first, second)
            assert begun == ["change", "changed", "later"]

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_no_request_that_changes_state_waits_for_the_heavy_ones_before_it():
    """Later requests would pass a request that waits for its turn among the heavy ones."""
    changing = [key for key, api in APIS.items() if api.is_alone or api.is_appending]
    assert not [key for key in changing if APIS[key].is_heavy]
    assert not [key for key in changing if APIS[key].is_alone and APIS[key].is_appending]
