"""The internal topic `__remote_log_metadata`: one event for each change of a remote segment, as Apache Kafka keeps it.

The topic is for readers: Kafka's tools, and programs that follow what is in the object store. The broker itself needs
none of these events, because it reads the manifests, the lists of the segments in the store. So an error of this topic
stops no copy to the store: the error is logged once, and the broker appends the missing events later. It finds the
missing events by a comparison of the manifest with the events that the topic has. A *metadata partition* is a partition
of this topic. After a start, the broker therefore reads each metadata partition once, before it appends the first event
to this metadata partition.

The broker does not wait until an event is durable. A crash loses at most the last events, and the next start appends
them again.

The events of deleted segments and deleted topics do not stay. If a metadata partition has many of them, the broker
appends the events of all segments that exist once more, and deletes the records before. A metadata partition with
events about segments that Apache Kafka has copied is not trimmed: only these events know the segments.

Source: KIP-405.
"""

import asyncio
import contextlib
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from stablelog.batch.header import headers_in
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.broker.loop.threads import in_thread_to_its_end
from stablelog.broker.runtime import Runtime
from stablelog.broker.topic_names import REMOTE_LOG_METADATA_TOPIC
from stablelog.broker.topics.partition_state import PartitionState
from stablelog.broker.topics.topic import Topic
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.errors import DamageError, StablelogError, UnavailableError, UnknownFormatError, UnprovenError
from stablelog.log.partition import Isolation, Origin, Partition
from stablelog.tier.events import Events, copy_started, partition_deleted, partition_of
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.records import (
    DeletionState,
    MetadataRecord,
    decode_record,
    encode_record,
    metadata_partition,
)
from stablelog.tier.remote_segment import RemoteSegment

log = logging.getLogger(__name__)

CONFIGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "remote.storage.enable": "false",
}
READ_SIZE: Final = 128 << 10  # The size in bytes of the pieces in which the topic is read: about 500 events.
BATCH_COUNT_MAX: Final = (
    50  # The number of events that are encoded and appended in one turn of the event loop.
)
# A metadata partition is trimmed if it has more than this number of events, besides twice those that it needs.
DEAD_COUNT_MAX: Final = 1_000
EVENTS_PER_SEGMENT: Final = 2  # of a segment whose copy has ended
NO_PARTITION: Final = -1  # Stands for a metadata partition in an error that concerns the whole topic.


@dataclass(slots=True)
class _Loaded:
    """The content of one partition of `__remote_log_metadata`: the events, grouped by the topic partition that they
    describe.

    Attributes:
        partition: the partition of `__remote_log_metadata`.
        events: the events, without those of partitions whose deletion is finished.
        count: the number of events in the log. If `begin` is set, only the events from this offset on are counted.
        begin: the offset before which the records are going to be deleted, because the events that are still needed
            were appended again after it; None if no deletion is planned.
    """

    partition: Partition
    events: dict[RemotePartition, Events] = field(default_factory=dict)
    count: int = 0
    begin: int | None = None

    def events_of(self, partition: RemotePartition) -> Events:
        return self.events.setdefault(partition, Events())

    def add_batches(self, content: bytes) -> None:
        """Decode record batches of `__remote_log_metadata`, and add their events about remote segments. A record that
        cannot be decoded is skipped: its event then counts as missing, and the broker appends it again.
        """
        for position, header in headers_in(content):
            for record in () if header.is_control else decode_records(content, position):
                with contextlib.suppress(DamageError, UnknownFormatError):
                    event = decode_record(record.value or b"")
                    self.count += 1
                    partition = partition_of(event)
                    if partition is not None:
                        self.events_of(partition).add_event(event)


class MetadataTopic:
    """Appends events to the topic `__remote_log_metadata`. Each says that the state of a remote segment has changed.

    Args:
        runtime: has the disk reserve, which tells whether the disk is full. On a full disk no event is appended, and
            the reserve is left to more important work.
        node_id: the broker's id.
        partition_count: the number of partitions with which the topic is created.
    """

    def __init__(
        self,
        topic_files: TopicFiles,
        runtime: Runtime,
        *,
        node_id: int,
        partition_count: int,
    ) -> None:
        self._topic_files = topic_files
        self._topics = topic_files.topics
        self._partitions = topic_files.partitions
        self._flush = runtime.flush
        self._reserve = runtime.reserve
        self._tasks = runtime.tasks
        self._node_id = node_id
        self._partition_count = partition_count
        self._now_ms = runtime.clock.wall_ms
        self._loaded: dict[int, _Loaded] = {}
        self._turn = asyncio.Lock()  # One task at a time creates the topic, or reads a part of it.
        self._failed: set[int] = set()  # Metadata partitions whose error was logged.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="remote log metadata")

    async def append_copy_started(self, partition: RemotePartition, segment: RemoteSegment) -> None:
        """Append the event COPY_STARTED to `__remote_log_metadata`, before the upload of a segment begins. An error is
        logged and not raised.
        """

        async def append(loaded: _Loaded) -> None:
            await self._append(loaded, partition, [copy_started(partition, segment)])

        await self._attempt(partial(_index_of, partition), append)

    async def append_missing_events(self, partition: RemotePartition, manifest: Manifest) -> None:
        """Compare a published manifest (the list of a partition's segments in the store) with the events in
        `__remote_log_metadata`, and append those that the topic lacks. An error is logged and not raised.
        """

        async def append(loaded: _Loaded) -> None:
            events = loaded.events_of(partition)
            if events.followed is manifest:
                return
            found = events.missing_events(partition, manifest, self._now_ms(), self._node_id)
            missing = await in_thread_to_its_end(self._threads, list, found)
            await self._append(loaded, partition, missing)
            events.mark_followed(manifest)

        await self._attempt(partial(_index_of, partition), append)

    async def append_deletion_marks(self) -> None:
        """Append the event that the deletion of a partition has begun, for each partition whose topic was deleted. An
        error is logged and not raised.
        """

        async def append(loaded: _Loaded) -> None:
            for partition, events in list(loaded.events.items()):
                if self._topics.name_of(partition.topic_id) is not None:
                    continue
                if events.is_over and partition.topic_id not in self._topics.deleted:
                    del loaded.events[partition]
                elif events.needs_mark:
                    deleted = partition_deleted(partition, self._now_ms(), self._node_id)
                    await self._append(loaded, partition, [deleted])

        topic = self._topics.get(REMOTE_LOG_METADATA_TOPIC)
        for index in range(topic.partition_count if topic is not None else 0):
            await self._attempt(partial(_itself, index), append)

    def partitions_to_delete(self) -> list[RemotePartition]:
        """Return the partitions whose deletion has begun according to the events in `__remote_log_metadata`. They may
        still have objects in the store.
        """
        return [
            partition
            for loaded in self._loaded.values()
            for partition, events in loaded.events.items()
            if events.has_deleted_objects and self._topics.name_of(partition.topic_id) is None
        ]

    async def append_deletion_finished(self, partition: RemotePartition) -> None:
        """Append the event that all objects of a deleted partition are gone, if `__remote_log_metadata` has the event
        that the deletion has begun. An error is logged and not raised.
        """

        async def append(loaded: _Loaded) -> None:
            if not loaded.events_of(partition).is_marked or loaded.events_of(partition).is_finished:
                return
            finished = partition_deleted(partition, self._now_ms(), self._node_id, DeletionState.FINISHED)
            await self._append(loaded, partition, [finished])

        await self._attempt(partial(_index_of, partition), append)

    async def begin_trims(self) -> None:
        """Choose the metadata partitions (partitions of `__remote_log_metadata`) that have too many events of deleted
        segments and topics. Their old records are then deleted in two further steps. The caller first passes the
        manifest of each partition, the list of its remote segments, to `append_missing_events`, which appends the
        events of all existing segments again. It then calls `end_trims`, which deletes the records before. An error is
        logged and not raised.
        """
        for index, loaded in list(self._loaded.items()):
            if loaded.begin is None and self._is_trim_due(loaded) and not self._reserve.is_full:
                await self._attempt(partial(_itself, index), self._begin_trim)

    def _is_trim_due(self, loaded: _Loaded) -> bool:
        if loaded.count <= DEAD_COUNT_MAX:
            return False
        needed = 0
        for partition, events in loaded.events.items():
            is_listed = (
                self._topics.name_of(partition.topic_id) is not None
                or partition.topic_id in self._topics.deleted
            )
            if events.is_of_kafka or not (is_listed or events.is_over):
                return False  # Nothing but these events tells of the segments.
            needed += EVENTS_PER_SEGMENT * len(events.states)
        return loaded.count > 2 * needed + DEAD_COUNT_MAX

    async def _begin_trim(self, loaded: _Loaded) -> None:
        loaded.partition.roll(self._now_ms())  # A trim deletes whole segments.
        loaded.begin, loaded.count = loaded.partition.end_offset, 0
        loaded.events = {
            partition: events
            for partition, events in loaded.events.items()
            if partition.topic_id in self._topics.deleted
        }
        for partition in [one for one, events in loaded.events.items() if events.is_marked]:
            marked = partition_deleted(partition, self._now_ms(), self._node_id)
            await self._append(loaded, partition, [marked])

    async def end_trims(self) -> None:
        """Delete the old records of those partitions of `__remote_log_metadata` that `begin_trims` has chosen. The
        events that are still needed were appended again after these records. An error is logged and not raised.
        """

        async def trim(loaded: _Loaded) -> None:
            begin = loaded.begin
            assert begin is not None
            durable = self._flush.durable_future(loaded.partition, loaded.partition.end_offset)
            if durable is not None:
                await durable
            self._reserve.attempt(lambda: loaded.partition.deletion.delete_records(begin), frees=True)
            loaded.begin = None

        for index, loaded in list(self._loaded.items()):
            if loaded.begin is not None and index not in self._failed:
                await self._attempt(partial(_itself, index), trim)

    def close(self) -> None:
        """End the thread that works for `__remote_log_metadata`."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    # -- the topic -----------------------------------------------------------------------------------------------

    async def _attempt(
        self, index_of: Callable[[int], int], work: Callable[[_Loaded], Awaitable[None]]
    ) -> None:
        """Append events to a metadata partition, a partition of `__remote_log_metadata`. An error is logged and not
        raised. The next error is logged only if events were appended successfully in between.

        Args:
            index_of: returns the index of the metadata partition, from the number of partitions of the topic.
            work: appends the events.
        """
        index = NO_PARTITION
        try:
            topic = await self._open_topic()
            index = index_of(topic.partition_count)
            if self._partitions.state_in(topic, index) is PartitionState.OPENING:
                return  # The next pass tries again.
            await work(await self._load(self._partitions.require(topic.name, index), index))
        except (StablelogError, FileNotFoundError) as error:
            self._reserve.record_failure(error)
            if index not in self._failed:
                self._failed.add(index)
                log.error(
                    "events of remote segments are not written to %s; the broker tries again, and copies segments "
                    "meanwhile: %s",
                    REMOTE_LOG_METADATA_TOPIC,
                    error,
                )

    async def _open_topic(self) -> Topic:
        """Return the topic `__remote_log_metadata`; create the topic if it does not exist.

        Raises:
            RefusedError: the topic cannot be created.
            UnavailableError: the disk is full.
        """
        async with self._turn:
            topic = self._topics.get(REMOTE_LOG_METADATA_TOPIC)
            if topic is None:
                topic = await self._tasks.run_for_request("creation of the metadata topic", self._create)
                self._failed.discard(NO_PARTITION)
            return topic

    async def _create(self) -> Topic:
        self._check_room()
        indexes = range(self._partition_count)
        topic = self._topics.reserve_new(
            REMOTE_LOG_METADATA_TOPIC, len(indexes), CONFIGS, topic_id=uuid.uuid4(), own=True
        )
        try:
            made = await in_thread_to_its_end(
                self._threads, self._topic_files.make_partitions, topic, indexes
            )
            return self._topic_files.publish(topic, made)
        finally:
            self._topics.end_reservation(topic)

    def _check_room(self) -> None:
        if self._reserve.is_full:
            raise UnavailableError(self._reserve.state())

    # -- events --------------------------------------------------------------------------------------------------

    async def _load(self, partition: Partition, index: int) -> _Loaded:
        """Return the events of a metadata partition, a partition of `__remote_log_metadata`. They are kept in memory,
        so its log is read only once after it was opened.

        Raises:
            StablelogError: the partition cannot be read.
        """
        async with self._turn:
            loaded = self._loaded.get(index)
            if loaded is not None and loaded.partition is partition:
                return loaded
            loaded = _Loaded(partition)
            offset = partition.start_offset
            while offset < partition.end_offset:
                try:
                    read = partition.read(offset, READ_SIZE, Isolation.LOG_END)
                except UnprovenError as unproven:
                    await in_thread_to_its_end(self._threads, _prove, unproven)
                    continue
                await in_thread_to_its_end(self._threads, loaded.add_batches, b"".join(read.buffers))
                offset = read.end_offset
            loaded.events = {one: events for one, events in loaded.events.items() if not events.is_finished}
            self._loaded[index] = loaded
            return loaded

    async def _append(
        self, loaded: _Loaded, partition: RemotePartition, events: Sequence[MetadataRecord]
    ) -> None:
        """Append events about one topic partition to a partition of `__remote_log_metadata`. Add them also to `loaded`,
        which has the events of its log in memory.

        Raises:
            RefusedError, UnavailableError: the disk refuses an event. The events before it were appended.
        """
        for begin in range(0, len(events), BATCH_COUNT_MAX):
            self._check_room()
            some = events[begin : begin + BATCH_COUNT_MAX]
            now_ms = self._now_ms()
            batch = encode_batch([Record(0, now_ms, None, encode_record(event)) for event in some])
            loaded.partition.append(batch, now_ms=now_ms, origin=Origin.COORDINATOR)
            self._flush.mark_dirty_soon(loaded.partition)
            self._failed.discard(loaded.partition.index)
            loaded.count += len(some)
            for event in some:
                loaded.events_of(partition).add_event(event)
            await asyncio.sleep(0)


def _index_of(partition: RemotePartition, partition_count: int) -> int:
    return metadata_partition(partition.topic_id, partition.partition, partition_count)


def _itself(index: int, _partition_count: int) -> int:
    return index


def _prove(unproven: UnprovenError) -> None:
    deque(unproven.prove(), maxlen=0)
