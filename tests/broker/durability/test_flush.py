"""Rounds of fsync: who waits is told when it is durable, and never before."""

import asyncio
import threading

import pytest

from stablelog.broker.durability.flush import GroupFlush
from stablelog.broker.loop.tasks import Tasks
from stablelog.errors import UnavailableError
from stablelog.log.producer_state.producer import ProducerEntry
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.producer_state.producers import Producers
from stablelog.testing.sim_disk import SimDisk, SimFile
from tests.broker.desk import NO_RESERVE
from tests.log.timeline import Log


class SlowFile(SimFile):
    def sync(self):
        assert self.gate.wait(90)
        super().sync()


class SlowDisk(SimDisk):
    """Syncs take until they are let through."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        file.__class__ = SlowFile
        file.gate = self.gate
        return file


def at_work(conversation, on_failure=pytest.fail, on_advance=lambda _p: None, **arguments):
    """Run it with a flush that goes."""

    async def work():
        settings = {
            "to_disk": True,
            "reserve": NO_RESERVE,
            "tasks": Tasks(on_failure),
        } | arguments
        flush = GroupFlush(**settings)
        flush.subscribe(on_advance)
        task = asyncio.create_task(flush.run())
        try:
            await asyncio.wait_for(conversation(flush), 100)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            flush.close()

    asyncio.run(work())


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


def test_what_is_appended_while_a_round_runs_goes_with_the_next():
    moved = []

    async def conversation(flush):
        disk, other = SlowDisk(), Log()
        log = Log(disk)
        disk.gate.clear()
        log.write("-", sync=False)
        other.write("-", sync=False)
        flush.mark_dirty(other.partition)  # two of them: threads do it
        first = flush.durable_future(log.partition, 1)
        await turns()
        log.write("-", sync=False)
        second = flush.durable_future(log.partition, 2)
        assert not first.done()
        disk.gate.set()
        await first
        await second
        assert [end for name, end in moved if name is log.partition] == [1, 2]

    at_work(conversation, on_advance=lambda partition: moved.append((partition, partition.high_watermark)))


def test_who_waits_for_less_is_not_held_up_by_who_waits_for_more():
    async def conversation(flush):
        log = Log()
        log.write("-", sync=False)
        one, three = flush.durable_future(log.partition, 1), flush.durable_future(log.partition, 3)
        await one
        assert not three.done()
        log.write("- -", sync=False)
        flush.mark_dirty(log.partition)
        await three

    at_work(conversation)


def test_what_nobody_waits_for_is_synced_soon():
    async def conversation(flush):
        log = Log()
        log.write("-", sync=False)
        flush.mark_dirty_soon(log.partition)
        flush.mark_dirty_soon(log.partition)
        await moved.wait()
        await turns()
        assert (log.partition.high_watermark, flush.rounds) == (1, 1)

    moved = asyncio.Event()
    at_work(conversation, on_advance=lambda _partition: moved.set())


def test_without_fsync_what_the_system_has_counts_as_durable_at_once():
    moved = []

    async def conversation(flush):
        log = Log()
        log.write("-")
        log.write("-", sync=False)
        before = log.disk.steps
        await flush.durable_future(log.partition, 2)
        assert log.partition.high_watermark == 2
        assert log.disk.steps == before, "nothing was synced"
        assert moved == [log.partition]

    at_work(conversation, to_disk=False, on_advance=moved.append)


def test_a_partition_that_goes_fails_who_waits_for_it():
    async def conversation(flush):
        log, other = Log(), Log()
        log.write("-", sync=False)
        other.write("-", sync=False)
        gone, stays = flush.durable_future(log.partition, 1), flush.durable_future(other.partition, 1)
        flush.fail_waiting(log.partition, UnavailableError("the topic was deleted"))
        with pytest.raises(UnavailableError, match="deleted"):
            await gone
        await stays
        assert log.partition.high_watermark == 0

    at_work(conversation)


def test_who_no_longer_waits_is_in_nobodys_way():
    async def conversation(flush):
        log = Log()
        log.write("-", sync=False)
        gone, stays = flush.durable_future(log.partition, 1), flush.durable_future(log.partition, 1)
        gone.cancel()
        await stays

    at_work(conversation)


def test_after_a_failure_nothing_is_ever_durable_again():
    failures = []

    async def conversation(flush):
        log, other = Log(), Log()
        log.write("-", sync=False)
        log.disk.fail_at = log.disk.steps + 1
        with pytest.raises(UnavailableError):
            await flush.durable_future(log.partition, 1)
        log.disk.fail_at = None
        other.write("-", sync=False)
        for partition in (log.partition, other.partition):
            with pytest.raises(UnavailableError):
                await flush.durable_future(partition, 1)
            assert partition.high_watermark == 0
        assert len(failures) == 1

    at_work(conversation, on_failure=failures.append)


def test_idle_is_when_no_sync_is_under_way():
    async def conversation(flush):
        disk, other = SlowDisk(), Log()
        log = Log(disk)
        await flush.wait_until_idle()
        disk.gate.clear()
        log.write("-", sync=False)
        other.write("-", sync=False)
        flush.mark_dirty(other.partition)
        wait = flush.durable_future(log.partition, 1)
        await turns()
        idle = asyncio.create_task(flush.wait_until_idle())
        await turns()
        assert not idle.done()
        disk.gate.set()
        await idle
        assert log.partition.high_watermark == 1
        await wait

    at_work(conversation)


class WatchedDisk(SimDisk):
    """Notes the thread that writes each file as a whole."""

    def __init__(self):
        super().__init__()
        self.writers = {}

    def write_together(self, files):
        self.writers |= dict.fromkeys((path.suffix for path in files), threading.get_ident())
        super().write_together(files)


def test_a_large_snapshot_is_not_written_on_the_event_loop():
    """However fast the disk is: encoding takes processor time."""

    async def conversation(flush):
        disk = WatchedDisk()
        log = Log(disk)
        log.write("P1", sync=False)
        log.partition.log.take_snapshot()
        await flush.durable_future(log.partition, 1)
        assert disk.writers[".producers"] == threading.get_ident(), "a small one is"
        table = ProducerTable.from_producers(
            ProducerEntry(one, 0, used_ms=log.now_ms) for one in range(10, 10_000)
        )
        log.partition.log.producers = Producers.from_table(table, log.now_ms)
        log.write("-", sync=False)
        log.partition.log.take_snapshot()
        await flush.durable_future(log.partition, 2)
        assert disk.writers[".producers"] != threading.get_ident()
        assert disk.writers[".snapshot"] != threading.get_ident()

    at_work(conversation)


def test_writers_that_wait_share_a_round():
    async def work():
        log = Log()
        moved = []
        flush = GroupFlush(to_disk=True, reserve=NO_RESERVE, tasks=Tasks(pytest.fail))
        flush.subscribe(moved.append)
        task = asyncio.create_task(flush.run())
        waits = []
        for _ in range(10):
            log.write("-", sync=False)
            waits.append(flush.durable_future(log.partition, log.partition.end_offset))
        assert not any(wait.done() for wait in waits)
        await asyncio.gather(*waits)
        assert log.partition.high_watermark == 10
        assert flush.rounds <= 2
        assert flush.durable_future(log.partition, 10) is None
        task.cancel()
        flush.close()

    asyncio.run(work())


def test_a_sync_that_fails_stops_the_broker_and_acknowledges_nothing():
    async def work():
        log = Log()
        failures = []
        flush = GroupFlush(to_disk=True, reserve=NO_RESERVE, tasks=Tasks(failures.append))
        task = asyncio.create_task(flush.run())
        log.write("-", sync=False)
        log.disk.fail_at = log.disk.steps + 1
        wait = flush.durable_future(log.partition, 1)
        with pytest.raises(Exception, match="failed on the simulated disk"):
            await wait
        assert len(failures) == 1
        assert log.partition.high_watermark == 0
        await task
        flush.close()

    asyncio.run(work())


def test_the_next_round_writes_the_files_of_a_sealed_segment_though_all_records_are_durable():
    async def conversation(flush):
        disk, other = SlowDisk(), Log()  # A round of two partitions runs in threads.
        log = Log(disk)
        log.write("- -")
        assert log.partition.high_watermark == 2
        log.partition.roll(log.now_ms)
        other.write("-", sync=False)
        disk.gate.clear()
        waiting = asyncio.ensure_future(flush.wait_for_next_round([log.partition, other.partition]))
        await turns()
        late = asyncio.ensure_future(flush.wait_for_next_round([log.partition]))
        await turns()
        assert not waiting.done()
        assert not log.partition.segments()[0].durable
        disk.gate.set()
        await waiting
        assert log.partition.segments()[0].durable
        assert not late.done(), "it came after the round had begun"
        await late

    at_work(conversation)


def test_a_round_that_never_comes_fails():
    async def conversation(flush):
        log = Log()
        flush.fail(UnavailableError("on purpose"))
        with pytest.raises(UnavailableError, match="on purpose"):
            await flush.wait_for_next_round([log.partition])

    async def later(flush):
        log = Log()
        waiting = asyncio.ensure_future(flush.wait_for_next_round([log.partition]))
        await asyncio.sleep(0)
        flush.fail(UnavailableError("on purpose"))
        with pytest.raises(UnavailableError, match="on purpose"):
            await waiting

    for one in (conversation, later):
        at_work(one, on_failure=lambda _why: None)
