"""The producer snapshots of a partition during replay: those that stay, those that are removed, and new ones."""

from collections.abc import Iterator

from stablelog.log.files.names import PRODUCERS, SNAPSHOT
from stablelog.log.indexes.summary import Summary
from stablelog.log.producer_state.producers import Producers
from stablelog.log.producer_state.snapshots import Snapshots, snapshot_files
from stablelog.log.recovery.plan import RecoveryPlan
from stablelog.log.segments.growing_segment import GrowingSegment


class ReplayedSnapshots:
    """The snapshots in a partition's directory, while replay reads the log and rebuilds its indexes and its producer
    state.

    Args:
        plan: the plan of the recovery.
    """

    def __init__(self, plan: RecoveryPlan) -> None:
        self._plan = plan
        self._offsets = set(plan.directory.snapshots)
        # Offsets of the snapshots of which a crash has left only one of the two files.
        self._partial = {
            offset
            for offset in self._offsets
            if not all(f"{offset:020d}{suffix}" in plan.directory.listing for suffix in (PRODUCERS, SNAPSHOT))
        }

    def unused_within(self, segment: GrowingSegment) -> Iterator[tuple[int, Summary]]:
        """Yield the snapshots of the producer state within a segment that replay does not use: those after the snapshot
        at which replay began. Each is yielded as (offset, summary of the segment up to there with its sizes and
        checksums).
        """
        begin = max(segment.base_offset, self._plan.start.offset)
        for offset in sorted(self._offsets.difference(self._plan.directory.bases)):
            found = self._plan.directory.producers(offset) if offset > begin else None
            if found is not None and found[1].base_offset == segment.base_offset:
                yield offset, found[1]

    def remove_outdated(self, segment: GrowingSegment) -> None:
        """Remove the snapshots within a segment that do not match the indexes as replay has rebuilt them. No start of
        the broker could begin replay at them.

        A snapshot may be outdated without damage: when a partition is closed, its time index gets an extra entry, which
        the rebuilt time index lacks.
        """
        self._remove(
            [
                offset
                for offset, progress in self.unused_within(segment)
                if not segment.growing.begin_with(progress)
            ]
        )

    def remove_past(self, end_offset: int) -> None:
        """Remove the snapshots of the producer state after the log's end, because new records will get these offsets."""
        gone = [offset for offset in self._plan.directory.snapshots if offset > end_offset]
        self._remove(gone)
        if gone:
            self._plan.directory.listing.disk.sync_dir(self._plan.directory.listing.directory)

    def _remove(self, offsets: list[int]) -> None:
        for offset in offsets:
            for suffix in (SNAPSHOT, PRODUCERS):
                self._plan.directory.listing.disk.remove(
                    self._plan.directory.listing.directory / f"{offset:020d}{suffix}"
                )
            self._offsets.discard(offset)

    def write(self, producers: Producers, progress: Summary) -> None:
        """Write a snapshot of the producer state at the end of a sealed segment, where the next segment begins.
        `progress` is the summary (sizes, counts and checksums) of the sealed segment, which the snapshot records.
        """
        self._plan.directory.listing.disk.write_together(
            snapshot_files(self._plan.directory.listing.directory, producers.packed_copy(), progress)
        )
        self._offsets.add(progress.end_offset)
        self._partial.discard(progress.end_offset)

    def found(self, end_offset: int, replayed_size: int, *, holds_producers: bool) -> Snapshots:
        """Return the snapshots that were found in the directory and are left after replay.

        Args:
            end_offset: the end of the log, exclusive.
            replayed_size: how many bytes of the log replay has read.
            holds_producers: whether the snapshot at which replay began has any producers.
        """
        offsets = {offset for offset in self._offsets if offset <= end_offset}
        listing = self._plan.directory.listing
        whole = offsets - self._partial
        return Snapshots(listing.disk, listing.directory, offsets, whole, replayed_size, holds_producers)
