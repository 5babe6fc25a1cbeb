"""Joint commits of many children: other requests are served in between, and other commits wait."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.loop import turns
from stablelog.coordinators.transactions.joint import checks
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from tests.broker.apis.test_joint_apis import (
    NONE,
    begin,
    child,
    commit,
    committed_offset,
    markers,
    offset,
    open_count,
)
from tests.broker.desk import batch, opened

COUNT = 9


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", -1)


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), 60))


async def children_of(desk, count=COUNT, run="r1", first=0):
    """The coordinator ends two children at once, so that `count` of them take several decisions."""
    desk.broker.transactions.default.coordinator.joint.at_once = 2
    await begin(desk, run=run)
    made = [await child(desk, part=part, run=run) for part in range(first, first + count)]
    for number, one in enumerate(made):
        assert await one.write(b"%d" % number, partition=number % 2) is NONE
    return made


async def abort(desk, children, *, version=0, run=None):
    shown = tuple(one.shown for one in children)
    return await desk.ask(ApiKey.ABORT_JOINT, 0, key="k", version=version, run=run, children=shown)


def group_of(desk):
    return desk.broker.transactions.default


async def until(condition):
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


def test_many_children_are_committed_in_turns_with_one_sequence_and_offsets():
    async def conversation():
        async with opened() as desk:
            children = await children_of(desk)
            left = await child(desk, part=99)
            await left.write(b"left")
            acceptance = group_of(desk).coordinator.joint.acceptance
            task, turns_pending = asyncio.ensure_future(commit(desk, children, offsets=[offset(5)])), 0
            while not task.done():
                turns_pending += acceptance.is_pending
                await asyncio.sleep(0)
            answer = await task
            assert (answer.error_code, answer.already, answer.commit_sequence) == (NONE, False, 1)
            assert turns_pending >= COUNT // 2, "the loop was held"
            await desk.durable()
            assert (open_count(desk), committed_offset(desk)) == (0, 5)
            assert [desk.values("t", index) for index in range(2)] == [
                [b"%d" % number for number in range(COUNT) if number % 2 == index] for index in range(2)
            ]
            assert {one for one in markers(desk, 0) if one[0] == "COMMIT"} == {("COMMIT", 1)}
            assert len(group_of(desk).coordinator.table) == 0, "a child is remembered"
            again = await commit(desk, children, offsets=[offset(5)])
            assert (again.error_code, again.already, again.commit_sequence) == (NONE, True, 1)

    run(conversation)


def test_other_commits_wait_until_the_last_child_is_ended():
    async def conversation():
        async with opened() as desk:
            children = await children_of(desk)
            who = await desk.init("other")
            await desk.produce(
                batch(b"other", producer=who, sequence=0), transactional_id="other", version=12
            )
            aborting = await desk.init("aborting")
            await desk.produce(
                batch(b"gone", producer=aborting, sequence=0), transactional_id="aborting", version=12
            )
            group = group_of(desk)
            acceptance = group.coordinator.joint.acceptance
            long = asyncio.ensure_future(commit(desk, children))
            await until(lambda: acceptance.is_pending)
            assert group.resolved_commit_sequence == 0
            ended = asyncio.ensure_future(desk.end("other", who, committed=True, version=5))
            small = asyncio.ensure_future(commit(desk, [], key="l"))
            aborted = await desk.end("aborting", aborting, committed=False, version=5)
            assert aborted.error_code is NONE
            assert (await ended).error_code is NONE
            assert ((await long).commit_sequence, (await small).error_code) == (1, NONE)
            assert {(await small).commit_sequence, group.coordinator.table.sequences.last} <= {2, 3}
            await desk.durable()
            sequences = [number for kind, number in markers(desk) if kind == "COMMIT"]
            assert sequences == sorted(sequences)
            assert desk.values("t", 0)[-1:] == [b"8"] or b"other" in desk.values("t", 0)

    run(conversation)


def test_a_client_that_leaves_does_not_leave_a_commit_half_decided():
    async def conversation():
        async with opened() as desk:
            children = await children_of(desk)
            acceptance = group_of(desk).coordinator.joint.acceptance
            task = asyncio.ensure_future(commit(desk, children))
            await until(lambda: acceptance.is_pending)
            task.cancel()
            await until(lambda: not acceptance.is_pending)
            await desk.durable()
            assert (open_count(desk), len(desk.values("t", 0) + desk.values("t", 1))) == (0, COUNT)
            assert (await commit(desk, [], key="l")).commit_sequence == 2

    run(conversation)


def test_a_broker_that_stops_ends_all_children_first():
    disk = SimDisk()

    async def conversation():
        async with opened(disk) as desk:
            children = await children_of(desk)
            acceptance = group_of(desk).coordinator.joint.acceptance
            task = asyncio.ensure_future(commit(desk, children))
            await until(lambda: acceptance.is_pending)
        assert not acceptance.is_pending
        assert (await task).error_code is NONE
        async with opened(disk) as desk:
            assert (open_count(desk), len(desk.values("t", 0) + desk.values("t", 1))) == (0, COUNT)

    run(conversation)


def test_an_unexpected_error_between_two_decisions_stops_the_broker(monkeypatch):
    async def conversation():
        async with opened() as desk:
            children = await children_of(desk)
            joint = group_of(desk).coordinator.joint
            tasks, failed = desk.broker.tasks, []
            monkeypatch.setattr(tasks, "unexpected", lambda name, scope, _: failed.append((name, scope)))
            end_some, calls = joint.end_accepted, []

            def broken(*, now_ms):
                calls.append(now_ms)
                if len(calls) == 2:
                    raise ZeroDivisionError
                return end_some(now_ms=now_ms)

            monkeypatch.setattr(joint, "end_accepted", broken)
            await commit(desk, children)
            assert failed == [("a joint commit", tasks.broker)]
            assert joint.acceptance.is_pending, "the next start ends the other children"

    run(conversation)


def test_many_children_are_aborted_in_turns():
    async def conversation():
        async with opened() as desk:
            children = await children_of(desk)
            more = await children_of(desk, run="r1", first=COUNT)
            idle = [await child(desk, part=part) for part in range(30, 35)]
            counts = set()
            task = asyncio.ensure_future(abort(desk, children, run="r1"))
            while not task.done():
                counts.add(open_count(desk))
                await asyncio.sleep(0)
            assert len(counts) > COUNT, "the loop was held"
            assert ((await task).error_code, (await task).committed) == (NONE, False)
            await desk.durable()
            assert open_count(desk) == 0
            table = group_of(desk).coordinator.table
            assert all(table.get(one.id) is None for one in idle)
            assert await more[0].write(b"late") is not NONE
            assert (await commit(desk, [])).error_code is ErrorCode.producer_fenced, "the run has given it up"

    run(conversation)


def test_children_of_other_producers_are_not_aborted():
    async def conversation():
        async with opened() as desk:
            children = await children_of(desk)
            for one in children:
                one.who = (one.who[0], one.who[1] + 1)
            assert (await abort(desk, children)).error_code is NONE
            assert open_count(desk) == COUNT

    run(conversation)


def test_what_is_no_child_is_refused_before_anything_is_aborted():
    async def conversation():
        async with opened() as desk:
            children = await children_of(desk)
            stranger = await child(desk, version=1)
            answer = await abort(desk, [*children, stranger])
            assert answer.error_code is ErrorCode.invalid_request
            assert open_count(desk) == COUNT
            refused = await commit(desk, [*children, stranger])
            assert refused.error_code is ErrorCode.invalid_request
            assert (await commit(desk, children)).error_code is NONE

    run(conversation)


def test_a_commit_of_too_many_children_is_refused_by_its_number(monkeypatch):
    monkeypatch.setattr(checks, "CHILD_COUNT_MAX", 3)

    async def conversation():
        async with opened() as desk:
            children = await children_of(desk, 4)
            answer = await commit(desk, children)
            assert answer.error_code is ErrorCode.invalid_request
            assert "has 4 children, and at most 3 are allowed" in answer.error_message
            assert open_count(desk) == 4
            assert (await commit(desk, children[:3])).error_code is NONE

    run(conversation)
