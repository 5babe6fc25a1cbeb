"""Loads of ranges: they are joined, outlive the fetch that began them, and a failed one is retried after a moment."""

import asyncio
import threading
from pathlib import Path

import pytest

from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.monitoring.damage_log import DamageLog
from stablelog.broker.tiering.range_cache import RangeCache
from stablelog.broker.tiering.remote_reads import THREADS, RemoteReads
from stablelog.env.objects.attempts import MissingError, RejectedError, TooShortError
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError, NotLoadedError, StoreError, UnavailableError
from stablelog.log.partition import Isolation
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_objects import SimObjects, StoreFaults
from stablelog.tier.names import INDEXES, LOG
from stablelog.tier.remote_log import RemoteLog
from stablelog.types import ObjectRange
from tests.broker.tiering.world import lines
from tests.log.timeline import NOW_MS
from tests.tier.tiered_log import PARTITION, TieredLog

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

    def __init__(self, requests=None):
        self.requests, self.woken, self.failures = requests or Requests(), [], []
        self.cache = RangeCache(SimDisk(), Path("/cache"), 1 << 20, 0)
        tasks = Tasks(self.failures.append)
        self.reads = RemoteReads(
            ObjectStore(self.requests), self.cache, tasks, self.woken.append, DamageLog()
        )

    def run(self, conversation):
        async def life():
            try:
                await asyncio.wait_for(conversation(self), 60)
            finally:
                if isinstance(self.requests, Requests):
                    self.requests.gate.set()
                self.reads.close()

        asyncio.run(life())
        assert not self.failures


async def ended(futures):
    await asyncio.gather(*futures)


def test_requests_for_the_same_range_are_joined_and_all_readers_are_woken():
    async def conversation(life):
        futures = [
            done
            for name in ("p", "q", "p")
            for done in life.reads.start_loads(name, NotLoadedError([ONE, TWO], 0))
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
        reader = asyncio.create_task(life.reads.load_ranges("p", NotLoadedError([ONE], 0)))
        while not life.requests.asked:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        futures = life.reads.start_loads("q", NotLoadedError([ONE], 0))
        life.requests.gate.set()
        await ended(futures)
        assert life.cache.get(ONE) is not None
        assert len(life.requests.asked) == 1

    Life().run(conversation)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("error", "raised"),
    [(MissingError(), DamageError), (TooShortError(), DamageError), (RejectedError("403"), StoreError)],
)
def test_a_failed_load_gives_its_error_for_a_moment_and_is_then_retried(error, raised, caplog):
    async def conversation(life):
        life.requests.error = error
        life.requests.gate.set()
        for _ in range(20):
            with pytest.raises(raised, match=r"test://store/a\.log"):
                await life.reads.load_ranges("p", NotLoadedError([ONE], 0))
        assert len(life.requests.asked) == 1
        life.reads.start_loads("q", NotLoadedError([TWO], 0))  # another range of the object is not concerned
        life.requests.error = None
        while True:
            try:
                await life.reads.load_ranges("p", NotLoadedError([ONE], 0))
                break
            except raised:
                await asyncio.sleep(0.05)
        assert life.cache.get(ONE) is not None
        assert life.woken

    Life().run(conversation)
    (line,) = lines(caplog)
    assert "test://store/a.log" in line


def test_damage_that_comes_back_after_the_range_was_read_is_logged_again(monkeypatch, caplog):
    monkeypatch.setattr("stablelog.broker.tiering.remote_reads.ERROR_S", 0)

    async def conversation(life):
        life.requests.gate.set()
        for line_count in (1, 2):
            life.requests.error = MissingError()
            for _ in range(2):
                with pytest.raises(DamageError, match=r"a\.log is missing"):
                    await life.reads.load_ranges("p", NotLoadedError([ONE], 0))
            life.requests.error = None
            await life.reads.load_ranges("p", NotLoadedError([TWO], 0))
            with pytest.raises(DamageError):
                life.requests.error = MissingError()
                await life.reads.load_ranges("p", NotLoadedError([ONE], 0))
            assert len(lines(caplog)) == line_count, "another range of the object says nothing"
            life.requests.error = None
            await life.reads.load_ranges("p", NotLoadedError([ONE], 0))
            life.cache.drop(ONE)

    Life().run(conversation)


def test_a_store_that_does_not_answer_gives_a_retriable_error(monkeypatch):
    monkeypatch.setattr("stablelog.broker.tiering.remote_reads.SLOW_S", 0.01)

    async def conversation(life):
        life.reads.start_loads("p", NotLoadedError([ONE], 0))
        with pytest.raises(UnavailableError, match=r"test://store/a.log was requested .* has not answered"):
            while True:
                life.reads.start_loads("p", NotLoadedError([ONE], 0))
                await asyncio.sleep(0.005)

    Life().run(conversation)


def test_without_a_store_remote_reads_are_refused_by_the_name_of_the_setting():
    async def conversation(life):
        reads = RemoteReads(None, life.cache, Tasks(life.failures.append), life.woken.append, DamageLog())
        with pytest.raises(UnavailableError, match=r"stablelog\.remote\.url"):
            reads.start_loads("p", NotLoadedError([ONE], 0))
        reads.read_ahead([ONE])
        reads.close()

    Life().run(conversation)


def test_read_ahead_begins_no_more_loads_than_there_are_threads_and_a_reader_does_not_wait_for_the_rest():
    ranges = [ObjectRange("a.log", start, 10) for start in range(3 * THREADS)]

    async def conversation(life):
        life.reads.read_ahead(ranges[:10])
        life.reads.read_ahead(ranges)
        needed = life.reads.start_loads("p", NotLoadedError([ranges[-1]], 0))
        life.reads.read_ahead(ranges)
        begun = life.reads.start_loads("p", NotLoadedError(ranges[:THREADS], 0))
        life.requests.gate.set()
        await ended([*needed, *begun])
        wanted = [*ranges[:THREADS], ranges[-1]]
        assert sorted(life.requests.asked) == sorted((one.key, one.start, one.size) for one in wanted)
        life.reads.read_ahead(ranges[:THREADS])
        life.reads.read_ahead(ranges[THREADS : THREADS + 1])
        await ended(life.reads.start_loads("p", NotLoadedError([ranges[THREADS]], 0)))
        assert len(life.requests.asked) == THREADS + 2, "what is loaded is not loaded again"

    Life().run(conversation)


# -- segments whose object of indexes is missing -----------------------------------------------------------------------


class Reader(Life):
    """A read-committed reader of a partition with two segments that are only in the store: an aborted transaction, and
    two records. The objects of indexes are missing.

    Args:
        with_summary: whether the manifest has the summaries of the segments.
    """

    def __init__(self, *, with_summary):
        self.asked = []
        super().__init__(
            SimObjects(
                faults=StoreFaults(latency_s=0),
                between=lambda call, key: self.asked.append((call, key.rpartition(".")[2])),
            )
        )
        log = TieredLog(local_retention_ms=0, local_retention_bytes=0)
        for words in ("P1 P1a", "- -"):
            log.write(words)
            log.partition.roll(NOW_MS)
            log.sync()
        self.rows = log.copy(with_summary=with_summary)
        self.requests.objects = {key: one for key, one in log.objects.items() if not key.endswith(INDEXES)}
        assert len(self.requests.objects) == 2
        manifest, url = log.remote.manifest, self.requests.url
        log.partition.remote = RemoteLog(PARTITION, manifest, self.cache, log.saved.append, url=url)
        log.drop_local()
        self.partition = log.partition
        self.place = f"{url}/{PARTITION.segment_key(0, self.rows[0].segment_id, INDEXES)}"

    async def read(self, start, isolation=Isolation.READ_COMMITTED):
        """Read from an offset, and load what the read needs. Return the end of the read and its aborted transactions."""
        found = await self.reads.call_when_loaded(lambda: self.partition.read(start, 1 << 20, isolation))
        aborted = (
            None if found.aborted is None else [(one.producer_id, one.first_offset) for one in found.aborted]
        )
        return found.end_offset, aborted


def test_a_missing_object_of_indexes_of_a_segment_without_a_summary_means_that_nothing_was_aborted():
    """Apache Kafka has copied it, and the store has no transaction index of it."""

    async def conversation(reader):
        assert await reader.read(0) == (2, [])
        assert await reader.read(2) == (4, [])
        assert sorted(reader.asked) == sorted([("get", INDEXES), ("get_range", LOG)] * 2)
        assert await reader.read(0) == (2, []), "it is not requested again"
        assert len(reader.asked) == 4

    Reader(with_summary=False).run(conversation)


def test_no_object_of_indexes_is_requested_if_the_summary_says_that_nothing_was_aborted():
    async def conversation(reader):
        assert not reader.rows[1].summary.txnindex_size
        assert await reader.read(2) == (4, [])
        assert reader.asked == [("get_range", LOG)]

    Reader(with_summary=True).run(conversation)


def test_a_missing_object_of_indexes_is_damage_if_the_summary_says_that_transactions_were_aborted(caplog):
    async def conversation(reader):
        assert reader.rows[0].summary.txnindex_size
        with pytest.raises(DamageError) as raised:
            await reader.read(0)
        assert str(raised.value) == f"{reader.place} is missing, and a manifest names it"
        assert (await reader.read(0, Isolation.READ_UNCOMMITTED))[0] == 2, "it needs no index"
        assert await reader.read(2) == (4, [])

    reader = Reader(with_summary=True)
    reader.run(conversation)
    (line,) = lines(caplog)
    assert reader.place in line


def test_the_log_object_of_another_segment_is_refused_by_its_name_once(caplog):
    async def conversation(reader):
        key = PARTITION.segment_key(0, reader.rows[0].segment_id, LOG)
        other = TieredLog()
        other.now_ms += 7
        other.write("P1 P1a")
        other.partition.roll(NOW_MS)
        other.sync()
        [row] = other.copy()
        content = other.objects[row.log_key(PARTITION)]
        assert len(content) == len(reader.requests.objects[key])
        reader.requests.objects[key] = content
        for _ in range(2):
            with pytest.raises(
                DamageError, match=f"{key} is damaged: the .* do not match the CRC in the manifest"
            ):
                await reader.read(0, Isolation.READ_UNCOMMITTED)
            assert reader.cache.memory_size == 0, "the bytes are not kept"
        assert await reader.read(2) == (4, [])

    reader = Reader(with_summary=True)
    reader.run(conversation)
    assert len(lines(caplog)) == 1
