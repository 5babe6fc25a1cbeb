"""The tiered storage of one broker: its object store, the remote tier of each partition, copies and reads.

Few brokers have tiered storage, and importing all of its modules takes a tenth of the time of a start. So this module
imports most of them when they are needed.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from stablelog.broker.monitoring.damage_log import DamageLog
from stablelog.broker.monitoring.metrics import Sample
from stablelog.broker.runtime import Runtime
from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.tiering.range_cache import RangeCache
from stablelog.broker.tiering.remote_reads import RemoteReads
from stablelog.broker.topic_names import is_internal
from stablelog.broker.topics.topic import Topic
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.log.partition import Partition, Slice

if TYPE_CHECKING:
    from stablelog.broker.tiering.copy_passes import CopyPasses
    from stablelog.broker.tiering.remote_tiers import RemoteTiers
    from stablelog.env.objects.retrying_store import ObjectStore

STOP_S = 3.0  # At a stop of the broker, no request to the store begins after this time.
# In the data directory. Apache Kafka 3.6 and later ignores a directory of this name, and only of this name.
CACHE_DIRECTORY = "remote-log-index-cache"
CHUNK_COUNT_MIN = 4  # how many chunks the memory of the cache has room for at least


class Tiering:
    """The tiered storage of one broker: opens the object store, and passes calls to the copies and the reads.

    Args:
        damage_log: logs damaged objects. Requests use the same log, so that each damage is logged once.
        on_loaded: called when a load of bytes from the store has ended, with each partition whose readers wait for
            them.

    Attributes:
        cache: keeps the bytes of objects that were loaded.
        reads: loads bytes from the store; has the loads in progress.

    Raises:
        UsageError: `stablelog.remote.url` is no URL of an object store.
    """

    def __init__(
        self,
        topic_files: TopicFiles,
        runtime: Runtime,
        *,
        on_loaded: Callable[[Partition], None],
        damage_log: DamageLog,
    ) -> None:
        config = self._config = runtime.config
        self._topic_files = topic_files
        self._runtime = runtime
        self._store = _store(config)
        self._copies: CopyPasses | None = None
        self.cache = RangeCache(
            runtime.disk,
            runtime.directory / CACHE_DIRECTORY,
            max(
                config["stablelog.remote.cache.memory.bytes"],
                CHUNK_COUNT_MIN * config["stablelog.remote.chunk.bytes"],
            ),
            config["stablelog.remote.cache.bytes"] if self._store is not None else 0,
            is_disk_full=lambda: runtime.reserve.is_full,
        )
        self.reads = RemoteReads(self._store, self.cache, runtime.tasks, on_loaded, damage_log)

    def start(self, node_id: int) -> None:
        """Start a task that copies segments, if the broker has an object store."""
        if self._store is None:
            return
        from stablelog.broker.tiering.copy_passes import CopyPasses

        self.cache.clear()
        self._copies = CopyPasses(
            self._store,
            self._remote_tiers(),
            self._topic_files,
            self._runtime,
            node_id=node_id,
        )
        self._copies.start()

    async def copy_all(self) -> None:
        """Copy all segments that can be copied to the object store now, and return when they are copied. Raises the
        errors of `CopyPasses.copy_all`.
        """
        if self._copies is not None:
            await self._copies.copy_all()

    async def copy_coordinator_logs(self) -> None:
        """Copy the coordinators' logs to the object store now. Raises the errors of `CoordinatorLogs.copy_logs`."""
        if self._copies is not None:
            await self._copies.copy_coordinator_logs()

    async def copy_before_trim(self) -> None:
        """Copy the coordinators' logs to the object store before a coordinator trims one of them, that is, deletes the
        part before its checkpoint. Errors of the store are not raised, so that the log is trimmed in any case.
        """
        if self._copies is not None:
            await self._copies.copy_before_trim()

    # -- partitions ----------------------------------------------------------------------------------------------

    def attach(self, topic: Topic, partition: Partition, *, is_recorded: bool) -> None:
        """Create the remote tier of a partition that was just opened (the list of its segments in the object store), if
        its topic has tiered storage or its directory records one. May run in a thread.

        Args:
            topic: the topic of the partition.
            partition: the partition.
            is_recorded: whether the partition's directory has a record of a remote tier.

        Raises:
            UnknownFormatError: a later release has written the record of the remote tier.
            DiskError: the record of the remote tier cannot be read.
        """
        if not is_internal(topic.name) and (is_recorded or partition.config.is_tiered):
            self._remote_tiers().attach_remote_log(topic, partition, is_recorded=is_recorded)

    def _remote_tiers(self) -> "RemoteTiers":
        from stablelog.broker.tiering.remote_tiers import RemoteTiers

        chunk_size = self._config["stablelog.remote.chunk.bytes"]
        url = self._config["stablelog.remote.url"]
        return RemoteTiers(
            self._runtime,
            self.cache,
            lambda: self._topic_files.topics.cluster_id,
            chunk_size,
            url,
        )

    def read_ahead(self, partition: Partition, read: Slice) -> None:
        """Begin to load from the store the byte ranges that the reader of a partition will probably need next. `read`
        is the result of its last read.
        """
        if partition.remote is not None and read.start_offset < partition.start_offset:
            remote = partition.remote
            if partition.view is not None and read.aborted is not None:
                self.reads.read_ahead(remote.view.ranges_ahead(read.end_offset))
                return
            remote.finish_read(read.start_offset, read.end_offset)
            self.reads.read_ahead(remote.ranges_ahead(read.end_offset))

    # -- metrics -------------------------------------------------------------------------------------------------

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of tiered storage."""
        if self._store is None:
            return
        for call, count in self._store.counts.items():
            yield Sample("stablelog_remote_requests", (call,), count)
        yield Sample("stablelog_remote_read_bytes", (), self.reads.loaded_size)
        yield Sample("stablelog_remote_cache_bytes", ("memory",), self.cache.memory_size)
        yield Sample("stablelog_remote_cache_bytes", ("disk",), self.cache.disk_size)
        if self._copies is not None:
            yield from self._copies.samples()

    # -- end of work -----------------------------------------------------------------------------------------------

    async def stop_copying(self, topic: str) -> None:
        """Stop the copies of a topic's partitions to the object store, before the topic is deleted."""
        if self._copies is not None:
            await self._copies.stop_copying(topic)

    def is_copying(self, topic: str) -> bool:
        """Return whether a partition of this topic is being copied."""
        return self._copies is not None and self._copies.is_copying(topic)

    def limit_store_time(self) -> None:
        """Let no request to the store begin later than STOP_S seconds from now. Called when the broker stops, so that a
        slow store does not delay the stop.
        """
        if self._store is not None:
            self._store.give_up_after(STOP_S)

    async def copy_at_stop(self) -> None:
        """At a stop of the broker, copy the rest of the coordinators' logs, and publish new manifests (lists of a
        partition's segments in the store) for partitions whose log start offset has moved, so that readers of the store
        get no deleted records. This takes at most STOP_S seconds.
        """
        if self._copies is not None:
            await self._copies.copy_at_stop(STOP_S)

    def close(self) -> None:
        """Stop the copies to the object store and the loads from it."""
        if self._copies is not None:
            self._copies.close()
        self.reads.close()


def _store(config: BrokerConfig) -> "ObjectStore | None":
    """Open the object store of the setting `stablelog.remote.url`, and return it; None if the setting is empty."""
    url = config["stablelog.remote.url"]
    if not url:
        return None
    from stablelog.env.objects.opening import open_store

    return open_store(url, allow_http=config["stablelog.remote.allow.http"])
