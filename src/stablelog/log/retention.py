"""Retention: counts the segments that may be deleted, and removes their files after a delay.

Retention deletes whole segments, the oldest first, and only segments that are durable. The partition records its new
log start offset before the first file is renamed: see `files.log_start`.

Source: Kafka's retention by time and size.
"""

import contextlib
from collections import deque
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from stablelog.env.disk import Disk, File
from stablelog.errors import DiskError
from stablelog.log.files.names import DELETED, SEGMENT_SUFFIXES, is_log, is_snapshot, offset_of
from stablelog.log.model import LogConfig
from stablelog.log.segments.segment import Segment
from stablelog.log.segments.segments import LogSegments

NO_LIMIT = -1
HELD_MAX = 16  # the greatest number of removed files that a partition keeps open at a time


def count_too_old(
    segments: LogSegments, config: LogConfig, now_ms: int, wall_ms: int, *, is_local: bool = False
) -> int:
    """Count the segments, from the first one on, that are too old: all their records are older than `retention.ms`. The
    growing segment may be among them.

    Records with timestamps in the future are not old. Local retention uses the age of their segment instead, because
    the object store still has them (KAFKA-20609).

    Args:
        segments: the segments of the log.
        config: the settings of the log.
        now_ms: broker time, a clock that never goes back, even if the machine's clock is set back. It measures the age
            of segments whose records have no timestamps.
        wall_ms: the time of the wall clock, which measures the age of timestamps.
        is_local: whether the limits are those of local retention.
    """
    if config.retention_ms == NO_LIMIT:
        return 0
    count = passed = 0
    for segment in segments:
        # The age of records without a timestamp is the age of their segment.
        is_stamped = segment.max_timestamp >= 0 and not (is_local and segment.max_timestamp > wall_ms)
        newest_ms = segment.max_timestamp if is_stamped else segment.created_ms
        if is_local and newest_ms > now_ms and not is_stamped:
            # The segment was opened sealed, and its first timestamp is in the future, too. Its age is not known.
            newest_ms = 0
        oldest_kept_ms = (wall_ms if is_stamped else now_ms) - config.retention_ms
        emptied = segment.sealed and newest_ms < 0 and not segment.record_count
        # If compaction has removed all records of the segment, the segment may be deleted at any age. If all its data
        # was aborted, it is deleted together with the next segment: until then, consumers may have positions in it.
        if emptied and not config.is_compacted:
            passed += 1
            continue
        if segment.size and not emptied and (newest_ms < 0 or newest_ms >= oldest_kept_ms):
            break
        if segment.size or segment.sealed:
            count, passed = count + passed + 1, 0
    return count


def count_too_much(segments: LogSegments, config: LogConfig) -> int:
    """Count the segments, from the first one on, that are too much for `retention.bytes`: without them, the log still
    has at least that many bytes.
    """
    if config.retention_bytes == NO_LIMIT:
        return 0
    excess = segments.size - config.retention_bytes
    count = 0
    for segment in segments:
        excess -= segment.size
        if excess < 0 or not segment.sealed:
            break
        count += 1
    return count


def count_durable(segments: LogSegments, high_watermark: int) -> int:
    """Count the segments, from the first one on, that are sealed and durable. Only these can be deleted."""
    durable = takewhile(lambda segment: segment.durable and segment.end_offset <= high_watermark, segments)
    return min(sum(1 for _ in durable), len(segments) - 1)


class PendingDeletes:
    """The files of deleted segments, until their removal. They stay for `file.delete.delay.ms`, because a reader may
    still use them.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        # (the time when a file is due for removal, its path), oldest first.
        self._pending: deque[tuple[int, Path]] = deque()

    def add(self, segments: list[Segment], before_offset: int, due_ms: int) -> None:
        """Rename the files of deleted segments, and schedule their removal.

        Args:
            segments: the deleted segments, whose files are closed.
            before_offset: the new start of the log. Snapshots of the producer state at earlier offsets are deleted,
                too.
            due_ms: the time from which on the files may be removed, in broker time (a clock that never goes back, even
                if the machine's clock is set back).

        Raises:
            DiskError: the directory cannot be listed; the next recovery removes the files.
        """
        stems = {f"{segment.base_offset:020d}" for segment in segments}
        for name in self._disk.list_dir(self._directory):
            of_segment = name.partition(".")[0] in stems and name.endswith(SEGMENT_SUFFIXES)
            if of_segment or (is_snapshot(name) and offset_of(name) < before_offset):
                path, marked = self._directory / name, self._directory / f"{name}{DELETED}"
                # If the disk refuses to rename the file, it keeps its name, and is removed at the same time as the
                # renamed files. After a crash, the next start removes it, because its offset is before the log start
                # offset.
                with contextlib.suppress(DiskError):
                    self._disk.rename(path, marked)
                    path = marked
                self._pending.append((due_ms, path))

    def purge(self, now_ms: int) -> list[File]:
        """Remove the files of deleted segments whose time of removal has come: up to 16 log files (HELD_MAX) in one
        call.

        Returns:
            The removed log files, which are still open. The file system frees their bytes only when they are closed,
            which takes long, so the caller closes them in a thread. If the list is not empty, more files may be due.

        Raises:
            DiskError: a file cannot be removed. The next call tries again.
        """
        removed: list[File] = []
        try:
            while self._pending and self._pending[0][0] <= now_ms and len(removed) < HELD_MAX:
                path = self._pending[0][1]
                if is_log(path.name.removesuffix(DELETED)):
                    with contextlib.suppress(DiskError, FileNotFoundError):
                        # A file that cannot be opened is removed all the same.
                        removed.append(self._disk.open(path))
                self._disk.remove(path)
                self._pending.popleft()
        except DiskError:
            close_all(removed)
            raise
        return removed

    def purge_all(self) -> None:
        """Remove all pending files (those of deleted segments), even if they are not due. Raises DiskError if one
        cannot be removed.
        """
        while removed := self.purge(1 << 62):
            close_all(removed)


def close_all(files: Iterable[File]) -> None:
    """Close files that were removed from their directory, so that the file system frees their bytes."""
    for file in files:
        file.close()
