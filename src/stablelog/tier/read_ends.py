"""The ends of recent reads of remote segments. A read that continues where another one has ended needs no index, and
the next parts of the log file can be loaded ahead.
"""

import uuid
from collections import OrderedDict
from typing import Final, NamedTuple

from stablelog.tier.remote_segment import RemoteSegment

ENDS_MAX: Final = 64  # the number of reads whose ends are remembered
AHEAD: Final = (
    1,
    2,
    4,
)  # how many chunks are loaded ahead of a reader: after its first read, the second, and later


class ReadEnd(NamedTuple):
    """Where a read of remote segments has ended. A read that begins there needs no index.

    Attributes:
        segment_id: the id of the segment that the read has returned batches of.
        base_offset: the first offset of this segment.
        begin: the position in its log file at which the read has begun.
        position: the position in this log file at which the read has ended.
        streak: the number of earlier reads that this read continues: each of them has begun where the one before has
            ended.
    """

    segment_id: uuid.UUID
    base_offset: int
    begin: int
    position: int
    streak: int

    @property
    def ahead_count(self) -> int:
        """How many chunks (loaded parts of a log file) to keep for this reader: the chunk that it is reading, and those
        that it will probably read next. The number grows with the number of reads that have continued each other.
        """
        return 1 + AHEAD[min(self.streak, len(AHEAD) - 1)]


class ReadEnds:
    """The ends of recent reads of remote segments. The key is the offset, or the position in commit order, at which a
    read has ended.
    """

    def __init__(self) -> None:
        self._ends: OrderedDict[int, ReadEnd] = OrderedDict()

    def end_at(self, end: int, segment: RemoteSegment | None = None) -> ReadEnd | None:
        """Return the end of the read that has ended at this offset (or position in commit order), in this segment if
        one is given; None if no such read is remembered.
        """
        found = self._ends.get(end)
        is_other = found is not None and segment is not None and found.segment_id != segment.segment_id
        return None if is_other else found

    def add_read(self, start: int, end: int, segment: RemoteSegment, begin: int, position: int) -> None:
        """Remember the end of a read. The read that was added ENDS_MAX reads ago is dropped.

        Args:
            start: the offset, or the position in commit order, at which the read has begun.
            end: the offset, or the position in commit order, at which the read has ended.
            segment: the segment of the last batches that the read has returned.
            begin: the position in the log file of the segment at which the read has begun.
            position: the position at which it has ended.
        """
        before = self._ends.get(start)
        streak = 0 if before is None else before.streak + 1
        self._ends[end] = ReadEnd(segment.segment_id, segment.base_offset, begin, position, streak)
        self._ends.move_to_end(end)
        if len(self._ends) > ENDS_MAX:
            self._ends.popitem(last=False)
