"""How the partitions of a data directory are opened after a start: a few at a time, each served as soon as it is open."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from stablelog.broker.tasks import Scope, Tasks, in_thread
from stablelog.broker.topics import Topic, Topics
from stablelog.errors import StablelogError
from stablelog.log.partition import Partition

log = logging.getLogger(__name__)

RECOVERY_THREADS = 2


class Opening:
    """Opens what the list of topics names and is not open.

    Args:
        topics: the list.
        tasks: starts the work.
        on_open: called with each partition when it can be used; nobody has written to it then.
        now_ms: the broker's clock.
    """

    def __init__(
        self, topics: Topics, tasks: Tasks, on_open: Callable[[Partition], None], now_ms: Callable[[], int]
    ) -> None:
        self._topics = topics
        self._tasks = tasks
        self._on_open = on_open
        self._now_ms = now_ms
        self._under_way: list[tuple[Topic, asyncio.Task[None]]] = []

    async def open_all(self) -> None:
        """Open every partition that is not open. One that cannot be opened is named in the log and stays offline.

        Raises:
            DiskError: the recovery points cannot be written.
        """
        missing = [(t, i) for t in self._topics for i in range(t.partition_count) if i not in t.partitions]
        if missing:
            await self._open(missing)
        self._topics.write_recovery_points()

    async def _open(self, missing: list[tuple[Topic, int]]) -> None:
        began_ms = self._now_ms()
        with ThreadPoolExecutor(RECOVERY_THREADS, thread_name_prefix="recovery") as threads:
            self._under_way = [
                (topic, self._tasks.start("recovery of a partition", self._open_one, threads, topic, index))
                for topic, index in missing
            ]
            await asyncio.gather(*(task for _, task in self._under_way))
            self._under_way = []
        log.info("opened %d partitions in %d ms", len(missing), self._now_ms() - began_ms)

    async def _open_one(self, threads: ThreadPoolExecutor, topic: Topic, index: int) -> None:
        try:
            partition = await in_thread(threads, self._topics.recover_partition, topic, index)
        except StablelogError as error:
            self._topics.mark_offline(topic, index, error)
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
            # In one go: whoever came between would write before the markers that it lacks.
            self._topics.publish_partition(topic, partition)
            self._on_open(partition)

    async def leave(self, topic_name: str) -> None:
        """Wait until no partition of a topic is being opened."""
        tasks = [task for topic, task in self._under_way if topic.name == topic_name and not task.done()]
        if tasks:
            await asyncio.wait(tasks)
