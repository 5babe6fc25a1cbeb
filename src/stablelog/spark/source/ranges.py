"""Ranges of offsets of a read, and the parts of them that have records.

Not every offset from the start to the end of a range has a record: a restore of the broker leaves offsets without
records, and a segment can be missing in a store of Apache Kafka. `Readable` has the parts of a range that can be read.
Everything that measures a range must use these parts and not the difference between its end and its start: the planning
of tasks, the limits and the minimum of a micro-batch, the choice of its transactions, and a count.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from stablelog.types import TopicPartition


class Range(NamedTuple):
    """A range of offsets of a partition, from `start` to before `end`."""

    place: TopicPartition
    start: int
    end: int


class OffsetState(Enum):
    """The state of an offset in a log: the reader can read it, cannot read it yet, or can never read it because its
    record was removed or lost.
    """

    VISIBLE = "visible end"  # Not after the visible end: the reader gets the records from there on.
    NOT_YET = (
        "not yet"  # After the visible end, and not lost: a stream waits, and a batch ends at the visible end.
    )
    PAST_END = "log end"  # Past the log end: records are lost.
    REMOVED = "log start"  # Before the log start: records are lost.
    GAP = "gap"  # A restore left the offset without a record.
    HOLE = "hole"  # The store lacks the segment with the offset.


def offset_state(
    offset: int, log_start: int, visible_end: int, log_end: int, *, may_lag: bool
) -> OffsetState:
    """Return the state of an offset, from the log start, the visible end and the log end of its partition.

    Args:
        offset: the offset.
        log_start: the log start offset.
        visible_end: the end of the partition for a reader with the isolation level of the read.
        log_end: the log end; only needed for an offset after the visible end.
        may_lag: whether the log may still get records that already exist elsewhere. An object store may: it gets the
            records of the broker's disk later.
    """
    if offset < log_start:
        return OffsetState.REMOVED
    if offset <= visible_end:
        return OffsetState.VISIBLE
    return OffsetState.NOT_YET if may_lag or offset <= log_end else OffsetState.PAST_END


class Absence(NamedTuple):
    """Offsets without readable records. `end` is exclusive.

    Attributes:
        start: the first of these offsets. A reader whose position is the `start` of a gap (see `state`) has read all
            records before the gap, and misses none.
        end: the offset of the next record that can be read.
        state: the cause: GAP if the broker was restored and has no records there, HOLE if the store lacks a segment,
            REMOVED if the records were deleted.
        message: the text for a user whose read includes these offsets; empty for a gap, because the text then depends
            on the reader's offset.
    """

    start: int
    end: int
    state: OffsetState
    message: str = ""


@dataclass(frozen=True, slots=True)
class Readable:
    """A range of offsets of a partition, with the parts of it that can be read, and messages about lost records.

    Attributes:
        whole: the range. It begins at the log start or later.
        parts: the parts, in the order of their offsets. None of them is empty.
        losses: the messages about records that the reader of the range misses, one for each loss.
    """

    whole: Range
    parts: tuple[Range, ...]
    losses: tuple[str, ...] = ()

    @property
    def place(self) -> TopicPartition:
        """The partition."""
        return self.whole.place

    @property
    def count(self) -> int:
        """The number of offsets of the parts. There are at most as many records."""
        return sum(part.end - part.start for part in self.parts)

    def inside(self, start: int, end: int) -> list[Range]:
        """Return those parts of the offsets [start, end) that can be read."""
        clipped = (part._replace(start=max(part.start, start), end=min(part.end, end)) for part in self.parts)
        return [part for part in clipped if part.start < part.end]

    def end_after(self, count: int) -> int:
        """Return the offset after the first `count` readable offsets; the end of the range if there are not more. The
        result never lies in a part that cannot be read.
        """
        if count >= self.count:
            return self.whole.end
        for part in self.parts:
            if count <= part.end - part.start:
                return part.start + count
            count -= part.end - part.start
        raise AssertionError("the readable parts of a range have fewer offsets than their `count` says")


def whole(wanted: Range) -> Readable:
    """Return the `Readable` of a range of which all offsets can be read."""
    return Readable(wanted, (wanted,) if wanted.start < wanted.end else ())


def readable_parts(
    wanted: Range, log_start: int, absences: Iterable[Absence], losses: Sequence[str] = ()
) -> Readable:
    """Return the readable parts of a range: the range without the offsets that cannot be read.

    Args:
        wanted: the range. It begins at the log start or later.
        log_start: the log start offset. A reader that begins there misses nothing in a gap.
        absences: offsets that cannot be read, in the order of the offsets. They do not overlap.
        losses: messages about records that the reader misses before the range.
    """
    parts, told, position = [], list(losses), wanted.start
    for one in absences:
        if one.end <= wanted.start or one.start >= wanted.end:
            continue
        if position < one.start:
            parts.append(wanted._replace(start=position, end=one.start))
        if one.state is not OffsetState.GAP:
            told.append(one.message)
        elif one.start < wanted.start != log_start:
            told.append(gap_message(wanted.place, wanted.start, one.start, one.end))
        position = max(position, one.end)
    if position < wanted.end:
        parts.append(wanted._replace(start=position))
    return Readable(wanted, tuple(parts), tuple(told))


def gaps_for(wanted: Range, gaps: Iterable[tuple[int, int]], is_lost: Callable[[int], bool]) -> list[Absence]:
    """Return the gaps in a range: the offsets that were left without records when the broker was restored from an
    object store.

    Several restores with no record between them leave one gap. A reader whose position is the border between two of
    these restores has read no lost record. For such a reader, one gap ends at its offset and another one begins there.

    Args:
        wanted: the range.
        gaps: start and end of each gap, in the order of the offsets. Gaps that follow each other are joined.
        is_lost: returns whether a reader at this offset in a gap has read records that were lost, or would miss some.
    """
    found = []
    for start, end in gaps:
        if start < wanted.start < end and not is_lost(wanted.start):
            found.append(Absence(start, wanted.start, OffsetState.GAP))
            start = wanted.start
        found.append(Absence(start, end, OffsetState.GAP))
    return found


def gap_message(place: TopicPartition, offset: int, start: int, end: int) -> str:
    """Return the message for a reader at an offset that a restore of the broker left without a record."""
    return (
        f"{place[0]}-{place[1]} cannot be read from offset {offset}: all records from offset {start} on are gone with the "
        f"disk of a lost broker, and new records begin at offset {end}"
    )
