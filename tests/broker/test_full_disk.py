"""What the broker says when the disk takes nothing more: never that something is done that is not."""

import asyncio
import errno
from collections import Counter
from functools import partial

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.broker import CLEAN_SHUTDOWN_FILE, Broker
from stablelog.broker.config import load_settings
from stablelog.errors import DiskError, Refused, Unavailable
from stablelog.testing.sim_clock import SimClock
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import COMMIT, DATA, Desk, batch, init_fields


class FullDisk(SimDisk):
    """A disk on which one operation fails, of those whose name holds a word."""

    word = None

    def step(self, what, torn=None, path=None):
        if self.word is not None and self.word in what:
            self.word = None
            raise DiskError(what, errno.ENOSPC)
        super().step(what, torn, path)


class NoRoom(FullDisk):
    """A disk on which an operation fails again and again."""

    def step(self, what, torn=None, path=None):
        if self.word is not None and self.word in what:
            raise DiskError(what, errno.ENOSPC)
        super().step(what, torn, path)


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


@pytest.mark.parametrize("word", ["create", "write partition.metadata", "write cluster.json"])
def test_a_topic_that_finds_no_room_is_refused_and_made_when_there_is_some(word):
    disk = NoRoom()

    async def conversation(desk):
        disk.word = word
        for _ in range(2):
            with pytest.raises(Refused, match="No space left") as refused:
                await desk.broker.create_topic("late", 2, {})
            assert refused.value.code is ErrorCode.kafka_storage_error
            assert desk.broker.topics.get("late") is None
        disk.word = None
        await desk.broker.create_topic("late", 2, {})
        assert (await desk.produce(batch(b"x"), topic="late", partition=1)).error_code is ErrorCode.none

    assert run(disk, conversation) == []


@pytest.mark.parametrize("word", ["create", "write partition.metadata", "write cluster.json"])
def test_so_is_a_transaction_group(word):
    disk = NoRoom()

    async def conversation(desk):
        disk.word = word
        answer = await desk.ask(22, 4, **init_fields(4, "group/me"))
        assert answer.error_code is ErrorCode.policy_violation
        disk.word = None
        await desk.init("group/me")

    assert run(disk, conversation) == []


class CountingDisk(NoRoom):
    """A disk that knows which files are open."""

    def __init__(self):
        super().__init__()
        self.held = Counter()

    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        self.held[path] += 1
        file.close = partial(self.held.subtract, [path])
        return file


@pytest.mark.parametrize(
    ("word", "times"),
    [
        ("write partition.metadata", 4),
        ("sync directory late-1", 1),
        ("create 00000000000000000000.commitextents", 1),
        ("write cluster.json", 1),
    ],
)
def test_partitions_of_a_topic_that_was_not_made_keep_no_file_open(word, times):
    disk = CountingDisk()

    async def conversation(desk):
        written, held = [], +disk.held

        def step(what, torn=None, path=None):
            written.append(what)
            if written.count(word) == times:
                raise DiskError(what, errno.EMFILE)
            SimDisk.step(disk, what, torn, path)

        disk.step = step
        with pytest.raises(Refused, match="Too many open files"):
            await desk.broker.create_topic("late", 5, {"stablelog.order": "commit"})
        del disk.step
        assert +disk.held == held

    assert run(disk, conversation) == []


def test_a_list_of_topics_that_finds_no_room_is_the_one_that_holds():
    disk = NoRoom()

    async def conversation(desk):
        topics = desk.broker.topics
        disk.word = "write cluster.json"
        with pytest.raises(Refused, match="No space left"):
            await desk.broker.add_partitions("t", 3)
        with pytest.raises(Refused):
            topics.configure(topics.get("t"), {"retention.ms": "5000"})
        with pytest.raises(Refused):
            await desk.broker.delete_topic("t")
        assert (topics.get("t").partition_count, topics.get("t").configs) == (1, {})
        assert (await desk.produce(batch(b"x"))).error_code is ErrorCode.none
        disk.word = None
        await desk.broker.add_partitions("t", 2)
        assert len(topics.get("t").partitions) == 2

    assert run(disk, conversation) == []


def test_a_broker_that_cannot_write_its_checkpoints_stops_and_is_recovered_at_the_next_start(caplog):
    disk = NoRoom()

    async def fill(desk):
        assert (await desk.produce(batch(b"x"))).error_code is ErrorCode.none
        disk.word = "write "

    assert run(disk, fill) == []
    assert "No space left" in caplog.text
    assert not disk.exists(DATA / CLEAN_SHUTDOWN_FILE)
    disk.word = None

    async def read(desk):
        assert desk.values() == [b"x"]

    assert run(disk, read) == []


def test_the_log_says_once_in_a_while_that_nothing_can_be_written(caplog):
    disk = NoRoom()

    async def conversation(desk):
        disk.word = "append"
        for _ in range(5):
            refused = await desk.produce(batch(b"x"))
            assert refused.error_code is ErrorCode.kafka_storage_error
        disk.word = None
        assert (await desk.produce(batch(b"x"))).error_code is ErrorCode.none

    assert run(disk, conversation) == []
    assert caplog.text.count("its producers try again") == 1
