"""When is a write durable: one fsync for all who wait.

Appends mark their partition dirty and wait for its high watermark. A round takes every dirty partition, syncs
their files side by side in worker threads, and then moves the high watermarks: whatever was appended while the
round ran goes with the next one. So under load one fsync answers many writers, and without load a writer waits
for its own.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from stablelog.log.partition import Partition, SyncWork

log = logging.getLogger(__name__)

SYNC_THREADS = 4
SOON_S = 0.02
# On a fast disk a sync is over before another thread has been woken for it, twice: so long, the loop may wait.
IN_PLACE_S = 0.001


class GroupFlush:
    """Makes partitions durable, in rounds.

    Args:
        to_disk: False for `stablelog.flush=os`: what the operating system has counts as durable.
        on_advance: called with each partition whose high watermark or last stable offset moved.
        on_failure: called when a sync failed. What was written since the last good one may or may not be on
            disk, and no later fsync can tell; the broker has to stop.

    Attributes:
        rounds: how many were made.
        failed: why nothing becomes durable any more; None while it does.
    """

    def __init__(
        self,
        *,
        to_disk: bool,
        on_advance: Callable[[Partition], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._to_disk = to_disk
        self._on_advance = on_advance
        self._on_failure = on_failure
        self._dirty: dict[Partition, None] = {}
        self._dirty_soon: dict[Partition, None] = {}
        self._behind: set[Partition] = set()  # whose files beside the log could not be written
        self._waiting: dict[Partition, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._wake = asyncio.Event()
        self._threads = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="sync")
        self._sync_s = IN_PLACE_S  # what one sync takes: not known yet
        self.failed: BaseException | None = None
        self._round_done = asyncio.Event()
        self._round_done.set()
        self.rounds = 0

    def dirty(self, partition: Partition) -> None:
        """Something was appended to this partition: have it synced, whoever waits or not."""
        self._dirty[partition] = None
        self._wake.set()

    def dirty_soon(self, partition: Partition) -> None:
        """Something was appended that nobody waits for by itself: have it synced with the next wait, or shortly."""
        if partition not in self._dirty and partition not in self._dirty_soon:
            self._dirty_soon[partition] = None
            asyncio.get_running_loop().call_later(SOON_S, self._now_dirty, partition)

    def _now_dirty(self, partition: Partition) -> None:
        if self._dirty_soon.pop(partition, "gone") is None:
            self.dirty(partition)

    def durable(self, partition: Partition, end_offset: int) -> asyncio.Future[None] | None:
        """A future that is done once the partition is durable up to `end_offset`; None if it is by now.

        Once the disk has failed, it fails in any case: what is in memory may be ahead of what was written.
        """
        if partition.high_watermark >= end_offset and self.failed is None:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.failed is not None:
            future.set_exception(self.failed)
            return future
        self._waiting.setdefault(partition, deque()).append((end_offset, future))
        self.dirty(partition)
        return future

    def forget(self, partition: Partition, error: BaseException) -> None:
        """The partition is going away: fail who waits for it."""
        self._dirty.pop(partition, None)
        self._dirty_soon.pop(partition, None)
        self._behind.discard(partition)
        for _, future in self._waiting.pop(partition, ()):
            if not future.done():
                future.set_exception(error)

    async def run(self) -> None:
        """Flush in rounds until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            dirty, self._dirty = self._dirty, {}
            if self.failed is not None:
                return
            if not dirty:
                continue
            try:
                await self._round(list(dirty))
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it was, nobody may be told that a write is durable
                self.fail(error)
                return
            self.rounds += 1
            # Who waited for this round is answered before the next one holds the loop: it may only be for markers.
            await asyncio.sleep(0)

    def _usable(self, partitions: list[Partition]) -> list[Partition]:
        """The partitions without those that have failed; who waits for one of these is told."""
        usable = []
        for partition in partitions:
            if partition.failure is None:
                usable.append(partition)
            else:
                log.error("%s-%d is offline: %s", partition.topic, partition.index, partition.failure)
                self.forget(partition, partition.failure)
        return usable

    async def _round(self, partitions: list[Partition]) -> None:
        partitions = self._usable(partitions)
        if not self._to_disk:
            for partition in partitions:
                self._advance(partition, moved=partition.assume_synced())
            # What is written of sealed segments must not promise more than is on disk, in this mode too.
            partitions = [partition for partition in partitions if partition.has_pending_writes]
        self._round_done = asyncio.Event()
        try:
            await self._sync(partitions)
        finally:
            self._round_done.set()

    async def idle(self) -> None:
        """Wait until no sync is under way: files may be closed then, before the next await."""
        while not self._round_done.is_set():
            await self._round_done.wait()

    async def _sync(self, partitions: list[Partition]) -> None:
        works = [(partition, work) for partition in partitions if (work := partition.unsynced()) is not None]
        if not works:
            return
        if self._sync_s * len(works) <= IN_PLACE_S:
            self._note_duration(max(_run_timed([work]) for _, work in works))
        else:
            lanes = [
                [work for _, work in works[lane::SYNC_THREADS]]
                for lane in range(min(SYNC_THREADS, len(works)))
            ]
            loop = asyncio.get_running_loop()
            runs = [loop.run_in_executor(self._threads, _run_timed, lane) for lane in lanes]
            self._note_duration(max([await run for run in runs]))
        for partition, work in works:
            self._note_failure(partition, work)
            self._advance(partition, moved=partition.synced(work))

    def _note_failure(self, partition: Partition, work: SyncWork) -> None:
        """Log once that files beside the log cannot be written, and once that they are."""
        if work.failure is not None and partition not in self._behind:
            log.warning(
                "%s-%d: the log is durable, but a file that describes it is not written yet and is tried again; "
                "without it, the next start reads more: %s",
                partition.topic,
                partition.index,
                work.failure,
            )
            self._behind.add(partition)
        elif work.failure is None:
            self._behind.discard(partition)

    def _note_duration(self, seconds: float) -> None:
        """Keep an estimate of what one sync takes: up at once, down slowly."""
        self._sync_s = max(seconds, 0.8 * self._sync_s + 0.2 * seconds)

    def _advance(self, partition: Partition, *, moved: bool) -> None:
        waiting = self._waiting.get(partition)
        while waiting and waiting[0][0] <= partition.high_watermark:
            future = waiting.popleft()[1]
            if not future.done():
                future.set_result(None)
        if waiting is not None and not waiting:
            del self._waiting[partition]
        if moved:
            self._on_advance(partition)

    def fail(self, error: BaseException) -> None:
        """The disk has failed: nobody is told any more that something is durable, and the broker has to stop."""
        if self.failed is not None:
            return
        self.failed = error
        self._wake.set()
        for partition in list(self._waiting):
            self.forget(partition, error)
        self._on_failure(error)

    def close(self) -> None:
        """Give the threads back."""
        self._threads.shutdown(wait=True)


def _run_timed(works: list[SyncWork]) -> float:
    """Run them, and return how long one took, on average, in seconds."""
    began = time.perf_counter()
    for work in works:
        work.run()
    return (time.perf_counter() - began) / len(works)
