"""Read-only access to the segment files of a partition: it finds the bytes that contain a range of offsets.

The directory may belong to a running broker, to a stopped one, or to Apache Kafka. In the directory of a running
broker, this module reads only below the last stable offset that the broker has reported. All transactions below that
offset have ended, and their markers are below the high watermark that the broker reported at the same time. If the
files were listed after that report and reach that high watermark, they name all aborted transactions. Without a broker,
`scanned_end` finds the end of the log and the last stable offset. Format: docs/reference/formats.md.
"""

import itertools
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path

from stablelog.batch.header import BatchHeader
from stablelog.errors import DamageError, UnavailableError
from stablelog.log.files.log_start import LOG_START_FILE, decode_log_start
from stablelog.log.files.names import (
    LOG,
    SUMMARY,
    TXNINDEX,
    log_offsets,
)
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.search.aborts import find_aborted
from stablelog.log.search.source import OFFSET_MAX, ReaderRows
from stablelog.spark.planning import FileExtent, Piece
from stablelog.spark.segments.scanned_end import scanned_end
from stablelog.spark.segments.segment_file import (
    BehindError,
    GoneError,
    SegmentFile,
    read_or_nothing,
    read_summarized,
    status_of,
)
from stablelog.spark.table_spans import LogPart, TableSpan

TICK_NS = 100_000_000


FilePart = LogPart[SegmentFile]


class FileSpan(TableSpan["PartitionFiles", SegmentFile]):
    """A span: a range of offsets of one partition that can be divided between tasks, with the parts of segment files
    that contain it.

    Args:
        files: the files of the partition.
        start: the first offset.
        end: the offset after the last one.
        topic_id: the id of the topic.
        table: the parts of segment files of the whole planned range, of which this range is a portion.
        size_skipped: how many bytes at the beginning of the first part belong to offsets before `start`.
        size_left_out: how many bytes at the end of the last part belong to the offsets from `end` on.
    """

    def __init__(
        self,
        files: "PartitionFiles",
        start: int,
        end: int,
        topic_id: str,
        table: Sequence[FilePart],
        size_skipped: int = 0,
        size_left_out: int = 0,
    ) -> None:
        super().__init__(files, start, end, topic_id, table)
        self._size_skipped = size_skipped
        self._size_left_out = size_left_out

    @property
    def parts(self) -> list[FilePart]:
        """The parts of segment files that contain the range."""
        parts = list(self.rows)
        if parts:
            parts[0] = parts[0]._replace(position=parts[0].position + self._size_skipped)
            parts[-1] = parts[-1]._replace(end_position=parts[-1].end_position - self._size_left_out)
        return [part for part in parts if part.size > 0]

    @property
    def size(self) -> int:
        """The size of the range in the segment files, in bytes."""
        return super().size - self._size_skipped - self._size_left_out

    def _offset_after(self, size: int) -> int | None:
        before = self._table[self._first].size_before + self._size_skipped
        wanted = before + size
        if wanted >= before + self.size:
            return None
        place = (
            bisect_right(self._table, wanted, self._first + 1, self._after, key=attrgetter("size_before")) - 1
        )
        part = self._table[place]
        begin = max(before - part.size_before, 0)  # where the range begins in the part
        if wanted > part.size_before + begin:
            found = part.segment.boundary_before(part.position + wanted - part.size_before)
            if found is not None and found[1] > part.position + begin and self.start < found[0] < self.end:
                return found[0]
        if place > self._first:
            return part.start_offset
        # This part is a single batch, so the range can only be divided after it, if another part follows.
        return part.end_offset if size > 0 else None

    def cut_at(self, offset: int) -> "tuple[FileSpan, FileSpan]":
        """Cut the range in two at an offset inside it, and return both in a pair. The part of a segment file that
        contains the offset is divided between them.
        """
        assert self.start < offset < self.end
        place = bisect_right(self._table, offset, self._first, self._after, key=attrgetter("end_offset"))
        is_behind = place == self._after  # no part is behind the offset
        skipped, left_out = 0, self._size_left_out if is_behind else 0
        if not is_behind and self._table[place].start_offset < offset:
            part = self._table[place]
            end = part.end_position - (self._size_left_out if place == self._after - 1 else 0)
            batch = part.segment.find(offset)
            if batch is None or batch.position >= end:
                skipped, left_out = end - part.position, part.end_position - end
            else:
                head_end = batch.end_position if batch.base_offset < offset else batch.position
                skipped, left_out = batch.position - part.position, part.end_position - head_end
        files, topic_id, table = self._source, self._topic_id, self._table
        return (
            FileSpan(files, self.start, offset, topic_id, table, self._size_skipped, left_out),
            FileSpan(
                files, offset, self.end, topic_id, table, skipped, 0 if is_behind else self._size_left_out
            ),
        )

    def piece(self) -> Piece:
        """Return the range as a piece: with all that one task needs to read it, the byte ranges of segment files and
        the aborted transactions.

        Raises:
            UnavailableError: a transaction index was removed after the range was planned.
        """
        try:
            aborted = self._source.aborted(self.start, self.end)
        except GoneError as error:
            raise UnavailableError(f"a file was removed while the read was planned: {error}") from error
        return Piece(
            self._source.topic,
            self._source.partition,
            self.start,
            self.end,
            self.size,
            tuple(map(_extent, self.parts)),
            tuple(txn[:3] for txn in aborted),
            self._topic_id,
        )


def _extent(part: FilePart) -> FileExtent:
    segment = part.segment
    return FileExtent(segment.path, part.position, part.size, segment.inode, segment.proof)


class PartitionFiles:
    """The segment files of one partition, as the directory was last listed.

    Attributes:
        directory: the partition's directory.
        topic: the topic's name.
        partition: the partition's number.
        segments: the listed segments, oldest first.
        known_end: a high watermark that the broker has reported before the directory was listed; 0 without a broker. If
            the files reach it, they contain all markers that a reader depends on.
    """

    def __init__(self, directory: Path, topic: str, partition: int) -> None:
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.segments: ReaderRows[SegmentFile] = ReaderRows(())
        self.known_end = 0
        self._reached_end = 0  # the `known_end` that the listed files were found to reach
        self._changed_ns = -1  # The directory's modification time at the last listing; -1 if unknown.
        self._scanned: list[AbortedTxn] = []  # aborted transactions that `scan_end` has found in the log
        self.refresh()

    def refresh(self, *, anew: bool = False) -> None:
        """List the directory.

        The directory is opened anew, and each file is opened before its size is read: a network mount asks its server
        when a file is opened, but may answer a `stat` of a file that is not open from an old cache.

        Args:
            anew: whether the files of sealed segments are read again. Otherwise only new segments and the growing one
                are read, because sealed segments seldom change.

        Raises:
            UnavailableError: the directory or a file cannot be read.
        """
        self._reached_end = 0
        try:
            looked_ns = time.time_ns()
            descriptor = os.open(self.directory, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            try:
                changed_ns = os.fstat(descriptor).st_mtime_ns
                if changed_ns == self._changed_ns and not anew and self._update_growing_size():
                    return
                names = os.listdir(descriptor)
            finally:
                os.close(descriptor)
            # Do not keep a modification time that is too recent. A later change in the same clock tick would not alter
            # this time, and the next call would miss the change.
            self._changed_ns = changed_ns if changed_ns < looked_ns - TICK_NS else -1
        except OSError as error:
            raise UnavailableError(f"{self.directory} cannot be read: {error.strerror}") from error
        listed, bases = set(names), log_offsets(names)
        known = {segment.base_offset: segment for segment in self.segments if segment.sealed and not anew}
        segments = []
        for place, base in enumerate(bases):
            segment = known.get(base)
            if segment is None or (segment.summary is None and f"{base:020d}{SUMMARY}" in listed):
                segment = self._open_segment(base, place < len(bases) - 1, listed)
            if segment is not None:
                segments.append(segment)
        marks = {segment.base_offset: segment.marks for segment in self.segments if not segment.sealed}
        for segment, later in itertools.zip_longest(segments, segments[1:]):
            segment.marks = marks.get(segment.base_offset, segment.marks)
            segment.end_offset = OFFSET_MAX if later is None else later.base_offset
            segment.has_txn_index = f"{segment.base_offset:020d}{TXNINDEX}" in listed
        self.segments = ReaderRows(segments)

    def _update_growing_size(self) -> bool:
        """Update the size of the growing segment, the last one. Return False if the directory must be listed again,
        because the log file was removed or replaced, or because there is no segment yet.
        """
        if not self.segments:
            return False
        last = self.segments[-1]
        try:
            found = status_of(last.path)
        except GoneError:
            return False
        last.size = found.st_size
        return found.st_ino == last.inode

    def _open_segment(self, base: int, sealed: bool, listed: set[str]) -> SegmentFile | None:
        path = f"{self.directory}/{base:020d}{LOG}"
        try:
            if sealed and f"{base:020d}{SUMMARY}" in listed:
                summary, found = read_summarized(path, base)
            else:
                summary, found = None, status_of(path)
        except GoneError:
            return None  # The file was removed after the directory was listed.
        size = found.st_size
        if summary is not None and size != summary.log_size:
            why = (
                f"records up to offset {summary.end_offset - 1} are lost"
                if size < summary.log_size
                else "something was written after its last record"
            )
            raise DamageError(
                f"{path} has {size} bytes, but had {summary.log_size} when it was sealed: {why}. Restore the file"
            )
        return SegmentFile(base, path, size, found.st_ino, sealed, summary)

    @property
    def first_offset(self) -> int:
        """The base offset of the first listed segment; 0 if there is none."""
        return self.segments[0].base_offset if self.segments else 0

    def log_start_offset(self) -> int:
        """Return the log start offset according to the directory's files; 0 if no file contains it.

        Raises:
            DamageError: the file with the log start offset is damaged.
        """
        path = self.directory / LOG_START_FILE
        content = read_or_nothing(path)
        return decode_log_start(content, path) if content else 0

    def span(self, start: int, end: int, topic_id: str = "") -> FileSpan:
        """Return the range of offsets from `start` to before `end` as a span, which can be divided between tasks. The
        files must contain all these offsets.

        Raises:
            GoneError: a file was removed since it was listed.
            UnavailableError: the files begin later or end earlier.
            DamageError: a file is damaged.
        """
        if not self.segments or start < self.first_offset:
            raise GoneError(
                f"{self.directory} begins at offset {self.first_offset}, so offset {start} was removed"
            )
        parts: list[FilePart] = []
        size = 0
        for segment in self.segments.ending_behind(start):
            if segment.base_offset >= end:
                break
            self.check_segment(segment)
            part = self._part(segment, start, end, size)
            part_size = part.size
            if part_size:
                parts.append(part)
                size += part_size
            else:
                # No task opens this file, so prove it here: a damaged header could hide records of the range.
                segment.prove()
        return FileSpan(self, start, end, topic_id, parts)

    def check_segment(self, segment: SegmentFile) -> None:
        """Check that the log file of a segment is still the one that was listed, and that no offsets before the next
        segment are missing.

        Raises:
            GoneError: compaction is replacing the file, or has replaced it.
        """
        found, summary = status_of(segment.path, segment.summary), segment.summary
        if found.st_ino != segment.inode or (segment.sealed and found.st_size != segment.size):
            raise GoneError(segment.path)
        if summary is not None and summary.end_offset < segment.end_offset < OFFSET_MAX:
            # Compaction by stablelog leaves no gap between segments. So a gap means that compaction is replacing files
            # by a merged segment now.
            raise GoneError(
                f"{self.directory} has no file with the offsets {summary.end_offset} to "
                f"{segment.end_offset - 1}"
            )

    @property
    def sealed(self) -> list[SegmentFile]:
        """The sealed segments: all listed ones except the last, which can still grow."""
        return [one for one in self.segments if one.end_offset < OFFSET_MAX]

    def batches(self, start: int, end: int) -> Iterator[tuple[BatchHeader, Callable[[], bytes]]]:
        """Yield the header of each batch with some of the offsets [start, end), and a function that reads the batch.
        Raises GoneError, UnavailableError and DamageError.
        """
        for part in self.span(start, end).parts:
            for position, header in part.segment.walk(part.position):
                if position >= part.end_position:
                    break
                yield header, partial(part.segment.batch_at, position, header.size)

    def _part(self, segment: SegmentFile, start: int, end: int, size_before: int) -> FilePart:
        """Return the part of a log file with the offsets [start, end), as far as the segment has them. If the segment
        is not the last one, its part may end before `end`, because compaction may have removed its last records.

        Raises:
            UnavailableError: the last segment ends before `end`.
        """
        begin, after, position, end_position = segment.base_offset, segment.end_offset, 0, segment.size
        if start > begin:
            first, begin = segment.find(start), start
            position = segment.size if first is None else first.position
        if end < after:
            last, after = segment.find(end - 1), end
            if last is not None:
                end_position = last.end_position if last.base_offset < end else last.position
            elif segment.end_offset == OFFSET_MAX:
                raise UnavailableError(f"{segment.path} ends before offset {end}, which was in the log")
        return LogPart(segment, begin, after, position, end_position, size_before)

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        """Return the aborted transactions with offsets from `start` to before `end`, sorted by first offset.

        Raises:
            GoneError: a file was removed.
            BehindError: the files end before `known_end`, the high watermark that the broker has reported, so they may
                lack an abort marker.
            DamageError: a transaction index is damaged.
        """
        found = {txn[:3]: txn for txn in self._scanned if txn.first_offset < end and txn.last_offset >= start}
        entries, is_complete = find_aborted(self.segments, start, end)
        found.update((txn[:3], txn) for txn in entries)
        if not is_complete:
            self._check_end_is_seen()
        return sorted(found.values(), key=lambda txn: txn.first_offset)

    def _check_end_is_seen(self) -> None:
        """Check that the files contain all records up to `known_end`, the high watermark that the broker has reported.

        Raises:
            BehindError: some of these records are missing.
        """
        if self._reached_end >= self.known_end:
            return
        last = self.segments[-1] if self.segments else None
        if last is None or (last.base_offset < self.known_end and last.find(self.known_end - 1) is None):
            raise BehindError(
                f"{self.directory}, as this machine sees it, ends before offset {self.known_end - 1}, which its broker "
                "has. It is a copy, or a mount that caches names or sizes for too long"
            )
        self._reached_end = self.known_end

    # -- without a broker --------------------------------------------------------------------------------------

    def scan_end(self) -> tuple[int, int]:
        """Find the end of the log for a read without a broker. Return a pair: the log end offset and the last stable
        offset. Raises GoneError if a file was removed, and DamageError if one is damaged.
        """
        end_offset, stable_offset, self._scanned = scanned_end(self.directory, self.segments)
        return end_offset, stable_offset
