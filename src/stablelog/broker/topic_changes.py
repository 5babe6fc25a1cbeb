"""Creation, growth and deletion of topics for clients. Other requests are served meanwhile.

Each change runs to its end, even if the client that has requested it disconnects.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.broker.fetch.long_polls import LongPolls
from stablelog.broker.groups import BrokerGroups
from stablelog.broker.loop.threads import in_thread
from stablelog.broker.loop.turns import AT_ONCE_MAX, free_in_turns, in_turns
from stablelog.broker.runtime import Runtime
from stablelog.broker.topics.opening import Opening
from stablelog.broker.topics.topic import Topic
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.broker.transactions.partition_repair import PartitionRepair
from stablelog.errors import DiskError, RefusedError, UnavailableError

log = logging.getLogger(__name__)

# How the creation and the growth of a topic are refused while the disk is full.
NO_NEW_PARTITIONS: Final = WhileFull(ErrorCode.kafka_storage_error)


class TopicChanges:
    """Creates, grows and deletes topics for clients.

    Args:
        topic_files: does the steps that read and write files.
        runtime: the objects that the parts of the broker share, such as its tasks and its clock.
        opening: opens partitions. A deletion waits until no partition of the topic is being opened.
        end_work: waits until no thread reads or writes open partitions of a topic. No thread begins to read or write
            them before the caller's next await.
        long_polls: woken when a partition is deleted.
        partition_repair: drops markers that wait for a deleted partition.
        groups: removes the offsets that consumer groups have committed for a deleted topic.
    """

    def __init__(
        self,
        topic_files: TopicFiles,
        runtime: Runtime,
        *,
        opening: Opening,
        end_work: Callable[[str], Awaitable[None]],
        long_polls: LongPolls,
        partition_repair: PartitionRepair,
        groups: BrokerGroups,
    ) -> None:
        self._topic_files = topic_files
        self._topics = topic_files.topics
        self._partitions = topic_files.partitions
        self._opening = opening
        self._end_work = end_work
        self._flush = runtime.flush
        self._long_polls = long_polls
        self._partition_repair = partition_repair
        self._groups = groups
        self._reserve = runtime.reserve
        self._tasks = runtime.tasks
        self._now_ms = runtime.clock.now_ms

    async def create_topic(self, name: str, partition_count: int, configs: Mapping[str, str]) -> Topic:
        """Create a topic.

        Raises:
            RefusedError: the name, the number of partitions or a setting is not valid, the topic exists, or the disk is
                full; nothing changed.
        """
        self._reserve.check(NO_NEW_PARTITIONS)
        topic = self._topics.reserve_new(name, partition_count, configs, topic_id=uuid.uuid4())
        await self._make_partitions(topic, range(partition_count))
        log.info("created topic %s with %d partitions", name, partition_count)
        return topic

    async def grow_topic(self, name: str, partition_count: int) -> None:
        """Add partitions to a topic until it has `partition_count` partitions.

        Raises:
            RefusedError: the topic does not exist or has that many partitions already, or the disk is full; nothing
                changed.
        """
        self._reserve.check(NO_NEW_PARTITIONS)
        topic = self._topics.reserve_growth(name, partition_count)
        await self._make_partitions(topic, range(topic.partition_count, partition_count))

    async def _make_partitions(self, topic: Topic, indexes: Sequence[int]) -> None:
        """Create partitions in a thread, and add them to the topic in the list of topics. Then end the reservation of
        the topic's name, by which no other request could change the topic meanwhile.
        """

        async def make() -> None:
            try:
                made = await in_thread(None, self._topic_files.make_partitions, topic, indexes)
                self._topic_files.publish(topic, made)
            except RefusedError as refused:
                self._reserve.record_failure(refused)
                raise
            finally:
                self._topics.end_reservation(topic)

        await self._tasks.run_for_request("making partitions", make)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic. Requests that wait for it fail, and the offsets that groups have committed for it are
        removed.

        Raises:
            RefusedError: the topic does not exist, or it is an internal topic of the broker; nothing changed.
        """
        while True:
            await self._opening.end_opening_of(name)
            await self._end_work(name)
            # The opening of a partition of the topic may have begun while this task waited for other work on the topic.
            if not self._opening.is_opening(name):
                break
        topic = self._topic_files.unlist(name)
        await self._tasks.run_for_request("deleting a topic", partial(self._delete, topic))

    async def _set_directories_aside(self, topic: Topic) -> None:
        """Set the directories of a deleted topic aside: rename them, also on a full disk, so that their paths are free.
        A task of the broker removes them later.
        """
        rename = partial(self._topic_files.set_aside, topic)
        try:
            await self._reserve.attempt_in_thread(None, rename, frees=True)
        except DiskError as error:
            log.error(
                "cannot rename the directories of the deleted topic %s; remove them by hand: %s",
                topic.name,
                error,
            )

    async def _delete(self, topic: Topic) -> None:
        """Delete the files of a topic that is no longer in the list of topics, and all state that the broker has of it."""
        why = UnavailableError(f"topic {topic.name} was deleted")
        opened = self._partitions.remove_topic(topic)
        try:
            async for partition in in_turns(list(opened.values()), at_once=AT_ONCE_MAX):
                self._flush.fail_waiting(partition, why)
                self._long_polls.wake(partition)
                partition.close(clean=False)
            async for index in in_turns(range(topic.partition_count), at_once=AT_ONCE_MAX):
                self._partition_repair.partition_deleted((topic.name, index), topic.group)
            await self._set_directories_aside(topic)
            self._topic_files.forget_files(topic)
            await asyncio.sleep(0)
            for decision in self._groups.coordinator.topic_deleted(topic.name, now_ms=self._now_ms()):
                self._groups.apply_decision(decision)
                await asyncio.sleep(0)
        finally:
            self._topics.end_reservation(topic)
        await self._groups.journal.wait_until_durable()
        await free_in_turns(opened)
