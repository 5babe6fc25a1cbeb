"""Where in the segment files of a partition are the records of a range, without changing a byte of them.

Works on a directory of a running broker, of a stopped one, and of Apache Kafka. A directory that is being written is read
below an offset that its broker has called stable. The markers that decided what lies there were in the log by then, and
below the high watermark; so the aborted transactions are known if the files, as they are seen, reach a high watermark that
the broker has named before they were listed. Without a broker, the end of the log and its
stable offset are found by reading the headers behind the last point at which they are known.

Indexes are hints: an entry counts once the header that it points to agrees. Summaries say how long a sealed log file
has to be.

Format: docs/formats.md.
"""

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from stablelog.batch.header import HEADER, BatchHeader, read_header
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.errors import Corrupt, Unavailable, naming
from stablelog.log.log_start import LOG_START_FILE, decode_log_start
from stablelog.log.names import INDEX, LOG, SUMMARY, TXNINDEX
from stablelog.log.offset_index import ENTRY as INDEX_ENTRY
from stablelog.log.offset_index import OffsetIndex
from stablelog.log.snapshots import decode_producers, decode_snapshot
from stablelog.log.summary import Summary
from stablelog.log.transaction_index import ENTRY as TXN_ENTRY
from stablelog.log.transaction_index import AbortedTxn, TransactionIndex
from stablelog.spark.planning import Extent, Piece

WALK_SIZE = 64 << 10
READ_SIZE = 4096
TICK_NS = 100_000_000
MARK_SIZE = 64 << 10  # bytes between two remembered places of a growing segment
SNAPSHOT, PRODUCERS = ".snapshot", ".producers"


class Gone(Exception):
    """A segment file that was listed is not there any more: retention has removed it."""


class Behind(Gone):
    """The files, as they are seen here, do not have what their broker has: a copy, or a mount that shows an earlier state."""


def walk(descriptor: int, position: int, size: int) -> Iterator[tuple[int, BatchHeader]]:
    """Each whole batch in [position, size) of a log file, as (position, header).

    Raises:
        Corrupt: what stands where a header should is not one.
    """
    chunk, at = b"", position  # the chunk begins at `at`
    while size - position >= HEADER.size:
        if position + HEADER.size > at + len(chunk):
            chunk, at = os.pread(descriptor, min(WALK_SIZE, size - position), position), position
            if len(chunk) < HEADER.size:
                return
        header = read_header(chunk, position - at)
        if position + header.size > size:
            return
        yield position, header
        position += header.size


class Located(NamedTuple):
    """A batch of a segment: where it begins, its offsets [base, next), and where it ends."""

    position: int
    base_offset: int
    next_offset: int
    end_position: int


@dataclass(slots=True)
class SegmentFile:
    """One segment's files.

    Attributes:
        base_offset: from its name.
        path: of the log file.
        size: bytes of the log file, when it was last looked at.
        inode: of the log file.
        sealed: whether there is a later segment.
        summary: what it holds; None if it is growing, or was not written by stablelog.
        marks: of a growing segment, places that were passed: (base offset, position) of batches.
    """

    base_offset: int
    path: str
    size: int
    inode: int
    sealed: bool
    summary: Summary | None
    marks: list[tuple[int, int]] = field(default_factory=list)
    _index: OffsetIndex | None = None
    _txn_index: TransactionIndex | None = None

    def beside(self, suffix: str) -> str:
        """The path of another file of the segment."""
        return self.path.removesuffix(LOG) + suffix

    def check(self, next_base: int | None) -> None:
        """See that this is still the file that was listed, and that nothing is missing behind it.

        Raises:
            Gone: compaction is replacing it, or has done so.
        """
        found = _status(self.path, self.summary)
        if found.st_ino != self.inode or (self.sealed and found.st_size != self.size):
            raise Gone(self.path)
        if self.summary is not None and next_base is not None and self.summary.end_offset < next_base:
            # What stablelog compacts leaves no gap between segments: a merged one is being put in place.
            raise Gone(
                f"{os.path.dirname(self.path)}, with the offsets {self.summary.end_offset} to {next_base - 1},"
            )

    def locate(self, offset: int) -> Located | None:
        """The first batch that ends past `offset`; None if there is none.

        Raises:
            Gone: the file was removed.
            Corrupt: the file is damaged; names it and the position.
        """
        descriptor = self.open()
        try:
            start = self._known_before(descriptor, offset)
            marked = self.marks[-1][1] if self.marks else 0
            for position, header in self._walk(descriptor, start):
                if not self.sealed and position - marked >= MARK_SIZE:
                    self.marks.append((header.base_offset, position))
                    marked = position
                if header.next_offset > offset:
                    return Located(position, header.base_offset, header.next_offset, position + header.size)
            return None
        finally:
            os.close(descriptor)

    def boundary_before(self, position: int) -> tuple[int, int] | None:
        """A batch that begins at or before `position`, as (base offset, position); None if only the first is known."""
        descriptor = self.open()
        try:
            at = self._offset_index().position_at_or_before(position)
            header = self._header_at(descriptor, at) if at else None
            found = (header.base_offset, at) if header is not None else None
            place = bisect_right(self.marks, position, key=lambda mark: mark[1])
            if place and (found is None or self.marks[place - 1][1] > found[1]):
                found = self.marks[place - 1]
            return found
        finally:
            os.close(descriptor)

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Each whole batch from the one that begins at `position`.

        Raises:
            Gone: the file was removed.
            Corrupt: it is damaged.
        """
        descriptor = self.open()
        try:
            yield from self._walk(descriptor, position)
        finally:
            os.close(descriptor)

    def read(self, position: int, size: int) -> bytes:
        """Bytes of the log file."""
        descriptor = self.open()
        try:
            return os.pread(descriptor, size, position)
        finally:
            os.close(descriptor)

    def open(self) -> int:
        """A descriptor of the log file, for reading.

        Raises:
            Gone: it was removed.
            Unavailable: it cannot be read.
        """
        return open_log_file(self.path)

    def _walk(self, descriptor: int, position: int) -> Iterator[tuple[int, BatchHeader]]:
        try:
            yield from walk(descriptor, position, self.size)
        except Corrupt as error:
            raise Corrupt(f"{self.path}: {error}") from error

    def _known_before(self, descriptor: int, offset: int) -> int:
        """The position of a batch that does not begin after the one with this offset."""
        index = self._offset_index()
        at = index.position_before(offset)
        if at and self._header_at(descriptor, at) is None:
            at = 0  # the index is not of this log file
        place = bisect_right(self.marks, offset, key=lambda mark: mark[0])
        return max(at, self.marks[place - 1][1]) if place else at

    def _header_at(self, descriptor: int, position: int) -> BatchHeader | None:
        """The header at an entry of the offset index; None if there is no batch that the entry could mean."""
        content = os.pread(descriptor, HEADER.size, position)
        try:
            header = read_header(content)
        except Corrupt:
            return None
        index = self._offset_index()
        low, high = 0, len(index)
        while low < high:
            middle = (low + high) // 2
            if index[middle][1] < position:
                low = middle + 1
            else:
                high = middle
        agrees = low < len(index) and index[low] == (header.last_offset, position)
        return header if agrees and header.base_offset >= self.base_offset else None

    def _offset_index(self) -> OffsetIndex:
        if self._index is None:
            content = _read_or_nothing(self.beside(INDEX))
            index = OffsetIndex(
                self.base_offset, content[: len(content) // INDEX_ENTRY.size * INDEX_ENTRY.size]
            )
            if not self.sealed:
                return index  # it may grow
            self._index = index
        return self._index

    def txn_index(self) -> TransactionIndex:
        """The transactions whose abort marker lies here.

        Raises:
            Corrupt: it is not what the summary tells of.
        """
        if self._txn_index is not None:
            return self._txn_index
        path = self.beside(TXNINDEX)
        if self.summary is not None and self.summary.txnindex_size == 0:
            content = b""
        else:
            content = _read_or_nothing(path)
            if self.summary is not None and crc32c(content) != self.summary.txnindex_crc:
                if not os.path.exists(self.path):
                    raise Gone(self.path)
                raise Corrupt(
                    f"{path} is damaged, and what was aborted there is not known; its broker makes it anew when it is restarted"
                )
        index = TransactionIndex(content[: len(content) // TXN_ENTRY.size * TXN_ENTRY.size])
        if self.sealed:
            self._txn_index = index
        return index


class FileSpan:
    """A range of one partition with the parts of segment files in which it stands."""

    def __init__(
        self, files: "PartitionFiles", start: int, end: int, parts: "list[_Part]", topic_id: str = ""
    ) -> None:
        self._files = files
        self.parts = parts
        self._topic_id = topic_id
        self.start = start
        self.end = end

    @cached_property
    def size(self) -> int:
        """As `Span`."""
        return sum(part.end_position - part.position for part in self.parts)

    def cut_by_size(self, size: int) -> "tuple[FileSpan, FileSpan] | None":
        """As `Span`: at a record batch."""
        before = 0
        for part in self.parts:
            if before + part.size > size:
                found = None
                if size > before:
                    found = part.segment.boundary_before(part.position + size - before)
                if found is not None and found[1] > part.position and self.start < found[0] < self.end:
                    return self.cut_at(found[0])
                if before and self.start < part.start < self.end:
                    return self.cut_at(part.start)
                # No smaller cut is known: after this part, if anything follows.
                return self.cut_at(part.end) if self.start < part.end < self.end and size > before else None
            before += part.size
        return None

    def cut_at(self, offset: int) -> "tuple[FileSpan, FileSpan]":
        """As `Span`."""
        place = bisect_right(self.parts, offset, key=lambda part: part.end)
        head, tail = self.parts[:place], self.parts[place:]
        if tail and tail[0].start < offset:
            part = tail[0]
            batch = part.segment.locate(offset)
            if batch is None or batch.position >= part.end_position:
                head.append(tail.pop(0))
            else:
                head_end = batch.end_position if batch.base_offset < offset else batch.position
                if head_end > part.position:
                    head.append(part._replace(end=offset, end_position=head_end))
                tail[0] = part._replace(start=offset, position=batch.position)
        return (
            FileSpan(self._files, self.start, offset, head, self._topic_id),
            FileSpan(self._files, offset, self.end, tail, self._topic_id),
        )

    def piece(self) -> Piece:
        """As `Span`.

        Raises:
            Unavailable: a transaction index was removed since the range was planned.
        """
        try:
            aborted = self._files.aborted(self.start, self.end)
        except Gone as error:
            raise Unavailable(f"{error} was removed while the read was planned") from error
        return Piece(
            self._files.topic,
            self._files.partition,
            self.start,
            self.end,
            self.size,
            tuple(
                Extent(part.segment.path, part.position, part.size, part.segment.inode) for part in self.parts
            ),
            tuple((txn.producer_id, txn.first_offset, txn.last_offset) for txn in aborted),
            self._topic_id,
        )


class _Part(NamedTuple):
    """The bytes [position, end_position) of a segment's log, which hold the offsets [start, end)."""

    segment: SegmentFile
    start: int
    end: int
    position: int
    end_position: int

    @property
    def size(self) -> int:
        return self.end_position - self.position


class PartitionFiles:
    """The segment files of one partition. `refresh` looks at the directory again.

    Attributes:
        directory: of the partition.
        topic: its name.
        partition: its number.
        segments: as they were listed, oldest first.
        known_end: an offset up to which the log was written before the directory was listed, as its broker has said; 0
            without one. Which transactions were aborted is known if the files reach it.
    """

    def __init__(self, directory: Path, topic: str, partition: int) -> None:
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.segments: list[SegmentFile] = []
        self.known_end = 0
        self._reached_end = 0  # the known end that the files reach, as they were listed
        self._bases: list[int] = []
        self._changed_ns = -1  # when names in the directory last changed, as far as they are known
        self._with_aborts: list[int] = []  # places of the segments that have a transaction index
        self._scanned: list[
            AbortedTxn
        ] = []  # aborted transactions found by reading, where no broker has told
        self.refresh()

    def refresh(self, *, anew: bool = False) -> None:
        """List the directory.

        It is opened, and so is each file whose size is taken: a network mount then asks its server, while it may answer
        `stat` from what it has kept.

        Args:
            anew: whether nothing that is known of sealed segments is to be kept.

        Raises:
            Unavailable: it cannot be read.
        """
        self._reached_end = 0
        try:
            looked_ns = time.time_ns()
            descriptor = os.open(self.directory, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            try:
                changed_ns = os.fstat(descriptor).st_mtime_ns
                if changed_ns == self._changed_ns and not anew and self._look_again():
                    return
                names = os.listdir(descriptor)
            finally:
                os.close(descriptor)
            # Names that came within the same tick of the clock would not show in the time.
            self._changed_ns = changed_ns if changed_ns < looked_ns - TICK_NS else -1
        except OSError as error:
            raise Unavailable(f"{self.directory} cannot be read: {error.strerror}") from error
        bases = sorted(
            int(name[: -len(LOG)]) for name in names if name.endswith(LOG) and name[: -len(LOG)].isdigit()
        )
        summarized = {name for name in names if name.endswith(SUMMARY)}
        known = {segment.base_offset: segment for segment in self.segments if segment.sealed and not anew}
        segments = []
        for place, base in enumerate(bases):
            segment = known.get(base) or self._look(base, place < len(bases) - 1, summarized)
            if segment is not None:
                segments.append(segment)
        growing = {segment.base_offset: segment for segment in self.segments if not segment.sealed}
        for segment in segments:
            before = growing.get(segment.base_offset)
            if before is not None:
                segment.marks = before.marks
        self.segments, self._bases = segments, [segment.base_offset for segment in segments]
        listed = set(names)
        self._with_aborts = [
            place
            for place, segment in enumerate(segments)
            if (segment.summary is not None and segment.summary.txnindex_size)
            or f"{segment.base_offset:020d}{TXNINDEX}" in listed
        ]

    def _look_again(self) -> bool:
        """Take the growing segment's present size; whether it is still there."""
        if not self.segments:
            return False
        last = self.segments[-1]
        try:
            found = _status(last.path)
        except Gone:
            return False
        last.size = found.st_size
        return found.st_ino == last.inode

    def _look(self, base: int, sealed: bool, summarized: set[str]) -> SegmentFile | None:
        path = f"{self.directory}/{base:020d}{LOG}"
        summary = None
        if sealed and f"{base:020d}{SUMMARY}" in summarized:
            beside = f"{path[: -len(LOG)]}{SUMMARY}"
            try:
                with naming(beside):
                    summary = Summary.decode(_read_or_nothing(beside))
            except Corrupt:
                summary = None  # a cache of the log: without it more is read
        if summary is not None and summary.base_offset != base:
            summary = None
        try:
            found = _status(path, summary)
        except Gone:
            return None  # removed since it was listed
        size = found.st_size
        if summary is not None and size < summary.log_size:
            raise Corrupt(
                f"{path} has {size} bytes, and {summary.log_size} when it was sealed: records up to offset "
                f"{summary.end_offset - 1} are lost. Restore the file"
            )
        return SegmentFile(base, path, size, found.st_ino, sealed, summary)

    @property
    def first_offset(self) -> int:
        """The first offset that there are files for; 0 if there are none."""
        return self._bases[0] if self._bases else 0

    def log_start_offset(self) -> int:
        """The first offset that its broker lets be read, as far as the directory says; 0 if it does not.

        Raises:
            Corrupt: what says so is not what it should be.
        """
        path = self.directory / LOG_START_FILE
        content = _read_or_nothing(path)
        return decode_log_start(content, path) if content else 0

    def span(self, start: int, end: int, topic_id: str = "") -> FileSpan:
        """The range [start, end), which lies in the files.

        Raises:
            Gone: a file was removed since it was listed.
            Unavailable: the files begin later or end earlier.
            Corrupt: a file is damaged.
        """
        if not self._bases or start < self._bases[0]:
            raise Gone(f"{self.directory} begins at offset {self.first_offset}, after {start}")
        parts = []
        first = bisect_right(self._bases, start) - 1
        for place in range(first, len(self.segments)):
            segment = self.segments[place]
            if segment.base_offset >= end:
                break
            next_base = self._bases[place + 1] if place + 1 < len(self._bases) else None
            segment.check(next_base)
            part = self._part(segment, start, end, next_base)
            if part is not None and part.size:
                parts.append(part)
        return FileSpan(self, start, end, parts, topic_id)

    def _part(self, segment: SegmentFile, start: int, end: int, next_base: int | None) -> _Part | None:
        position = 0
        if start > segment.base_offset:
            batch = segment.locate(start)
            if batch is None:
                self._check_end(segment, end, next_base)
                return None
            position = batch.position
        if next_base is not None and next_base <= end:
            return _Part(segment, max(start, segment.base_offset), next_base, position, segment.size)
        last = segment.locate(end - 1)
        if last is None:
            self._check_end(segment, end, next_base)
            end_position = segment.size
        else:
            end_position = last.end_position if last.base_offset < end else last.position
        return _Part(segment, max(start, segment.base_offset), end, position, end_position)

    def _check_end(self, segment: SegmentFile, end: int, next_base: int | None) -> None:
        """In front of the next segment compaction may have removed records; at the log's end nothing may be missing."""
        if next_base is None:
            raise Unavailable(f"{segment.path} ends before offset {end}, which was in the log")

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        """The aborted transactions that touch [start, end), by their first offsets.

        Raises:
            Gone: a file was removed.
            Behind: the files end before `known_end`, and a marker that concerns the range may be behind what is seen.
            Corrupt: a transaction index is damaged.
        """
        found = {txn[:3]: txn for txn in self._scanned if txn.first_offset < end and txn.last_offset >= start}
        first = max(bisect_right(self._bases, start) - 1, 0)
        # By the end of this segment every transaction that was begun before `end` had ended.
        last = next(
            (
                place
                for place in range(max(bisect_right(self._bases, end - 1) - 1, first), len(self.segments))
                if (summary := self.segments[place].summary) is not None and summary.stable_offset >= end
            ),
            None,
        )
        complete = last is not None
        for place in self._with_aborts[bisect_left(self._with_aborts, first) :]:
            if last is not None and place > last:
                break
            entries, over = self.segments[place].txn_index().collect(start, end)
            found.update((txn[:3], txn) for txn in entries)
            if over:
                complete = True
                break
        if not complete:
            self._check_end_is_seen()
        return sorted(found.values(), key=lambda txn: txn.first_offset)

    def _check_end_is_seen(self) -> None:
        """See that the files hold all that was in the log at `known_end`.

        Raises:
            Behind: they do not.
        """
        if self._reached_end >= self.known_end:
            return
        last = self.segments[-1] if self.segments else None
        if last is None or (last.base_offset < self.known_end and last.locate(self.known_end - 1) is None):
            raise Behind(
                f"{self.directory}, as it is seen here, ends before offset {self.known_end - 1}, which its broker has. It is "
                "a copy, or a mount that keeps names or sizes for too long: leave out scan and path, or scan=fetch"
            )
        self._reached_end = self.known_end

    # -- without a broker --------------------------------------------------------------------------------------

    def scan_end(self) -> tuple[int, int]:
        """The end of the log and its stable offset, found by reading what lies behind the last known point.

        Raises:
            Gone: a file was removed.
            Corrupt: a file is damaged.
        """
        self._scanned = []
        if not self.segments:
            return 0, 0
        start, open_txns = self._known_point()
        end = max(start, self.segments[-1].base_offset)
        first = max(bisect_right(self._bases, start) - 1, 0)
        for segment in self.segments[first:]:
            batch = segment.locate(start) if start > segment.base_offset else None
            if start > segment.base_offset and batch is None:
                continue
            position = batch.position if batch is not None else 0
            for at, header in segment.headers(position):
                end = max(end, header.next_offset)
                self._follow(segment, at, header, open_txns)
        return end, min(open_txns.values(), default=end)

    def _known_point(self) -> tuple[int, dict[int, int]]:
        """An offset from which reading finds every open transaction, and those that are known to be open there."""
        last = self.segments[-1]
        for name in sorted(os.listdir(self.directory), reverse=True):
            stem, dot, suffix = name.partition(".")
            if dot + suffix != SNAPSHOT or not stem.isdigit():
                continue
            offset = int(stem)
            if not self.first_offset <= offset or (
                offset > last.base_offset and last.locate(offset - 1) is None
            ):
                continue  # of records that were removed, or lost in a crash
            try:
                with naming(self.directory / name):
                    producers = decode_snapshot(_read_or_nothing(self.directory / name), 0)
            except Corrupt:
                continue
            if offset > self._aborts_known_to(name):
                continue
            return offset, {
                producer.producer_id: producer.txn_first_offset
                for producer in producers
                if producer.txn_first_offset >= 0
            }
        for segment in reversed(self.segments):
            if segment.summary is not None and segment.summary.stable_offset <= self._aborts_known_to(""):
                return max(segment.summary.stable_offset, self.first_offset), {}
        return self.first_offset, {}

    def _aborts_known_to(self, snapshot: str) -> int:
        """Up to which offset the transaction indexes that are there are all there were.

        A sealed segment's summary says so; of the growing one, what stands beside a snapshot. Without either a file
        that is not there may be one that was lost, and a reader would get what was aborted.
        """
        last = self.segments[-1]
        for place, segment in enumerate(self.segments):
            if segment.summary is not None or place in self._with_aborts:
                continue
            if segment is not last or not self._progress_agrees(snapshot):
                return segment.base_offset
        return last.base_offset if self._progress_agrees(snapshot) is False else 2**63 - 1

    def _progress_agrees(self, snapshot: str) -> bool | None:
        """Whether the growing segment's transaction index holds what it held at a snapshot; None if nobody says."""
        try:
            content = (
                _read_or_nothing((self.directory / snapshot).with_suffix(PRODUCERS)) if snapshot else b""
            )
            with naming(self.directory / snapshot):
                _, progress = decode_producers(content)
        except Corrupt:
            return None
        if progress.base_offset != self.segments[-1].base_offset:
            return None
        entries = _read_or_nothing(self.segments[-1].beside(TXNINDEX))
        return crc32c(entries[: progress.txnindex_size]) == progress.txnindex_crc

    def _follow(
        self, segment: SegmentFile, position: int, header: BatchHeader, open_txns: dict[int, int]
    ) -> None:
        if not header.is_transactional:
            return
        if not header.is_control:
            open_txns.setdefault(header.producer_id, header.base_offset)
            return
        first = open_txns.pop(header.producer_id, None)
        if first is None:
            return
        marker = read_marker(segment.read(position, header.size))
        if marker is not None and marker.type is MarkerType.ABORT:
            stable = min(open_txns.values(), default=header.next_offset)
            self._scanned.append(AbortedTxn(header.producer_id, first, header.last_offset, stable))


def open_log_file(path: str) -> int:
    """A descriptor of a segment's log file, for reading.

    Raises:
        Gone: it was removed.
        Unavailable: it cannot be read.
    """
    try:
        return os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError as error:
        raise Gone(path) from error
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from error


def _status(path: str, summary: Summary | None = None) -> os.stat_result:
    """What a log file says of itself.

    A network mount may answer `stat` from what it has kept, so the file is opened, unless its size is the one that its
    summary tells.

    Raises:
        Gone: it was removed.
        Unavailable: it cannot be read.
    """
    if summary is not None:
        try:
            found = os.stat(path)
        except FileNotFoundError as error:
            raise Gone(path) from error
        if found.st_size == summary.log_size:
            return found
    descriptor = open_log_file(path)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _read_or_nothing(path: Path | str) -> bytes:
    """What a small file holds; nothing if it is not there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from error
    try:
        content = os.read(descriptor, READ_SIZE)  # most are small: a summary has 118 bytes
        if len(content) < READ_SIZE:
            return content
        with os.fdopen(os.dup(descriptor), "rb") as rest:
            return content + rest.read()
    finally:
        os.close(descriptor)
