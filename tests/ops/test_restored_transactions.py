"""Restores of joint commits and of prepared transactions. Disk and store are simulated."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from stablelog.testing.sim_objects import SimObjects, StoreFaults
from stablelog.wire.api import ApiKey
from tests.broker.apis.test_joint_apis import begin, child, commit
from tests.broker.desk import COMMIT, batch, init_fields
from tests.broker.tiering.desk import LOCAL_NOTHING, SIMULATED_URL, copy, simulate_store, tiered
from tests.ops.test_restore import ORDERED, SELDOM, restored, values_of

NONE = ErrorCode.none


@pytest.fixture
def objects(monkeypatch):
    store = SimObjects(faults=StoreFaults(latency_s=0))
    simulate_store(monkeypatch, store)
    return store


def lives(conversation, disk=None, **settings):
    async def live():
        async with tiered(SIMULATED_URL, disk, **SELDOM, **settings) as desk:
            return await conversation(desk)

    return asyncio.run(asyncio.wait_for(live(), 60))


def test_a_joint_commit_is_torn_if_the_store_lacks_one_of_its_transactions(objects):
    """Each transaction writes to one partition, as the tasks of a streaming query may."""

    async def live(desk):
        desk.broker.topic_files.create("u", 2, ORDERED)
        await begin(desk)
        children = [await child(desk, part=part) for part in range(2)]
        for number, one in enumerate(children):
            assert await one.write(b"%d" % number, topic="u", partition=number) is NONE
        assert (await commit(desk, children)).error_code is NONE
        await desk.durable()
        desk.broker.partitions.require("u", 0).roll(desk.broker.now_ms())
        await desk.produce(batch(b"after"), topic="u")
        await copy(desk)
        return [one.id for one in children]

    names = lives(live)
    _, report = restored(objects)
    assert [(one.transactional_id, one.found, one.lost) for one in report.torn] == [
        (names[0], (("u", 0),), ()),
        (names[1], (), (("u", 1),)),
    ]
    (sequence,) = {one.commit_sequence for one in report.torn}
    assert report.torn_sequences == {"": sequence}


TWO_PHASE = {"transaction_two_phase_commit_enable": "true"}


async def prepare(desk, value):
    """Write a record in a transaction of two-phase commit, and leave the transaction prepared."""
    who = await desk.init("2pc", version=6, enable2_pc=True, keep_prepared_txn=False)
    await desk.add("2pc", who, ("t", 0))
    made = await desk.produce(batch(value, producer=who, sequence=0), transactional_id="2pc")
    assert made.error_code is NONE
    await desk.durable()
    return who


async def continue_prepared(desk):
    """InitProducerId as a coordinator of two-phase commit sends it after its own restart."""
    return await desk.ask(
        ApiKey.INIT_PRODUCER_ID,
        6,
        **init_fields(6, "2pc", enable2_pc=True, keep_prepared_txn=True),
    )


@pytest.mark.extended
@pytest.mark.parametrize("decides", [True, False])
@pytest.mark.parametrize("order", ["offset", "commit"])
def test_prepared_transactions_are_aborted_by_each_of_several_restores(objects, order, decides):
    """No reader gets them, their producers are refused, and the id can be used again after each restore.

    Args:
        decides: whether the broker also commits a prepared transaction before its disk is lost.
    """
    committed = []
    old = []

    async def life(desk, number):
        await desk.opened("t", 0)
        if old:
            name = b"of the life before"
            await desk.add("2pc", old[-1], ("t", 0))
            refused = await desk.produce(
                batch(name, producer=old[-1], sequence=1), transactional_id="2pc", version=12
            )
            assert refused.error_code is not NONE
            assert (await desk.end("2pc", old[-1], COMMIT)).error_code is not NONE
            answer = await continue_prepared(desk)
            assert answer.error_code is NONE
            assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == (-1, -1)
        if decides:
            value = b"committed %d" % number
            who = await prepare(desk, value)
            assert (await desk.commit("2pc", who)).error_code is NONE
            await desk.durable()
            committed.append(value)
        log = desk.broker.partitions.require("t", 0)
        value = b"after %d" % number
        await desk.produce(batch(value))
        await desk.durable()
        committed.append(value)
        log.roll(desk.broker.now_ms())
        old.append(await prepare(desk, b"prepared %d" % number))
        await copy(desk)
        await desk.broker.tiering.copy_coordinator_logs()
        assert (await continue_prepared(desk)).ongoing_txn_producer_id >= 0
        assert await values_of(desk) == committed

    disk = None
    for number in range(4):

        async def one(desk, number=number):
            await life(desk, number)

        lives(one, disk, configs={**LOCAL_NOTHING, "stablelog.order": order}, **TWO_PHASE)
        disk, report = restored(objects)
        assert report.left_out == []
        assert report.torn == []

    async def check(desk):
        await desk.opened("t", 0)
        log = desk.broker.partitions.require("t", 0)
        assert log.last_stable_offset == log.high_watermark
        assert await values_of(desk) == committed

    lives(check, disk, **TWO_PHASE)
