"""Ranges of offsets that tasks read from an object store."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from stablelog.spark.planning import ObjectExtent, Piece
from stablelog.tier.cut_points import CutPoint, cut_points
from stablelog.tier.names import LOG
from stablelog.tier.remote_segment import RemoteSegment

if TYPE_CHECKING:
    from stablelog.spark.objects.stored_partition import StoredPartition


class Stretches(NamedTuple):
    """Stretches of a log file that follow each other. A stretch reaches from one edge of the file to the next; the
    edges are its beginning, its cut points and its end.
    """

    segment: RemoteSegment
    edges: tuple[CutPoint, ...]

    @property
    def size(self) -> int:
        """The bytes of the stretches."""
        return self.edges[-1].position - self.edges[0].position

    def between(self, start: int, end: int) -> "Stretches":
        """Return the stretches that have the offsets from `start` to before `end`."""
        first = max(bisect_right(self.edges, start, key=lambda edge: edge.offset) - 1, 0)
        last = bisect_left(self.edges, end, key=lambda edge: edge.offset)
        return self._replace(edges=self.edges[first : last + 1])


def _edges(segment: RemoteSegment) -> tuple[CutPoint, ...]:
    crc = None if segment.summary is None else segment.summary.log_crc
    return (
        CutPoint(segment.base_offset, 0, 0),
        *cut_points(segment),
        CutPoint(segment.end_offset, segment.size, crc),
    )


class ObjectSpan:
    """A range of offsets in the order of the log, with the stretches of log files that contain it, as `parts`.

    Args:
        stored: the partition.
        start: the first offset.
        end: the offset after the last one.
        topic_id: the id of the topic.
        parts: the stretches; None to find them in the partition.
    """

    def __init__(
        self,
        stored: "StoredPartition",
        start: int,
        end: int,
        topic_id: str = "",
        parts: Sequence[Stretches] | None = None,
    ) -> None:
        self._stored = stored
        self.start = start
        self.end = end
        self._topic_id = topic_id
        if parts is None:
            segments = stored.segments_between(start, end)
            parts = [Stretches(one, _edges(one)).between(start, end) for one in segments]
        self.parts = parts

    @cached_property
    def size(self) -> int:
        """The size of the stretches that contain the range, in bytes."""
        return sum(part.size for part in self.parts)

    def cut_by_size(self, size: int) -> "tuple[ObjectSpan, ObjectSpan] | None":
        """Divide the range at an edge of a stretch, the first part of about this size in bytes. Return None if no edge
        is in the range.
        """
        before, best = 0, None
        for part in self.parts:
            for edge in part.edges[1:]:
                reached = before + edge.position - part.edges[0].position
                if not self.start < edge.offset < self.end or (best is not None and reached > size):
                    break
                best = edge.offset
            before += part.size
        return None if best is None else self.cut_at(best)

    def cut_at(self, offset: int) -> "tuple[ObjectSpan, ObjectSpan]":
        """Divide the range at this offset. If it is inside a stretch, both parts contain this stretch."""
        assert self.start < offset < self.end
        heads = [one.between(self.start, offset) for one in self.parts if one.edges[0].offset < offset]
        tails = [one.between(offset, self.end) for one in self.parts if one.edges[-1].offset > offset]
        return (
            ObjectSpan(self._stored, self.start, offset, self._topic_id, heads),
            ObjectSpan(self._stored, offset, self.end, self._topic_id, tails),
        )

    def piece(self) -> Piece:
        """Return the range as a piece of a task, with the aborted transactions that it needs."""
        stored = self._stored
        extents = tuple(
            ObjectExtent(
                stored.partition.segment_key(part.segment.base_offset, part.segment.segment_id, LOG),
                part.edges[0].position,
                part.size,
                part.edges[0].header_crc,
                part.edges[-1].header_crc,
                part.edges[0].offset,
                part.edges[-1].offset,
            )
            for part in self.parts
        )
        return Piece(
            *stored.place,
            self.start,
            self.end,
            self.size,
            aborted=stored.aborted(self.start, self.end),
            topic_id=self._topic_id,
            stored=replace(stored.piece, extents=extents),
        )


class CommitSpan:
    """A range of positions in commit order.

    Args:
        stored: the partition.
        start: the first position.
        end: the position after the last one.
        topic_id: the id of the topic.
    """

    def __init__(self, stored: "StoredPartition", start: int, end: int, topic_id: str = "") -> None:
        self._stored = stored
        self.start = start
        self.end = end
        self._topic_id = topic_id

    @cached_property
    def size(self) -> int:
        """The size of the range in bytes, as if all offsets of a segment had the same size."""
        return sum(self._size_in(one, self.end) for one in self._segments)

    @cached_property
    def _segments(self) -> list[RemoteSegment]:
        return self._stored.segments_between(self.start, self.end)

    def _size_in(self, segment: RemoteSegment, end: int) -> int:
        count = min(segment.end_offset, end) - max(segment.base_offset, self.start)
        return segment.size * max(count, 0) // (segment.end_offset - segment.base_offset)

    def cut_by_size(self, size: int) -> "tuple[CommitSpan, CommitSpan] | None":
        """Divide the range in two, the first of about this size in bytes. Return None if it cannot be divided."""
        for segment in self._segments:
            part = self._size_in(segment, self.end)
            if part >= size:
                count = (segment.end_offset - segment.base_offset) * size // max(segment.size, 1)
                at = max(segment.base_offset, self.start) + max(count, 1)
                return self.cut_at(at) if self.start < at < self.end else None
            size -= part
        return None

    def cut_at(self, offset: int) -> "tuple[CommitSpan, CommitSpan]":
        """Divide the range at this position."""
        assert self.start < offset < self.end
        return (
            CommitSpan(self._stored, self.start, offset, self._topic_id),
            CommitSpan(self._stored, offset, self.end, self._topic_id),
        )

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
