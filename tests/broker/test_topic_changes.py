"""A topic that is deleted leaves nothing to the next one of its name, also where not all of it was open."""

import asyncio
import random
import threading

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker import topic_changes
from stablelog.broker.broker import Broker
from stablelog.broker.loop import turns
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.errors import RefusedError
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import DATA, batch, opened


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), 120))


async def fill(desk):
    for partition in (0, 1):
        assert (await desk.produce(batch(b"old"), partition=partition)).base_offset == 0
    await desk.durable()


async def make_again(desk):
    """The topic is made anew, and there is nothing in it."""
    await desk.broker.topic_changes.create_topic("t", 2, {})
    for partition in (0, 1):
        assert desk.broker.partitions.require("t", partition).end_offset == 0


async def make_and_write_again(desk):
    await make_again(desk)
    await desk.produce(batch(b"new"))
    await desk.durable()


def check_that_only_the_new_is_there(disk):
    """After another start."""

    async def conversation():
        async with opened(disk, topics=()) as desk:
            partition = desk.broker.partitions.require("t", 0)
            assert (partition.start_offset, partition.end_offset) == (0, 1)

    run(conversation)


def test_a_partition_that_could_not_be_opened_goes_with_its_topic():
    async def conversation():
        async with opened() as desk:
            await fill(desk)
            desk.broker.partitions.of_topic(desk.broker.topics.named("t")).pop(0).close(clean=False)
            await desk.broker.topic_changes.delete_topic("t")
            assert not desk.broker.disk.is_dir(DATA / "t-0")
            await make_again(desk)

    run(conversation)


def test_so_does_one_of_which_nothing_is_there():
    async def conversation():
        async with opened() as desk:
            await fill(desk)
            desk.broker.partitions.of_topic(desk.broker.topics.named("t")).pop(0).close(clean=False)
            desk.broker.disk.remove_dir(DATA / "t-0")
            await desk.broker.topic_changes.delete_topic("t")
            await make_again(desk)

    run(conversation)


def test_where_the_log_of_a_deleted_topic_began_is_not_where_the_next_one_begins():
    """Once, the next one's records were gone after a restart: its log was taken to begin behind them."""
    disk = SimDisk()

    async def written():
        async with opened(disk) as desk:
            for _ in range(5):
                await desk.produce(batch(b"old"))
            await desk.durable()
            desk.broker.partitions.require("t", 0).deletion.delete_records(5)
            desk.broker.topic_files.checkpoints.log_starts.write_if_changed()
            await desk.broker.topic_changes.delete_topic("t")
            await make_and_write_again(desk)

    run(written)
    check_that_only_the_new_is_there(disk)


@pytest.mark.parametrize("seed", range(3))
def test_a_deletion_that_a_crash_cut_short_leaves_nothing_to_the_next_topic_of_the_name(seed):
    disks = []

    async def cut_short():
        async with opened() as desk:
            disk = desk.broker.disk
            await fill(desk)
            desk.broker.partitions.require("t", 0).deletion.delete_records(1)
            desk.broker.topic_files.checkpoints.log_starts.write_if_changed()
            rename = disk.rename

            def crashed(*paths):
                disks.append(disks[0] if disks else disk.crash(random.Random(seed)))
                rename(*paths)

            disk.rename = crashed
            await desk.broker.topic_changes.delete_topic("t")

    async def again():
        async with opened(disk, topics=()) as desk:
            assert disk.is_dir(DATA / "t-0")
            await make_and_write_again(desk)

    run(cut_short)
    disk = disks[0]
    run(again)
    check_that_only_the_new_is_there(disk)
    assert sum(name.endswith("-stray") for name in disk.list_dir(DATA)) == 2


def test_who_deletes_a_topic_waits_until_no_thread_recovers_it(monkeypatch):
    disk, is_recovered, may_go_on = SimDisk(), threading.Event(), threading.Event()
    start, recover_partition, unlist = Broker.start, TopicFiles.recover_partition, TopicFiles.unlist
    deleting, order = [], []

    async def written():
        async with opened(disk) as desk:
            await fill(desk)

    def slowly(self, topic, index, progress=None):
        partition = recover_partition(self, topic, index, progress)
        if (topic.name, index) == ("t", 0):
            is_recovered.set()
            assert may_go_on.wait(60)
            order.append("recovered")
        return partition

    def deleted(self, name):
        order.append("deleted")
        return unlist(self, name)

    async def delete_meanwhile(broker):
        assert await asyncio.to_thread(is_recovered.wait, 60)
        asyncio.get_running_loop().call_soon(may_go_on.set)  # once it waits
        await broker.topic_changes.delete_topic("t")

    async def started(broker):
        await start(broker)
        deleting.append(asyncio.create_task(delete_meanwhile(broker)))

    async def conversation():
        async with opened(disk, topics=()) as desk:
            await deleting[0]
            assert order == ["recovered", "deleted"]
            await make_again(desk)

    run(written)
    monkeypatch.setattr(Broker, "start", started)
    monkeypatch.setattr(TopicFiles, "recover_partition", slowly)
    monkeypatch.setattr(TopicFiles, "unlist", deleted)
    run(conversation)


def test_others_are_served_while_a_topic_is_deleted_and_its_name_is_taken_until_then(monkeypatch):
    """The partitions of a large topic are closed in turns, and their directories are renamed in a thread."""
    monkeypatch.setattr(turns, "TURN_S", -1)
    monkeypatch.setattr(topic_changes, "AT_ONCE_MAX", 2)

    async def conversation():
        async with opened(topics=("t", "other"), partitions=9) as desk:
            for index in range(9):
                await desk.produce(batch(b"old"), partition=index)
            partitions = list(desk.broker.partitions.of_topic(desk.broker.topics.named("t")).values())
            late = asyncio.create_task(desk.produce(batch(b"late"), partition=8))
            deleting = asyncio.create_task(desk.broker.topic_changes.delete_topic("t"))
            served = refused = 0
            is_created = False
            while desk.broker.topics.get("t") is not None:  # noqa: ASYNC110
                await asyncio.sleep(0)
            while not deleting.done() and not is_created:
                assert all(one.availability.is_closed for one in partitions)
                answer = await desk.produce(batch(b"v"), topic="other")
                served += answer.error_code is ErrorCode.none
                try:  # The name is given back a little before the deletion has ended.
                    await desk.broker.topic_changes.create_topic("t", 1, {})
                    is_created = True
                except RefusedError as error:
                    if "exists already" not in str(error):
                        raise
                    refused += 1
            assert min(served, refused) > 1
            await deleting
            assert (await late).error_code in (ErrorCode.none, ErrorCode.unknown_topic_or_partition)
            if not is_created:
                await desk.broker.topic_changes.create_topic("t", 1, {})
            assert desk.broker.partitions.require("t", 0).end_offset == 0
            assert not desk.broker.tasks.error_counts

    run(conversation)


def test_a_deletion_goes_on_when_its_client_has_gone():
    async def conversation():
        async with opened(partitions=9) as desk:
            deleting = asyncio.create_task(desk.broker.topic_changes.delete_topic("t"))
            while desk.broker.topics.get("t") is not None:  # noqa: ASYNC110
                await asyncio.sleep(0)
            deleting.cancel()
            await desk.broker.tasks.finish_request_work()
            await desk.broker.topic_changes.create_topic("t", 1, {})

    run(conversation)
