"""Joint commits in a whole broker: what a crash at any moment leaves, offsets, rivals, and requests that lie."""

import asyncio
import itertools
import random
import struct
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.markers import read_marker
from stablelog.broker.apis import commit_joint
from stablelog.broker.loop import turns
from stablelog.broker.topic_names import OFFSETS_PARTITION
from stablelog.coordinators.consumer_groups import offsets as offsets_module
from stablelog.coordinators.transactions.joint.accepted_children import ENDED_AT_ONCE
from stablelog.errors import RefusedError
from stablelog.log.partition import Isolation
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.children import child_id
from stablelog.wire.extension.joint import JointChild, JointOffset
from tests.broker.desk import batch, frame, opened

NONE = ErrorCode.none
TIMEOUT = timedelta(minutes=1)
FIRST, SECOND = 9, 12  # versions of Produce, for the two dialects


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), 120))


class Child:
    """A task's transaction, in either dialect."""

    def __init__(self, desk, transactional_id, dialect):
        self.desk, self.id, self.dialect = desk, transactional_id, dialect
        self.who = (-1, -1)
        self.sequences = {}

    @property
    def shown(self):
        return JointChild(transactional_id=self.id, producer_id=self.who[0], producer_epoch=self.who[1])

    async def write(self, value, partition=0, topic="t"):
        target = (topic, partition)
        if self.dialect is FIRST and target not in self.sequences:
            await self.desk.add(self.id, self.who, target)
        sequence = self.sequences.get(target, 0)
        answer = await self.desk.produce(
            batch(value, producer=self.who, sequence=sequence),
            topic=topic,
            partition=partition,
            transactional_id=self.id,
            version=self.dialect,
        )
        if answer.error_code is NONE:
            self.sequences[target] = sequence + 1
        return answer.error_code


async def child(desk, key="k", version=0, part=0, *, run="r1", attempt=0, dialect=SECOND):
    made = Child(desk, child_id(key, version, run, part, attempt), dialect)
    made.who = await desk.init(made.id)
    return made


async def begin(desk, version=0, run="r1", key="k"):
    return await desk.ask(ApiKey.BEGIN_JOINT, 0, key=key, version=version, run=run)


async def commit(desk, children, version=0, *, offsets=(), run="r1", key="k"):
    return await desk.ask(
        ApiKey.COMMIT_JOINT,
        0,
        key=key,
        version=version,
        run=run,
        children=tuple(c.shown for c in children),
        group_offsets=tuple(offsets),
    )


def offset(at, group="g", partition=0, topic="t", metadata=None):
    return JointOffset(
        group_id=group,
        topic=topic,
        partition_index=partition,
        committed_offset=at,
        committed_metadata=metadata,
    )


def committed_offset(desk, group="g", target=("t", 0)):
    return desk.broker.groups.coordinator.fetch_offsets(group, [target]).answer[target].offset


def open_count(desk):
    return sum(len(partition.log.open_transactions()) for partition in desk.broker.partitions)


def markers(desk, partition=0, topic="t"):
    """The markers in a partition, as (type, commit sequence)."""
    log = desk.broker.partitions.require(topic, partition)
    data = b"".join(log.read(log.start_offset, 1 << 30, Isolation.READ_UNCOMMITTED).buffers)
    return [
        (marker.type.name, marker.commit_sequence)
        for at, header in headers_in(data)
        if header.is_control and (marker := read_marker(memoryview(data)[at : at + header.size])) is not None
    ]


# -- what a crash leaves --------------------------------------------------------------------------------------------


class PhotographedDisk(SimDisk):
    """Keeps, from when it is told to, what a crash at each of its operations would have left."""

    def __init__(self, chance):
        super().__init__()
        self.chance = chance
        self.left = []
        self.watching = False
        self.told = None

    def step(self, what, torn=None, path=None):
        super().step(what, torn, path)
        if not self.watching:
            return
        if torn is not None:
            inode, joined = torn
            inode.content += joined
        self.left.append((what, self.told, self.crash(self.chance)))
        if torn is not None:
            del inode.content[len(inode.content) - len(joined) :]


@pytest.mark.extended
@pytest.mark.parametrize(("seed", "at_once"), [(0, ENDED_AT_ONCE), (1, ENDED_AT_ONCE), (2, 1), (3, 1)])
def test_a_crash_at_any_moment_leaves_all_or_nothing(seed, at_once, monkeypatch):
    """Also of a joint commit that takes several decisions."""
    monkeypatch.setattr(
        "stablelog.broker.durability.flush.IN_PLACE_S", 1e9
    )  # one thread, so that moments can be told apart
    disk = PhotographedDisk(random.Random(seed))

    async def conversation():
        async with opened(disk) as desk:
            joint = desk.broker.transactions.default.coordinator.joint
            joint.at_once = at_once
            await begin(desk)
            one, two = await child(desk, part=1), await child(desk, part=2, dialect=FIRST)
            lost = await child(desk, part=2, attempt=1)
            for writer, value, partition in ((one, b"a", 0), (two, b"b", 0), (one, b"c", 1), (lost, b"x", 1)):
                assert await writer.write(value, partition) is NONE
            disk.watching = True
            answer = await commit(desk, [one, two], offsets=[offset(5), offset(7, partition=1)])
            assert (answer.error_code, answer.already) == (NONE, False)
            disk.told = answer.commit_sequence
            await desk.durable()
            assert (await commit(desk, [one, two])).already
            await asyncio.sleep(0.05)
            disk.watching = False

    run(conversation)
    assert len(disk.left) > 10
    outcomes = set()
    for what, told, left in disk.left:
        outcomes.add(asyncio.run(asyncio.wait_for(look(left, told, what), 100)))
    assert outcomes == {True, False}


async def look(disk, told, what):
    """What a broker makes of a disk; whether the commit is there."""
    async with opened(disk) as desk:
        await desk.durable()
        found = await begin(desk, run=None)
        values = [desk.values("t", partition) for partition in range(2)]
        offsets = [committed_offset(desk, target=("t", partition)) for partition in range(2)]
        if found.committed:
            assert values == [[b"a", b"b"], [b"c"]], what
            assert offsets == [5, 7], what
            assert markers(desk)[-2:] == [("COMMIT", found.commit_sequence)] * 2, what
            assert told in (None, found.commit_sequence), what
            assert open_count(desk) == 0, what
        else:
            assert told is None, f"{what}: the answer was given, and the commit is gone"
            assert values == [[], []], what
            assert offsets == [-1, -1], what
            assert (await begin(desk, run="r2")).error_code is NONE
            late = await desk.ask(
                22, 4, transactional_id=child_id("k", 0, "r1", 1, 0), transaction_timeout=TIMEOUT
            )
            assert late.error_code is ErrorCode.producer_fenced, what
        again = await commit(desk, [], run="r2" if not found.committed else "r1")
        assert again.already == found.committed, what
        await desk.durable()
        assert open_count(desk) == 0, what
        assert [desk.values("t", partition) for partition in range(2)] == values, what
        broker = desk.broker.transactions.default
        assert broker.resolved_commit_sequence == broker.coordinator.table.sequences.last, what
        return found.committed


def test_what_was_begun_is_durable_when_it_is_answered():
    async def conversation():
        async with opened() as desk:
            with desk.held_disk():
                task = asyncio.create_task(begin(desk))
                for _ in range(20):
                    await asyncio.sleep(0)
                assert not task.done()
            assert (await task).error_code is NONE

    run(conversation)


# -- offsets ----------------------------------------------------------------------------------------------------------


def test_offsets_become_visible_with_the_decision_and_not_before():
    async def conversation():
        async with opened() as desk:
            one = await child(desk)
            await one.write(b"a")
            with desk.held_disk():
                task = asyncio.create_task(
                    commit(desk, [one], offsets=[offset(5, metadata="m"), offset(9, "h")])
                )
                for _ in range(20):
                    await asyncio.sleep(0)
                assert not task.done()
                assert committed_offset(desk) == -1
            assert (await task).error_code is NONE
            assert (committed_offset(desk), committed_offset(desk, "h")) == (5, 9)
            fetched = desk.broker.groups.coordinator.fetch_offsets("g", [("t", 0)]).answer["t", 0]
            assert fetched.metadata == "m"
            # Without children too: an empty micro-batch has read something.
            assert (await commit(desk, [], version=1, offsets=[offset(6)])).error_code is NONE
            assert committed_offset(desk) == 6
            assert markers(desk, topic=OFFSETS_PARTITION[0])[-1] == ("COMMIT", 2)

    run(conversation)


@pytest.mark.parametrize(
    ("bad", "code", "named"),
    [
        (offset(5, partition=9), ErrorCode.unknown_topic_or_partition, "t-9"),
        (offset(5, topic="nowhere"), ErrorCode.unknown_topic_or_partition, "nowhere-0"),
        (offset(5, group=""), ErrorCode.invalid_group_id, "has an empty group id"),
        (offset(5, metadata="m" * 5000), ErrorCode.offset_metadata_too_large, "t-0"),
    ],
    ids=["partition", "topic", "group", "metadata"],
)
def test_an_offset_that_cannot_be_committed_keeps_all_from_being_decided(bad, code, named):
    async def conversation():
        async with opened() as desk:
            one = await child(desk)
            await one.write(b"a")
            answer = await commit(desk, [one], offsets=[offset(1, "h"), bad])
            assert answer.error_code is code
            assert named in answer.error_message
            await desk.durable()
            assert (desk.values(), committed_offset(desk, "h")) == ([], -1)
            assert open_count(desk) == 1
            assert (await commit(desk, [one])).error_code is NONE

    run(conversation)


def test_offsets_of_a_commit_that_is_refused_are_dropped_at_once():
    async def conversation():
        async with opened() as desk:
            one, gone = await child(desk), await child(desk, part=1)
            await one.write(b"a")
            gone.who = (gone.who[0], 7)
            answer = await commit(desk, [one, gone], offsets=[offset(5)])
            assert answer.error_code is ErrorCode.producer_fenced
            assert gone.id in answer.error_message
            await desk.durable()
            assert open_count(desk) == 1  # the child's own
            stable = desk.broker.groups.coordinator.fetch_offsets("g", [("t", 0)], require_stable=True)
            assert stable.answer["t", 0].code is NONE
            assert (await commit(desk, [one], offsets=[offset(5)])).error_code is NONE
            assert committed_offset(desk) == 5

    run(conversation)


def test_offsets_of_a_client_that_has_gone_are_dropped_at_once():
    async def conversation():
        async with opened() as desk:
            with desk.held_disk():
                task = asyncio.create_task(commit(desk, [], offsets=[offset(5)]))
                for _ in range(20):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await begin(desk, version=1)
            await desk.durable()
            assert (open_count(desk), committed_offset(desk)) == (0, -1)
            coordinator = desk.broker.transactions.default.coordinator
            slices, _ = coordinator.table.list_transactions(states=["Ongoing"], now_ms=0)
            assert [*itertools.chain.from_iterable(slices)] == []

    run(conversation)


# -- rivals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_offsets", [False, True])
def test_of_two_that_commit_at_once_one_wins_and_the_other_is_told(with_offsets):
    async def conversation():
        async with opened() as desk:
            mine, yours = await child(desk, run="a"), await child(desk, run="b")
            await mine.write(b"mine")
            await yours.write(b"yours")
            answers = await asyncio.gather(
                commit(desk, [mine], run=None, offsets=[offset(1)] if with_offsets else ()),
                commit(desk, [yours], run=None, offsets=[offset(2)] if with_offsets else ()),
            )
            assert [answer.error_code for answer in answers] == [NONE, NONE]
            assert sorted(answer.already for answer in answers) == [False, True]
            assert {answer.commit_sequence for answer in answers} == {1}
            await desk.durable()
            first = answers[1].already
            assert desk.values() == ([b"mine"] if first else [b"yours"])
            if with_offsets:
                assert committed_offset(desk) == (1 if first else 2)
            assert open_count(desk) == 0

    run(conversation)


def test_offsets_that_another_commit_overtakes_are_not_written():
    async def conversation():
        async with opened() as desk:
            with desk.held_disk():
                slow = asyncio.create_task(commit(desk, [], offsets=[offset(5)]))
                for _ in range(5):
                    await asyncio.sleep(0)
                fast = asyncio.create_task(commit(desk, []))
                for _ in range(5):
                    await asyncio.sleep(0)
            assert ((await fast).already, (await slow).already) == (False, True)
            assert (await slow).error_code is NONE
            await desk.durable()
            assert (open_count(desk), committed_offset(desk)) == (0, -1)

    run(conversation)


def test_many_children_of_another_run_are_aborted_by_several_decisions(monkeypatch):
    """Also if the new run commits before all of them are aborted."""
    monkeypatch.setattr(turns, "TURN_S", -1)

    async def conversation():
        async with opened() as desk:
            desk.broker.transactions.default.coordinator.joint.at_once = 2
            await begin(desk, run="r1")
            old = [await child(desk, part=part) for part in range(7)]
            for one in old:
                await one.write(b"old")
            idle = [await child(desk, part=part) for part in range(7, 10)]
            table = desk.broker.transactions.default.coordinator.table
            task, counts = asyncio.ensure_future(begin(desk, run="r2")), set()
            while not task.done():
                counts.add(sum(table.require_state(one.id).state.label == "Ongoing" for one in old))
                await asyncio.sleep(0)
            assert {7, 5, 3, 1, 0} <= counts
            assert (await task).error_code is NONE
            assert all(table.get(one.id) is None for one in idle)
            assert all(table.get(one.id).state.label == "CompleteAbort" for one in old)
            assert await old[0].write(b"late") is not NONE
            for part in range(7):
                await (await child(desk, part=part, run="r2")).write(b"old")
            taking_over = asyncio.ensure_future(begin(desk, run="r3"))
            while open_count(desk) == 7:  # noqa: ASYNC110
                await asyncio.sleep(0)
            mine = await child(desk, run="r3")
            await mine.write(b"new")
            assert (await commit(desk, [mine], run="r3")).error_code is NONE
            assert (await taking_over).error_code is NONE
            await desk.durable()
            assert (desk.values(), open_count(desk), len(table)) == ([b"new"], 0, 0)

    run(conversation)


def test_many_offsets_are_written_in_turns_and_committed_together(monkeypatch):
    monkeypatch.setattr(commit_joint, "OFFSETS_AT_ONCE", 2)

    async def conversation():
        async with opened(partitions=7) as desk:
            groups = desk.broker.groups
            offsets = [offset(5 + number, partition=number) for number in range(7)]
            task, sizes = asyncio.ensure_future(commit(desk, [], offsets=offsets)), set()
            while not task.done():
                await asyncio.sleep(0)
                sizes.add(len(groups.coordinator.table.offsets.pending_partitions("g")))
                assert len(groups.coordinator.table.offsets.committed("g")) in (0, 7)
            assert {2, 4, 6, 7} <= sizes
            assert ((await task).error_code, (await task).already) == (NONE, False)
            found = [committed_offset(desk, target=("t", number)) for number in range(7)]
            assert found == [5, 6, 7, 8, 9, 10, 11]

    run(conversation)


def test_an_offset_in_a_later_turn_that_cannot_be_committed_drops_those_before_it(monkeypatch):
    monkeypatch.setattr(commit_joint, "OFFSETS_AT_ONCE", 2)

    async def conversation():
        async with opened(partitions=3) as desk:
            offsets = [offset(5, partition=number) for number in range(3)] + [offset(5, partition=9)]
            answer = await commit(desk, [], offsets=offsets)
            assert answer.error_code is ErrorCode.unknown_topic_or_partition
            await desk.durable()
            assert (open_count(desk), committed_offset(desk)) == (0, -1)
            assert not desk.broker.groups.coordinator.table.offsets.pending_partitions("g")
            assert (await commit(desk, [], offsets=offsets[:3])).already is False
            assert committed_offset(desk) == 5

    run(conversation)


def test_no_offset_is_written_when_another_commit_overtakes_between_two_turns(monkeypatch):
    monkeypatch.setattr(commit_joint, "OFFSETS_AT_ONCE", 1)

    async def conversation():
        async with opened(partitions=9) as desk:
            table = desk.broker.groups.coordinator.table
            slow = asyncio.create_task(commit(desk, [], offsets=[offset(5, partition=n) for n in range(9)]))
            while not table.offsets.pending_partitions("g"):  # noqa: ASYNC110
                await asyncio.sleep(0)
            fast = await commit(desk, [])
            assert (fast.already, (await slow).already) == (False, True)
            await desk.durable()
            log = desk.broker.groups.journal.partition
            assert not log.log.open_transactions()
            assert not table.offsets.pending_partitions("g")
            assert (open_count(desk), committed_offset(desk)) == (0, -1)

    run(conversation)


def test_an_abort_that_overtakes_a_commit_leaves_nothing_decided():
    async def conversation():
        async with opened() as desk:
            one = await child(desk)
            await one.write(b"a")
            with desk.held_disk():
                slow = asyncio.create_task(commit(desk, [one], offsets=[offset(5)]))
                for _ in range(5):
                    await asyncio.sleep(0)
                fields = {"key": "k", "version": 0, "children": (one.shown,)}
                abort = asyncio.create_task(desk.ask(ApiKey.ABORT_JOINT, 0, **fields))
                for _ in range(5):
                    await asyncio.sleep(0)
            assert (await abort).committed is False
            assert (await slow).error_code is ErrorCode.producer_fenced
            await desk.durable()
            assert (desk.values(), open_count(desk), committed_offset(desk)) == ([], 0, -1)
            assert (await begin(desk)).committed is False

    run(conversation)


@pytest.mark.parametrize("dialect", [FIRST, SECOND])
def test_a_child_that_writes_on_after_the_decision_is_refused(dialect):
    async def conversation():
        async with opened() as desk:
            one, other = await child(desk, dialect=dialect), await child(desk, part=1, dialect=dialect)
            await one.write(b"a")
            await other.write(b"x")
            with desk.held_disk():
                task = asyncio.create_task(commit(desk, [one]))
                for _ in range(20):
                    await asyncio.sleep(0)
                assert not task.done()
                for zombie in (one, other):
                    for partition in (0, 1):
                        assert await zombie.write(b"late", partition) in LATE
            assert (await task).error_code is NONE
            for zombie in (one, other):
                assert await zombie.write(b"late") in LATE
                end = await desk.end(zombie.id, zombie.who, True)
                assert end.error_code in (ErrorCode.invalid_txn_state, ErrorCode.producer_fenced)
            await desk.durable()
            assert (desk.values(), desk.values("t", 1)) == ([b"a"], [])

    run(conversation)


LATE = (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced, ErrorCode.invalid_txn_state)


def test_a_child_whose_time_is_up_is_aborted_and_named():
    async def conversation():
        async with opened() as desk:
            one, slow = await child(desk), await child(desk, part=1)
            await one.write(b"a")
            await slow.write(b"b")
            coordinator = desk.broker.transactions.default.coordinator
            desk.broker.transactions.default.apply(coordinator.abort_overdue(desk.broker.now_ms() + 60_000))
            answer = await commit(desk, [one, slow])
            assert answer.error_code is ErrorCode.producer_fenced
            assert one.id in answer.error_message
            await desk.durable()
            assert (desk.values(), open_count(desk)) == ([], 0)
            assert (await begin(desk)).committed is False

    run(conversation)


# -- what is resolved -------------------------------------------------------------------------------------------------


def test_a_commit_is_resolved_when_its_markers_are_durable_everywhere():
    async def conversation():
        async with opened() as desk:
            one, two = await child(desk), await child(desk, part=1)
            await one.write(b"a", 0)
            await two.write(b"b", 1)
            transactions = desk.broker.transactions.default
            seen = []

            def look(_partition):
                durable = all(
                    ("COMMIT", 1) in markers(desk, index)
                    and desk.broker.partitions.require("t", index).high_watermark
                    == desk.broker.partitions.require("t", index).end_offset
                    for index in range(2)
                )
                seen.append((durable, transactions.resolved_commit_sequence))

            desk.broker.flush.subscribe(look)
            await commit(desk, [one, two])
            await desk.durable()
            assert transactions.resolved_commit_sequence == 1
            assert (False, 1) not in seen, "resolved before all markers were durable"
            with desk.held_disk():
                task = asyncio.create_task(commit(desk, [], version=1))
                for _ in range(20):
                    await asyncio.sleep(0)
                assert transactions.resolved_commit_sequence == 1, (
                    "an empty commit that a crash may take back"
                )
            await task
            assert transactions.resolved_commit_sequence == 2

    run(conversation)


def test_the_markers_of_many_children_are_one_write_to_a_partition():
    async def conversation():
        async with opened() as desk:
            children = [await child(desk, part=part) for part in range(50)]
            for writer in children:
                await writer.write(b"v", 0)
                await writer.write(b"v", 1)
            await desk.durable()
            disk = desk.broker.disk
            before, appends = disk.step, []
            disk.step = lambda what, *rest, **named: (
                appends.append(what),
                before(what, *rest, **named),
            )[1]
            await commit(desk, children)
            await desk.durable()
            disk.step = before
            writes = [what for what in appends if what.startswith("append")]
            assert len(writes) <= 6, writes  # the decision, two partitions, what was forgotten
            assert len(desk.values("t", 0)) == len(desk.values("t", 1)) == 50
            assert set(markers(desk)) == {("COMMIT", 1)}

    run(conversation)


def test_in_commit_order_a_joint_commit_is_one_piece_and_a_cut_takes_it_whole():
    async def conversation():
        async with opened(topics=()) as desk:
            topic = desk.broker.topic_files.create("c", 2, {"stablelog.order": "commit"})
            plain = await child(desk, key="other")
            plain.id = "plain"
            plain.who = await desk.init("plain")
            one, two, three = [await child(desk, part=part, dialect=FIRST) for part in range(3)]
            for writer, value in ((one, b"1"), (plain, b"p"), (two, b"2"), (one, b"3"), (three, b"4")):
                await writer.write(value, topic="c")
            await two.write(b"5", 1, topic="c")
            assert (await desk.end("plain", plain.who, True, version=5)).error_code is NONE
            assert (await commit(desk, [two, three, one])).commit_sequence == 2
            await commit(desk, [], version=1)
            await desk.durable()
            assert desk.values("c") == [b"p", b"2", b"4", b"1", b"3"]
            logs = desk.broker.partitions.of_topic(topic)
            view, other = logs[0].view, logs[1].view
            resolved = desk.broker.transactions.default.resolved_commit_sequence
            assert resolved == 3
            cuts = [(view.offset_after(g), other.offset_after(g)) for g in range(resolved + 1)]
            assert cuts[1] == (cuts[0][0] + 2, cuts[0][1]), "the plain transaction and its marker"
            assert cuts[2] == cuts[3] == (view.end_offset, other.end_offset), "the joint commit, whole"

    run(conversation)


# -- requests that lie ------------------------------------------------------------------------------------------------


def test_counts_that_cannot_be_true_close_the_connection_and_nothing_else():
    async def conversation():
        async with opened() as desk:
            whole = frame(ApiKey.COMMIT_JOINT, 0, key="k", version=3, children=(), group_offsets=())
            for cut in range(8, len(whole)):
                with pytest.raises((RefusedError, struct.error)):
                    await desk.router.respond(desk.stranger, whole[:cut])
            lying = whole[:-3] + b"\xff\xff\xff\xff\x0f" + whole[-2:]  # four billion children
            with pytest.raises(RefusedError, match="commit_joint"):
                await desk.router.respond(desk.stranger, lying)
            for key in (ApiKey.BEGIN_JOINT, ApiKey.COMMIT_JOINT, ApiKey.ABORT_JOINT):
                with pytest.raises(RefusedError, match="versions 0 to 0"):
                    await desk.router.respond(desk.stranger, struct.pack(">hhi", key, 1, 1) + whole[8:])
            assert (await begin(desk, version=3)).committed is False

    run(conversation)


@pytest.mark.parametrize(
    ("key", "version", "run_name", "group"),
    [
        ("", 0, "r", ""),
        ("k" * 256, 0, "r", ""),
        ("k", -1, "r", ""),
        ("k", 0, "r" * 101, ""),
        ("k", 0, "r", "a/b"),
    ],
)
def test_names_that_cannot_be_are_refused_in_words(key, version, run_name, group):
    async def conversation():
        async with opened() as desk:
            fields = {"key": key, "version": version, "run": run_name, "group": group}
            for api_key, more in (
                (ApiKey.BEGIN_JOINT, {}),
                (ApiKey.COMMIT_JOINT, {"children": ()}),
                (ApiKey.ABORT_JOINT, {"children": ()}),
            ):
                answer = await desk.ask(api_key, 0, **fields, **more)
                assert answer.error_code is ErrorCode.invalid_request
                assert answer.error_message

    run(conversation)


def test_abort_takes_the_whole_run_and_never_undoes():
    async def conversation():
        async with opened() as desk:
            await begin(desk)
            one, two = await child(desk), await child(desk, part=1)
            await one.write(b"a")
            await two.write(b"b")
            fields = {"key": "k", "version": 0, "children": (one.shown,)}
            assert (await desk.ask(ApiKey.ABORT_JOINT, 0, **fields)).committed is False
            await desk.durable()
            assert open_count(desk) == 1
            assert (await commit(desk, [two])).commit_sequence == 1
            answer = await desk.ask(ApiKey.ABORT_JOINT, 0, **fields, run="r1")
            assert (answer.committed, answer.commit_sequence) == (True, 1)
            await desk.durable()
            assert desk.values() == [b"b"]

    run(conversation)


@pytest.mark.parametrize("is_committed", [True, False])
def test_many_offsets_take_effect_at_once_and_are_settled_in_turns(is_committed, monkeypatch):
    """Readers get all offsets of the transaction or none, however many of them the broker has settled."""
    monkeypatch.setattr(offsets_module, "APPLIED_AT_ONCE", 10)
    names = [f"g{at}" for at in range(40)]
    disk, seen = SimDisk(), []

    def all_committed(desk):
        return {committed_offset(desk, name, ("t", index)) for name in names for index in (0, 1)}

    async def conversation():
        async with opened(disk) as desk:
            offsets = desk.broker.groups.coordinator.table.offsets
            await commit(desk, [], 1, offsets=[offset(1, name, at) for name in names for at in (0, 1)])
            while not offsets.is_all_applied:  # noqa: ASYNC110
                await asyncio.sleep(0)
            settle = offsets.apply_ended

            def observed():
                settle()
                seen.append(all_committed(desk))

            monkeypatch.setattr(offsets, "apply_ended", observed)
            if not is_committed:
                monkeypatch.setattr(commit_joint.JointRequests, "commit", refuse)
            more = [offset(2, name, at) for name in names for at in (0, 1)]
            answer = await commit(desk, [], 2, offsets=more)
            assert (answer.error_code is NONE) == is_committed
            await desk.durable()
            while not offsets.is_all_applied:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert len(seen) > 5
            assert seen == [{2 if is_committed else 1}] * len(seen)
        async with opened(disk, topics=()) as desk:
            assert all_committed(desk) == {2 if is_committed else 1}
            assert desk.broker.groups.coordinator.table.offsets.is_all_applied

    async def refuse(*_arguments):
        raise RefusedError(ErrorCode.invalid_txn_state, "no")

    run(conversation)
