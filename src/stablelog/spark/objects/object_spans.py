"""Spans in an object store: ranges of offsets of a partition that can be divided between the tasks of a read."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final, Protocol

from stablelog.spark.planning import Piece
from stablelog.spark.table_spans import LogPart, TableSpan
from stablelog.tier.cut_points import CutPoint, cut_points
from stablelog.tier.remote_segment import RemoteSegment

STRETCH_COUNT_MAX: Final = 17  # How many stretches a log file is divided into at most.
STRETCH_SIZE: Final = 8 << 20  # The least size of a stretch, if the log file is large enough.


class Spanned(Protocol):
    """The method of `tiered_partition.TieredPartition` that the spans (ranges of offsets that can be divided between
    tasks) call.
    """

    def piece(
        self, start: int, end: int, size: int, topic_id: str, parts: Sequence[LogPart[RemoteSegment]]
    ) -> Piece:
        """Return a range of offsets, or of positions in commit order (the offsets of a commit-ordered topic for its
        readers), as a piece: the range with all that one task needs to read it.

        Args:
            start: the first offset or position.
            end: the offset or position after the last one.
            size: the size of the range in bytes.
            topic_id: the id of the topic.
            parts: the parts of log files that contain the range.
        """


class ObjectSpan(TableSpan[Spanned, RemoteSegment]):
    """A range of offsets in log order. The rows of its table are *stretches*: parts of log files between two cut points
    (positions at which a file can be divided), or between a cut point and the beginning or the end of the file. A
    division inside a stretch leaves the whole stretch in both parts.
    """

    def _offset_after(self, size: int) -> int | None:
        """Return the offset at which to divide the range so that its first part has about this size: the beginning of a
        stretch, which is a part of a log file between two positions at which it can be divided. Return None if the
        range has only one stretch.
        """
        if self._after - self._first < 2:
            return None
        wanted = self._table[self._first].size_before + size
        place = bisect_right(
            self._table, wanted, self._first + 1, self._after - 1, key=attrgetter("size_before")
        )
        # The stretch before this place begins within the size. If the first one is larger, the range is cut after it.
        return self._table[max(place - 1, self._first + 1)].start_offset

    def piece(self) -> Piece:
        """Return the range as a piece: with all that one task needs to read it."""
        return self._source.piece(self.start, self.end, self.size, self._topic_id, self.rows)


class CommitSpan(ObjectSpan):
    """A range of positions in commit order (the order of the commits, in which readers get the transactions of a
    commit-ordered topic), with the segments whose commit indexes contain the positions. The rows of its table are whole
    log files.
    """

    @property
    def size(self) -> int:
        """The estimated size of the range in bytes: every offset of a segment counts as equally large."""
        return self._size_up_to(self.end) - self._size_up_to(self.start)

    def _size_up_to(self, position: int) -> int:
        """Return the estimated size in bytes of all records in the table before a position, which is an offset in the
        order of the commits. All offsets of a segment count as equally large.
        """
        if not self._table:
            return 0
        place = bisect_left(self._table, position, hi=len(self._table) - 1, key=attrgetter("end_offset"))
        row = self._table[place]
        count = min(max(position, row.start_offset), row.end_offset) - row.start_offset
        return row.size_before + row.size * count // (row.end_offset - row.start_offset)

    def _offset_after(self, size: int) -> int:
        wanted = self._size_up_to(self.start) + size
        row = self._table[bisect_right(self._table, wanted, key=attrgetter("size_before")) - 1]
        count = (row.end_offset - row.start_offset) * (wanted - row.size_before) // max(row.size, 1)
        return max(row.start_offset + count, self.start + 1)


def log_edges(segment: RemoteSegment, points: Iterable[CutPoint]) -> list[CutPoint]:
    """Return the given cut points of a segment's log file (positions at which it can be divided), with the beginning and
    the end of the file as the first and the last one.
    """
    crc = None if segment.summary is None else segment.summary.log_crc
    end = CutPoint(segment.end_offset, segment.size, crc)
    return [CutPoint(segment.base_offset, 0, 0), *points, end]


def log_parts(segments: Iterable[RemoteSegment], *, are_divided: bool) -> list[LogPart[RemoteSegment]]:
    """Return a table with the log files of some segments: if `are_divided`, a row for each stretch of a file (a part
    between two positions at which it can be divided), and otherwise a row for each file. Raises DamageError.
    """
    table: list[LogPart[RemoteSegment]] = []
    size = 0
    for segment in segments:
        points = _far_apart(cut_points(segment), segment.size) if are_divided else ()
        for begin, end in pairwise(log_edges(segment, points)):
            table.append(LogPart(segment, begin.offset, end.offset, begin.position, end.position, size))
            size += table[-1].size
    return table


def _far_apart(points: Iterable[CutPoint], size: int) -> Iterator[CutPoint]:
    """Yield some of the cut points of a log file of `size` bytes (positions at which it can be divided), about equally
    far apart. With all of them, the table of the parts between them would be too long.
    """
    distance, last = max(STRETCH_SIZE, size // STRETCH_COUNT_MAX), 0
    for point in points:
        if point.position - last >= distance and size - point.position >= distance // 2:
            yield point
            last = point.position
