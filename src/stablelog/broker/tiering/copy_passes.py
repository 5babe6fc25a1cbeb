"""The copies of a broker's segments to the object store, and the events about them, records of `__remote_log_metadata`.
One pass over all partitions runs at a time.

A pass that has segments to copy first copies the logs of the coordinators. It then copies each partition up to the last
stable offset that the partition had before the copy of the coordinators' logs. For every marker and every producer id
of a topic in the store, the copied logs of the coordinators therefore have the decision and the id.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

from stablelog.broker.loop.tasks import Scope
from stablelog.broker.loop.threads import in_thread
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.monitoring.metrics import Sample
from stablelog.broker.runtime import Runtime
from stablelog.broker.tiering.chain_takeover import prove_history, prove_topics
from stablelog.broker.tiering.coordinator_logs import CoordinatorLogs
from stablelog.broker.tiering.copy_plans import TopicCopyPlan
from stablelog.broker.tiering.copy_throttle import CopyThrottle
from stablelog.broker.tiering.deleted_partitions import DeletedPartitions
from stablelog.broker.tiering.metadata_topic import MetadataTopic
from stablelog.broker.tiering.partition_copier import PartitionCopier
from stablelog.broker.tiering.published_state import has_new_start
from stablelog.broker.tiering.remote_storage import RemoteStorage
from stablelog.broker.tiering.remote_tiers import RemoteTiers
from stablelog.broker.topic_names import is_internal
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.data_directory.settings_file import Dynamic, encode_settings
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError, RefusedError, StablelogError, named
from stablelog.log.partition import Partition
from stablelog.tier.names import RemotePartition
from stablelog.tier.remote_log import RemoteLog

log = logging.getLogger(__name__)

NAMED_MAX: Final = 3  # The number of partitions that a message names.
PROVEN_AT_ONCE: Final = 10  # The number of partitions whose history is compared with the store at a time.


class CopyPasses:
    """Copies the segments of all partitions to the object store, in passes at regular intervals.

    Args:
        store: the object store.
        tiers: makes the remote tier of a partition (its list of segments in the store) when the settings of its topic
            enable tiered storage.
        node_id: the broker's id.
    """

    def __init__(
        self,
        store: ObjectStore,
        tiers: RemoteTiers,
        topic_files: TopicFiles,
        runtime: Runtime,
        *,
        node_id: int,
    ) -> None:
        self._tiers = tiers
        config = self._config = runtime.config
        self._topic_files = topic_files
        self._topics = topic_files.topics
        self._partitions = topic_files.partitions
        self._tasks = runtime.tasks
        self._clock = runtime.clock
        self._storage = RemoteStorage(store, self._topics.cluster_id)

        def delay_s() -> float:
            delay_ms: int = config["stablelog.remote.delete.delay.ms"]
            return delay_ms / 1000

        self._metadata = MetadataTopic(
            topic_files,
            runtime,
            node_id=node_id,
            partition_count=config["rlmm.config.remote.log.metadata.topic.num.partitions"],
        )
        self._coordinators = CoordinatorLogs(
            self._storage,
            tiers,
            topic_files,
            runtime,
            node_id=node_id,
            interval_s=config["stablelog.remote.coordinator.copy.interval.ms"] / 1000,
            delay_s=delay_s,
        )
        self._gone: set[RemotePartition] = set()  # Deleted partitions without objects in the store.
        self._deleted = DeletedPartitions(self._storage, delay_s=delay_s, now_s=time.monotonic)
        self._wanted = TopicCopyPlan()
        self._is_proven = False  # Whether this start has proven that it holds the history in the store.
        self._settings: Dynamic | None = None  # The dynamic settings that the store has.
        self._refused: Dynamic | None = None  # The dynamic settings that must not replace those in the store.
        self._disk = runtime.disk
        self._limits: dict[Partition, int] = {}  # The offsets up to which the current pass copies.
        self._copier = PartitionCopier(
            self._storage,
            runtime,
            node_id=node_id,
            is_open=self._partitions.is_in_use,
            topic_of=self._topics.get,
            throttle=CopyThrottle(lambda: config["remote.log.manager.copy.max.bytes.per.second"]),
            count_at_once=config["remote.log.manager.copier.thread.pool.size"],
            events=self._metadata,
            plan=TopicCopyPlan(lambda partition: self._limits.get(partition, 0)),
            chunk_size=config["stablelog.remote.chunk.bytes"],
            delay_s=delay_s,
        )

    def start(self) -> None:
        """Start a task that copies segments every `remote.log.manager.task.interval.ms`, and one that copies the logs
        of the coordinators so often that no record waits longer than `stablelog.remote.coordinator.copy.interval.ms`.
        """
        interval_s = self._config["remote.log.manager.task.interval.ms"] / 1000
        self._run_every("copying to the object store", interval_s, self.copy_all)
        self._run_every(
            "copying the coordinators' logs to the object store",
            self._coordinators.pause_s(),
            self._coordinators.copy_if_due,
            pause_s=self._coordinators.pause_s,
        )

    def _run_every(
        self,
        name: str,
        interval_s: float,
        step: Callable[[], Awaitable[None]],
        pause_s: Callable[[], float] | None = None,
    ) -> None:
        """Run a step at intervals in a background task, as `Tasks.every` does. If several tasks fail because of the
        same error of the store, the error is logged once.

        Args:
            name: the name of the task, for log messages.
            interval_s: the time between two runs, in seconds.
            step: called at each run.
            pause_s: returns the time until the next run, instead of `interval_s`; None if the interval is always the
                same.
        """

        async def attempt() -> None:
            try:
                await step()
            except StablelogError as error:
                if self._storage.failures.is_new(error):
                    log.error(
                        "the broker's task '%s' failed; the broker retries this task every %g s: %s",
                        name,
                        interval_s,
                        error,
                    )

        self._tasks.every(name, interval_s, attempt, pause_s=pause_s)

    async def copy_coordinator_logs(self) -> None:
        """Copy what was appended to the coordinators' logs since their last copy. Raises the errors of
        `CoordinatorLogs.copy_logs`.
        """
        await self._coordinators.copy_logs()

    async def copy_before_trim(self) -> None:
        """Copy the coordinators' logs before a coordinator trims one of them, that is, deletes the part before its
        checkpoint. An error of the store is not raised here; the next pass meets it again and logs it.
        """
        await self._coordinators.copy_before_trim()

    async def copy_at_stop(self, limit_s: float) -> None:
        """Copy the rest of the coordinators' logs, as `CoordinatorLogs.copy_at_stop` does. Then publish a manifest, the
        list of a partition's segments in the store, for each partition whose log start offset has moved since the last
        pass. Readers of the store, and a restore, would otherwise get deleted records.

        The stop continues after `limit_s` seconds, also if the store does not answer.
        """
        end_s = asyncio.get_running_loop().time() + limit_s
        await self._coordinators.copy_at_stop(limit_s)
        moved = self._partitions_with_new_start()
        if not moved or self._storage.fenced is not None:
            return
        self._limits = {}  # No segment is copied.
        left_s = max(end_s - asyncio.get_running_loop().time(), 0)
        scope = Scope("the broker stops before log starts are published", lambda _why: None)
        task = self._tasks.start("publishing log starts", partial(self._publish_starts, moved), scope=scope)
        await asyncio.wait({task}, timeout=left_s)
        if left := self._partitions_with_new_start():
            log.warning(
                "the deletion of records of %s is not yet recorded in %s: readers of the store, and a restore, still "
                "get these records until this broker is started again",
                named([f"{one.topic}-{one.index}" for one in left], NAMED_MAX),
                self._storage.store.url,
            )

    def _partitions_with_new_start(self) -> list[Partition]:
        return [
            one
            for one in self._partitions
            if isinstance(one.remote, RemoteLog) and one.remote.is_known and has_new_start(one, one.remote)
        ]

    async def _publish_starts(self, partitions: list[Partition]) -> None:
        with contextlib.suppress(StablelogError):  # The caller logs what is not published.
            await self._copier.copy_all(partitions)

    async def copy_all(self) -> None:
        """Run one pass: copy all segments that can be copied, of each partition whose topic has tiered storage.

        Raises:
            StablelogError: the store does not answer, or belongs to another cluster, or the logs of the coordinators
                cannot be copied. In all these cases no segment of a topic was copied.
        """
        await self._publish_settings()
        limits: dict[Partition, int] = {}
        is_waiting = False
        async for partition in in_turns(self._partitions):
            if partition.failure is not None or is_internal(partition.topic):
                continue
            try:
                self._apply_tier_settings(partition)
            except StablelogError as error:
                log.error(
                    "the remote tier of %s-%d cannot be changed to the settings of the topic: %s",
                    partition.topic,
                    partition.index,
                    error,
                )
            else:
                if partition.remote is not None:
                    limits[partition] = partition.last_stable_offset
                    is_waiting = is_waiting or self._has_segments_to_copy(partition)
        is_covered = not is_waiting or await self._coordinators.copy_logs()
        self._limits = limits if is_covered else {}
        partitions = list(limits)
        await self._copier.copy_all(partitions)
        await self._copier.delete_all(partitions)
        await self._append_missing_events(partitions)
        await self._delete_objects_of_deleted_topics()

    async def _publish_settings(self) -> None:
        """Publish the dynamic settings of the broker in the store: after each change, and after a start if the store
        has others. Raises StablelogError if the store does not answer, or belongs to another cluster.

        A broker on a stale copy of the data directory must not replace the settings of the right one. So nothing is
        published after a start until it is checked that the manifests in the store (the lists of the partitions'
        segments) were published for the logs of this directory.
        """
        settings = Dynamic(
            dict(self._config.dynamic), dict(self._config.dynamic_defaults), dict(self._config.groups.own)
        )
        if settings in (self._settings, self._refused) or self._storage.fenced is not None:
            return
        content = encode_settings(*settings)
        if not self._is_proven:
            if self._partitions.opening_count:
                return  # The next pass tries again.
            await in_thread(None, self._storage.take_epoch)
            found = await in_thread(None, self._storage.prefix.last_settings)
            if found is not None and found[1] == content:
                self._settings = settings
                return
            try:
                await self._prove_history()
            except DamageError as error:
                self._refused = settings
                log.error(
                    "the dynamic settings of this broker are not copied to %s, which contains %s: %s",
                    self._storage.store.url,
                    "no settings" if found is None else f"other settings ({found[0]})",
                    error,
                )
                return
            self._is_proven = True
        await in_thread(None, self._storage.publish_settings, content)
        self._settings = settings

    async def _prove_history(self) -> None:
        """Check that this directory has all topics in the store, and that the last manifest of each open partition, the
        list of its segments in the store, was published for its log. Raises DamageError if this is not so, and
        StablelogError if the store does not answer.
        """
        remotes = await self._coordinators.remote_logs()
        for one in self._partitions:
            if isinstance(one.remote, RemoteLog) and one.failure is None:
                remotes[one] = one.remote
        known = {topic.topic_id for topic in self._topics}.union(
            self._topics.deleted, (one.topic_id for one in self._metadata.partitions_to_delete())
        )
        stored = await in_thread(None, prove_topics, self._storage, known)
        room = asyncio.Semaphore(PROVEN_AT_ONCE)

        async def prove(partition: Partition, remote: RemoteLog) -> None:
            async with room:
                if self._partitions.is_in_use(partition):
                    await prove_history(self._storage, self._disk, None, partition, remote)

        # Without objects in the store, a partition that has copied nothing has nothing to compare.
        proofs = [
            prove(partition, remote)
            for partition, remote in remotes.items()
            if remote.partition.topic_id in stored or not remote.is_known or remote.manifest.segments
        ]
        for error in await asyncio.gather(*proofs, return_exceptions=True):
            if error is not None:
                raise error

    def _has_segments_to_copy(self, partition: Partition) -> bool:
        """Return whether a partition has, or may have, segments that must be copied to the store."""
        remote = self._wanted.remote_of(partition)
        return not remote.is_known or bool(self._wanted.segments_to_copy(partition, remote.end_offset))

    async def _append_missing_events(self, partitions: list[Partition]) -> None:
        """Append the events (records of changes of remote segments) that `__remote_log_metadata` lacks after a start or
        after an error.

        The events that should exist follow from the last manifest of each partition, the list of its segments in the
        store.
        """
        if self._storage.fenced is not None:
            return
        await self._metadata.begin_trims()
        async for partition in in_turns(partitions):
            remote = partition.remote
            if isinstance(remote, RemoteLog) and remote.is_known and self._partitions.is_in_use(partition):
                await self._metadata.append_missing_events(remote.partition, remote.manifest)
        await self._metadata.append_deletion_marks()
        await self._metadata.end_trims()

    async def _delete_objects_of_deleted_topics(self) -> None:
        """Delete the objects that deleted topics have in the store.

        The broker's list of topics names the deleted topics until their objects are deleted. `__remote_log_metadata`
        may name more: if the event that ends a deletion could not be appended, or was lost in a crash, it is appended
        now.
        """
        marked = set(self._metadata.partitions_to_delete())
        by_topic = {
            topic: {RemotePartition(topic.name, topic.topic_id, at) for at in range(topic.partition_count)}
            for topic in self._topics.deleted.values()
        }
        left = marked.union(*by_topic.values()) - self._gone
        over = await self._deleted.delete_objects(left)
        self._gone.update(over)
        for partition in {*over, *(marked & self._gone)}:
            await self._metadata.append_deletion_finished(partition)
        for topic, partitions in by_topic.items():
            if partitions <= self._gone:
                with contextlib.suppress(
                    RefusedError
                ):  # The error was logged, and the next pass tries again.
                    self._topic_files.deleted_from_store(topic)
                    self._gone -= partitions

    def _apply_tier_settings(self, partition: Partition) -> None:
        """Enable or disable the remote tier (copies to the object store, and reads from it) of an open partition, if
        the settings of its topic have changed.

        Raises:
            DiskError: the disk refuses the record of the change.
            UnavailableError: the list of remote segments is not known yet.
        """
        config, remote = partition.config, partition.remote
        if remote is None and config.is_tiered:
            self._tiers.enable_remote_log(
                self._topics.named(partition.topic), partition, self._clock.wall_ms()
            )
        elif remote is not None and not config.is_tiered and config.is_deleted_on_disable:
            partition.deletion.delete_remote()

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of the copies to the object store."""
        yield Sample("stablelog_remote_copied_bytes", (), self._copier.uploads.size)
        yield Sample("stablelog_remote_copied_segments", (), self._copier.uploads.count)
        deleted_count = self._copier.deleted_count + self._coordinators.deleted_count
        yield Sample("stablelog_remote_deleted_segments", (), deleted_count)
        failed_count = len(self._copier.failed) + self._coordinators.failed_count
        yield Sample("stablelog_remote_failed_partitions", (), failed_count)
        yield Sample("stablelog_remote_fenced", (), self._storage.fenced is not None)
        yield from self._coordinators.samples()

    async def stop_copying(self, topic: str) -> None:
        """Stop the copies of a topic's partitions before the topic is deleted. When this method returns, none of them
        is being copied, and no copy begins before the caller's next `await`.
        """
        await self._copier.stop_copying(topic)

    def is_copying(self, topic: str) -> bool:
        """Return whether a partition of this topic is being copied."""
        return self._copier.is_copying(topic)

    def close(self) -> None:
        """Stop all copies to the object store."""
        self._copier.close()
        self._coordinators.close()
        self._deleted.close()
        self._metadata.close()
