"""Creation, growth and deletion of topics at the request of clients. Other requests are served meanwhile.

A client that disconnects stops none of these changes: each ends whole.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.durability.flush import GroupFlush
from stablelog.broker.groups import Groups
from stablelog.broker.loop.tasks import Tasks, in_thread
from stablelog.broker.loop.turns import AT_ONCE_MAX, free_in_turns, in_turns
from stablelog.broker.topics.opening import Opening
from stablelog.broker.topics.topic import Topic
from stablelog.broker.topics.topics import Topics
from stablelog.broker.transactions.transactions import Transactions
from stablelog.broker.waiting import Waiters
from stablelog.errors import Refused, Unavailable

log = logging.getLogger(__name__)


class TopicChanges:
    """The changes of the list of topics that clients ask for.

    Args:
        topics: the list of topics.
        opening: may be opening partitions of a topic that is to be deleted.
        end_work: waits until no thread works on open partitions of a topic; this holds until the next await.
        flush: fails the waits for partitions that are deleted.
        waiters: the long polls that wait for them.
        transactions: may have markers for them.
        groups: may have committed offsets for them.
        reserve: tells whether the disk is full.
        tasks: starts the work.
    """

    def __init__(
        self,
        topics: Topics,
        *,
        opening: Opening,
        end_work: Callable[[str], Awaitable[None]],
        flush: GroupFlush,
        waiters: Waiters,
        transactions: Transactions,
        groups: Groups,
        reserve: DiskReserve,
        tasks: Tasks,
        now_ms: Callable[[], int],
    ) -> None:
        self._topics = topics
        self._opening = opening
        self._end_work = end_work
        self._flush = flush
        self._waiters = waiters
        self._transactions = transactions
        self._groups = groups
        self._reserve = reserve
        self._tasks = tasks
        self._now_ms = now_ms

    async def create(self, name: str, partition_count: int, configs: Mapping[str, str]) -> Topic:
        """Create a topic.

        Raises:
            Refused: the name, the count or a setting is not valid, the topic exists, or the disk is full; nothing
                changed.
        """
        self._reserve.check("CreateTopics")
        topic = self._topics.reserve(name, partition_count, configs)
        await self._make_partitions(topic, range(partition_count))
        log.info("created topic %s with %d partitions", name, partition_count)
        return topic

    async def grow(self, name: str, partition_count: int) -> None:
        """Grow a topic to `partition_count` partitions.

        Raises:
            Refused: the topic does not exist or has that many partitions already, or the disk is full; nothing
                changed.
        """
        self._reserve.check("CreatePartitions")
        topic = self._topics.reserve_more(name, partition_count)
        await self._make_partitions(topic, range(topic.partition_count, partition_count))

    async def _make_partitions(self, topic: Topic, indexes: Sequence[int]) -> None:
        """Create the reserved partitions in a thread, and add them to the list. The reservation ends."""

        async def make() -> None:
            try:
                made = await in_thread(None, self._topics.make_partitions, topic, indexes)
                self._topics.publish(topic, made)
            except Refused as refused:
                self._reserve.note(refused)
                raise
            finally:
                self._topics.release(topic)

        await self._tasks.for_request("making partitions", make)

    async def delete(self, name: str) -> None:
        """Delete a topic, the offsets that groups have committed for it, and the requests that wait for it.

        Raises:
            Refused: the topic does not exist, or it is one of the broker's own; nothing changed.
        """
        while True:
            await self._opening.leave(name)
            await self._end_work(name)
            # An opening may have begun while this task waited for other work.
            if not self._opening.works_on(name):
                break
        topic = self._topics.unlist(name)
        await self._tasks.for_request("deleting a topic", partial(self._delete, topic))

    async def _delete(self, topic: Topic) -> None:
        """Delete the files and the state of a topic that is no longer listed."""
        why = Unavailable(f"topic {topic.name} was deleted")
        try:
            async for partition in in_turns(list(topic.partitions.values()), at_once=AT_ONCE_MAX):
                self._flush.forget(partition, why)
                self._waiters.wake(partition)
                partition.close(clean=False)
            async for index in in_turns(range(topic.partition_count), at_once=AT_ONCE_MAX):
                self._transactions.partition_gone((topic.name, index), topic.group)
            await in_thread(None, self._topics.set_aside, topic)
            self._topics.forget_files(topic)
            await asyncio.sleep(0)
            for decision in self._groups.coordinator.topic_deleted(topic.name, now_ms=self._now_ms()):
                self._groups.apply(decision)
                await asyncio.sleep(0)
        finally:
            self._topics.release(topic)
        await self._groups.journal.settled()
        await free_in_turns(topic.partitions)
