"""A broker whose time, disk and syncs are in the hand of a seed: no socket, no thread, nothing of the machine.

The coordinator, the journals, the partitions and their views are the real ones. What is simulated: the loop's time, which
jumps to what is due next; the disk, which may stop at any operation; and when which partition becomes durable, each by itself.
"""

import asyncio
from pathlib import Path

from stablelog.broker.broker import Broker
from stablelog.broker.settings.config import BrokerConfig
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_faults import SimulatedCrash

DATA = Path("/data")
EPOCH_MS = 1_700_000_000_000
CONFIG = BrokerConfig({"stablelog.snapshot.bytes": "4096", "stablelog.disk.reserve.bytes": "0"})


class SimLoop(asyncio.BaseEventLoop):
    """An event loop without a selector: it waits in no time, and stops at the simulated crash."""

    def __init__(self):
        super().__init__()
        self._selector = self
        self._now_s = 1.0

    def select(self, timeout):
        assert timeout is not None, "everybody waits for ever"
        self._now_s += timeout
        return ()

    def time(self):
        return self._now_s

    def now_ms(self):
        return EPOCH_MS + int(self._now_s * 1000)

    wall_ms = now_ms

    def continue_at(self, now_ms):
        pass

    def _process_events(self, _events):
        pass

    def _write_to_self(self):
        pass


class CrashingDisk(SimDisk):
    """A disk that stops with its machine: nobody writes after the crash, and who asked is told of it."""

    def __init__(self):
        super().__init__()
        self.stopped = False
        self.on_crash = lambda: None

    def step(self, what, torn=None, path=None):
        if self.stopped:
            raise SimulatedCrash(what)
        try:
            super().step(what, torn, path)
        except SimulatedCrash:
            self.stopped = True
            self.on_crash()
            raise

    def killed(self):
        """The process was killed and the machine was not: everything that was written is there, synced or not."""
        self.stopped, self.crash_at = False, None
        return self

    def crash(self, chance):
        after = super().crash(chance)
        after.__class__ = CrashingDisk
        after.killed().on_crash = self.on_crash
        return after


class SimFlush:
    """In place of `GroupFlush`: each partition becomes durable by itself, after a time that the seed says."""

    def __init__(self, loop, chance):
        self.failed = None
        self._loop = loop
        self._chance = chance
        self._subscribers = []
        self._due = set()
        self._running = set()
        self._again = set()
        self._waiting = {}
        self._pace_s = {}

    def mark_dirty(self, partition):
        if partition in self._running:
            self._again.add(partition)
        elif partition not in self._due:
            self._due.add(partition)
            self._loop.call_later(self._delay_s(partition), self._begin, partition)

    mark_dirty_soon = mark_dirty

    def _delay_s(self, partition):
        pace_s = self._pace_s.get(partition)
        if pace_s is None:
            pace_s = self._pace_s[partition] = self._chance.choice((0.0002, 0.001, 0.001, 0.01))
        if self._chance.random() < 0.02:
            return 0.1  # it is stuck for a while
        return pace_s * self._chance.random()

    def subscribe(self, notify):
        """Whom it tells that more of a partition is durable."""
        self._subscribers.append(notify)

    def durable_future(self, partition, end_offset):
        if partition.high_watermark >= end_offset and self.failed is None:
            return None
        future = self._loop.create_future()
        if self.failed is not None:
            future.set_exception(self.failed)
            return future
        self._waiting.setdefault(partition, []).append((end_offset, future))
        self.mark_dirty(partition)
        return future

    def _begin(self, partition):
        self._due.discard(partition)
        work = partition.sync_work()
        if work is None:
            self._finish(partition, moved=False)
            return
        self._running.add(partition)
        self._loop.call_later(self._delay_s(partition) / 2, self._run, partition, work)

    def _run(self, partition, work):
        work.run()
        self._loop.call_later(self._delay_s(partition) / 2, self._end, partition, work)

    def _end(self, partition, work):
        self._running.discard(partition)
        self._finish(partition, moved=partition.finish_sync(work))
        if partition in self._again:
            self._again.discard(partition)
            self.mark_dirty(partition)

    def _finish(self, partition, *, moved):
        left = []
        for end_offset, future in self._waiting.pop(partition, ()):
            if end_offset > partition.high_watermark:
                left.append((end_offset, future))
            elif not future.done():
                future.set_result(None)
        if left:
            self._waiting[partition] = left
            self.mark_dirty(partition)
        for notify in self._subscribers if moved else ():
            notify(partition)

    def fail(self, error):
        """A write failed: here only because the machine stops."""
        self.failed = error

    def close(self):
        pass


class SimBroker(Broker):
    """A broker without tasks: the history opens its partitions and keeps its house."""

    def __init__(self, loop, disk, chance):
        super().__init__(
            CONFIG,
            DATA,
            disk=disk,
            clock=loop,
            on_failure=lambda _error: None,
            make_flush=lambda **_arguments: SimFlush(loop, chance),
        )

    def closed_partitions(self):
        return [
            (t, i)
            for t in self.topics
            for i in range(t.partition_count)
            if i not in self.partitions.of_topic(t)
        ]

    def open_one(self, topic, index):
        self.topic_files.open_partition(topic, index)
        return self.partitions.require(topic.name, index)

    def transaction_groups(self):
        return list(self.transactions)

    def durable_sequence(self, group):
        """Of the last commit whose decision is durable."""
        found = self.transactions.get(group)
        return 0 if found is None else found.durable_sequence
