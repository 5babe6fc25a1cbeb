"""Group flush: makes appended batches durable, with one fsync of a file for all writes to it that wait.

An append marks its partition dirty (it has bytes that are not synced), and waits until the high watermark has passed
the appended batch. A *round* takes every dirty partition, syncs their files concurrently in worker threads, and then
moves the high watermarks. Writes that are appended during a round belong to the next one. Under load one fsync
therefore serves many writers; without load a write has its own fsync.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.loop.threads import in_thread, in_thread_to_its_end
from stablelog.broker.loop.turns import AT_ONCE_MAX, in_turns
from stablelog.errors import DiskError, StablelogError, UnavailableError
from stablelog.log.partition import Partition, SyncWork

log = logging.getLogger(__name__)

SYNC_THREADS = 4
SOON_S = 0.02
# The event loop itself does a sync that takes at most this number of seconds: on a fast disk a sync takes less time
# than handing the work to a thread and waiting for it.
IN_PLACE_S = 0.001

Result = TypeVar("Result")


class GroupFlush:
    """Makes appends to partitions durable, in rounds: one round syncs all partitions that have new data.

    Args:
        to_disk: whether the flush calls fsync. False for the setting `stablelog.flush=os`: a write then counts as
            durable once the operating system has it.
        reserve: frees disk space, if the disk is full, for the small files that are written beside a segment: indexes,
            snapshots of the producer state, and summaries with sizes and checksums.
        tasks: the broker's background work. A failed sync stops the broker: the bytes written since the last good sync
            may or may not be on disk, and a later sync does not show whether they are.
        in_place_s: if the syncs of a round take at most this number of seconds, by an estimate from earlier syncs, the
            event loop does them itself; threads do the syncs of longer rounds.

    Attributes:
        rounds: the number of rounds so far.
    """

    def __init__(
        self,
        *,
        to_disk: bool,
        reserve: DiskReserve,
        tasks: Tasks,
        in_place_s: float = IN_PLACE_S,
    ) -> None:
        self._to_disk = to_disk
        self._subscribers: list[Callable[[Partition], None]] = []
        self._reserve = reserve
        self._tasks = tasks
        tasks.before_failure(self._fail_all_waiting)
        self._dirty: dict[Partition, None] = {}
        self._dirty_soon: dict[Partition, None] = {}
        # The partitions whose flush failed for lack of space. They cannot become durable until the disk has space.
        self._without_room: dict[Partition, None] = {}
        # The partitions of which an index, a snapshot or a summary could not be written, and for which the error was
        # logged.
        self._behind: set[Partition] = set()
        self._waiting: dict[Partition, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._wake = asyncio.Event()
        self._threads = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="sync")
        self._in_place_s = in_place_s
        self._sync_s = in_place_s  # The estimated duration of one sync, in seconds.
        self._round_done = asyncio.Event()
        self._round_done.set()
        self._next_round: list[asyncio.Future[None]] = []  # They wait for the end of the next round.
        self.rounds = 0

    def subscribe(self, notify: Callable[[Partition], None]) -> None:
        """Register a function that is called with each partition whose high watermark or last stable offset has moved.

        The functions are called in the order of their registration.
        """
        self._subscribers.append(notify)

    def mark_dirty(self, partition: Partition) -> None:
        """Mark a partition with a new append dirty, so that the next flush round syncs it, even if no request waits for
        the append.
        """
        self._dirty[partition] = None
        self._wake.set()

    def mark_dirty_soon(self, partition: Partition) -> None:
        """Mark a partition dirty whose new append no request waits for. Because nothing waits, the sync may be delayed:
        it is done in the next round, or shortly after.
        """
        if partition not in self._dirty and partition not in self._dirty_soon:
            self._dirty_soon[partition] = None
            self._tasks.later("flush", SOON_S, self._add_dirty, partition)

    def _add_dirty(self, partition: Partition) -> None:
        if self._dirty_soon.pop(partition, "gone") is None:
            self.mark_dirty(partition)

    @property
    def failed(self) -> BaseException | None:
        """The error for which the broker has to stop, because writes can no longer become durable; None while the flush
        works.
        """
        return self._tasks.failure

    def durable_future(self, partition: Partition, end_offset: int) -> asyncio.Future[None] | None:
        """Return a future that is done when the partition is durable up to `end_offset`; None if it is durable already.

        If the broker or the partition has failed, the future fails, even for an offset that is durable: after a
        failure, the state in memory may be ahead of the log on disk.
        """
        failure = self.failed or partition.failure
        if partition.high_watermark >= end_offset and failure is None:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if failure is not None:
            future.set_exception(failure)
            return future
        self._waiting.setdefault(partition, deque()).append((end_offset, future))
        self.mark_dirty(partition)
        return future

    async def wait_for_next_round(self, partitions: Iterable[Partition]) -> None:
        """Wait for the end of a round that begins after this call and syncs these partitions.

        The round also writes the files beside a sealed segment (its indexes, a snapshot of the producer state, its
        summary with sizes and checksums), unless the disk is full.

        Raises:
            UnavailableError: the broker has failed, or fails in this round.
        """
        if self.failed is not None:
            raise self.failed
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._next_round.append(future)
        for partition in partitions:
            self.mark_dirty(partition)
        await future

    def fail_waiting(self, partition: Partition, error: BaseException) -> None:
        """Fail the futures that wait until a partition is durable. The partition was deleted or has failed."""
        self._dirty.pop(partition, None)
        self._dirty_soon.pop(partition, None)
        self._without_room.pop(partition, None)
        self._behind.discard(partition)
        for _, future in self._waiting.pop(partition, ()):
            if not future.done():
                future.set_exception(error)

    async def run(self) -> None:
        """Flush in rounds until this task is cancelled, or the broker has failed. A round makes all new appends
        durable.
        """
        while self.failed is None:
            await self._wake.wait()
            self._wake.clear()
            if not self._dirty or self.failed is not None:
                continue
            await self._round()
            self.rounds += 1
            # Let the tasks that waited for this round run before the next round. Otherwise the next round, which may
            # contain only markers, could delay them, because it may sync on the event loop itself.
            await asyncio.sleep(0)

    def _usable(self, partitions: list[Partition]) -> list[Partition]:
        """Return those of the partitions that have not failed. For a partition that has failed, the futures of the
        writes that wait for it fail, so that no request waits for ever.
        """
        usable = []
        for partition in partitions:
            if partition.failure is None:
                usable.append(partition)
            else:
                self._tasks.partition_scope(partition).fail(partition.failure)
                self.fail_waiting(partition, partition.failure)
        return usable

    async def _round(self) -> None:
        dirty, self._dirty = self._dirty, {}
        waiting, self._next_round = self._next_round, []
        partitions = self._usable(list(dirty))
        self._round_done = asyncio.Event()
        try:
            if not self._to_disk:
                async for partition in in_turns(partitions, at_once=AT_ONCE_MAX):
                    self._advance(partition, partial(self._attempt, partition, partition.assume_synced))
                # Sync sealed segments also with `stablelog.flush=os`: their summaries must not describe records that
                # are not on disk.
                partitions = [partition for partition in partitions if partition.has_pending_writes]
            await self._sync(partitions)
        finally:
            self._round_done.set()
            for future in waiting:
                _complete(future, self.failed)

    async def wait_until_idle(self) -> None:
        """Wait until no flush round is in progress. The caller may then close files, before it awaits anything else."""
        while not self._round_done.is_set():
            await self._round_done.wait()

    async def _sync(self, partitions: list[Partition]) -> None:
        works = [
            (partition, work)
            async for partition in in_turns(partitions, at_once=AT_ONCE_MAX)
            if (work := self._unsynced(partition)) is not None
        ]
        if not works:
            return
        if self._sync_s * len(works) <= self._in_place_s and not any(work.is_large for _, work in works):
            lanes = [_run([work]) for _, work in works]
        else:
            count = min(SYNC_THREADS, len(works))
            lanes = await asyncio.gather(
                *(in_thread(self._threads, _run, [w for _, w in works[lane::count]]) for lane in range(count))
            )
        self._update_sync_estimate(max(lane.seconds for lane in lanes))
        errors = {work: error for lane in lanes for work, error in lane.errors.items()}
        for error in errors.values():
            if isinstance(error, DiskError):
                self.fail(error)
                return
        async for partition, work in in_turns(works, at_once=AT_ONCE_MAX):
            if work in errors:
                self._tasks.report_unexpected("flush", self._tasks.partition_scope(partition), errors[work])
                continue
            await self._write_rest(work)
            if partition.failure is None:
                self._advance(partition, partial(partition.finish_sync, work))
                self._write_view(partition)
                self._log_unwritten(partition, work)

    def _unsynced(self, partition: Partition) -> SyncWork | None:
        """Return the file syncs that make the partition durable; None if the partition is durable already or has
        failed.
        """
        if partition.failure is not None:
            return None
        try:
            return self._attempt(partition, partition.sync_work)
        except Exception as error:  # noqa: BLE001 - the exception fails this partition only
            self._failed_on(partition, error)
            return None

    def _attempt(self, partition: Partition, work: Callable[[], Result]) -> Result:
        """Run a step of a partition's flush, and return its result. If the disk is full, the disk reserve frees space
        for the step: the reserve is a file whose space the broker frees then.

        The last quarter of the reserve is used only if a sealed segment waits for the step, because the step then frees
        space.
        """
        return self._reserve.attempt(work, frees=partition.has_pending_writes)

    async def _write_rest(self, work: SyncWork) -> None:
        """Write the files beside a segment that a full disk has refused, with space from the disk reserve: its indexes,
        its snapshot of the producer state, and its summary with sizes and checksums.

        A sealed segment that lacks one of these files cannot be deleted, and is not copied to an object store. So the
        last quarter of the reserve may be used for it.
        """
        while work.failure is not None and self._reserve.make_room(work.failure, frees=bool(work.release)):
            await in_thread_to_its_end(self._threads, work.write)

    def _write_view(self, partition: Partition) -> None:
        """Write the rest of a partition's view (its committed batches in the order of their commits): the commit
        indexes of sealed segments that a full disk has refused. They get space from the disk reserve. (The commit index
        of a segment lists the transactions whose commit marker is in the segment.)
        """
        while partition.side_failure is not None and self._reserve.make_room(
            partition.side_failure, frees=True
        ):
            partition.advance_view()

    def _failed_on(self, partition: Partition, error: Exception) -> None:
        """Handle an error in the flush of a partition. Lack of space is retried later; any other error fails the
        partition.
        """
        scope = self._tasks.partition_scope(partition)
        if isinstance(error, DiskError) and error.is_full and partition.failure is None:
            self._without_room[partition] = None
        elif isinstance(error, StablelogError):
            scope.fail(error if isinstance(error, UnavailableError) else UnavailableError(str(error)))
        else:
            self._tasks.report_unexpected("flush", scope, error)

    def retry(self) -> None:
        """Schedule again the partitions that could not be synced because the disk had no space."""
        for partition in self._without_room:
            self.mark_dirty(partition)
        self._without_room.clear()

    def _log_unwritten(self, partition: Partition, work: SyncWork) -> None:
        """Log that a file beside a partition's segments (an index, a snapshot of the producer state, or the summary
        with sizes and checksums) cannot be written: once, until the write succeeds again.
        """
        failure = work.failure or partition.side_failure
        if failure is not None and self._reserve.record_failure(failure):
            # Nothing may be appended to the partition meanwhile, so that no other flush would write the files.
            self._without_room[partition] = None
        if failure is not None and partition not in self._behind:
            log.warning(
                "partition %s-%d: an index, snapshot or summary of the log cannot be written yet: %s. "
                "The log itself is durable, and the broker retries; without this file, the next start "
                "reads more",
                partition.topic,
                partition.index,
                failure,
            )
            self._behind.add(partition)
        elif failure is None:
            self._behind.discard(partition)

    def _update_sync_estimate(self, seconds: float) -> None:
        """Update the estimated duration of a sync with a measured one. If the sync took longer than estimated, its
        duration becomes the estimate; if it took less, the estimate falls gradually.
        """
        self._sync_s = max(seconds, 0.8 * self._sync_s + 0.2 * seconds)

    def _advance(self, partition: Partition, move: Callable[[], bool]) -> None:
        """Move a partition's high watermark, and complete the futures of appends that are durable now.

        Args:
            partition: the partition to move.
            move: moves the high watermark, and returns whether it or the last stable offset moved. An exception in
                `move` fails the partition.
        """
        try:
            moved = move()
        except Exception as error:  # noqa: BLE001 - the exception fails this partition only
            self._failed_on(partition, error)
            return
        waiting = self._waiting.get(partition)
        while waiting and waiting[0][0] <= partition.high_watermark:
            future = waiting.popleft()[1]
            if not future.done():
                future.set_result(None)
        if waiting is not None and not waiting:
            del self._waiting[partition]
        for notify in self._subscribers if moved else ():
            notify(partition)

    def fail(self, error: BaseException) -> None:
        """Stop the broker because the disk has failed: no more writes are acknowledged as durable."""
        self._tasks.stop_broker(error)

    def _fail_all_waiting(self, error: BaseException) -> None:
        self._wake.set()
        for partition in list(self._waiting):
            self.fail_waiting(partition, error)
        while self._next_round:
            _complete(self._next_round.pop(), error)

    def close(self) -> None:
        """Shut down the threads that sync files."""
        self._threads.shutdown(wait=True)


def _complete(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class _Ran(NamedTuple):
    """The result of the file syncs that one thread has done in a flush round (all partitions with new data are synced
    in a round): the average number of seconds that a sync took, and the exceptions of the syncs that failed.
    """

    seconds: float
    errors: dict[SyncWork, Exception]


def _run(works: list[SyncWork]) -> _Ran:
    began = time.perf_counter()
    errors: dict[SyncWork, Exception] = {}
    for work in works:
        try:
            work.run()
        except Exception as error:  # noqa: BLE001 - the other syncs still run
            errors[work] = error
    return _Ran((time.perf_counter() - began) / len(works), errors)
