"""Scheduler of compaction, and of the removal of aborted data: one partition at a time, in a thread of its own.

The thread reads sealed segments, which do not change, and writes new segments beside the sealed ones. The thread shares
no object with the partition: it opens files and indexes of its own, and gets a copy of the producer state. After each
piece of work the thread sleeps for as long as the work took, so that requests do not wait for the interpreter lock. The
event loop replaces the old segments by the finished ones, because only the event loop changes a partition: this takes
some renames and four syncs of the directory for each segment.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from stablelog.broker.loop.threads import in_thread
from stablelog.broker.runtime import Runtime
from stablelog.broker.topic_names import is_internal
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.errors import StablelogError
from stablelog.log.compaction.policy import KEY_MEMORY_SIZE
from stablelog.log.compaction.rewriter import Cleaned, Pass
from stablelog.log.partition import Partition

log = logging.getLogger(__name__)


class Compactor:
    """Compacts the partitions of a broker.

    Args:
        topic_files: the topics to compact. Internal topics are not compacted, because the broker deletes from the
            coordinators' logs itself what is no longer needed.
        runtime: the objects that the parts of the broker share, such as the disk reserve, which says whether the disk
            is full. Nothing is compacted then, because compaction takes space before it frees some.
    """

    def __init__(self, topic_files: TopicFiles, runtime: Runtime) -> None:
        self._topic_files = topic_files
        self._config = runtime.config
        self._reserve = runtime.reserve
        self._tasks = runtime.tasks
        self._now_ms = runtime.clock.wall_ms
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        self._under_way: tuple[Partition, Pass] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self) -> None:
        """Start a task that compacts partitions every `log.cleaner.backoff.ms`."""
        self._tasks.every("compaction", self.pause_s(), self.compact_all, pause_s=self.pause_s)

    def pause_s(self) -> float:
        """Return the pause before the next check for partitions to compact, in seconds."""
        backoff_ms: int = self._config["log.cleaner.backoff.ms"]
        return backoff_ms / 1000

    async def compact_all(self) -> None:
        """Compact, one time, each partition that has enough new records since its last compaction.

        An error in one partition does not stop the others.
        """
        for partition in self._topic_files.partitions:
            if self._reserve.is_full:
                return
            if partition.failure is not None or is_internal(partition.topic):
                continue
            try:
                await self._compact(partition)
            except (StablelogError, FileNotFoundError) as error:
                self._reserve.record_failure(error)
                log.error("%s-%d cannot be compacted: %s", partition.topic, partition.index, error)
            except Exception as error:  # noqa: BLE001 - the exception fails this partition only
                self._tasks.report_unexpected("compaction", self._tasks.partition_scope(partition), error)
            await asyncio.sleep(0)

    async def _compact(self, partition: Partition) -> None:
        key_count_max = self._config["log.cleaner.dedupe.buffer.size"] // KEY_MEMORY_SIZE
        work = partition.compaction.begin_pass(self._now_ms(), key_count_max=key_count_max)
        if work is None:
            return
        self._under_way = partition, work
        self._idle.clear()
        steps = work.steps()
        try:
            while not work.cancelled and not self._reserve.is_full:
                cleaned = await in_thread(self._threads, _next_finished, steps)
                if work.cancelled:
                    return
                if cleaned is None:
                    break
                if not partition.compaction.put_in_place(cleaned):
                    log.info(
                        "%s-%d was changed while it was compacted; a later pass compacts this partition",
                        partition.topic,
                        partition.index,
                    )
                    return
            else:
                # The compaction of this partition was cancelled, or the disk is full. A later pass compacts the rest.
                return
        finally:
            work.cancel()  # If this task was cancelled, the thread still works: tell it to stop.
            self._under_way = None
            self._idle.set()
        partition.compaction.end_pass(work)
        self._topic_files.checkpoints.first_dirty.write_if_changed()
        if work.outcome:
            log.info("%s-%d: %s", partition.topic, partition.index, work.outcome)

    async def end_compaction_of(self, topic: str) -> None:
        """Stop the compaction of a topic's partitions. Until the caller awaits again, no compaction of them begins."""
        while self._under_way is not None and self.is_compacting(topic):
            self._under_way[1].cancel()
            await self._idle.wait()

    def is_compacting(self, topic: str) -> bool:
        """Return whether a partition of this topic is being compacted."""
        return self._under_way is not None and self._under_way[0].topic == topic

    def close(self) -> None:
        """Stop the compaction.

        Compacted segments that have not replaced the old ones yet are deleted at the next start of the broker.
        """
        if self._under_way is not None:
            self._under_way[1].cancel()
        self._threads.shutdown(wait=True)


def _next_finished(steps: Iterator[Cleaned | None]) -> Cleaned | None:
    """Do the next pieces of a compaction, until a compacted segment is finished. Return this segment; None if the
    compaction has ended.
    """
    began = time.perf_counter()
    for cleaned in steps:
        if cleaned is not None:
            return cleaned
        time.sleep(time.perf_counter() - began)
        began = time.perf_counter()
    return None
