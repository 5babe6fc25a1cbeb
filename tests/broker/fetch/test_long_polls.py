"""Long polls: woken when there is more to see, and only then."""

import asyncio
import itertools

import pytest
import uvloop

from stablelog.broker.fetch.long_polls import LongPolls
from stablelog.broker.loop.tasks import Tasks
from stablelog.log.partition import Isolation
from tests.broker.jump import run, settle

COMMITTED, ALL = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED


class Partition:
    """As much of a partition as who waits for it looks at."""

    topic = "t"

    def __init__(self, index=0):
        self.index = index
        self.ends = {COMMITTED: 0, ALL: 0}
        self.failure = None

    def visible_end(self, isolation):
        return self.ends[isolation]


async def wait_for_more(long_polls, seen, *, isolation=ALL, timeout_s=60.0, closed=()):
    with long_polls.begin_poll() as poll:
        for name in closed:
            poll.wait_for_partition(name)
        return await long_polls.wait_for_more(poll, seen, isolation, timeout_s)


def poll(long_polls, *partitions, isolation=ALL, timeout_s=60.0):
    seen = [(partition, partition.visible_end(isolation)) for partition in partitions]
    return asyncio.create_task(wait_for_more(long_polls, seen, isolation=isolation, timeout_s=timeout_s))


def test_a_poll_ends_when_one_of_its_partitions_shows_more():
    async def conversation():
        long_polls, one, two = LongPolls(Tasks(pytest.fail)), Partition(0), Partition(1)
        wait = poll(long_polls, one, two)
        await settle()
        long_polls.wake(one)
        await settle()
        assert not wait.done(), "woken, it looks, and there is nothing"
        two.ends[ALL] = 1
        long_polls.wake(two)
        assert await wait is True

    run(conversation())


def test_a_read_committed_poll_waits_for_the_last_stable_offset():
    """Scenario 32: wake-up depends on the LSO."""

    async def conversation():
        long_polls, partition = LongPolls(Tasks(pytest.fail)), Partition()
        committed, everything = (poll(long_polls, partition, isolation=level) for level in (COMMITTED, ALL))
        await settle()
        partition.ends[ALL] = 5
        long_polls.wake(partition)
        assert await everything is True
        assert not committed.done()
        partition.ends[COMMITTED] = 5
        long_polls.wake(partition)
        assert await committed is True

    run(conversation())


def test_a_poll_of_a_partition_that_is_not_open_ends_when_it_is_opened():
    async def conversation():
        long_polls, open_one, opened = LongPolls(Tasks(pytest.fail)), Partition(0), Partition(1)
        wait = asyncio.create_task(wait_for_more(long_polls, [(open_one, 0)], closed=[("t", 1), ("t", 2)]))
        await settle()
        long_polls.wake(opened)
        assert await wait is True
        assert len(long_polls) == 0

    run(conversation())


def test_what_came_before_the_wait_ends_it_at_once():
    async def conversation():
        long_polls, partition = LongPolls(Tasks(pytest.fail)), Partition()
        partition.ends[ALL] = 1
        assert await wait_for_more(long_polls, [(partition, 0)]) is True
        assert await wait_for_more(long_polls, [(partition, 1)], timeout_s=0.0) is False
        partition.failure = "it was deleted"
        assert await wait_for_more(long_polls, [(partition, 1)]) is True

    run(conversation())


def test_a_partition_that_opens_while_others_are_read_ends_the_wait_at_once():
    async def conversation():
        long_polls, late = LongPolls(Tasks(pytest.fail)), Partition(1)
        with long_polls.begin_poll() as reading:
            reading.wait_for_partition(("t", 1))
            long_polls.wake(late)
            assert await long_polls.wait_for_more(reading, [(Partition(0), 0)], ALL, 60.0) is True
        assert len(long_polls) == 0

    run(conversation())


def test_a_poll_ends_when_one_of_its_partitions_is_deleted_or_fails():
    async def conversation():
        long_polls, partition = LongPolls(Tasks(pytest.fail)), Partition()
        wait = poll(long_polls, partition)
        await settle()
        partition.failure = "it was deleted"
        long_polls.wake(partition)
        assert await wait is True

    run(conversation())


def test_a_poll_ends_in_time_however_often_it_is_woken_for_nothing():
    async def conversation():
        long_polls, partition = LongPolls(Tasks(pytest.fail)), Partition()
        loop = asyncio.get_running_loop()
        began = loop.time()
        wait = poll(long_polls, partition, timeout_s=10.0)
        for _ in itertools.takewhile(lambda _: not wait.done(), range(100)):
            await asyncio.sleep(0.7)
            long_polls.wake(partition)
        assert await wait is False
        assert 10.0 <= loop.time() - began < 11.5

    run(conversation())


def test_who_has_gone_is_not_kept():
    async def conversation():
        long_polls, partition = LongPolls(Tasks(pytest.fail)), Partition()
        waits = [poll(long_polls, partition) for _ in range(3)]
        await settle()
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        assert len(long_polls) == 0

    run(conversation())


def test_a_poll_of_less_than_a_millisecond_ends_on_the_loop_that_serves():
    """uvloop takes so short a time for none, and its handle knows no time."""

    async def conversation():
        wait = poll(LongPolls(Tasks(pytest.fail)), Partition(), timeout_s=0.0002)
        assert await wait is False

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(conversation())
