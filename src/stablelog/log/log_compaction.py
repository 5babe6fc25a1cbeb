"""The compaction of an open log, and the removal of aborted data (the data of aborted transactions) from it: start
passes over its segments, and put the segments that they write in place of the original ones.
"""

import weakref

from stablelog.env.disk import Disk
from stablelog.errors import UnavailableError
from stablelog.log.compaction.aborted_data import RemovalPass
from stablelog.log.compaction.cleaner import Compaction
from stablelog.log.compaction.policy import count_cleanable, is_dirty_enough
from stablelog.log.compaction.rewriter import Cleaned, Pass, discard_cleaned
from stablelog.log.files.names import LOG, SegmentName
from stablelog.log.open_log import OpenLog
from stablelog.log.search.aborts import find_aborted
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.replacement import begin_swap, finish_swap
from stablelog.log.segments.sealed_segment import SealedSegment
from stablelog.log.segments.segment import LogProof


class LogCompaction:
    """The part of a partition that compacts it, or removes aborted data (the data of aborted transactions) from it.

    Args:
        disk: the disk of the partition.
        partition: the partition.
        open_files: the cache that limits how many sealed segments have open files.
        first_dirty_offset: the first offset that was not compacted yet.

    Attributes:
        first_dirty_offset: the first dirty offset, from which on the log was not compacted yet. It moves with each
            pass.
    """

    def __init__(
        self, disk: Disk, partition: OpenLog, open_files: OpenFiles, *, first_dirty_offset: int
    ) -> None:
        self.first_dirty_offset = first_dirty_offset
        self._partition: OpenLog = weakref.proxy(partition)  # see `OpenLog`
        self._disk = disk
        self._open_files = open_files
        # The end of the segments from which aborted data was removed since the start of the broker. This offset is not
        # recorded: another pass over these segments changes nothing.
        self._removed_to = 0
        # By base offset: the segments that the running pass rewrites.
        self._under_way: dict[int, SealedSegment] = {}

    def begin_pass(self, now_ms: int, *, key_count_max: int) -> Pass | None:
        """Start a pass of compaction, or of the removal of aborted data (the data of aborted transactions). Return None
        if the topic's settings ask for neither, or if too few records were appended since the last pass.

        The steps of the pass may run in any thread. The caller gives each new segment of a step to `put_in_place`, and
        the pass itself to `end_pass` after the last step. Only one pass may run at a time.

        In a topic with a remote tier, a segment is rewritten only after it was copied to the store. Otherwise the copy
        would read files while they are replaced.

        Args:
            now_ms: the time of the wall clock.
            key_count_max: how many keys the pass may keep in memory.
        """
        partition, config = self._partition, self._partition.config
        partition.availability.check_usable()
        stable_offset = partition.last_stable_offset
        if partition.remote is not None:
            try:
                stable_offset = min(stable_offset, partition.remote.end_offset)
            except UnavailableError:
                return None  # the segments in the remote tier are not known yet
        if config.is_commit_ordered:
            return None
        if config.is_compacted:
            return self._begin_compaction(stable_offset, now_ms, key_count_max)
        return self._begin_removal(stable_offset) if config.drops_aborted else None

    def _begin_compaction(self, stable_offset: int, now_ms: int, key_count_max: int) -> Compaction | None:
        partition, segments = self._partition, self._partition.log.segments
        sealed = [segment for segment in segments.sealed if segment.durable]
        summaries = [segment.summary for segment in sealed]
        del summaries[count_cleanable(summaries, stable_offset, partition.config, now_ms) :]
        if not is_dirty_enough(summaries, self.first_dirty_offset, partition.config):
            return None
        self._under_way = {segment.base_offset: segment for segment in sealed[: len(summaries)]}
        end_offset = summaries[-1].end_offset
        return Compaction(
            self._disk,
            partition.directory,
            summaries,
            spanning=find_aborted(segments, end_offset, end_offset)[0],
            producers=partition.log.producers.packed_copy(),
            first_dirty_offset=max(self.first_dirty_offset, partition.start_offset),
            config=partition.config,
            now_ms=now_ms,
            key_count_max=key_count_max,
        )

    def _begin_removal(self, stable_offset: int) -> RemovalPass | None:
        partition = self._partition
        self._under_way = {
            segment.base_offset: segment
            for segment in partition.log.segments.ending_behind(self._removed_to)
            if isinstance(segment, SealedSegment) and segment.durable and segment.end_offset <= stable_offset
        }
        summaries = [segment.summary for segment in self._under_way.values()]
        if not summaries:
            return None
        return RemovalPass(
            self._disk,
            partition.directory,
            summaries,
            spanning=partition.log.aborted_behind(summaries[-1].end_offset),
            index_interval=partition.config.index_interval_bytes,
        )

    def put_in_place(self, cleaned: Cleaned) -> bool:
        """Put the segment that a pass has written in place of the segments of the log from which it was made.

        Returns:
            Whether the pass may continue. If not, a segment was deleted or replaced meanwhile, and the caller must end
            the pass.

        Raises:
            UnavailableError: the disk failed, and the partition with it. Only a restart of the broker can tell whether
                the new segment is in place.
        """
        partition, segments = self._partition, self._partition.log.segments
        partition.availability.check_usable()
        summary, count = cleaned.summary, len(cleaned.replaced)
        place = segments.place_of(summary.base_offset)
        there = [segments[at] for at in range(place, min(place + count, len(segments) - 1))]
        unchanged = there == [self._under_way[base_offset] for base_offset in cleaned.replaced]
        if not unchanged or not cleaned.changed:
            try:
                discard_cleaned(self._disk, partition.directory, summary.base_offset)
            except UnavailableError as error:
                partition.availability.mark_failed(error)
                raise
            return unchanged
        name = SegmentName.of(partition.directory, summary.base_offset)
        fresh = SealedSegment(self._disk, name, summary, self._open_files, proof=LogProof())
        for segment in there:
            segment.close()
        try:
            begin_swap(self._disk, partition.directory, summary.base_offset)
            finish_swap(self._disk, partition.directory, summary.base_offset)
        except (UnavailableError, FileNotFoundError) as error:
            failure = UnavailableError(
                f"compaction cannot put its new segment {fresh.path(LOG)} in place of the original ones: {error}"
            )
            partition.availability.mark_failed(failure)
            raise failure from error
        partition.log.replace_segments(
            segments.with_replaced(place, count, fresh), summary.base_offset, summary.end_offset
        )
        return True

    def end_pass(self, work: Pass) -> None:
        """End a pass after its last step: record the offset up to which it has rewritten the log, so that the next pass
        continues there.
        """
        self._partition.availability.check_open()
        if isinstance(work, RemovalPass):
            self._removed_to = max(self._removed_to, work.end_offset)
        else:
            self.first_dirty_offset = max(self.first_dirty_offset, work.end_offset)
        self._under_way = {}

    def truncate_to(self, end_offset: int) -> None:
        """Lower the offsets up to which passes have compacted the log, or removed aborted data from it, to the end of
        the log after a truncation.
        """
        self.first_dirty_offset = min(self.first_dirty_offset, end_offset)
        self._removed_to = min(self._removed_to, end_offset)
