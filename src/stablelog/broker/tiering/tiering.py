"""The tiered storage of one broker: its object store, the remote tier of each partition, copies and reads."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from stablelog.broker.config import BrokerConfig
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.durability.flush import GroupFlush
from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.metrics import Sample
from stablelog.broker.tiering.copier import Copier
from stablelog.broker.tiering.metadata_topic import MetadataTopic
from stablelog.broker.tiering.range_cache import RangeCache
from stablelog.broker.tiering.remote_reads import RemoteReads
from stablelog.broker.tiering.remote_storage import RemoteStorage
from stablelog.broker.tiering.throttle import Throttle
from stablelog.broker.topic_names import is_internal
from stablelog.broker.topics.topic import Topic
from stablelog.broker.topics.topics import Topics
from stablelog.env.disk import Disk
from stablelog.env.objects.opening import open_store
from stablelog.errors import Corrupt, NotLoaded, StablelogError
from stablelog.log.partition import Partition, Slice
from stablelog.tier.local_state import LocalState
from stablelog.tier.manifest import Manifest, encode_manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.remote_log import RemoteLog

log = logging.getLogger(__name__)

# In the data directory. Apache Kafka 3.6 and later ignores a directory of this name, and only of this name.
CACHE_DIRECTORY = "remote-log-index-cache"


class Tiering:
    """The tiered storage of one broker.

    Args:
        disk: the disk of the data directory.
        directory: the data directory.
        cluster_id: returns the id of the cluster.
        flush: makes events of remote segments durable.
        reserve: tells whether the disk is full.
        on_loaded: called with a partition when a load that a reader of it waits for has ended.

    Attributes:
        cache: the bytes of objects that were loaded.
        reads: the loads in progress.

    Raises:
        InvalidConfig: `stablelog.remote.url` is no URL of an object store.
    """

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        tasks: Tasks,
        *,
        disk: Disk,
        directory: Path,
        flush: GroupFlush,
        reserve: DiskReserve,
        on_loaded: Callable[[Partition], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._topics = topics
        self._tasks = tasks
        self._disk = disk
        self._flush = flush
        self._reserve = reserve
        self._now_ms = now_ms
        url = config["stablelog.remote.url"]
        self._store = open_store(url, allow_http=config["stablelog.remote.allow.http"]) if url else None
        self._storage: RemoteStorage | None = None
        self._copier: Copier | None = None
        self._metadata: MetadataTopic | None = None
        self.cache = RangeCache(
            disk,
            directory / CACHE_DIRECTORY,
            config["stablelog.remote.cache.memory.bytes"],
            config["stablelog.remote.cache.bytes"] if url else 0,
        )
        self.reads = RemoteReads(self._store, self.cache, tasks, on_loaded)

    def start(self, cluster_id: str, node_id: int) -> None:
        """Start a task that copies segments, if the broker has an object store."""
        if self._store is None:
            return
        self.cache.clear()
        self._storage = RemoteStorage(self._store, cluster_id)
        self._metadata = MetadataTopic(
            self._topics,
            self._flush,
            self._reserve,
            self._tasks,
            node_id=node_id,
            partition_count=self._config["rlmm.config.remote.log.metadata.topic.num.partitions"],
            now_ms=self._now_ms,
        )
        self._copier = Copier(
            self._storage,
            self._disk,
            node_id=node_id,
            is_open=self._topics.has,
            throttle=Throttle(lambda: self._config["remote.log.manager.copy.max.bytes.per.second"]),
            count_at_once=self._config["remote.log.manager.copier.thread.pool.size"],
            now_ms=self._now_ms,
            events=self._metadata,
        )
        interval_s = self._config["remote.log.manager.task.interval.ms"] / 1000
        self._tasks.every("copying to the object store", interval_s, self.copy_all)

    async def copy_all(self) -> None:
        """Copy what can be copied of each partition whose topic has a remote tier. Raises as `Copier.copy_all`."""
        if self._copier is None:
            return
        partitions = []
        async for partition in in_turns(self._topics.open_partitions()):
            if partition.failure is not None or is_internal(partition.topic):
                continue
            try:
                self._follow_settings(partition)
            except StablelogError as error:
                log.error(
                    "%s-%d: its remote tier cannot be changed: %s", partition.topic, partition.index, error
                )
            else:
                if partition.remote is not None:
                    partitions.append(partition)
        await self._copier.copy_all(partitions)
        await self._append_missing_events(partitions)

    async def _append_missing_events(self, partitions: list[Partition]) -> None:
        """Append the events that `__remote_log_metadata` lacks after a start or after an error.

        The manifest that is recorded locally has all segments of which the topic has events.
        """
        if self._metadata is None or (self._storage is not None and self._storage.fenced is not None):
            return
        async for partition in in_turns(partitions):
            remote = partition.remote
            if isinstance(remote, RemoteLog) and remote.is_known and self._topics.has(partition):
                await self._metadata.follow(remote.partition, remote.manifest)
        await self._metadata.mark_deleted()

    def _follow_settings(self, partition: Partition) -> None:
        """Enable or disable the remote tier of an open partition, if the settings of its topic have changed.

        Raises:
            DiskError: the disk refuses the record of the change.
            Unavailable: the list of remote segments is not known yet.
        """
        config, remote = partition.config, partition.remote
        if remote is None and config.is_tiered:
            manifest = Manifest(self._topics.cluster_id, partition.start_offset)
            content = encode_manifest(manifest, self._now_ms())
            LocalState(self._disk, partition.directory).write_manifest(content)
            self._set_remote(self._topics.named(partition.topic), partition, manifest)
        elif remote is not None and not config.is_tiered and config.is_deleted_on_disable:
            remote.begin_at(partition.start_offset)

    # -- partitions ----------------------------------------------------------------------------------------------

    def attach(self, topic: Topic, partition: Partition, *, is_recorded: bool) -> None:
        """Give a partition that was just opened its remote tier, if it has one. May run in a thread.

        Args:
            topic: the topic of the partition.
            partition: the partition.
            is_recorded: whether the partition's directory has a record of a remote tier.

        Raises:
            NewerFormat: a later release has written the record.
            DiskError: the record cannot be read.
        """
        if is_internal(topic.name) or (not is_recorded and not partition.config.is_tiered):
            return
        manifest: Manifest | None = None
        try:
            manifest = LocalState(self._disk, partition.directory).read()
        except Corrupt as error:
            log.error(
                "%s-%d: %s. The broker reads the manifest from the object store",
                topic.name,
                partition.index,
                error,
            )
        if manifest is None and not is_recorded and partition.start_offset == 0:
            # No segment was deleted. Without a record, nothing was copied.
            manifest = Manifest(self._topics.cluster_id)
        self._set_remote(topic, partition, manifest)

    def _set_remote(self, topic: Topic, partition: Partition, manifest: Manifest | None) -> None:
        partition.remote = RemoteLog(
            RemotePartition(topic.name, topic.topic_id, partition.index),
            manifest,
            self.cache,
            LocalState(self._disk, partition.directory).write_start,
            self._config["stablelog.remote.chunk.bytes"],
        )

    def request(self, partition: Partition, missing: NotLoaded) -> None:
        """Load what a read of a partition needs. Raises as `RemoteReads.request` does."""
        self.reads.request(partition, missing.ranges)

    def read_ahead(self, partition: Partition, read: Slice) -> None:
        """Load what the reader of a partition will need next."""
        if isinstance(partition.remote, RemoteLog) and read.start_offset < partition.start_offset:
            self.reads.read_ahead(partition.remote.ahead(read.end_offset))

    # -- metrics -------------------------------------------------------------------------------------------------

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics."""
        if self._store is None:
            return
        for call, count in self._store.counts.items():
            yield Sample("stablelog_remote_requests", (call,), count)
        yield Sample("stablelog_remote_read_bytes", (), self.reads.loaded_size)
        yield Sample("stablelog_remote_cache_bytes", ("memory",), self.cache.memory_size)
        yield Sample("stablelog_remote_cache_bytes", ("disk",), self.cache.disk_size)
        if self._copier is not None and self._storage is not None:
            yield Sample("stablelog_remote_copied_bytes", (), self._copier.copied_size)
            yield Sample("stablelog_remote_copied_segments", (), self._copier.copied_count)
            yield Sample("stablelog_remote_failed_partitions", (), len(self._copier.failed))
            yield Sample("stablelog_remote_fenced", (), self._storage.fenced is not None)

    # -- end of work -----------------------------------------------------------------------------------------------

    async def leave(self, topic: str) -> None:
        """Stop copying a topic's partitions, as `Copier.leave` does."""
        if self._copier is not None:
            await self._copier.leave(topic)

    def works_on(self, topic: str) -> bool:
        """Whether a partition of this topic is being copied."""
        return self._copier is not None and self._copier.works_on(topic)

    def close(self) -> None:
        """Stop copies and loads."""
        if self._copier is not None:
            self._copier.close()
        if self._metadata is not None:
            self._metadata.close()
        self.reads.close()
