"""What clients can rely on from the moment at which a partition opens."""

import asyncio

from kio.schema.errors import ErrorCode

from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import Gate, batch, opened

NONE = ErrorCode.none
GREAT_ID = 5000


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), 100))


async def with_open_transaction(disk):
    """Leave a transaction in t-0 that is decided, and whose marker a crash loses."""
    async with opened(disk, partitions=1) as desk:
        me = await desk.init("me")
        assert await desk.add("me", me, ("t", 0)) == [NONE]
        sent = batch(b"x", producer=me, sequence=0, transactional=True)
        assert (await desk.produce(sent, transactional_id="me")).error_code is NONE
    return me


def test_an_opened_partition_is_settled_before_another_task_can_use_it():
    """Publication and settlement are one step: a client between the two could write before the missing marker."""
    disk, seen = SimDisk(), []

    async def conversation():
        await with_open_transaction(disk)
        gate = Gate("t")
        async with opened(disk, topics=(), gate=gate) as desk:
            topic_files, repair = desk.broker.topic_files, desk.broker.partition_repair
            publish, settle = topic_files.publish_partition, repair.partition_opened

            def published(topic, partition):
                publish(topic, partition)
                asyncio.get_running_loop().call_soon(seen.append, "another task")

            def settled(partition):
                settle(partition)
                seen.append("settled")

            topic_files.publish_partition, repair.partition_opened = published, settled
            gate.open()
            await desk.opened("t")
            await asyncio.sleep(0)

    run(conversation)
    assert seen == ["settled", "another task"]


def test_no_new_producer_gets_an_id_that_an_opened_partition_contains():
    """The commit log may be older than the partition: it was restored, or it is Kafka's."""
    disk = SimDisk()

    async def conversation():
        async with opened(disk, partitions=1) as desk:
            log = desk.broker.partitions.require("t", 0)
            log.append(
                batch(b"x", producer=(GREAT_ID, 0), sequence=0, transactional=False),
                now_ms=desk.broker.now_ms(),
            )
            await desk.durable()
        async with opened(disk, topics=()) as desk:
            producer_id, _ = await desk.init("me")
            assert producer_id == GREAT_ID + 1

    run(conversation)


def test_a_fetch_that_waits_for_a_partition_is_answered_when_it_opens():
    disk = SimDisk()

    async def conversation():
        async with opened(disk, partitions=1) as desk:
            assert (await desk.produce(batch(b"x"))).error_code is NONE
            await desk.durable()
        gate = Gate("t")
        async with opened(disk, topics=(), gate=gate) as desk:
            waiting = asyncio.create_task(desk.fetch("t", 0, 0, max_wait_ms=1_000_000))
            while not desk.broker.long_polls:  # noqa: ASYNC110
                await asyncio.sleep(0)
            gate.open()
            answer = await asyncio.wait_for(waiting, 60)
            assert answer is not None

    run(conversation)
