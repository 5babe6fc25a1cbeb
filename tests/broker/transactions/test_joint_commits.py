"""Joint commits of many children: other requests are served in between, and other commits wait."""

import asyncio
import errno
import random

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.loop import turns
from stablelog.coordinators.transactions.joint import name_checks
from stablelog.errors import DiskError, UnavailableError
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.children import JointName
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
            acceptance = group_of(desk).coordinator.joint.accepted_children
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
            acceptance = group.coordinator.joint.accepted_children
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
    """Others that commit meanwhile get their answers, and children that are not named are aborted all the same."""

    async def conversation():
        async with opened() as desk:
            children = await children_of(desk)
            left = await children_of(desk, first=COUNT)
            who = await desk.init("other")
            await desk.produce(
                batch(b"other", producer=who, sequence=0), transactional_id="other", version=12
            )
            acceptance = group_of(desk).coordinator.joint.accepted_children
            task = asyncio.ensure_future(commit(desk, children))
            await until(lambda: acceptance.is_pending)
            waiting = asyncio.ensure_future(desk.end("other", who, committed=True, version=5))
            await asyncio.sleep(0)
            task.cancel()
            assert (await waiting).error_code is NONE
            assert (await commit(desk, [], key="l")).commit_sequence == 3
            await until(lambda: not any(group_of(desk).coordinator.table.get(one.id) for one in left))
            await desk.durable()
            assert (open_count(desk), len(desk.values("t", 0) + desk.values("t", 1))) == (0, COUNT + 1)

    run(conversation)


@pytest.mark.parametrize("api", ["begin", "abort"])
def test_a_client_that_leaves_does_not_leave_children_open(api):
    async def conversation():
        async with opened() as desk:
            children = await children_of(desk)
            asked = begin(desk, run="r2") if api == "begin" else abort(desk, children[:1], run="r1")
            task = asyncio.ensure_future(asked)
            await until(lambda: any(desk.broker.tasks.request_work_names()))
            await asyncio.sleep(0)
            task.cancel()
            await until(lambda: not any(desk.broker.tasks.request_work_names()))
            await desk.durable()
            assert open_count(desk) == 0

    run(conversation)


def test_a_client_that_leaves_leaves_no_offsets_pending():
    async def conversation():
        async with opened() as desk:
            children = await children_of(desk, 3)
            group = group_of(desk)
            group.coordinator.joint.at_once = 100  # The commit is short, so it ends with its connection.
            await group.committing.acquire()
            task = asyncio.ensure_future(commit(desk, children, offsets=[offset(5)]))
            pending = desk.broker.groups.coordinator.table.offsets.pending_partitions
            await until(lambda: pending("g"))
            await desk.durable()
            for _ in range(100):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            group.committing.release()
            await until(lambda: not pending("g"))
            assert committed_offset(desk) == -1

    run(conversation)


def test_a_disk_that_fails_within_a_commit_stops_the_broker_and_nobody_waits_for_ever():
    class Failing(SimDisk):
        fails = False

        def step(self, what, torn=None, path=None):
            if self.fails and what.startswith("append"):
                raise DiskError(what, errno.EIO)
            super().step(what, torn, path)

    disk = Failing()

    async def conversation():
        with pytest.raises(AssertionError):  # The broker has failed.
            async with opened(disk) as desk:
                children = await children_of(desk)
                who = await desk.init("other")
                await desk.produce(
                    batch(b"other", producer=who, sequence=0), transactional_id="other", version=12
                )
                acceptance = group_of(desk).coordinator.joint.accepted_children
                task = asyncio.ensure_future(commit(desk, children))
                await until(lambda: acceptance.is_pending)
                waiting = asyncio.ensure_future(desk.end("other", who, committed=True, version=5))
                await asyncio.sleep(0)
                disk.fails = True
                done = await asyncio.gather(task, waiting, return_exceptions=True)
                assert all(isinstance(one, Exception) for one in done), done

    run(conversation)


def test_an_administrator_does_not_abort_what_is_being_committed():
    async def conversation():
        async with opened() as desk:
            children = await children_of(desk)
            last = children[-1]
            task = asyncio.ensure_future(commit(desk, children))
            await until(lambda: group_of(desk).coordinator.joint.accepted_children.is_pending)
            topic = {"name": "t", "partition_indexes": (0, 1)}
            marker = {"producer_id": last.who[0], "producer_epoch": last.who[1], "transaction_result": False}
            answer = await desk.ask_with(
                27, 1, {"markers": [marker | {"topics": [topic], "coordinator_epoch": 0}]}
            )
            codes = {part.error_code for part in answer.markers[0].topics[0].partitions}
            assert codes == {ErrorCode.invalid_txn_state}
            assert (await task).error_code is NONE
            await desk.durable()
            assert len(desk.values("t", 0) + desk.values("t", 1)) == COUNT

    run(conversation)


class FullCommitLog(SimDisk):
    """A disk without room for records of the commit log."""

    is_full = False

    def step(self, what, torn=None, path=None):
        if (
            self.is_full
            and what.startswith("append")
            and path.suffix == ".log"
            and "__transaction" in str(path)
        ):
            raise DiskError(what, errno.ENOSPC)
        super().step(what, torn, path)


def test_after_a_crash_within_a_commit_no_cut_goes_back():
    disk = SimDisk()

    async def conversation():
        async with opened(disk, topics=()) as desk:
            desk.broker.topic_files.create("t", 2, {"stablelog.order": "commit"})
            for version in range(3):
                await begin(desk, version, key="l")
                one = await child(desk, "l", version)
                await one.write(b"l")
                assert (await commit(desk, [one], version, key="l")).commit_sequence == version + 1
            await desk.durable()
            children = await children_of(desk)
            await desk.durable()
            group = group_of(desk)
            task = asyncio.ensure_future(commit(desk, children))
            await until(lambda: group.coordinator.joint.accepted_children.is_pending)
            group.journal.partition.sync_work().run()
            left = disk.crash(random.Random(1))
            await task
        left.__class__, left.is_full = FullCommitLog, True
        async with opened(left) as desk:
            group = group_of(desk)
            assert group.journal.is_waiting, "the start was to add records"
            assert group.resolved_commit_sequence >= 3
            left.is_full = False
            await desk.broker.maintenance.tend_reserve()
            await desk.durable()
            await until(lambda: group.resolved_commit_sequence == 4)
            assert open_count(desk) == 0

    run(conversation)


def test_a_run_that_takes_over_does_not_forget_children_of_a_later_run():
    async def conversation():
        async with opened() as desk:
            old = await children_of(desk)
            with desk.held_disk():
                second = asyncio.ensure_future(begin(desk, run="r2"))
                await asyncio.sleep(0)
                third = asyncio.ensure_future(begin(desk, run="r3"))
                joints = group_of(desk).coordinator.table.joints
                await until(lambda: joints.get(JointName("", "k")).run == "r3")
                mine = asyncio.ensure_future(child(desk, part=50, run="r3"))
                for _ in range(50):
                    await asyncio.sleep(0)
            assert ((await second).error_code, (await third).error_code) == (NONE, NONE)
            made = await mine
            assert await made.write(b"new") is NONE
            assert (await commit(desk, [made], run="r3")).error_code is NONE
            assert await old[0].write(b"late") is not NONE

    run(conversation)


def test_a_broker_that_stops_ends_all_children_first():
    disk = SimDisk()

    async def conversation():
        async with opened(disk) as desk:
            children = await children_of(desk)
            acceptance = group_of(desk).coordinator.joint.accepted_children
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
            who = await desk.init("other")
            await desk.produce(
                batch(b"other", producer=who, sequence=0), transactional_id="other", version=12
            )
            joint = group_of(desk).coordinator.joint
            tasks, failed = desk.broker.tasks, []
            monkeypatch.setattr(
                tasks, "report_unexpected", lambda name, scope, _: failed.append((name, scope))
            )
            end_some, calls = joint.end_accepted, []

            def broken(*, now_ms):
                calls.append(now_ms)
                if len(calls) == 2:
                    raise ZeroDivisionError
                return end_some(now_ms=now_ms)

            monkeypatch.setattr(joint, "end_accepted", broken)
            with pytest.raises(UnavailableError, match="the broker stops"):
                await commit(desk, children)
            assert failed == [("a joint commit", tasks.broker)]
            assert joint.accepted_children.is_pending, "the next start ends the other children"
            answer = await desk.end("other", who, committed=True, version=5)
            assert answer.error_code is ErrorCode.coordinator_load_in_progress

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
    monkeypatch.setattr(name_checks, "CHILD_COUNT_MAX", 3)

    async def conversation():
        async with opened() as desk:
            children = await children_of(desk, 4)
            answer = await commit(desk, children)
            assert answer.error_code is ErrorCode.invalid_request
            assert "has 4 transactions, and at most 3 are allowed" in answer.error_message
            assert open_count(desk) == 4
            assert (await commit(desk, children[:3])).error_code is NONE

    run(conversation)
