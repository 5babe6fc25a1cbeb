"""Creates the remote tier of a partition, the part of its log that is in the object store: when the partition is
opened, or when the settings of its topic enable tiered storage.
"""

import logging
from collections.abc import Callable
from functools import partial

from stablelog.broker.runtime import Runtime
from stablelog.broker.tiering.range_cache import RangeCache
from stablelog.broker.topics.topic import Topic
from stablelog.errors import DamageError
from stablelog.log.files.names import REMOTE_MANIFEST_FILE
from stablelog.log.partition import Partition
from stablelog.log.restored_log import is_restored_log
from stablelog.tier.local_state import LocalState
from stablelog.tier.manifest import Manifest, encode_manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.remote_log import RemoteLog

log = logging.getLogger(__name__)


class RemoteTiers:
    """Creates the remote tiers of partitions: for each, the list of its segments in the object store, and what reads
    them.

    Args:
        cache: keeps the bytes of objects that were loaded.
        cluster_id: returns the id of the cluster.
        chunk_size: the size of the ranges in which log files are read, in bytes.
        url: the address of the store, for error messages.
    """

    def __init__(
        self,
        runtime: Runtime,
        cache: RangeCache,
        cluster_id: Callable[[], str],
        chunk_size: int,
        url: str,
    ) -> None:
        self._disk = runtime.disk
        self._reserve = runtime.reserve
        self._now_ms = runtime.clock.wall_ms
        self._cache = cache
        self._cluster_id = cluster_id
        self._chunk_size = chunk_size
        self._url = url

    def attach_remote_log(self, topic: Topic, partition: Partition, *, is_recorded: bool) -> None:
        """Create the remote tier of a partition that was just opened, from the manifest (list of its segments in the
        store) that is recorded in the partition's directory. May run in a thread.

        Args:
            topic: the topic of the partition.
            partition: the partition. Either its directory records a remote tier, or the settings of its topic enable
                tiered storage.
            is_recorded: whether the partition's directory has a record of a remote tier.

        Raises:
            UnknownFormatError: a later release has written the record.
            DiskError: the record cannot be read.
        """
        manifest = self._recorded_manifest(topic, partition, is_recorded=is_recorded)
        partition.remote = self._remote_log(topic, partition, manifest)
        published = None if manifest is None else manifest.published
        said = None if published is None else published.restored
        # The file `restored` was lost. The log has to show that the restore was one of this partition.
        if partition.restored is None and said is not None and is_restored_log(partition, said):
            partition.restored = said

    def coordinator_remote_log(self, topic: Topic, partition: Partition) -> RemoteLog:
        """Return the list of remote segments of a coordinator's log, which the log's directory records. Only the copies
        of the log use this list, because the broker reads the log from the local disk. May run in a thread.

        Raises:
            UnknownFormatError: a later release has written the record.
            DiskError: the record of the segments cannot be read.
        """
        is_recorded = self._disk.exists(partition.directory / REMOTE_MANIFEST_FILE)
        manifest = self._recorded_manifest(topic, partition, is_recorded=is_recorded)
        return self._remote_log(topic, partition, manifest, lambda _start_offset: None)

    def _recorded_manifest(self, topic: Topic, partition: Partition, *, is_recorded: bool) -> Manifest | None:
        """Return the manifest, the list of a partition's segments in the store, that the partition's directory records.

        Args:
            topic: the topic of the partition.
            partition: the partition.
            is_recorded: whether the directory has a record of a remote tier, so that segments may have been copied.

        Returns:
            The recorded manifest. If there is none: an empty manifest if nothing can have been copied to the store, and
            None if the store may have segments of the partition.
        """
        manifest: Manifest | None = None
        state = LocalState(self._disk, partition.directory)
        try:
            state.read_start()
            manifest = state.read_manifest()
        except DamageError as error:
            log.error(
                "the local copy of the manifest (the list of remote segments) of %s-%d cannot be read: "
                "%s. Nothing is lost: the broker reads the manifest from the object store",
                topic.name,
                partition.index,
                error,
            )
        if manifest is None and not is_recorded and partition.start_offset == 0:
            # No segment was deleted. Without a record, nothing was copied.
            return Manifest(self._cluster_id())
        return manifest

    def enable_remote_log(self, topic: Topic, partition: Partition, now_ms: int) -> None:
        """Create the remote tier of an open partition, with an empty list of segments in the object store, because the
        settings of its topic have enabled tiered storage. Raises DiskError.
        """
        manifest = Manifest(self._cluster_id(), partition.start_offset)
        state, payload = LocalState(self._disk, partition.directory), encode_manifest(manifest, now_ms)
        self._reserve.attempt(lambda: state.write_manifest(payload), frees=True)
        partition.remote = self._remote_log(topic, partition, manifest)

    def _remote_log(
        self,
        topic: Topic,
        partition: Partition,
        manifest: Manifest | None,
        save_start: Callable[[int], None] | None = None,
    ) -> RemoteLog:
        return RemoteLog(
            RemotePartition(topic.name, topic.topic_id, partition.index),
            manifest,
            self._cache,
            save_start or partial(self._save_start, partition),
            self._chunk_size,
            self._url,
            self._recorded_start(partition) if manifest is not None else 0,
        )

    def _recorded_start(self, partition: Partition) -> int:
        return LocalState(self._disk, partition.directory).read_start()

    def _save_start(self, partition: Partition, start_offset: int) -> None:
        """Record a log start offset in the partition's directory. This is done also on a full disk, because the
        segments before the offset can then be deleted, which frees space.

        If no manifest (list of the segments in the store) is recorded yet, an empty one is recorded first: the next
        start then knows that nothing was copied. Without this manifest, a log that begins after offset 0 could have had
        copied segments before its beginning.
        """
        state = LocalState(self._disk, partition.directory)
        if not self._disk.exists(partition.directory / REMOTE_MANIFEST_FILE):
            payload = encode_manifest(Manifest(self._cluster_id()), self._now_ms())
            self._reserve.attempt(lambda: state.write_manifest(payload), frees=True)
        self._reserve.attempt(lambda: state.write_start(start_offset), frees=True)
