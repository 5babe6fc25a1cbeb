"""Compaction and the removal of aborted data, as an open log sees them: a pass begins, and its segments are put in place."""

import weakref

from stablelog.env.disk import Disk
from stablelog.errors import UnavailableError
from stablelog.log.compaction.cleaner import Cleaning
from stablelog.log.compaction.rewriter import Cleaned, Pass
from stablelog.log.open_log import OpenLog
from stablelog.log.segments.open_files import OpenFiles


class LogCompaction:
    """The part of a partition that replaces segments by rewritten ones.

    Args:
        disk: the disk of the partition.
        partition: the partition.
        open_files: the cache that limits how many sealed segments have open files.
        first_dirty_offset: the first offset that has not been compacted.
    """

    def __init__(
        self, disk: Disk, partition: OpenLog, open_files: OpenFiles, *, first_dirty_offset: int
    ) -> None:
        self._partition: OpenLog = weakref.proxy(partition)  # see `OpenLog`
        self._cleaning = Cleaning(disk, partition.directory, open_files, first_dirty_offset)

    @property
    def first_dirty_offset(self) -> int:
        """The first dirty offset: no record from this offset on has been compacted."""
        return self._cleaning.first_dirty_offset

    def begin(self, now_ms: int, *, key_count_max: int) -> Pass | None:
        """Return a new pass of compaction, or of the removal of aborted data from local segments. None if the topic's
        settings ask for neither, or if too few records are new since the last pass.

        In a topic with a remote tier, a segment is rewritten only after its copy was published, so that no copy reads
        files that are being replaced.

        The steps of the pass may run in any thread. A step may yield a rewritten segment, which the caller passes to
        `put_in_place`. At the end, the caller passes the pass itself to `end`. Only one pass may exist at a time.

        Args:
            now_ms: the time of the wall clock.
            key_count_max: how many keys the pass may keep in memory.
        """
        partition = self._partition
        partition.usability.check()
        stable_offset = partition.last_stable_offset
        if partition.remote is not None:
            try:
                stable_offset = min(stable_offset, partition.remote.end_offset)
            except UnavailableError:
                return None  # the segments in the remote tier are not known yet
        return self._cleaning.begin(
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
        """Replace segments of the log by the one segment into which a pass has rewritten them.

        Returns:
            False if one of the segments to be replaced was deleted or replaced meanwhile: the caller must end the pass.

        Raises:
            UnavailableError: the disk failed, and the partition with it. A restart of the broker is needed.
        """
        partition = self._partition
        partition.usability.check()
        try:
            segments = self._cleaning.put_in_place(partition.log.segments, cleaned)
        except UnavailableError as error:
            partition.usability.fail(error)
            raise
        if segments is None:
            return False
        if segments is not partition.log.segments:
            partition.log.replace_segments(segments, cleaned.summary.base_offset, cleaned.summary.end_offset)
        return True

    def end(self, work: Pass) -> None:
        """Note that a pass of compaction, or of the removal of aborted data, has ended."""
        self._partition.usability.check_open()
        self._cleaning.over(work)

    def cut(self, end_offset: int) -> None:
        """Note that the log was truncated to this offset."""
        self._cleaning.cut(end_offset)
