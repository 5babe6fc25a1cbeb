"""The copies of a broker's segments to the object store, and the events about them. One pass over all partitions runs
at a time.
"""

import logging
from collections.abc import Callable, Iterator

from stablelog.broker.config import BrokerConfig
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.durability.flush import GroupFlush
from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.metrics import Sample
from stablelog.broker.tiering.copier import Copier
from stablelog.broker.tiering.metadata_topic import MetadataTopic
from stablelog.broker.tiering.remote_storage import RemoteStorage
from stablelog.broker.tiering.remote_tiers import RemoteTiers
from stablelog.broker.tiering.throttle import Throttle
from stablelog.broker.topic_names import is_internal
from stablelog.broker.topics.topics import Topics
from stablelog.env.disk import Disk
from stablelog.env.objects.store import ObjectStore
from stablelog.errors import StablelogError
from stablelog.log.partition import Partition
from stablelog.tier.remote_log import RemoteLog

log = logging.getLogger(__name__)


class Copies:
    """The copies of a broker's segments.

    Args:
        store: the object store.
        tiers: makes the remote tier of a partition whose topic gets one.
        disk: the disk of the data directory.
        node_id: the broker's id.
        flush: makes events of remote segments durable.
        reserve: tells whether the disk is full.
    """

    def __init__(
        self,
        store: ObjectStore,
        tiers: RemoteTiers,
        config: BrokerConfig,
        topics: Topics,
        tasks: Tasks,
        *,
        disk: Disk,
        node_id: int,
        flush: GroupFlush,
        reserve: DiskReserve,
        now_ms: Callable[[], int],
    ) -> None:
        self._tiers = tiers
        self._config = config
        self._topics = topics
        self._tasks = tasks
        self._now_ms = now_ms
        self._storage = RemoteStorage(store, topics.cluster_id)
        self._metadata = MetadataTopic(
            topics,
            flush,
            reserve,
            tasks,
            node_id=node_id,
            partition_count=config["rlmm.config.remote.log.metadata.topic.num.partitions"],
            now_ms=now_ms,
        )
        self._copier = Copier(
            self._storage,
            disk,
            node_id=node_id,
            is_open=topics.has,
            throttle=Throttle(lambda: config["remote.log.manager.copy.max.bytes.per.second"]),
            count_at_once=config["remote.log.manager.copier.thread.pool.size"],
            now_ms=now_ms,
            events=self._metadata,
        )

    def start(self) -> None:
        """Start a task that copies segments every `remote.log.manager.task.interval.ms`."""
        interval_s = self._config["remote.log.manager.task.interval.ms"] / 1000
        self._tasks.every("copying to the object store", interval_s, self.copy_all)

    async def copy_all(self) -> None:
        """Copy the segments that can be copied, of each partition whose topic has a remote tier. Raises as
        `Copier.copy_all`.
        """
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
        if self._storage.fenced is not None:
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
            self._tiers.enabled(self._topics.named(partition.topic), partition, self._now_ms())
        elif remote is not None and not config.is_tiered and config.is_deleted_on_disable:
            remote.begin_at(partition.start_offset)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of the copies."""
        yield Sample("stablelog_remote_copied_bytes", (), self._copier.copied_size)
        yield Sample("stablelog_remote_copied_segments", (), self._copier.copied_count)
        yield Sample("stablelog_remote_failed_partitions", (), len(self._copier.failed))
        yield Sample("stablelog_remote_fenced", (), self._storage.fenced is not None)

    async def leave(self, topic: str) -> None:
        """Stop copying a topic's partitions, as `Copier.leave` does."""
        await self._copier.leave(topic)

    def works_on(self, topic: str) -> bool:
        """Whether a partition of this topic is being copied."""
        return self._copier.works_on(topic)

    def close(self) -> None:
        """Stop all copies to the object store."""
        self._copier.close()
        self._metadata.close()
