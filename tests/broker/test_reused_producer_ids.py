"""The producer id of a forgotten child goes to another child. Whatever the former holder still sends is refused."""

import asyncio
import random

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.joint.answers import ChildShown
from stablelog.errors import UnavailableError
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.children import JointName, child_id
from tests.broker.apis.test_joint_apis import FIRST, SECOND, child, commit, open_count
from tests.broker.apis.test_txn_offset_commit import commit as txn_commit_offset
from tests.broker.desk import batch, init_fields, opened

NONE = ErrorCode.none
NAME = JointName("", "k")
TARGETS = (("t", 0), ("t", 1))


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), 120))


def shown(made):
    return ChildShown(made.id, *made.who)


def ends(desk):
    """Where every partition ends."""
    return {
        (partition.topic, partition.index): partition.end_offset
        for partition in desk.broker.partitions
        if not partition.topic.startswith("__transaction_state")
    }


async def refused(desk, zombie, holder=None):
    """Everything that a client can ask with the zombie's producer id and epoch is refused and writes nothing."""
    before = ends(desk)
    codes = {}
    names = [zombie.id] + ([holder.id] if holder is not None else [])
    for name in names:
        for topic, partition in TARGETS:
            for version in (FIRST, SECOND):
                for sequence in (0, zombie.sequences.get((topic, partition), 0)):
                    answer = await desk.produce(
                        batch(b"zombie", producer=zombie.who, sequence=sequence),
                        topic=topic,
                        partition=partition,
                        transactional_id=name,
                        version=version,
                    )
                    codes["Produce", name, partition, version, sequence] = answer.error_code
            [code] = await desk.add(name, zombie.who, (topic, partition))
            codes["AddPartitionsToTxn", name, partition] = code
        for version in (3, 5):
            for committed in (True, False):
                answer = await desk.end(name, zombie.who, committed, version=version)
                codes["EndTxn", name, version, committed] = answer.error_code
        for version in (3, 5):
            topics = await txn_commit_offset(desk, version, zombie.who, name=name)
            codes["TxnOffsetCommit", name, version] = topics
        for version in (4, 5):
            who = {"producer_id": zombie.who[0], "producer_epoch": zombie.who[1]}
            answer = await desk.ask(22, version, **init_fields(version, name, **who))
            codes["InitProducerId", name, version] = answer.error_code
    answer = await desk.ask(22, 4, **init_fields(4, zombie.id))
    codes["InitProducerId", "anew"] = answer.error_code
    if holder is not None:
        codes["CommitJoint"] = (await commit(desk, [zombie], version=1)).error_code
        answer = await desk.ask(ApiKey.ABORT_JOINT, 0, key="k", version=1, run=None, children=(zombie.shown,))
        codes["AbortJoint"] = answer.error_code
    accepted = [what for what, code in codes.items() if code is NONE]
    assert accepted == []
    assert ends(desk) == before, "something was written"


async def committed_by_its_driver(desk, a):
    await a.write(b"A")
    assert (await commit(desk, [a])).error_code is NONE


async def not_named(desk, a):
    await a.write(b"A")
    assert (await commit(desk, [])).error_code is NONE


async def timed_out(desk, a):
    await a.write(b"A")
    desk.broker.clock.advance(61_000)
    await desk.broker.maintenance.abort_overdue()
    await desk.durable()
    assert open_count(desk) == 0
    assert (await commit(desk, [])).error_code is NONE


async def aborted_by_itself(desk, a):
    await a.write(b"A")
    version = 5 if a.dialect is SECOND else 3
    answer = await desk.end(a.id, a.who, False, version=version)
    assert answer.error_code is NONE
    if version == 5:
        a.later = answer.producer_id, answer.producer_epoch
    assert (await commit(desk, [])).error_code is NONE


async def nothing_written(desk, _a):
    assert (await commit(desk, [])).error_code is NONE


HOW = (committed_by_its_driver, not_named, timed_out, aborted_by_itself, nothing_written)


async def passed_on(desk, how, dialect):
    """A child that has ended, and the next one, which has its producer id."""
    a = await child(desk, dialect=dialect)
    await how(desk, a)
    await desk.durable()
    b = await child(desk, version=1)
    assert b.who[0] == a.who[0]
    assert b.who[1] > getattr(a, "later", a.who)[1]
    return a, b


def seen(how, *more):
    return [b"A", *more] if how is committed_by_its_driver else list(more)


@pytest.mark.parametrize("dialect", [FIRST, SECOND])
@pytest.mark.parametrize("how", HOW, ids=lambda how: how.__name__)
def test_a_former_holder_is_refused_in_every_state(how, dialect):
    async def conversation():
        async with opened() as desk:
            a, b = await passed_on(desk, how, dialect)
            await refused(desk, a, b)
            assert await b.write(b"B") is NONE
            await refused(desk, a, b)
            if hasattr(a, "later"):
                a.who = a.later
                await refused(desk, a, b)
            assert (await commit(desk, [b], version=1)).error_code is NONE
            await refused(desk, a)
            await desk.durable()
            await refused(desk, a)
            await refused(desk, b)
            assert desk.values(partition=0) == seen(how, b"B")
            assert desk.values(partition=1) == []

    run(conversation)


@pytest.mark.parametrize("dialect", [FIRST, SECOND])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("how", HOW, ids=lambda how: how.__name__)
def test_also_after_a_crash(how, begun, dialect):
    disk = SimDisk()

    async def conversation():
        async with opened(disk) as desk:
            a, b = await passed_on(desk, how, dialect)
            if begun:
                assert await b.write(b"B") is NONE
            left = disk.crash(random.Random(7))
        async with opened(left) as desk:
            b.desk = desk
            await refused(desk, a, b)
            if not begun:
                assert await b.write(b"B") is NONE
            await refused(desk, a, b)
            await desk.durable()
            answer = await commit(desk, [b], version=1)
            while answer.error_code is ErrorCode.coordinator_load_in_progress:
                await asyncio.sleep(0.001)
                answer = await commit(desk, [b], version=1)
            assert answer.error_code is NONE
            await desk.durable()
            await refused(desk, a)
            assert desk.values(partition=0) == seen(how, b"B")

    run(conversation)


@pytest.mark.parametrize("dialect", [FIRST, SECOND])
@pytest.mark.parametrize("how", HOW, ids=lambda how: how.__name__)
def test_also_where_the_partitions_have_forgotten_the_producer(how, dialect):
    async def conversation():
        async with opened(producer_id_expiration_ms=1000) as desk:
            a, b = await passed_on(desk, how, dialect)
            desk.broker.clock.advance(2000)
            await desk.broker.maintenance.expire_producers()
            assert not any(desk.broker.partitions.require(*target).log.producers for target in TARGETS)
            await refused(desk, a, b)
            assert await b.write(b"B", partition=1) is NONE
            await refused(desk, a, b)
            assert (await commit(desk, [b], version=1)).error_code is NONE
            await desk.durable()
            await refused(desk, a)
            assert desk.values(partition=0) == seen(how)
            assert desk.values(partition=1) == [b"B"]

    run(conversation)


def commit_without_durable_markers(desk, version, made):
    """Commit. The decision is durable, and its markers are written and not durable."""
    group = desk.broker.transactions.default
    decision = group.coordinator.joint.commit(NAME, version, [shown(made)], now_ms=desk.broker.now_ms())
    assert group.apply(decision).error is NONE
    group.journal.sync()
    group.write_decided(to_the_end=True)


def test_a_producer_id_is_not_passed_on_before_its_markers_are_durable():
    async def conversation():
        async with opened() as desk:
            a = await child(desk)
            await a.write(b"A")
            group = desk.broker.transactions.default
            partition = desk.broker.partitions.require("t", 0)
            await commit(desk, [a])
            await desk.durable()
            b = await child(desk, version=1)
            await b.write(b"B")
            assert b.who[0] == a.who[0]
            with desk.held_disk():
                commit_without_durable_markers(desk, 1, b)
                assert group.coordinator.table.get(b.id) is None
                assert partition.high_watermark < partition.end_offset
                answers = group.coordinator.producers.init_producer_id(
                    child_id("k", 2, "r1", 0, 0), 60_000, api_version=4, now_ms=desk.broker.now_ms()
                )
                assert group.apply(answers).producer_id != b.who[0]
            await desk.durable()
            c = await child(desk, version=2, part=1)
            assert c.who[0] == b.who[0]

    run(conversation)


def test_ids_are_not_passed_on_where_a_partition_has_failed():
    async def conversation():
        async with opened() as desk:
            a = await child(desk)
            await a.write(b"A")
            group = desk.broker.transactions.default
            partition = desk.broker.partitions.require("t", 0)
            with desk.held_disk():
                commit_without_durable_markers(desk, 0, a)
                assert group.coordinator.table.take_spare_identity() is None
                desk.broker.tasks.partition_scope(partition).fail(UnavailableError("on purpose"))
                assert group.coordinator.table.take_spare_identity() is None

    run(conversation)


def test_only_children_get_a_producer_id_again():
    async def conversation():
        async with opened() as desk:
            a = await child(desk)
            await committed_by_its_driver(desk, a)
            await desk.durable()
            plain = await desk.init("plain")
            assert plain[0] != a.who[0]
            idempotent = await desk.init(None)
            assert idempotent[0] != a.who[0]
            b = await child(desk, version=1)
            assert b.who[0] == a.who[0]

    run(conversation)


def test_many_attempts_leave_few_producers_in_coordinator_and_partitions():
    """As a stream of Spark does it: 40 micro-batches of 5 tasks over 2 partitions, some attempts twice."""

    async def conversation():
        async with opened() as desk:
            for version in range(40):
                tasks = [await child(desk, version=version, part=part) for part in range(5)]
                extra = [await child(desk, version=version, part=0, attempt=1)] if version % 4 == 0 else []
                for number, task in enumerate([*tasks, *extra]):
                    assert await task.write(b"%d" % number, partition=number % 2) is NONE
                assert (await commit(desk, tasks, version=version)).error_code is NONE
                await desk.durable()
            group = desk.broker.transactions.default
            assert len(group.coordinator.table) == 0
            producers = {
                producer.producer_id
                for target in TARGETS
                for producer in desk.broker.partitions.require(*target).log.producers
            }
            assert len(producers) <= 6
            assert (await desk.init("plain"))[0] <= 6, "ids below it were given to children"

    run(conversation)
