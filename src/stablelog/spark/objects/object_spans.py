"""Ranges of offsets that tasks read from an object store."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from stablelog.spark.planning import ObjectExtent, Piece, StoredPiece
from stablelog.spark.table_spans import TableSpan
from stablelog.tier.cut_points import CutPoint, cut_points
from stablelog.tier.names import RemotePartition
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.types import TopicPartition

STRETCH_COUNT_MAX: Final = 17  # How many stretches a log file is divided into at most.
STRETCH_SIZE: Final = 8 << 20  # The least size of a stretch, if the log file is large enough.


class Stretch(NamedTuple):
    """A part of a log file between two cut points, or between a cut point and an end of the file.

    Attributes:
        segment: the segment.
        begin: where the stretch begins: offset, position, and CRC of the headers before it.
        end: where it ends.
        size_before: bytes of all earlier stretches in the table.
    """

    segment: RemoteSegment
    begin: CutPoint
    end: CutPoint
    size_before: int

    @property
    def start_offset(self) -> int:
        """The first offset of the stretch."""
        return self.begin.offset

    @property
    def end_offset(self) -> int:
        """The offset after the last one."""
        return self.end.offset

    @property
    def size(self) -> int:
        """Bytes of the stretch."""
        return self.end.position - self.begin.position


class Spanned(Protocol):
    """The part of `tiered_partition.TieredPartition` that the spans use."""

    @property
    def partition(self) -> RemotePartition:
        """The partition in the store."""

    @property
    def place(self) -> TopicPartition:
        """The name of the topic, and the number of the partition."""

    @property
    def piece(self) -> StoredPiece:
        """What the pieces of all tasks have in common."""

    def segments_between(self, start: int, end: int) -> Sequence[RemoteSegment]:
        """Return the segments with some of the offsets [start, end). Raises UnavailableError and DamageError."""

    def segments_of_commits(self, start: int, end: int) -> Sequence[RemoteSegment]:
        """Return the segments that a read of the positions [start, end) in commit order needs."""

    def aborted(self, start: int, end: int) -> tuple[tuple[int, int, int], ...]:
        """Return the aborted transactions that a reader of the offsets [start, end) needs: for each of them the
        producer id, the first offset, and the offset of the abort marker.
        """


class ObjectSpan(TableSpan[Spanned, Stretch]):
    """A range of offsets in log order, with the stretches of log files that contain it. A division inside a stretch
    leaves the whole stretch in both parts.
    """

    def _offset_after(self, size: int) -> int | None:
        """Return the offset of a stretch at which to divide the range; None if the range has only one stretch."""
        if self._after - self._first < 2:
            return None
        wanted = self._table[self._first].size_before + size
        place = bisect_right(
            self._table, wanted, self._first + 1, self._after - 1, key=attrgetter("size_before")
        )
        # The stretch before this place begins within the size. If the first one is larger, the range is cut after it.
        return self._table[max(place - 1, self._first + 1)].start_offset

    def piece(self) -> Piece:
        """Return the range as the piece of a task, with the byte ranges to download and the aborted transactions."""
        stored = self._source
        return Piece(
            *stored.place,
            self.start,
            self.end,
            self.size,
            aborted=stored.aborted(self.start, self.end),
            topic_id=self._topic_id,
            stored=replace(stored.piece, extents=tuple(self._extents())),
        )

    def _extents(self) -> Iterator[ObjectExtent]:
        for _, same in groupby(self.rows, key=lambda one: one.segment.segment_id):
            stretches = list(same)
            first, last, segment = stretches[0], stretches[-1], stretches[0].segment
            yield ObjectExtent(
                segment.log_key(self._source.partition),
                first.begin.position,
                last.end.position - first.begin.position,
                first.begin.header_crc,
                last.end.header_crc,
                first.begin.offset,
                last.end.offset,
                points_between(segment, first.begin.position, last.end.position),
            )


def object_span(stored: Spanned, start: int, end: int, topic_id: str = "") -> ObjectSpan:
    """Return a range of offsets in the order of the log. Raises UnavailableError and DamageError."""
    table: list[Stretch] = []
    size = 0
    for segment in stored.segments_between(start, end):
        crc = None if segment.summary is None else segment.summary.log_crc
        edges = [
            CutPoint(segment.base_offset, 0, 0),
            *_far_apart(cut_points(segment), segment.size),
            CutPoint(segment.end_offset, segment.size, crc),
        ]
        for begin, end_point in pairwise(edges):
            table.append(Stretch(segment, begin, end_point, size))
            size += table[-1].size
    return ObjectSpan(stored, start, end, topic_id, table)


def _far_apart(points: Iterable[CutPoint], size: int) -> Iterator[CutPoint]:
    """Yield some of the cut points of a log file of `size` bytes, about equally far apart. They divide the file into
    stretches; with all cut points, the table of stretches would be long.
    """
    distance, last = max(STRETCH_SIZE, size // STRETCH_COUNT_MAX), 0
    for point in points:
        if point.position - last >= distance and size - point.position >= distance // 2:
            yield point
            last = point.position


def points_between(segment: RemoteSegment, begin: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return the position and the CRC of each cut point of a segment that is between the positions `begin` and `end`
    in the log file. The result is empty if the CRCs are unknown.
    """
    return tuple(
        (one.position, one.header_crc)
        for one in cut_points(segment)
        if begin < one.position < end and one.header_crc is not None
    )


class CommitSpan(TableSpan[Spanned, Stretch]):
    """A range of positions in commit order, with the segments whose commit indexes contain the positions."""

    @property
    def size(self) -> int:
        """The estimated size of the range in bytes: every offset of a segment counts as equally large."""
        return self._size_up_to(self.end) - self._size_up_to(self.start)

    def _size_up_to(self, position: int) -> int:
        """Return the estimated size in bytes of all that the table has before a position in commit order. All offsets
        of a segment count as equally large.
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

    def piece(self) -> Piece:
        """Return the range as the piece of a task, with the segments whose commit indexes and batches it needs."""
        stored = self._source
        return Piece(
            *stored.place,
            self.start,
            self.end,
            self.size,
            topic_id=self._topic_id,
            stored=replace(stored.piece, segments=tuple(stored.segments_of_commits(self.start, self.end))),
        )


def commit_span(stored: Spanned, start: int, end: int, topic_id: str) -> CommitSpan:
    """Return a range of positions in commit order. Raises UnavailableError and DamageError."""
    table: list[Stretch] = []
    size = 0
    for segment in stored.segments_between(start, end):
        ends = CutPoint(segment.base_offset, 0, None), CutPoint(segment.end_offset, segment.size, None)
        table.append(Stretch(segment, *ends, size))
        size += segment.size
    return CommitSpan(stored, start, end, topic_id, table)
