"""Copies sealed segments to the object store, publishes manifests (lists of a partition's segments there), and deletes
objects that are not needed.

A pass goes over all partitions with a remote tier. Several partitions are copied at a time; the oldest segment of each
comes first. The first pass of a partition takes over its chain of manifests: this broker becomes the only writer. The
last manifest in the store decides which segments the store has. A segment counts as copied, and local retention may
delete it, only when a manifest that names it is published and recorded on the local disk.

A crash or an error leaves objects that no manifest names. A later copy of the same segment has another id, and so other
keys. `tier.deletion` says when such objects, and those of segments before the log start, are deleted.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from stablelog.broker.loop.threads import in_thread, in_thread_to_its_end
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.runtime import Runtime
from stablelog.broker.tiering.chain_takeover import take_over
from stablelog.broker.tiering.copy_plans import CopyPlan, TopicCopyPlan
from stablelog.broker.tiering.copy_throttle import CopyThrottle
from stablelog.broker.tiering.metadata_topic import MetadataTopic
from stablelog.broker.tiering.progress import Progress
from stablelog.broker.tiering.published_state import has_new_settings, has_new_start, published_state
from stablelog.broker.tiering.remote_storage import RemoteStorage
from stablelog.broker.tiering.segment_uploads import SegmentUploads
from stablelog.broker.topics.topic import Topic
from stablelog.errors import FencedError, StablelogError, StoreError, UnavailableError
from stablelog.log.partition import Partition
from stablelog.tier.chain import Chain
from stablelog.tier.deletion import ObjectDeletion
from stablelog.tier.local_state import LocalState
from stablelog.tier.manifest import Manifest, ManifestSegments, encode_manifest
from stablelog.tier.manifest_parts import divide_into_parts
from stablelog.tier.records import SegmentState
from stablelog.tier.remote_log import CHUNK_SIZE, RemoteLog
from stablelog.tier.remote_segment import RemoteSegment

log = logging.getLogger(__name__)

PIECE_SIZE: Final = 1 << 20  # The size of the pieces in which a log file is read and uploaded, in bytes.
# A manifest is published after this many copied segments at the latest, so that local retention can delete them.
PUBLISHED_AFTER: Final = 16
# And after this time in seconds: `stablelog storage clean` deletes old objects that no manifest names.
PUBLISHED_AFTER_S: Final = 3600.0
DELETION_S_MAX: Final = (
    10.0  # The time after which a pass deletes no more of a partition, so that copies go on.
)


@dataclass(slots=True)
class _Owned:
    """State of a partition whose chain of manifests this broker has taken over, so that only it can publish there. A
    manifest is the list of the partition's segments in the store.

    Attributes:
        manifest: the last published manifest.
        unrecorded: the contents of the manifest's parts (objects that list older segments) that are not yet in the
            partition's directory, by the id of the part.
        is_recorded: whether the manifest is recorded in the partition's directory.
        is_foreign: whether another broker or a restore published the last manifest and the local log differs from it,
            so that a new manifest must be published soon.
        deletion: finds the objects of the partition that may be deleted from the store, and deletes them.
    """

    chain: Chain
    manifest: Manifest
    deletion: ObjectDeletion
    unrecorded: dict[uuid.UUID, bytes] = field(default_factory=dict)
    is_recorded: bool = False
    is_foreign: bool = False


@dataclass(slots=True)
class _Work:
    """A running copy of one partition: whether it was cancelled, and an event that is set when it has ended."""

    is_cancelled: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)


class PartitionCopier:
    """Copies the segments of a broker's partitions.

    Args:
        storage: the object store.
        node_id: the broker's id.
        is_open: whether a partition is still in use: not deleted, and not replaced by another object.
        topic_of: returns the topic of this name; None if it was deleted.
        throttle: limits the rate of the copies.
        count_at_once: the number of partitions that are copied at a time.
        events: the topic that gets an event for each change of a remote segment; None if there is none.
        plan: says which segments of each partition are copied.
        chunk_size: the least size of the chunks in which readers load a log file, in bytes.
        delay_s: returns the delay of deletions from the store, in seconds.
        now_s: returns the time in seconds, from a clock that is never set back.

    Attributes:
        uploads: uploads the segments, and counts them.
        deleted_count: the number of segments that were deleted from the store.
        failed: by partition, why its last copy failed.
    """

    def __init__(
        self,
        storage: RemoteStorage,
        runtime: Runtime,
        *,
        node_id: int,
        is_open: Callable[[Partition], bool],
        topic_of: Callable[[str], Topic | None],
        throttle: CopyThrottle,
        count_at_once: int,
        delay_s: Callable[[], float],
        events: MetadataTopic | None = None,
        plan: CopyPlan | None = None,
        chunk_size: int = CHUNK_SIZE,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage = storage
        self._disk = runtime.disk
        self._reserve = runtime.reserve
        self._node_id = node_id
        self._is_open = is_open
        self._topic_of = topic_of
        self._now_ms = runtime.clock.wall_ms
        self._delay_s = delay_s
        self._now_s = now_s
        self._events = events
        self._plan = plan or TopicCopyPlan()
        self._room = asyncio.Semaphore(count_at_once)
        self._threads = ThreadPoolExecutor(count_at_once, thread_name_prefix="remote copies")
        self.uploads = SegmentUploads(
            storage.store,
            runtime.disk,
            self._threads,
            node_id=node_id,
            throttle=throttle,
            chunk_size=chunk_size,
            now_ms=runtime.clock.wall_ms,
            events=events,
        )
        self._owned: dict[Partition, _Owned] = {}
        self._works: dict[Partition, _Work] = {}
        self._logged: set[Partition] = set()  # The partitions in `failed` whose failure was logged.
        self._is_closed = False
        self._is_deletion_failing = False
        self.deleted_count = 0
        self.failed: dict[Partition, StablelogError] = {}

    async def copy_all(self, partitions: list[Partition]) -> None:
        """Copy to the store those sealed segments of the partitions that can be copied. An error in one partition does
        not stop the others.

        Raises:
            StoreError: the store does not answer; no partition was looked at.
            UsageError: the store belongs to another cluster.
        """
        self._owned = {one: owned for one, owned in self._owned.items() if self._is_open(one)}
        self.failed = {one: why for one, why in self.failed.items() if self._is_open(one)}
        self._logged &= set(self.failed)
        if self._storage.fenced is not None:
            return
        if self._storage.epoch is None:
            await in_thread(self._threads, self._storage.take_epoch)
        progress = Progress()
        work = [one async for one in in_turns(partitions) if self._has_work(one, progress)]
        copy = partial(self._copy_and_clear_failure, progress=progress)
        await asyncio.gather(*(self._run_in_turn(partition, copy) for partition in work))
        progress.log_end()

    def _has_work(self, partition: Partition, progress: Progress) -> bool:
        """Return whether a partition has segments to copy, or a change to publish in its manifest (the list of its
        segments in the store). A partition without such work costs no request to the store.
        """
        remote, owned = self._plan.remote_of(partition), self._owned.get(partition)
        if not remote.is_known:
            return True
        if owned is not None and (owned.deletion.gone or not owned.is_recorded or owned.is_foreign):
            return True
        waiting = self._plan.segments_to_copy(partition, remote.end_offset)
        progress.add_planned(waiting)
        if waiting or has_new_start(partition, remote) or self._has_new_settings(partition, owned):
            return True
        if owned is None:
            return any(one.state is SegmentState.DELETE_STARTED for one in remote.manifest.segments[:1])
        return False

    def _has_new_settings(self, partition: Partition, owned: _Owned | None) -> bool:
        topic = self._topic_of(partition.topic)
        if topic is None:
            return False
        manifest = owned.manifest if owned is not None else self._plan.remote_of(partition).manifest
        return has_new_settings(partition, topic, manifest.published, is_routine=self._plan.is_routine)

    # -- one partition -------------------------------------------------------------------------------------------

    async def _run_in_turn(
        self, partition: Partition, task: Callable[[Partition, _Work], Awaitable[None]]
    ) -> None:
        async with self._room:
            if not self._is_open(partition) or self._is_closed or self._storage.fenced is not None:
                return
            work = self._works[partition] = _Work()
            try:
                await task(partition, work)
            except FencedError as error:
                self._storage.stop_changes(error)
            except (StablelogError, FileNotFoundError) as error:
                if partition in self._owned:
                    self._owned[partition].deletion.expect_orphans(self._now_s())
                self._record_failure(partition, work, error)
            finally:
                # If this task was cancelled, a thread may still be uploading: tell it to stop.
                work.is_cancelled = True
                del self._works[partition]
                work.idle.set()

    def _record_failure(self, partition: Partition, work: _Work, error: Exception) -> None:
        """Remember why the copy of a partition failed, and log it. The reason is logged only once until a copy of the
        partition succeeds. If the store as a whole does not answer, this is logged for the first partition only.
        """
        if work.is_cancelled:
            return
        failed = error if isinstance(error, StablelogError) else UnavailableError(str(error))
        if partition not in self._logged and (
            not isinstance(failed, StoreError) or self._storage.failures.is_new(failed)
        ):
            self._logged.add(partition)
            name = f"{partition.topic}-{partition.index}"
            log.error(
                "%s cannot be copied to %s; the broker tries again: %s", name, self._storage.store.url, failed
            )
        self.failed[partition] = failed

    async def _copy_and_clear_failure(self, partition: Partition, work: _Work, progress: Progress) -> None:
        """Copy a partition. After success, forget its earlier failure, so that the next one is logged."""
        await self._copy(partition, work, progress)
        self.failed.pop(partition, None)
        self._logged.discard(partition)
        self._storage.failures.clear_logged()

    async def _copy(self, partition: Partition, work: _Work, progress: Progress) -> None:
        remote = self._plan.remote_of(partition)
        owned = self._owned.get(partition)
        if owned is None:
            owned = await self._take_over(partition, remote)
            self._owned[partition] = owned
        if not owned.is_recorded:
            payload = await in_thread(self._threads, encode_manifest, owned.manifest, self._now_ms())
            await self._record_manifest(partition, remote, owned, payload)
        remote.move_start(self._plan.log_start_of(partition))
        while True:
            end_offset = max(owned.manifest.end_offset, remote.start_offset)
            waiting = self._plan.segments_to_copy(partition, end_offset)
            rows: list[RemoteSegment] = []
            begun_s = self._now_s()
            for segment in waiting[:PUBLISHED_AFTER]:
                if not self._may_continue(partition, work):
                    return
                if rows and self._now_s() - begun_s > PUBLISHED_AFTER_S:
                    break
                try:
                    rows.append(
                        await self.uploads.upload(
                            partition, remote.partition, segment, lambda: work.is_cancelled
                        )
                    )
                except (StablelogError, FileNotFoundError):
                    if partition.has_segment(segment) or not self._may_continue(partition, work):
                        # The segments before it are in the store. They are not uploaded again if they are published.
                        await self._publish(partition, remote, owned, rows)
                        raise
                    # The segment was deleted or rewritten during its copy, so a missing file is no damage.
                    owned.deletion.expect_orphans(self._now_s())
                    break
                progress.add_copied(rows[-1].size)
            await self._publish(partition, remote, owned, rows)
            if len(rows) == len(waiting) or not self._may_continue(partition, work):
                return

    async def delete_all(self, partitions: list[Partition]) -> None:
        """Delete from the store the objects that these partitions no longer need. The caller calls it after `copy_all`.
        An error in one partition does not stop the others.
        """
        due = [one async for one in in_turns(partitions) if self._is_deletion_due(one)]
        await asyncio.gather(*(self._run_in_turn(partition, self._delete) for partition in due))

    def _is_deletion_due(self, partition: Partition) -> bool:
        owned = self._owned.get(partition)
        return owned is not None and owned.deletion.is_due(self._now_s(), self._delay_s())

    async def _delete(self, partition: Partition, work: _Work) -> None:
        owned = self._owned[partition]
        try:
            await self._delete_objects(partition, owned, work)
            self._is_deletion_failing = False
        except StoreError as error:
            # A store may allow copies only. So this is no failure of the copies, and is logged once.
            if not self._is_deletion_failing:
                self._is_deletion_failing = True
                log.error(
                    "%s: objects cannot be deleted; the broker tries again: %s",
                    self._storage.store.url,
                    error,
                )
            return
        if owned.deletion.gone and not self._plan.is_routine:
            count, name = len(owned.deletion.gone), f"{partition.topic}-{partition.index}"
            await self._publish(partition, self._plan.remote_of(partition), owned, [])
            log.info("deleted %d segments of %s from %s", count, name, self._storage.store.url)

    async def _delete_objects(self, partition: Partition, owned: _Owned, work: _Work) -> None:
        run = self._storage.prefix.run_steps
        steps = owned.deletion.find_objects(owned.manifest, self._now_s(), self._delay_s())
        await in_thread_to_its_end(self._threads, run, steps)
        end_s = self._now_s() + DELETION_S_MAX
        while self._may_continue(partition, work) and self._now_s() <= end_s:
            deletion = owned.deletion.delete_found(self._plan.deleted_at_once)
            is_more = await in_thread_to_its_end(self._threads, run, deletion)
            if self._plan.is_routine or not is_more:
                return  # In a routine, the next copy publishes what is gone.

    def _may_continue(self, partition: Partition, work: _Work) -> bool:
        return not work.is_cancelled and self._is_open(partition) and partition.failure is None

    async def _take_over(self, partition: Partition, remote: RemoteLog) -> _Owned:
        """Take over the chain of a partition's manifests (lists of its segments in the store), so that only this broker
        publishes there. Raises the errors of `chain_takeover.take_over`.
        """
        taken = await take_over(self._storage, self._disk, self._threads, partition, remote)
        manifest = taken.last.manifest
        # In a thread, because a manifest may have many marked segments.
        deletion = await in_thread(
            self._threads, ObjectDeletion, remote.partition, taken.chain, manifest, self._now_s()
        )
        return _Owned(taken.chain, manifest, deletion, taken.contents, is_foreign=taken.last.is_foreign)

    async def _publish(
        self, partition: Partition, remote: RemoteLog, owned: _Owned, rows: list[RemoteSegment]
    ) -> None:
        """Publish the next manifest, the list of a partition's segments in the store, if anything has changed: with
        newly copied segments (`rows`), with the present log start offset, and without the segments whose objects were
        deleted.
        """
        gone = set(owned.deletion.gone)
        is_new = bool(rows or gone or owned.is_foreign) or has_new_start(partition, remote)
        if not is_new and not self._has_new_settings(partition, owned):
            return
        topic = self._topic_of(partition.topic)
        if topic is None:
            return  # The topic was deleted. Its objects are deleted without a manifest that names them.
        published = published_state(partition, topic, self._now_ms())
        manifest = await in_thread(
            self._threads, self._next_manifest, owned.manifest, remote.start_offset, rows, gone
        )
        divide = partial(divide_into_parts, part_count=self._plan.part_count)
        manifest, parts = await in_thread(self._threads, divide, manifest, owned.manifest, self._now_ms())
        manifest = manifest._replace(published=published)
        for part, content in parts:
            await in_thread(self._threads, self._storage.create_part, remote.partition, part, content)
            owned.unrecorded[part.part_id] = content
        payload = await in_thread(self._threads, encode_manifest, manifest, self._now_ms())
        await in_thread_to_its_end(self._threads, self._publish_payload, owned, manifest, payload)
        owned.manifest, owned.is_recorded, owned.is_foreign = manifest, False, False
        self.deleted_count += len(gone)
        await self._record_manifest(partition, remote, owned, payload)
        if rows and not self._plan.is_routine:
            log.info(
                "copied %d segments of %s-%d to %s, up to offset %d",
                len(rows),
                partition.topic,
                partition.index,
                self._storage.store.url,
                manifest.end_offset,
            )

    def _publish_payload(self, owned: _Owned, manifest: Manifest, payload: bytes) -> None:
        """Publish a manifest, the list of a partition's segments in the store. `payload` is the encoded manifest
        without those older segments that are in objects of their own. Runs in a thread.
        """
        self._storage.prefix.run_steps(owned.chain.publish(payload))
        owned.deletion.set_manifest(manifest, self._now_s())

    def _next_manifest(
        self, manifest: Manifest, log_start: int, rows: list[RemoteSegment], gone: set[uuid.UUID]
    ) -> Manifest:
        """Return the manifest (list of a partition's segments in the store) that is to be published after `manifest`:
        with the new segments (`rows`), the log start offset, and without the segments whose objects are deleted
        (`gone`). Runs in a thread, because a manifest may have many segments.
        """
        log_start = max(log_start, manifest.log_start)
        marked = manifest.with_log_start(log_start, self._now_ms(), self._node_id)
        return self._plan.without_surplus(marked.without_segments(gone)).with_copied(rows)

    async def _record_manifest(
        self, partition: Partition, remote: RemoteLog, owned: _Owned, payload: bytes
    ) -> None:
        """Record a published manifest, the list of a partition's segments in the store, in the partition's directory.
        From now on reads and retention use this manifest.
        """
        state = LocalState(self._disk, partition.directory)
        if not self._is_open(partition) or self._is_closed:
            return
        parts = owned.manifest.parts
        new = {
            part.part_id: owned.unrecorded[part.part_id] for part in parts if part.part_id in owned.unrecorded
        }
        segments = await in_thread(self._threads, ManifestSegments, owned.manifest.segments)
        # Only a segment that the recorded manifest names can leave the local disk, so the write frees space.
        write = partial(state.write_manifest, payload, parts, new)
        await self._reserve.attempt_in_thread(self._threads, write, frees=True)
        owned.unrecorded.clear()
        if self._is_open(partition):
            remote.set_manifest(owned.manifest, segments)
            owned.is_recorded = True
            if self._events is not None:
                await self._events.append_missing_events(remote.partition, owned.manifest)

    # -- end of work -----------------------------------------------------------------------------------------------

    async def stop_copying(self, topic: str) -> None:
        """Stop the copies of a topic's partitions to the object store. When this method returns, none of them is being
        copied, and no copy begins before the caller's next `await`.
        """
        while works := [work for partition, work in self._works.items() if partition.topic == topic]:
            works[0].is_cancelled = True
            await works[0].idle.wait()

    def is_copying(self, topic: str) -> bool:
        """Return whether a partition of this topic is being copied."""
        return any(partition.topic == topic for partition in self._works)

    def close(self, *, wait: bool = True) -> None:
        """Stop all copies, and shut the threads down.

        Args:
            wait: whether to wait until requests to the store that are under way have ended.
        """
        self._is_closed = True
        for work in self._works.values():
            work.is_cancelled = True
        self._threads.shutdown(wait=wait, cancel_futures=True)
