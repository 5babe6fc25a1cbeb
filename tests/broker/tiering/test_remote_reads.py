"""Loads of ranges: they are joined, outlive the fetch that began them, and a failed one is retried after a moment."""

import asyncio
import threading
from pathlib import Path

import pytest

from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.tiering.range_cache import RangeCache
from stablelog.broker.tiering.remote_reads import RemoteReads
from stablelog.env.objects.requests import Missing, Rejected, TooShort
from stablelog.env.objects.store import ObjectStore
from stablelog.errors import Corrupt, NotLoaded, StoreError, Unavailable
from stablelog.testing.sim_disk import SimDisk
from stablelog.types import ObjectRange
from tests.broker.tiering.world import lines

ONE, TWO = ObjectRange("a.log", 0, 10), ObjectRange("a.log", 10, 10)


class Requests:
    """A store whose answers wait until the test lets them go, and which raises an error on demand."""

    url = "test://store"

    def __init__(self):
        self.asked = []
        self.error = None
        self.gate = threading.Event()

    def get_range(self, key, start, size):
        self.asked.append((key, start, size))
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        return bytes([start]) * size


class Life:
    """The loads of a broker; two partitions wait for them."""

    def __init__(self):
        self.requests, self.woken, self.failures = Requests(), [], []
        self.cache = RangeCache(SimDisk(), Path("/cache"), 1 << 20, 0)
        tasks = Tasks(self.failures.append)
        self.reads = RemoteReads(ObjectStore(self.requests), self.cache, tasks, self.woken.append)

    def run(self, conversation):
        async def life():
            try:
                await asyncio.wait_for(conversation(self), 60)
            finally:
                self.requests.gate.set()
                self.reads.close()

        asyncio.run(life())
        assert not self.failures


async def ended(futures):
    await asyncio.gather(*futures)


def test_requests_for_the_same_range_are_joined_and_all_readers_are_woken():
    async def conversation(life):
        futures = [
            done for name in ("p", "q", "p") for done in life.reads.request(name, NotLoaded([ONE, TWO], 0))
        ]
        life.reads.read_ahead([ONE, TWO])
        life.requests.gate.set()
        await ended(futures)
        assert sorted(life.requests.asked) == [("a.log", 0, 10), ("a.log", 10, 10)]
        assert sorted(life.woken) == ["p", "p", "q", "q"]
        assert life.cache.get(TWO) == b"\x0a" * 10
        assert life.reads.loaded_size == 20

    Life().run(conversation)


def test_a_load_outlives_the_reader_that_has_begun_it():
    async def conversation(life):
        reader = asyncio.create_task(life.reads.load("p", NotLoaded([ONE], 0)))
        while not life.requests.asked:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        futures = life.reads.request("q", NotLoaded([ONE], 0))
        life.requests.gate.set()
        await ended(futures)
        assert life.cache.get(ONE) is not None
        assert len(life.requests.asked) == 1

    Life().run(conversation)


@pytest.mark.parametrize(
    ("error", "raised"), [(Missing(), Corrupt), (TooShort(), Corrupt), (Rejected("403"), StoreError)]
)
def test_a_failed_load_gives_its_error_for_a_moment_and_is_then_retried(error, raised, caplog):
    async def conversation(life):
        life.requests.error = error
        life.requests.gate.set()
        for _ in range(20):
            with pytest.raises(raised, match=r"test://store/a\.log"):
                await life.reads.load("p", NotLoaded([ONE], 0))
        assert len(life.requests.asked) == 1
        life.reads.request("q", NotLoaded([TWO], 0))  # another range of the object is not concerned
        life.requests.error = None
        while True:
            try:
                await life.reads.load("p", NotLoaded([ONE], 0))
                break
            except raised:
                await asyncio.sleep(0.05)
        assert life.cache.get(ONE) is not None
        assert life.woken

    Life().run(conversation)
    (line,) = lines(caplog)
    assert "test://store/a.log" in line


def test_a_store_that_does_not_answer_gives_a_retriable_error(monkeypatch):
    monkeypatch.setattr("stablelog.broker.tiering.remote_reads.SLOW_S", 0.01)

    async def conversation(life):
        life.reads.request("p", NotLoaded([ONE], 0))
        with pytest.raises(Unavailable, match=r"test://store/a.log was requested .* has not answered"):
            while True:
                life.reads.request("p", NotLoaded([ONE], 0))
                await asyncio.sleep(0.005)

    Life().run(conversation)


def test_without_a_store_remote_reads_are_refused_by_the_name_of_the_setting():
    async def conversation(life):
        reads = RemoteReads(None, life.cache, Tasks(life.failures.append), life.woken.append)
        with pytest.raises(Unavailable, match=r"stablelog\.remote\.url"):
            reads.request("p", NotLoaded([ONE], 0))
        reads.read_ahead([ONE])
        reads.close()

    Life().run(conversation)
