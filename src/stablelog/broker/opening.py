"""Opening partitions: those of the list after a start, a few at a time, and later those for which there was no room.

Each is served as soon as it is open. A partition that the disk had no room to recover, and one that failed at run time
for lack of room, is opened again when there may be some. Every other failure needs a restart.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from stablelog.broker.disk_reserve import DiskReserve
from stablelog.broker.tasks import Scope, Tasks, in_thread
from stablelog.broker.topics import Topic, Topics
from stablelog.errors import StablelogError
from stablelog.log.partition import Partition

log = logging.getLogger(__name__)

STARTED_AT_ONCE = 100  # tasks in a turn of the event loop
RECOVERY_THREADS = 8  # they wait for the disk, mostly


class Opening:
    """Opens partitions of the list of topics.

    Args:
        topics: the list.
        tasks: starts the work.
        reserve: gives recovery room on a full disk.
        on_open: called with each partition when it can be used; nobody has written to it then. The second argument is
            the failed partition that it replaces, None if it is opened for the first time since the start.
        end_work: waits until no thread works on the partitions of a topic; when it returns, until the next await.
        now_ms: the broker's clock.
    """

    def __init__(
        self,
        topics: Topics,
        tasks: Tasks,
        reserve: DiskReserve,
        *,
        on_open: Callable[[Partition, Partition | None], None],
        end_work: Callable[[str], Awaitable[None]],
        now_ms: Callable[[], int],
    ) -> None:
        self._topics = topics
        self._tasks = tasks
        self._reserve = reserve
        self._on_open = on_open
        self._end_work = end_work
        self._now_ms = now_ms
        self._under_way: list[tuple[Topic, asyncio.Task[None]]] = []
        self._without_room: dict[tuple[Topic, int], None] = {}

    async def open_all(self) -> None:
        """Open every partition that is not open. One that cannot be opened is named in the log and stays offline.

        Raises:
            DiskError: the recovery points cannot be written.
        """
        missing = [(t, i) for t in self._topics for i in range(t.partition_count) if i not in t.partitions]
        if missing:
            began_ms = self._now_ms()
            await self._open(missing)
            log.info("opened %d partitions in %d ms", len(missing), self._now_ms() - began_ms)
        self._topics.write_recovery_points()

    def open_later(self, partition: Partition) -> None:
        """Have a partition that failed for lack of room opened again when there is some."""
        topic = self._topics.get(partition.topic)
        if topic is not None and self._topics.has(partition):
            self._without_room[topic, partition.index] = None

    async def open_again(self) -> None:
        """Open those for which there was no room, as far as there is some now."""
        if not self._without_room:
            return
        waiting, self._without_room = list(self._without_room), {}
        await self._open((topic, index) for topic, index in waiting if self._topics.get(topic.name) is topic)

    async def _open(self, missing: Iterable[tuple[Topic, int]]) -> None:
        with ThreadPoolExecutor(RECOVERY_THREADS, thread_name_prefix="recovery") as threads:
            under_way = []
            for count, (topic, index) in enumerate(missing, 1):
                if self._topics.get(topic.name) is not topic:
                    continue  # it was deleted meanwhile
                task = self._tasks.start("recovery of a partition", self._open_one, threads, topic, index)
                under_way.append((topic, task))
                self._under_way.append((topic, task))
                if count % STARTED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            if under_way:
                await asyncio.wait([task for _, task in under_way])
            self._under_way = [(topic, task) for topic, task in self._under_way if not task.done()]

    async def _open_one(self, threads: ThreadPoolExecutor, topic: Topic, index: int) -> None:
        failed = topic.partitions.get(index)
        if failed is not None:
            await self._end_work(topic.name)
            if not self._topics.has(failed):
                return  # it was deleted meanwhile
            failed.close(clean=False)
        try:
            partition = await self._recover(threads, topic, index)
        except StablelogError as error:
            self._topics.mark_offline(topic, index, error)
            if self._reserve.note(error):
                self._without_room[topic, index] = None
                log.error("%s-%d is opened when there is room: %s", topic.name, index, error)
            else:
                log.error(
                    "%s-%d cannot be opened and stays offline; `stablelog verify` says more: %s",
                    topic.name,
                    index,
                    error,
                )
        except Exception as error:  # noqa: BLE001 - it concerns this partition, and no other
            self._topics.mark_offline(topic, index, error)
            offline = Scope(f"{topic.name}-{index} stays offline", lambda _why: None)
            self._tasks.unexpected("recovery of a partition", offline, error)
        else:
            # In one go: a write in between would stand before the markers that the partition lacks.
            self._topics.publish_partition(topic, partition)
            self._on_open(partition, failed)

    async def _recover(self, threads: ThreadPoolExecutor, topic: Topic, index: int) -> Partition:
        while True:
            try:
                return await in_thread(threads, self._topics.recover_partition, topic, index)
            except StablelogError as error:
                if not self._reserve.make_room(error):
                    raise

    async def leave(self, topic_name: str) -> None:
        """Wait until no partition of a topic is being opened; when this returns, until the next await."""
        while tasks := self._of_topic(topic_name):
            await asyncio.wait(tasks)

    def works_on(self, topic_name: str) -> bool:
        """Whether a partition of a topic is being opened."""
        return bool(self._of_topic(topic_name))

    def _of_topic(self, topic_name: str) -> list[asyncio.Task[None]]:
        return [task for topic, task in self._under_way if topic.name == topic_name and not task.done()]
