"""Copies the logs of the coordinators to the object store, in rounds, so that groups, transactional ids and commit
sequences (numbers of commits) outlive the local disk.

A round rolls each log that has grown since its last copy, and copies the log. The copies of the logs must fit together
even if a round ends in the middle, so its steps have an order (docs/decisions/0022-tiered-storage.md):

1. The offsets logs (of group coordinators) are rolled, then the commit logs (of transaction coordinators). Each marker
   in a copied offsets log therefore has its decision in the copied commit log.
2. The commit logs are published, then the offsets logs.
3. Before a coordinator trims its log (deletes the part before its checkpoint), it lets a round run. The copied offsets
   logs then have the markers of all decisions that are trimmed. If the store does not answer, the log is trimmed all
   the same.

For the partitions of topics, `copy_passes` notes the last stable offset, lets a round run, and then copies the
partition up to the noted offset.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from stablelog.broker.loop.tasks import Scope
from stablelog.broker.loop.threads import in_thread
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.monitoring.metrics import Sample
from stablelog.broker.runtime import Runtime
from stablelog.broker.tiering.copy_plans import CoordinatorCopyPlan
from stablelog.broker.tiering.copy_throttle import CopyThrottle
from stablelog.broker.tiering.partition_copier import PartitionCopier
from stablelog.broker.tiering.remote_storage import RemoteStorage
from stablelog.broker.tiering.remote_tiers import RemoteTiers
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.coordinators.log_names import CONSUMER_OFFSETS_TOPIC, is_coordinator_log
from stablelog.errors import StablelogError
from stablelog.log.partition import Partition
from stablelog.settings import LONG_MAX
from stablelog.tier.remote_log import RemoteLog

log = logging.getLogger(__name__)

# A round begins when this share of the interval has passed since the last one, so that its copies are in the store when
# the whole interval has passed.
BEGIN_SHARE: Final = 0.75
AT_ONCE: Final = 4  # The number of logs that are copied at a time.

Sync = Callable[[Sequence[Partition]], Awaitable[None]]


class CoordinatorLogs:
    """Copies the logs of the coordinators to the object store, in rounds. In each round all logs that have grown are
    copied.

    Args:
        storage: the object store.
        tiers: makes the list of a log's remote segments.
        node_id: the broker's id.
        interval_s: the greatest time from the append of a record until it is in the store, in seconds.
        delay_s: returns the delay of deletions from the store, in seconds.
    """

    def __init__(
        self,
        storage: RemoteStorage,
        tiers: RemoteTiers,
        topic_files: TopicFiles,
        runtime: Runtime,
        *,
        node_id: int,
        interval_s: float,
        delay_s: Callable[[], float],
    ) -> None:
        self._storage = storage
        self._tiers = tiers
        self._topics = topic_files.topics
        self._partitions = topic_files.partitions
        self._tasks = runtime.tasks
        self._flush = runtime.flush
        self._reserve = runtime.reserve
        self._clock = runtime.clock
        self._plan = CoordinatorCopyPlan()
        self._copier = PartitionCopier(
            storage,
            runtime,
            node_id=node_id,
            is_open=self._partitions.is_in_use,
            topic_of=self._topics.get,
            throttle=CopyThrottle(lambda: LONG_MAX),
            count_at_once=AT_ONCE,
            delay_s=delay_s,
            plan=self._plan,
        )
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="coordinators' logs")
        self._turn = asyncio.Lock()
        self._is_failing = False  # Whether the last round has failed; one that was cancelled does not count.
        self._is_stuck = False  # Whether the last round did not end in time, at the stop of the broker.
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._begun_s = self._loop.time()  # When the last round began, by the clock of the event loop.
        self._complete_ms = (
            runtime.clock.now_ms()
        )  # The begin of the last round after which the store had all logs.

    async def copy_logs(self) -> bool:
        """Copy to the store the records that were appended to the coordinators' logs before this call. If there are no
        new records, nothing is sent.

        Returns:
            Whether all these records are in the store. If not, the error was logged.

        Raises:
            StablelogError: the store does not answer, or belongs to another cluster, or the disk refuses a file.
        """
        return await self._run_round(self._flush.wait_for_next_round)

    def pause_s(self) -> float:
        """Return how many seconds remain until the next round, which copies all logs that have grown, must begin."""
        return max(self._begun_s + BEGIN_SHARE * self._interval_s - self._loop.time(), 0)

    async def copy_if_due(self) -> None:
        """Run a round, which copies all logs of the coordinators that have grown, if `pause_s` returns 0. Raises the
        errors of `copy_logs`.
        """
        if self.pause_s() == 0:
            await self.copy_logs()

    async def remote_logs(self) -> dict[Partition, RemoteLog]:
        """Return the coordinators' logs, each with the list of its segments in the object store.

        Raises:
            StablelogError: the record of a log's remote segments cannot be read.
        """
        async with self._turn:
            await self._open_logs()
            return dict(self._plan.remotes)

    async def copy_before_trim(self) -> None:
        """Copy the coordinators' logs before a coordinator trims one of them, that is, deletes the part before its
        checkpoint. An error is not raised, so that the log is trimmed in any case. The next round of copies meets the
        error again and logs it.
        """
        with contextlib.suppress(StablelogError):
            await self.copy_logs()

    async def _run_round(self, sync: Sync, *, deletes: bool = True) -> bool:
        async with self._turn:
            self._begun_s = self._loop.time()
            try:
                is_copied = await self._copy_grown_logs(sync)
            except StablelogError:
                self._is_failing = True
                raise
            self._is_failing = not is_copied
            if is_copied and deletes:
                await self._copier.delete_all(list(self._plan.remotes))
            return is_copied

    async def _copy_grown_logs(self, sync: Sync) -> bool:
        if self._storage.fenced is not None:
            return False
        begun_ms = self._clock.now_ms()
        offsets_logs, commit_logs = await self._open_logs()
        # Roll the offsets logs first: a decision that is appended to a commit log meanwhile is then copied before its
        # marker.
        grown_offsets = [one async for one in in_turns(offsets_logs) if self._roll_if_grown(one)]
        grown_commits = [one async for one in in_turns(commit_logs) if self._roll_if_grown(one)]
        if grown_offsets or grown_commits:
            await sync([*grown_offsets, *grown_commits])
        for grown in (grown_commits, grown_offsets):
            if grown:
                await self._copier.copy_all(grown)
            if any(self._plan.copied_end(one) < self._plan.ends[one] for one in grown):
                return False
        self._complete_ms = begun_ms
        return True

    async def _open_logs(self) -> tuple[list[Partition], list[Partition]]:
        """Return a pair: the partitions of the logs of committed offsets, and those of the commit logs, in which
        transaction coordinators record their decisions. On return, the list of segments in the store is known for each
        of these logs.

        Raises:
            StablelogError: the record of a log's remote segments cannot be read.
        """
        offsets_logs: list[Partition] = []
        commit_logs: list[Partition] = []
        for topic in [topic for topic in self._topics if is_coordinator_log(topic.name)]:
            for partition in self._partitions.of_topic(topic).values():
                if partition not in self._plan.remotes:
                    self._plan.remotes[partition] = await in_thread(
                        self._threads, self._tiers.coordinator_remote_log, topic, partition
                    )
                (offsets_logs if topic.name == CONSUMER_OFFSETS_TOPIC else commit_logs).append(partition)
        return offsets_logs, commit_logs

    def _roll_if_grown(self, partition: Partition) -> bool:
        """If a log has grown since its last copy, seal its last segment, because only sealed segments are copied.
        Return True if the log has grown, so that it must be copied.

        Raises:
            DiskError: the disk refuses a file. The log has not changed.
        """
        remote = self._plan.remotes[partition]
        if remote.is_known:
            # A log may be trimmed up to its end before all of it was copied. Then nothing is left to copy.
            remote.move_start(partition.start_offset)
        if partition.end_offset <= self._plan.copied_end(partition):
            return False
        # Only a copied segment can leave the local disk, so the roll may use the whole reserve.
        self._reserve.attempt(lambda: partition.roll(self._clock.now_ms()), frees=True)
        self._plan.ends[partition] = partition.end_offset
        return True

    # -- stop ----------------------------------------------------------------------------------------------------

    async def copy_at_stop(self, limit_s: float) -> None:
        """Copy the records of the coordinators' logs that are not in the store yet, at a stop of the broker. At this
        time nothing is appended any more, and the task that makes records durable has ended.

        If the store does not answer within `limit_s` seconds, or has not answered in the last round of copies, the stop
        continues without the copy.
        """
        self._storage.store.give_up_after(limit_s)
        if self._is_failing or self._storage.fenced is not None:
            return
        scope = Scope("the broker stops without the last copy", lambda _why: None)
        task = self._tasks.start("the last copy of the coordinators' logs", self._copy_rest, scope=scope)
        await asyncio.wait({task}, timeout=limit_s)
        self._is_stuck = not task.done()
        if self._is_stuck:
            self._warn_of_missing_copy(f"no answer within {limit_s:g} s")

    async def _copy_rest(self) -> None:
        try:
            why = "" if await self._run_round(_sync_here, deletes=False) else "the reason was logged before"
        except StablelogError as error:
            why = str(error)
        if why and not self._is_stuck:  # If the copy is stuck, the stop has gone on and has logged it.
            self._warn_of_missing_copy(why)

    def _warn_of_missing_copy(self, why: str) -> None:
        log.warning(
            "the end of the coordinators' logs is not copied to %s, and is on the local disk only: %s",
            self._storage.store.url,
            why,
        )

    def close(self) -> None:
        """Stop all copies of the coordinators' logs."""
        self._copier.close(wait=not self._is_stuck)
        self._threads.shutdown(wait=True, cancel_futures=True)

    # -- metrics -------------------------------------------------------------------------------------------------

    @property
    def failed_count(self) -> int:
        """The number of coordinators' logs whose last copy to the store has failed."""
        return len(self._copier.failed)

    @property
    def deleted_count(self) -> int:
        """The number of segments of the coordinators' logs that were deleted from the store since the start of the
        broker.
        """
        return self._copier.deleted_count

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of the copies of the coordinators' logs."""
        known = self._plan.remotes
        logs = [
            one
            for topic in self._topics
            if is_coordinator_log(topic.name)
            for one in self._partitions.of_topic(topic).values()
        ]
        are_copied = all(one in known and one.end_offset <= self._plan.copied_end(one) for one in logs)
        lag_ms = 0 if are_copied else max(self._clock.now_ms() - self._complete_ms, 0)
        yield Sample("stablelog_remote_coordinator_lag_seconds", (), lag_ms / 1000)


async def _sync_here(partitions: Sequence[Partition]) -> None:
    """Make the records of these partitions durable in this thread. The flush task, which otherwise does this, has ended
    when the broker stops. Raises DiskError.
    """
    for partition in partitions:
        work = partition.sync_work()
        if work is not None:
            work.run()
            partition.finish_sync(work)
