"""Ranges of offsets that tasks read from an object store.

A read may have 100,000 segments, and is divided into thousands of tasks. All spans of a partition therefore share one
table, and a division finds its place in the table by bisection.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import Final, Generic, NamedTuple, Protocol, Self, TypeVar

from stablelog.spark.planning import ObjectExtent, Piece, StoredPiece
from stablelog.tier.cut_points import CutPoint, cut_points
from stablelog.tier.names import RemotePartition
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.types import TopicPartition

_Row = TypeVar("_Row")
STRETCH_COUNT_MAX: Final = 17  # How many stretches a log file is divided into at most.
STRETCH_SIZE: Final = 8 << 20  # The least size of a stretch, if the log file is large enough.


class Stretch(NamedTuple):
    """A part of a log file, from one cut point to a later one, or from or to an end of the file.

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
    def size_up_to(self) -> int:
        """Bytes of all stretches in the table up to the end of this one."""
        return self.size_before + self.end.position - self.begin.position


class Spanned(Protocol):
    """A partition in a store, as far as its ranges need it (`stored_partition.StoredPartition`)."""

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
        """Return the segments of a range of offsets. Raises UnavailableError and DamageError."""

    def segments_of_commits(self, start: int, end: int) -> Sequence[RemoteSegment]:
        """Return the segments that a range of positions needs."""

    def aborted(self, start: int, end: int) -> tuple[tuple[int, int, int], ...]:
        """Return the aborted transactions that a reader of a range needs."""


class _TableSpan(ABC, Generic[_Row]):
    """A range of one partition, with a table that it shares with the ranges it is divided into.

    Args:
        stored: the partition.
        start: the first offset, or position in commit order.
        end: the offset or position after the last one.
        topic_id: the id of the topic.
        table: the table of a range that contains this one; None to make it from the segments of the partition.
    """

    def __init__(
        self,
        stored: Spanned,
        start: int,
        end: int,
        topic_id: str = "",
        table: Sequence[_Row] | None = None,
    ) -> None:
        self._stored = stored
        self.start = start
        self.end = end
        self._topic_id = topic_id
        self._table = self._table_of(stored.segments_between(start, end)) if table is None else table

    @staticmethod
    @abstractmethod
    def _table_of(segments: Sequence[RemoteSegment]) -> Sequence[_Row]:
        """Return the table of a range that contains these segments. Raises DamageError."""

    def cut_at(self, offset: int) -> tuple[Self, Self]:
        """Divide the range at this offset or position."""
        assert self.start < offset < self.end
        return (
            type(self)(self._stored, self.start, offset, self._topic_id, self._table),
            type(self)(self._stored, offset, self.end, self._topic_id, self._table),
        )


class ObjectSpan(_TableSpan[Stretch]):
    """A range of offsets in the order of the log, with the stretches of log files that contain it. If it is divided
    inside a stretch, both parts contain this stretch.
    """

    @staticmethod
    def _table_of(segments: Sequence[RemoteSegment]) -> Sequence[Stretch]:
        found: list[Stretch] = []
        size = 0
        for segment in segments:
            crc = None if segment.summary is None else segment.summary.log_crc
            edges = [
                CutPoint(segment.base_offset, 0, 0),
                *_far_apart(cut_points(segment), segment.size),
                CutPoint(segment.end_offset, segment.size, crc),
            ]
            for begin, end in pairwise(edges):
                found.append(Stretch(segment, begin, end, size))
                size = found[-1].size_up_to
        return found

    @cached_property
    def _first(self) -> int:
        """The place of the first stretch in the table."""
        return max(bisect_right(self._table, self.start, key=attrgetter("start_offset")) - 1, 0)

    @cached_property
    def _after(self) -> int:
        """The place after the last stretch."""
        return bisect_left(self._table, self.end, self._first, key=attrgetter("start_offset"))

    @property
    def size(self) -> int:
        """The size of the stretches that contain the range, in bytes."""
        if self._first == self._after:
            return 0
        return self._table[self._after - 1].size_up_to - self._table[self._first].size_before

    @property
    def stretches(self) -> Sequence[Stretch]:
        """The stretches that contain the range."""
        return self._table[self._first : self._after]

    def cut_by_size(self, size: int) -> "tuple[ObjectSpan, ObjectSpan] | None":
        """Divide the range between two stretches, the first part of about this size in bytes. Return None if it has
        only one.
        """
        if self._after - self._first < 2:
            return None
        wanted = self._table[self._first].size_before + size
        place = bisect_right(
            self._table, wanted, self._first + 1, self._after - 1, key=attrgetter("size_before")
        )
        # The stretch before this place begins within the size. If the first one is larger, the range is cut after it.
        place = max(place - 1, self._first + 1)
        return self.cut_at(self._table[place].start_offset)

    def piece(self) -> Piece:
        """Return the range as a piece of a task, with the aborted transactions that it needs."""
        stored = self._stored
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
        for _, same in groupby(self.stretches, key=lambda one: one.segment.segment_id):
            stretches = list(same)
            first, last, segment = stretches[0], stretches[-1], stretches[0].segment
            yield ObjectExtent(
                segment.log_key(self._stored.partition),
                first.begin.position,
                last.end.position - first.begin.position,
                first.begin.header_crc,
                last.end.header_crc,
                first.begin.offset,
                last.end.offset,
                points_between(segment, first.begin.position, last.end.position),
            )


def _far_apart(points: Iterable[CutPoint], size: int) -> Iterator[CutPoint]:
    """Yield cut points that divide a log file into stretches. The list of all cut points would be long."""
    distance, last = max(STRETCH_SIZE, size // STRETCH_COUNT_MAX), 0
    for point in points:
        if point.position - last >= distance and size - point.position >= distance // 2:
            yield point
            last = point.position


def points_between(segment: RemoteSegment, begin: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return (position, CRC) of the cut points of a segment that are between two positions; none if their CRCs are
    unknown.
    """
    return tuple(
        (one.position, one.header_crc)
        for one in cut_points(segment)
        if begin < one.position < end and one.header_crc is not None
    )


class _Sized(NamedTuple):
    """A segment, and the bytes of all earlier segments in the table."""

    segment: RemoteSegment
    size_before: int

    @property
    def end_offset(self) -> int:
        return self.segment.end_offset

    def size_up_to(self, position: int) -> int:
        """Bytes of the table up to a position, as if all offsets of a segment had the same size."""
        segment = self.segment
        count = min(max(position - segment.base_offset, 0), segment.end_offset - segment.base_offset)
        return self.size_before + segment.size * count // (segment.end_offset - segment.base_offset)


class CommitSpan(_TableSpan[_Sized]):
    """A range of positions in commit order, with the segments that contain it."""

    @staticmethod
    def _table_of(segments: Sequence[RemoteSegment]) -> Sequence[_Sized]:
        sizes_before = accumulate((one.size for one in segments), initial=0)
        return list(map(_Sized, segments, sizes_before))

    @property
    def size(self) -> int:
        """The size of the range in bytes, as if all offsets of a segment had the same size."""
        return self._size_up_to(self.end) - self._size_up_to(self.start)

    def _size_up_to(self, position: int) -> int:
        if not self._table:
            return 0
        place = bisect_left(self._table, position, hi=len(self._table) - 1, key=attrgetter("end_offset"))
        return self._table[place].size_up_to(position)

    def cut_by_size(self, size: int) -> "tuple[CommitSpan, CommitSpan] | None":
        """Divide the range in two, the first of about this size in bytes. Return None if it cannot be divided."""
        if not self._table:
            return None
        wanted = self._size_up_to(self.start) + size
        place = bisect_right(self._table, wanted, key=attrgetter("size_before")) - 1
        segment, size_before = self._table[place]
        count = (segment.end_offset - segment.base_offset) * (wanted - size_before) // max(segment.size, 1)
        at = max(segment.base_offset + count, self.start + 1)
        return self.cut_at(at) if at < self.end else None

    def piece(self) -> Piece:
        """Return the range as a piece of a task, with the segments that it needs."""
        stored = self._stored
        return Piece(
            *stored.place,
            self.start,
            self.end,
            self.size,
            topic_id=self._topic_id,
            stored=replace(stored.piece, segments=tuple(stored.segments_of_commits(self.start, self.end))),
        )
