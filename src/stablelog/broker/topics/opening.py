"""Opening of partitions: of all partitions after a start, and again of partitions that have failed on a full disk.

Clients can use each partition as soon as it is open. A partition whose recovery or use has failed because the disk is
full is reopened when there may be space. After any other failure only a restart reopens it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from stablelog.broker.loop.tasks import Scope
from stablelog.broker.loop.threads import each_in_threads, in_thread
from stablelog.broker.monitoring.metrics import Sample
from stablelog.broker.runtime import Runtime
from stablelog.broker.topics.topic import Topic
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.errors import StablelogError, named
from stablelog.log.partition import Partition

log = logging.getLogger(__name__)

# The number of partitions that are published, so that clients can use them, in one turn of the event loop.
OPENED_AT_ONCE = 16
# This is more than the usual number of processors, because a thread may wait for files that are not in the page cache.
RECOVERY_THREADS_MAX = 8
NAMED_MAX = 10  # the number of offline partitions that one line of the log names


Missing = tuple[Topic, int]  # A partition that has to be opened: its topic and its index.


class Opening:
    """Opens the partitions of all topics.

    Args:
        on_open: called with each partition when it is open, before anything writes to it. The second argument is the
            failed partition that the new one replaces; None if the partition opens for the first time since the start.
        end_work: waits until no thread, such as that of a compaction, reads or writes open partitions of a topic. Until
            the caller's next await, no thread begins to read or write them.
    """

    def __init__(
        self,
        topic_files: TopicFiles,
        runtime: Runtime,
        *,
        on_open: Callable[[Partition, Partition | None], None],
        end_work: Callable[[str], Awaitable[None]],
    ) -> None:
        self._topic_files = topic_files
        self._topics = topic_files.topics
        self._partitions = topic_files.partitions
        self._tasks = runtime.tasks
        self._reserve = runtime.reserve
        self._on_open = on_open
        self._end_work = end_work
        self._now_ms = runtime.clock.now_ms
        # The partitions that are being opened, by the name of their topic.
        self._under_way: dict[str, set[Missing]] = {}
        # This event is set, and replaced by a new one, when the last opening of a partition of some topic has ended.
        self._topic_ended = asyncio.Event()
        self._without_room: dict[Missing, None] = {}

    async def open_all(self) -> None:
        """Open every partition that is not open.

        A partition that cannot be opened stays offline, and its error is logged.

        Raises:
            DiskError: the recovery points (the offsets up to which the partitions are synced) cannot be written.
        """
        missing = [
            (topic, index)
            for topic in self._topics
            for index in range(topic.partition_count)
            if index not in self._partitions.of_topic(topic)
        ]
        if missing:
            began_ms = self._now_ms()
            await self._open(missing)
            self._log_opened(missing, self._now_ms() - began_ms)
        points = self._topic_files.checkpoints.recovery_points
        points.write(await in_thread(None, points.changed_offsets))

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of partitions: how many there are, how many are offline, and how many are not open yet."""
        yield Sample("stablelog_partitions", (), sum(topic.partition_count for topic in self._topics))
        yield Sample("stablelog_offline_partitions", (), self._partitions.offline_count)
        yield Sample("stablelog_opening_partitions", (), self._partitions.opening_count)

    def _log_opened(self, opened: list[Missing], took_ms: int) -> None:
        """Log how many partitions were opened, and which of those in `opened` could not be opened and are offline."""
        offline = [
            f"{topic.name}-{index}" for topic, index in opened if index in self._partitions.offline_in(topic)
        ]
        log.info("opened %d of %d partitions in %d ms", len(opened) - len(offline), len(opened), took_ms)
        if offline:
            names = named(offline, NAMED_MAX)
            log.error("%d of %d partitions stay offline: %s", len(offline), len(opened), names)

    def reopen_later(self, partition: Partition) -> None:
        """Queue a partition that has failed on a full disk, to be reopened when there is space."""
        topic = self._topics.get(partition.topic)
        if topic is not None and self._partitions.is_in_use(partition):
            self._without_room[topic, partition.index] = None

    async def reopen_failed(self) -> None:
        """Reopen the partitions that have failed on a full disk, as far as there is space now."""
        if not self._without_room:
            return
        waiting, self._without_room = list(self._without_room), {}
        await self._open([one for one in waiting if self._topics.get(one[0].name) is one[0]])

    async def _open(self, waiting: list[Missing]) -> None:
        for one in waiting:
            self._under_way.setdefault(one[0].name, set()).add(one)
        try:
            with ThreadPoolExecutor(RECOVERY_THREADS_MAX, thread_name_prefix="recovery") as threads:
                await self._close_failed(waiting)
                while waiting := [one for one in waiting if one in self._under_way.get(one[0].name, ())]:
                    await self._recover(threads, waiting)
        finally:
            self._end(*waiting)

    async def _close_failed(self, waiting: Iterable[Missing]) -> None:
        """Close failed partitions before they are reopened. A partition that is deleted meanwhile is not reopened."""
        for topic, index in waiting:
            failed = self._partitions.of_topic(topic).get(index)
            if failed is None:
                continue
            await self._end_work(topic.name)
            if self._partitions.is_in_use(failed):
                failed.close(clean=False)
            else:
                self._end((topic, index))

    async def _recover(self, threads: ThreadPoolExecutor, waiting: Iterable[Missing]) -> None:
        """Recover partitions in threads, and publish each one when it is open.

        If the recovery of a partition finds the disk full, and the disk reserve can free space, the partition is
        recovered again.
        """
        outcomes = each_in_threads(
            threads,
            RECOVERY_THREADS_MAX,
            lambda one: self._topic_files.recover_partition(*one),
            waiting,
        )
        count = 0
        # A stop of the broker ends this loop after the partitions that are being recovered now. Without `aclosing` the
        # stop would wait until all partitions are recovered.
        async with contextlib.aclosing(outcomes):
            async for one, outcome in outcomes:
                if isinstance(outcome, StablelogError) and self._reserve.make_room(outcome):
                    continue
                with self._tasks.guard("recovery of a partition", self._tasks.broker):
                    self._serve(*one, outcome)
                self._end(one)
                count += 1
                if count % OPENED_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _serve(self, topic: Topic, index: int, outcome: Partition | Exception) -> None:
        if isinstance(outcome, Exception):
            self._stays_offline(topic, index, outcome)
            return
        failed = self._partitions.of_topic(topic).get(index)
        # There must be no await between these two calls: a client could otherwise write to the partition before
        # `_on_open` has written the markers that the partition lacks.
        self._topic_files.publish_partition(topic, outcome)
        self._on_open(outcome, failed)

    def _stays_offline(self, topic: Topic, index: int, error: Exception) -> None:
        self._partitions.set_offline(topic, index, str(error))
        # An unexpected error concerns only this partition: the partition stays offline, and the broker continues.
        if not isinstance(error, StablelogError):
            offline = Scope(f"{topic.name}-{index} stays offline", lambda _why: None)
            self._tasks.report_unexpected("recovery of a partition", offline, error)
        elif self._reserve.record_failure(error):
            self._without_room[topic, index] = None
            log.error("%s-%d stays offline until the disk has space: %s", topic.name, index, error)
        else:
            log.error(
                "%s-%d cannot be opened and stays offline; run `stablelog verify` for details: %s",
                topic.name,
                index,
                error,
            )

    def _end(self, *ended: Missing) -> None:
        """Record that the opening of these partitions has ended: with success, or with an error."""
        for one in ended:
            same_topic = self._under_way.get(one[0].name, set())
            same_topic.discard(one)
            if not same_topic and self._under_way.pop(one[0].name, None) is not None:
                self._topic_ended.set()
                self._topic_ended = asyncio.Event()

    async def end_opening_of(self, topic_name: str) -> None:
        """Wait until no partition of a topic is being opened. Until the caller awaits again, the broker begins to open
        none of them.
        """
        while self.is_opening(topic_name):
            await self._topic_ended.wait()

    def is_opening(self, topic_name: str) -> bool:
        """Return whether a partition of a topic is being opened."""
        return topic_name in self._under_way
