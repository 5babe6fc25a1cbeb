"""Plans: the segments of a partition that a copier copies, in a topic or in a coordinator's log.

The logs of the coordinators have rules of their own (docs/decisions/0022-tiered-storage.md, "The logs of the
coordinators"):

- They are copied up to the high watermark, also while a transaction is open: only the broker reads them, and a replay
  handles open transactions.
- The broker does not read the copies of these logs, and does not delete a local segment because it is copied.
  `Partition.remote` is therefore None, and the list of remote segments is kept here.
- A coordinator trims its log itself: it deletes the part before its checkpoint. The log start in the store follows with
  the next copy. Segments that were trimmed before they were copied are never copied.
- A log gets a segment each minute, and each trim marks about a hundred segments for deletion. If a manifest (list of a
  log's segments in the store) has too many marked segments, because the store refuses deletions, it no longer names the
  oldest of these. No manifest names their objects then, and they are deleted like the objects of a failed copy.
"""

from collections.abc import Callable
from typing import Final, Protocol

from stablelog.log.partition import Partition
from stablelog.log.segments.sealed_segment import SealedSegment
from stablelog.tier.copy_rules import copyable
from stablelog.tier.manifest import Manifest
from stablelog.tier.manifest_parts import PART_COUNT
from stablelog.tier.records import SegmentState
from stablelog.tier.remote_log import RemoteLog

# The number of segments in a part of a manifest of a coordinator's log. Each copy publishes a manifest with up to twice
# this number of segments, and there is a copy every minute.
COORDINATOR_PART_COUNT: Final = 100

# Each copy adds a segment and a manifest to the store. More deletions could delay the next copy, if the store is slow.
COORDINATOR_DELETED_AT_ONCE: Final = 4

# If a manifest of a coordinator's log has more segments that are marked for deletion, it keeps half of this number.
MARKED_COUNT_MAX: Final = 2_000


class CopyPlan(Protocol):
    """Says which segments a copier copies, and how often it deletes old ones. Topics and coordinators' logs have
    different plans.

    Attributes:
        part_count: the number of segments in one part of a manifest, the list of a partition's segments in the store.
            (A long manifest stores older segments in separate objects, its parts.)
        deleted_at_once: how many segments, or other objects, are deleted at once.
        is_routine: whether the partitions are coordinators' logs, whose copies are so frequent that they are not
            logged. The objects of a few segments are then deleted after each copy, and the next manifest records that
            they are gone.
    """

    part_count: int
    deleted_at_once: int
    is_routine: bool

    def remote_of(self, partition: Partition) -> RemoteLog:
        """Return the list of the partition's segments in the object store."""

    def log_start_of(self, partition: Partition) -> int:
        """Return the log start offset for the partition's next manifest, the list of its segments in the store. The
        copier may publish a greater offset, but no smaller one.
        """

    def segments_to_copy(self, partition: Partition, end_offset: int) -> list[SealedSegment]:
        """Return the local segments that can be copied to the store now, oldest first: those that end after
        `end_offset`, the first offset that is not in the store.
        """

    def without_surplus(self, manifest: Manifest) -> Manifest:
        """Return the manifest, a list of a partition's segments in the store, without surplus segments: if too many
        segments are marked for deletion, the oldest of them are left out. May run in a thread.
        """


class TopicCopyPlan:
    """The rules for copies of topics with tiered storage: segments are copied up to the last stable offset.

    Args:
        limit_of: returns the offset up to which a partition may be copied: the last stable offset that it had before
            the coordinators' logs were copied.
    """

    def __init__(
        self, limit_of: Callable[[Partition], int] = lambda partition: partition.last_stable_offset
    ) -> None:
        self._limit_of = limit_of
        self.part_count = PART_COUNT
        self.deleted_at_once = 100
        self.is_routine = False

    def remote_of(self, partition: Partition) -> RemoteLog:
        """Return the partition's remote tier, which has the list of its segments in the object store."""
        assert isinstance(partition.remote, RemoteLog)
        return partition.remote

    def log_start_of(self, partition: Partition) -> int:
        """Return the log start offset of the partition over its remote and local segments.
        Retention moves it forward.
        """
        return self.remote_of(partition).start_offset

    def segments_to_copy(self, partition: Partition, end_offset: int) -> list[SealedSegment]:
        """Return the local segments that end after `end_offset` and can be copied now, oldest first; an empty list if
        the settings of the topic forbid copies.
        """
        if not partition.config.is_tiered or partition.config.is_copy_disabled:
            return []
        return copyable(partition.log.segments, end_offset, self._limit_of(partition))

    def without_surplus(self, manifest: Manifest) -> Manifest:
        """Return the manifest (a list of a partition's segments in the store) unchanged. That of a topic's partition
        names each segment until its objects are deleted, however many they are.
        """
        return manifest


class CoordinatorCopyPlan:
    """The rules for copies of the coordinators' logs: each log is copied up to the end that it had when the round of
    copies began.

    Attributes:
        remotes: the lists of remote segments, by log.
        ends: the offset up to which each log is copied.
    """

    def __init__(self) -> None:
        self.remotes: dict[Partition, RemoteLog] = {}
        self.ends: dict[Partition, int] = {}
        self.part_count = COORDINATOR_PART_COUNT
        self.deleted_at_once = COORDINATOR_DELETED_AT_ONCE
        self.is_routine = True

    def remote_of(self, partition: Partition) -> RemoteLog:
        """Return the list of a log's segments in the object store."""
        return self.remotes[partition]

    def copied_end(self, partition: Partition) -> int:
        """Return the first offset of a log that is not in the store; 0 if the list of its remote segments is not known
        yet.
        """
        remote = self.remotes[partition]
        return remote.end_offset if remote.is_known else 0

    def log_start_of(self, partition: Partition) -> int:
        """Return the log start offset of the local log: the coordinator itself deletes the beginning of its log."""
        return partition.start_offset

    def segments_to_copy(self, partition: Partition, end_offset: int) -> list[SealedSegment]:
        """Return the local segments that end after `end_offset`, up to the end that the log had when the round of
        copies began.
        """
        return copyable(partition.log.segments, end_offset, self.ends.get(partition, 0))

    def without_surplus(self, manifest: Manifest) -> Manifest:
        """Return the manifest, the list of a log's segments in the store, with at most MARKED_COUNT_MAX segments that
        are marked for deletion. The oldest of these segments are left out. No manifest names their objects any more, so
        they are deleted later as orphans, objects that the broker finds without a name.
        """
        marked = [one.segment_id for one in manifest.segments if one.state is SegmentState.DELETE_STARTED]
        if len(marked) <= MARKED_COUNT_MAX:
            return manifest
        return manifest.without_segments(set(marked[: len(marked) - MARKED_COUNT_MAX // 2]))
