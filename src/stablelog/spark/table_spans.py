"""Spans (ranges of offsets that can be divided between tasks) of a partition. They share one table that says in which
parts of log files the partition's records are stored.

A read may have 100,000 segments, and is divided into thousands of tasks. So a span is divided without a copy of the
table: the row at which to divide is found by bisection.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter
from typing import Generic, NamedTuple, Self, TypeVar

from stablelog.spark.planning import Piece

_Segment = TypeVar("_Segment")


class LogPart(NamedTuple, Generic[_Segment]):
    """A part of a segment's log file: the bytes from `position` to `end_position`, which contain the offsets from
    `start_offset` to `end_offset`. Both ends are exclusive.

    Attributes:
        segment: the segment.
        start_offset: the first offset of the part.
        end_offset: the offset after the last one of the part.
        position: the position of its first byte.
        end_position: the position after its last byte.
        size_before: the size in bytes of all earlier parts in the table of the partition's parts.
    """

    segment: _Segment
    start_offset: int
    end_offset: int
    position: int
    end_position: int
    size_before: int = 0

    @property
    def size(self) -> int:
        """The size of the part in bytes."""
        return self.end_position - self.position


_Source = TypeVar("_Source")


class TableSpan(ABC, Generic[_Source, _Segment]):
    """A span: a range of offsets of one partition that can be divided between tasks. All spans of the partition share
    one table, which has a row for each part of a log file.

    Args:
        source: the partition, as the object that reads it.
        start: the first offset; in a commit-ordered topic, the first position in the order of the commits.
        end: the offset or position after the last one.
        topic_id: the id of the topic.
        table: parts of log files in the order of offsets, among them those of the range.
    """

    def __init__(
        self, source: _Source, start: int, end: int, topic_id: str, table: Sequence[LogPart[_Segment]]
    ) -> None:
        self._source = source
        self.start = start
        self.end = end
        self._topic_id = topic_id
        self._table = table

    @cached_property
    def _first(self) -> int:
        """The index of the first row of the table (part of a log file) that has offsets of the range."""
        return bisect_right(self._table, self.start, key=attrgetter("end_offset"))

    @cached_property
    def _after(self) -> int:
        """The index after the last row of the table (part of a log file) that has offsets of the range."""
        return bisect_left(self._table, self.end, self._first, key=attrgetter("start_offset"))

    @property
    def rows(self) -> Sequence[LogPart[_Segment]]:
        """The rows of the table (parts of log files) that contain the range."""
        return self._table[self._first : self._after]

    @property
    def size(self) -> int:
        """The size in bytes of the parts of log files that contain the range."""
        if self._first == self._after:
            return 0
        last = self._table[self._after - 1]
        return last.size_before + last.size - self._table[self._first].size_before

    def cut_at(self, offset: int) -> tuple[Self, Self]:
        """Cut the range in two, and return both parts in a pair. `offset` is inside the range, and becomes the start of
        the second part.
        """
        assert self.start < offset < self.end
        return (
            type(self)(self._source, self.start, offset, self._topic_id, self._table),
            type(self)(self._source, offset, self.end, self._topic_id, self._table),
        )

    def cut_by_size(self, size: int) -> tuple[Self, Self] | None:
        """Cut the range in two, so that the first part has about `size` bytes. Return both parts in a pair; None if the
        range cannot be divided.
        """
        at = self._offset_after(size) if self._first < self._after else None
        return self.cut_at(at) if at is not None and self.start < at < self.end else None

    @abstractmethod
    def _offset_after(self, size: int) -> int | None:
        """Return the offset at which to divide the range so that its first part has about this size in bytes; None if
        the range cannot be divided.
        """

    @abstractmethod
    def piece(self) -> Piece:
        """Return the range as a piece: with all that one task needs to read it."""
