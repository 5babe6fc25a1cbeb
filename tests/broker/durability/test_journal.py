"""A coordinator's log: effects wait for the disk, and what is trimmed can be said again."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from stablelog.batch.markers import Marker, MarkerType
from stablelog.broker.durability import journal as journal_module
from stablelog.broker.durability import log_replay
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.durability.flush import GroupFlush
from stablelog.broker.durability.journal import Journal
from stablelog.broker.durability.log_replay import batches_of
from stablelog.broker.loop.tasks import Tasks
from stablelog.coordinators.live_state import LiveState, OwnedRecord
from stablelog.log.append import MarkerWrite
from tests.log.timeline import Log


class ClockOf:
    """The clock of a log on a simulated disk."""

    def __init__(self, log):
        self.now_ms = self.wall_ms = lambda: log.now_ms


class Desk:
    """A journal on a simulated disk that is synced by hand."""

    def __init__(self, *older):
        self.log = Log()
        self.reserve = DiskReserve(self.log.disk, Path("/data"), 0)
        self.flush = GroupFlush(to_disk=True, reserve=self.reserve, tasks=Tasks(pytest.fail))
        self.journal = Journal([self.log.partition, *older], self.flush, self.reserve, ClockOf(self.log))

    def sync(self):
        self.log.sync()
        self.journal.run_effects()

    def replayed(self):
        found = []

        self.journal.replay(lambda key, value, _producer_id: found.append((key, value)))
        return found


def at_work(conversation):
    async def work():
        await conversation()

    asyncio.run(work())


def test_an_effect_runs_when_what_was_appended_before_it_is_durable():
    async def conversation():
        desk = Desk()
        done = []
        desk.journal.append([(b"k", b"1")])
        desk.journal.run_when_durable(lambda: done.append("first"))
        assert done == []
        desk.sync()
        assert done == ["first"]
        desk.journal.run_when_durable(lambda: done.append("at once"))
        assert done == ["first", "at once"]

    at_work(conversation)


def test_effects_run_in_order_also_one_that_has_nothing_to_wait_for():
    async def conversation():
        desk = Desk()
        done = []
        desk.journal.append([(b"k", b"1")])
        desk.journal.run_when_durable(lambda: done.append(1))
        desk.log.sync()  # durable, but nobody has said so yet
        desk.journal.run_when_durable(lambda: done.append(2))
        assert done == []
        desk.journal.run_effects()
        assert done == [1, 2]

    at_work(conversation)


def test_an_effect_that_came_later_waits_for_what_was_appended_later():
    async def conversation():
        desk = Desk()
        done = []
        desk.journal.append([(b"k", b"1")])
        desk.journal.run_when_durable(lambda: done.append(1))
        work = desk.log.partition.sync_work()
        desk.journal.append([(b"k", b"2")])
        desk.journal.run_when_durable(lambda: done.append(2))
        work.run()
        desk.log.partition.finish_sync(work)
        desk.journal.run_effects()
        assert done == [1]
        desk.sync()
        assert done == [1, 2]

    at_work(conversation)


def test_nothing_is_appended_for_a_decision_without_records():
    async def conversation():
        desk = Desk()
        desk.journal.append([])
        assert desk.log.partition.end_offset == 0
        await desk.journal.wait_until_durable()

    at_work(conversation)


def test_records_are_replayed_from_older_partitions_first(tmp_path):
    async def conversation():
        older = Log()
        first = Desk()
        first.log.partition.close(clean=False)
        other = Journal([older.partition], first.flush, first.reserve, ClockOf(older))
        other.append([(b"k", b"old"), (b"l", None)])
        desk = Desk(older.partition)
        desk.journal.append([(b"k", b"new")])
        assert desk.replayed() == [(b"k", b"old"), (b"l", None), (b"k", b"new")]

    at_work(conversation)


def test_every_batch_is_found_however_much_is_read_at_once(monkeypatch):
    async def conversation():
        desk = Desk()
        for n in range(50):
            desk.journal.append([(b"k", bytes(n * 10))])
        expected = [header.base_offset for _, header in batches_of(desk.log.partition)]
        assert expected == list(range(50))
        for size in (1, 100, 1000):
            monkeypatch.setattr(log_replay, "REPLAY_READ_SIZE", size)
            assert [header.base_offset for _, header in batches_of(desk.log.partition)] == expected

    at_work(conversation)


def test_a_log_that_has_grown_is_trimmed_to_its_live_state(monkeypatch):
    monkeypatch.setattr(journal_module, "CHECKPOINT_SIZE_MIN", 4000)
    monkeypatch.setattr(journal_module, "CHECKPOINT_SLICE_COUNT", 3)

    async def conversation():
        desk = Desk()
        state = {}
        trims = 0
        for n in range(300):
            key, value = b"%d" % (n % 20), b"%d" % n
            state[key] = value
            desk.journal.append([(key, value)])
            before = await desk.journal.checkpoint_if_grown(lambda: LiveState([], iter(list(state.items()))))
            if before is not None:
                desk.sync()
                desk.journal.trim(before)
                trims += 1
            assert dict(desk.replayed()) == state
        assert trims >= 3
        assert desk.log.partition.start_offset > 100
        assert desk.log.partition.size < 20_000

    at_work(conversation)


def test_a_crash_between_a_checkpoint_and_its_trim_changes_nothing(monkeypatch):
    monkeypatch.setattr(journal_module, "CHECKPOINT_SIZE_MIN", 1000)

    async def conversation():
        desk = Desk()
        state = {b"%d" % n: b"v" * 50 for n in range(30)}
        desk.journal.append(list(state.items()))
        assert (
            await desk.journal.checkpoint_if_grown(lambda: LiveState([], iter(list(state.items()))))
            is not None
        )
        desk.sync()
        assert dict(desk.replayed()) == state

    at_work(conversation)


def test_what_is_open_at_a_checkpoint_is_repeated_in_its_transaction(monkeypatch):
    """A reader of the log that waits for markers, as Kafka's consumers do, finds the records before their marker."""
    monkeypatch.setattr(journal_module, "CHECKPOINT_SIZE_MIN", 1000)
    monkeypatch.setattr(journal_module, "CHECKPOINT_SLICE_COUNT", 1)

    async def conversation():
        desk = Desk()
        desk.journal.append([(b"k", bytes(600))])
        desk.journal.append_transactional([(b"pending", b"7")], 1, 4)
        desk.journal.append([(b"k", bytes(600))])
        desk.sync()
        items = [
            [OwnedRecord(1, (b"pending", b"6")), OwnedRecord(None, (b"pending", b"5"))],
            [OwnedRecord(None, (b"later", b"1")), OwnedRecord(1, (b"later", b"2"))],
            [OwnedRecord(2, (b"in a partition of Kafka", b"1"))],
        ]
        end = desk.log.partition.end_offset
        before = await desk.journal.checkpoint_if_grown(
            lambda: LiveState([], iter([(b"k", b"live")]), iter(items))
        )
        assert before == end
        desk.sync()
        desk.journal.trim(before)
        assert desk.log.partition.start_offset == end
        found = []
        desk.journal.replay(lambda key, value, owner: found.append((owner, key, value)))
        assert found == [
            (None, b"k", b"live"),
            (1, b"pending", b"6"),
            (None, b"pending", b"5"),
            (None, b"later", b"1"),
            (1, b"later", b"2"),
        ]
        headers = [header for _, header in batches_of(desk.log.partition)]
        assert {header.producer_epoch for header in headers if header.is_transactional} == {4}
        write = MarkerWrite(1, 4, Marker(MarkerType.COMMIT, 0))
        desk.log.partition.append_markers([write], now_ms=desk.log.now_ms)
        assert desk.log.partition.log.producers.first_open_offset(-1) == -1

    at_work(conversation)


def test_items_of_a_checkpoint_share_batches_and_stay_in_order(monkeypatch):
    monkeypatch.setattr(journal_module, "CHECKPOINT_SIZE_MIN", 1000)

    async def conversation():
        desk = Desk()
        desk.journal.append_transactional([(b"pending", bytes(1200))], 1, 0)
        items = [
            [OwnedRecord(None, (b"%d" % n, b"committed")), OwnedRecord(1, (b"%d" % n, b"pending"))]
            for n in range(100)
        ]
        begin = await desk.journal.checkpoint_if_grown(lambda: LiveState([], iter(()), iter(items)))
        headers = [header for _, header in batches_of(desk.log.partition)]
        counts = [
            (header.record_count, header.is_transactional)
            for header in headers
            if header.base_offset >= begin
        ]
        assert counts == [(100, False), (100, True)]

    at_work(conversation)


def test_a_transaction_that_has_ended_holds_nothing(monkeypatch):
    """Its producer has state in the log for a day. Records that are not durable yet, and an end that is not, hold
    nothing, too: the log is trimmed when they are.
    """
    monkeypatch.setattr(journal_module, "CHECKPOINT_SIZE_MIN", 1000)

    async def conversation():
        desk = Desk()
        desk.journal.append_transactional([(b"k", b"7")], 1, 0)
        desk.sync()
        write = MarkerWrite(1, 0, Marker(MarkerType.COMMIT, 0))
        desk.log.partition.append_markers([write], now_ms=desk.log.now_ms)
        assert len(desk.log.partition.log.producers)
        desk.journal.append([(b"k", bytes(1200))])
        end = desk.log.partition.end_offset
        assert await desk.journal.checkpoint_if_grown(lambda: LiveState([(b"k", b"live")], iter(()))) == end
        desk.sync()
        desk.journal.trim(end)
        assert desk.replayed() == [(b"k", b"live")]

    at_work(conversation)


def test_nothing_stays_in_front_of_a_checkpoint_though_it_was_not_durable_yet(monkeypatch):
    """A decision that stayed there was taken for the first, and what had been decided before it for later."""
    monkeypatch.setattr(journal_module, "CHECKPOINT_SIZE_MIN", 1000)

    async def conversation():
        desk = Desk()
        desk.journal.append([(b"k", bytes(1200))])
        desk.sync()
        desk.journal.append([(b"k", b"on its way to the disk")])
        before = await desk.journal.checkpoint_if_grown(lambda: LiveState([(b"k", b"live")], iter(())))
        desk.sync()
        desk.journal.trim(before)
        assert desk.replayed() == [(b"k", b"live")]

    at_work(conversation)


def test_a_small_log_is_left_alone():
    async def conversation():
        desk = Desk()
        desk.journal.append([(b"k", b"v")])
        assert await desk.journal.checkpoint_if_grown(lambda: LiveState([(b"k", b"v")], iter(()))) is None
        assert desk.log.partition.end_offset == 1

    at_work(conversation)


def test_a_log_that_cannot_be_trimmed_is_reported_once_and_not_at_once(monkeypatch, caplog):
    """While the markers of a long joint commit are written, nothing is wrong."""
    monkeypatch.setattr(journal_module, "CHECKPOINT_SIZE_MIN", 0)

    async def conversation():
        desk = Desk()
        desk.journal.append([(b"k", b"v")])
        for passed_ms, count in ((0, 0), (59_999, 0), (1, 1), (100_000, 1)):
            desk.log.now_ms += passed_ms
            assert await desk.journal.checkpoint_if_grown(lambda: None) is None
            assert caplog.text.count("is not trimmed") == count
        assert await desk.journal.checkpoint_if_grown(lambda: LiveState([(b"k", b"v")], iter(()))) is not None

    at_work(conversation)


@pytest.mark.parametrize("is_rolled", [False, True])
def test_a_log_of_many_short_segments_is_trimmed_though_it_is_small(monkeypatch, is_rolled):
    """A log that is copied to an object store is rolled for each copy."""
    monkeypatch.setattr(journal_module, "SEGMENT_COUNT_MAX", 10)

    async def conversation():
        desk = Desk()
        trims = 0
        for n in range(100):
            desk.journal.append([(b"k", b"%d" % n)])
            if is_rolled:
                desk.log.partition.roll(desk.log.now_ms)
            live = partial(LiveState, [(b"k", b"%d" % n)], iter(()))
            before = await desk.journal.checkpoint_if_grown(live)
            if before is not None:
                desk.sync()
                desk.journal.trim(before)
                trims += 1
            assert len(desk.log.partition.segments()) <= 14
            assert dict(desk.replayed()) == {b"k": b"%d" % n}
        assert trims == (9 if is_rolled else 0)

    at_work(conversation)


def test_more_segments_are_kept_behind_a_large_checkpoint(monkeypatch):
    monkeypatch.setattr(journal_module, "SEGMENT_COUNT_MAX", 2)
    monkeypatch.setattr(journal_module, "SEGMENT_SIZE", 1000)

    async def conversation():
        desk = Desk()
        counts = []
        for n in range(30):
            desk.journal.append([(b"k", b"%d" % n)])
            desk.log.partition.roll(desk.log.now_ms)
            live = partial(LiveState, [(b"k", bytes(5000))], iter(()))
            before = await desk.journal.checkpoint_if_grown(live)
            if before is not None:
                desk.sync()
                desk.journal.trim(before)
                counts.append(n)
        assert counts == [1, 9, 17, 25], "five segments for the bytes that the trim has left"

    at_work(conversation)


def test_what_cannot_be_trimmed_causes_no_checkpoint_each_time(monkeypatch):
    """A transaction with offsets stays open: each trim leaves its records and all later ones."""
    monkeypatch.setattr(journal_module, "CHECKPOINT_SIZE_MIN", 1000)

    async def conversation():
        desk = Desk()
        desk.journal.append_transactional([(b"pending", b"7")], 1, 0)
        desk.journal.append([(b"k", bytes(2000))])
        desk.sync()
        checkpoints = 0
        for _ in range(20):
            before = await desk.journal.checkpoint_if_grown(lambda: LiveState([(b"k", b"live")], iter(())))
            if before is not None:
                desk.sync()
                desk.journal.trim(before)
                checkpoints += 1
        assert checkpoints == 1

    at_work(conversation)
