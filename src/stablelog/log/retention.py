"""Retention: which segments are deleted, and the files that are removed after a delay.

Segments are deleted from the oldest on, whole, and only when their content is durable. Before the first file is
renamed, the partition records where the log begins: see `log_start`.

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
from stablelog.log.segments.segments import Segments

NO_LIMIT = -1
HELD_MAX = 16  # removed files that are open at a time, in a partition


def count_too_old(segments: Segments, config: LogConfig, now_ms: int) -> int:
    """How many of the first segments have only records older than `retention.ms`. The last one may be among them."""
    if config.retention_ms == NO_LIMIT:
        return 0
    count = 0
    for segment in segments:
        # Records without a time are as old as their segment.
        newest_ms = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
        emptied = segment.sealed and newest_ms < 0 and not segment.record_count  # by compaction
        if segment.size and not emptied and (newest_ms < 0 or newest_ms >= now_ms - config.retention_ms):
            break
        if segment.size or segment.sealed:
            count += 1
    return count


def count_too_much(segments: Segments, config: LogConfig) -> int:
    """How many of the first segments can be deleted so that at least `retention.bytes` stay."""
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


def count_durable(segments: Segments, high_watermark: int) -> int:
    """How many of the first segments can be deleted at all: sealed, and durable as a whole."""
    durable = takewhile(lambda segment: segment.durable and segment.end_offset <= high_watermark, segments)
    return min(sum(1 for _ in durable), len(segments) - 1)


class PendingDeletes:
    """Files of deleted segments. They stay for a while, because a reader may still use them."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._pending: deque[tuple[int, list[Path]]] = deque()  # when they are due, oldest first

    def add(self, segments: list[Segment], before_offset: int, due_ms: int) -> None:
        """Rename the files of deleted segments, and schedule their removal at `due_ms`.

        Args:
            segments: closed ones.
            before_offset: snapshots of offsets before this one are deleted with them.
            due_ms: by the broker's clock.

        Raises:
            DiskError: the directory cannot be listed; the next recovery removes the files.
        """
        stems = {f"{segment.base_offset:020d}" for segment in segments}
        marked: list[Path] = []
        self._pending.append((due_ms, marked))
        for name in self._disk.list_dir(self._directory):
            of_segment = name.partition(".")[0] in stems and name.endswith(SEGMENT_SUFFIXES)
            if of_segment or (is_snapshot(name) and offset_of(name) < before_offset):
                marked.append(self._marked(self._directory / name))

    def _marked(self, path: Path) -> Path:
        """Rename a file, and return its name then: the old one if the disk has no room for the new one."""
        marked = path.with_name(f"{path.name}{DELETED}")
        try:
            self._disk.rename(path, marked)
        except DiskError:
            return path  # it is removed at the same time; a start removes it, because it lies before the log's start
        return marked

    def purge(self, now_ms: int) -> list[File]:
        """Remove the names of files that are due, up to `HELD_MAX` log files.

        Returns:
            The log files, open. The file system frees their bytes when they are closed. That takes long, so the caller
            does it in a thread. If there are any, more files may be due.

        Raises:
            DiskError: a file cannot be removed. It is tried again by the next call.
        """
        removed: list[File] = []
        try:
            while self._pending and self._pending[0][0] <= now_ms:
                paths = self._pending[0][1]
                while paths:
                    if len(removed) == HELD_MAX:
                        return removed
                    if is_log(paths[-1].name.removesuffix(DELETED)):
                        with contextlib.suppress(DiskError, FileNotFoundError):  # it is removed all the same
                            removed.append(self._disk.open(paths[-1]))
                    self._disk.remove(paths[-1])
                    paths.pop()
                self._pending.popleft()
        except DiskError:
            close_all(removed)
            raise
        return removed

    def purge_all(self) -> None:
        """Remove all files, due or not. Raises as `purge`."""
        while removed := self.purge(1 << 62):
            close_all(removed)


def close_all(files: Iterable[File]) -> None:
    """Close files. Of removed ones the file system frees the bytes then."""
    for file in files:
        file.close()
