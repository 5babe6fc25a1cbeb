"""Restores of joint commits and of prepared transactions. Disk and store are simulated."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from stablelog.testing.sim_objects import Faults, SimObjects
from tests.broker.apis.test_joint_apis import begin, child, commit
from tests.broker.desk import batch
from tests.broker.tiering.desk import SIMULATED_URL, copy, simulate_store, tiered
from tests.ops.test_restore import ORDERED, SELDOM, restored

NONE = ErrorCode.none


@pytest.fixture
def objects(monkeypatch):
    store = SimObjects(faults=Faults(latency_s=0))
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
        desk.broker.topics.create("u", 2, ORDERED)
        await begin(desk)
        children = [await child(desk, part=part) for part in range(2)]
        for number, one in enumerate(children):
            assert await one.write(b"%d" % number, topic="u", partition=number) is NONE
        assert (await commit(desk, children)).error_code is NONE
        await desk.durable()
        desk.broker.topics.partition("u", 0).roll(desk.broker.now_ms())
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
