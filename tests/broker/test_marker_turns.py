"""The markers of many partitions are written in several turns of the loop, in the order of the decisions."""

import asyncio

import pytest

from stablelog.batch.header import headers_in
from stablelog.broker import transaction_group, turns
from stablelog.log.partition import Isolation
from tests.broker.desk import ABORT, COMMIT, batch, opened

COUNT = 7


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    """Two partitions in a turn, and each turn is over at once."""
    monkeypatch.setattr(transaction_group, "AT_ONCE_MAX", 2)
    monkeypatch.setattr(turns, "TURN_S", -1)


async def write(desk, transactional_id, partitions):
    producer = await desk.init(transactional_id)
    await desk.add(transactional_id, producer, *(("t", index) for index in partitions))
    for index in partitions:
        records = batch(transactional_id.encode(), producer=producer, sequence=0)
        await desk.produce(records, partition=index, transactional_id=transactional_id)
    return producer


def test_a_client_is_answered_when_all_markers_are_written_and_others_are_served_in_between():
    async def conversation():
        async with opened(partitions=COUNT) as desk:
            producer = await write(desk, "a", range(COUNT))
            group = desk.broker.transactions.default
            steps = []
            ended = asyncio.create_task(desk.end("a", producer, COMMIT))
            while not ended.done():
                steps.append(len(group._to_write))
                await asyncio.sleep(0)
            assert len(set(steps)) > 2, "it was done in turns"
            await desk.durable()
            assert [desk.values(partition=index) for index in range(COUNT)] == [[b"a"]] * COUNT

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_what_is_decided_meanwhile_is_written_after_it():
    async def conversation():
        async with opened(partitions=COUNT) as desk:
            first = await write(desk, "a", range(COUNT))
            others = {name: await write(desk, name, [0, 6]) for name in ("b", "c")}
            with desk.held_disk():
                ends = [asyncio.create_task(desk.end("a", first, COMMIT))]
                await asyncio.sleep(0)
                ends += [
                    asyncio.create_task(desk.end(name, producer, COMMIT)) for name, producer in others.items()
                ]
                await asyncio.sleep(0)
            await asyncio.gather(*ends)
            await desk.durable()
            for index in (0, 6):
                log = desk.broker.topics.partition("t", index)
                assert log.last_stable_offset == log.end_offset == 6
                log.prove()
                data = b"".join(log.read(0, 1 << 20, Isolation.READ_UNCOMMITTED).buffers)
                markers = [header.producer_id for _, header in headers_in(data) if header.is_control]
                assert markers == [first[0], others["b"][0], others["c"][0]]

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_a_stop_writes_the_markers_that_are_left():
    async def conversation():
        async with opened(partitions=COUNT) as desk:
            producer = await write(desk, "a", range(COUNT))
            group = desk.broker.transactions.default
            ended = asyncio.create_task(desk.end("a", producer, ABORT))
            while not group._to_write:  # noqa: ASYNC110
                await asyncio.sleep(0)
            desk.broker.transactions.write_decided()
            assert all(not log.open_transactions() for log in desk.broker.topics.get("t").partitions.values())
            await ended

    asyncio.run(asyncio.wait_for(conversation(), 60))
