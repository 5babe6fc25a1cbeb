"""What the broker says when the disk takes nothing more: never that something is done that is not."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.broker import CLEAN_SHUTDOWN_FILE, Broker
from stablelog.broker.config import load_settings
from stablelog.errors import Unavailable
from stablelog.testing.sim_clock import SimClock
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import COMMIT, DATA, Desk, batch


class FullDisk(SimDisk):
    """A disk on which one operation fails, of those whose name holds a word."""

    word = None

    def step(self, what, torn=None):
        if self.word is not None and self.word in what:
            self.word = None
            raise Unavailable(f"{what}: no space left")
        super().step(what, torn)


def run(disk, conversation):
    """A broker on the disk, for one conversation. Returns how it failed."""

    async def life():
        failures = []
        broker = Broker(load_settings({}), DATA, disk=disk, clock=SimClock(), on_failure=failures.append)
        await broker.start()
        await next(task for task in asyncio.all_tasks() if task.get_name() == "recovery")
        if broker.topics.get("t") is None:
            broker.topics.create("t", 1, {})
        try:
            await conversation(Desk(broker))
        finally:
            await broker.stop()
        return failures

    return asyncio.run(asyncio.wait_for(life(), 100))


def test_a_commit_whose_record_was_not_written_is_never_acknowledged():
    disk = FullDisk()

    async def conversation(desk):
        me = await desk.init("a")
        await desk.add("a", me, ("t", 0))
        written = await desk.produce(batch(b"x", producer=me, sequence=0), transactional_id="a")
        assert written.error_code is ErrorCode.none
        disk.word = "append"  # of the commit's record
        for _ in range(3):  # as a client does that has lost its connection
            with pytest.raises(Unavailable):
                await desk.end("a", me, COMMIT)

    failures = run(disk, conversation)
    assert len(failures) == 1, (
        "the broker has to stop: its coordinator has decided what its log does not know"
    )
    assert not disk.exists(DATA / CLEAN_SHUTDOWN_FILE)


def test_a_sync_that_failed_is_not_made_good_by_one_that_succeeds_when_the_broker_stops():
    disk = FullDisk()

    async def conversation(desk):
        disk.word = "sync"
        with pytest.raises(Unavailable):
            await desk.produce(batch(b"x"))
        with pytest.raises(Unavailable):
            await desk.produce(batch(b"y"))

    assert len(run(disk, conversation)) == 1
    assert not disk.exists(DATA / CLEAN_SHUTDOWN_FILE)
