"""The compaction of an open log, and the removal of aborted data from it: start passes, and put their segments in
place.
"""

import weakref

from stablelog.env.disk import Disk
from stablelog.errors import UnavailableError
from stablelog.log.compaction.cleaner import Cleaning
from stablelog.log.compaction.rewriter import Cleaned, Pass
from stablelog.log.open_log import OpenLog
from stablelog.log.segments.open_files import OpenFiles


class LogCompaction:
    """The part of a partition that compacts it, or removes aborted data from it.

    Args:
        disk: the disk of the partition.
        partition: the partition.
        open_files: the cache that limits how many sealed segments have open files.
        first_dirty_offset: the first offset that was not compacted yet.
    """

    def __init__(
        self, disk: Disk, partition: OpenLog, open_files: OpenFiles, *, first_dirty_offset: int
    ) -> None:
        self._partition: OpenLog = weakref.proxy(partition)  # see `OpenLog`
        self._cleaning = Cleaning(disk, partition.directory, open_files, first_dirty_offset)

    @property
    def first_dirty_offset(self) -> int:
        """The first dirty offset: records from here on were not compacted yet."""
        return self._cleaning.first_dirty_offset

    def begin_pass(self, now_ms: int, *, key_count_max: int) -> Pass | None:
        """Start a pass of compaction, or of the removal of aborted data. Return None if the topic's settings ask for
        neither, or if too few records are new since the last pass.

        The steps of the pass may run in any thread. The caller gives each new segment of a step to `put_in_place`, and
        the pass itself to `end_pass` after the last step. Only one pass may run at a time.

        In a topic with a remote tier, a segment is rewritten only after it was copied to the store. Otherwise the copy
        would read files while they are replaced.

        Args:
            now_ms: the time of the wall clock.
            key_count_max: how many keys the pass may keep in memory.
        """
        partition = self._partition
        partition.availability.check_usable()
        stable_offset = partition.last_stable_offset
        if partition.remote is not None:
            try:
                stable_offset = min(stable_offset, partition.remote.end_offset)
            except UnavailableError:
                return None  # the segments in the remote tier are not known yet
        return self._cleaning.begin_pass(
            partition.log.segments,
            partition.config,
            last_batch=partition.log.producers.last_batches,
            start_offset=partition.start_offset,
            stable_offset=stable_offset,
            aborted_behind=partition.log.aborted_behind,
            now_ms=now_ms,
            key_count_max=key_count_max,
        )

    def put_in_place(self, cleaned: Cleaned) -> bool:
        """Replace segments of the log by the segment that a pass has written from them.

        Returns:
            Whether they were replaced. If not, a segment was deleted or replaced meanwhile, and the caller must end the
            pass.

        Raises:
            UnavailableError: the disk failed, and the partition with it. A restart of the broker is needed.
        """
        partition = self._partition
        partition.availability.check_usable()
        try:
            segments = self._cleaning.put_in_place(partition.log.segments, cleaned)
        except UnavailableError as error:
            partition.availability.mark_failed(error)
            raise
        if segments is None:
            return False
        if segments is not partition.log.segments:
            partition.log.replace_segments(segments, cleaned.summary.base_offset, cleaned.summary.end_offset)
        return True

    def end_pass(self, work: Pass) -> None:
        """Record how far a pass has come, after its last step."""
        self._partition.availability.check_open()
        self._cleaning.end_pass(work)

    def truncate_to(self, end_offset: int) -> None:
        """Lower the first dirty offset after a truncation of the log to this offset."""
        self._cleaning.truncate_to(end_offset)
