"""Which batches does a reader get next in commit order, and where does each of them stand?

The index has an entry for each transaction and a row for nearly each batch. A reader of small transactions passes
thousands of them in one answer, so that many are looked up together, whatever transactions they are of, and become
columns: what is done for each batch is then a turn of a list comprehension, and no more.
"""

import itertools
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple

from stablelog.views.commit_index import NO_PRODUCER, CommitIndex, Entry, ExtentColumns
from stablelog.views.extents import LONG_COUNT

ENTRIES_AT_ONCE = 64  # looked up together
FIRST_AT_ONCE = 64  # extents that are looked up together at first: a fetch may want but a few
LEAST_AT_ONCE = 16  # and then
MOST_AT_ONCE = 512


class Stretch(NamedTuple):
    """Extents in one segment's log, as they follow each other in the view. All columns have the same length.

    Attributes:
        segment: its base offset.
        prefixes: what stands before the first batch of each, for a reader.
        lengths: of each, as in the prefix: `SEVERAL` where it may hold more than one batch.
        begins: where each begins in the log.
        ends: and ends.
    """

    segment: int
    prefixes: Sequence[bytes]
    lengths: list[int]
    begins: list[int]
    ends: list[int]

    def part(self, first: int, end: int) -> "Stretch":
        """Those from one place up to another."""
        return Stretch(
            self.segment,
            self.prefixes[first:end],
            self.lengths[first:end],
            self.begins[first:end],
            self.ends[first:end],
        )


class _Kind(Enum):
    SIDE_BY_SIDE = auto()
    ALONE = auto()  # a long transaction, or a run outside transactions


class _Span(NamedTuple):
    """Transactions side by side, whose extents are [first, end) in the index."""

    first: int
    end: int


def stretches(index: CommitIndex, start: int, log_start: int, size_max: int) -> Iterator[Stretch | Entry]:
    """What the view shows from a position on, as far as an index goes: an entry is a run outside transactions.

    Args:
        index: of one segment.
        start: a position. The first extent is the one in which it stands.
        log_start: a transaction that began before this offset is torn, and passed over.
        size_max: bytes that are wanted. There may be more, but as few are looked up for nothing as can be told.
    """
    place, count, size_left = index.place_of(start), FIRST_AT_ONCE, size_max
    if place == len(index):
        return
    begin = index.extent_with(index[place], start)
    for span in _spans(index, place, log_start):
        long = None
        if isinstance(span, Entry):
            if span.producer_id == NO_PRODUCER:
                yield span
                continue
            long, span = span, _Span(span.extent_first, span.extent_first + span.extent_count)
        first = max(span.first, begin)
        while first < span.end:
            end = min(first + count, span.end)
            columns = index.extents_between(first, end, long)
            yield from _parted(columns)
            # The next are taken to be as large as these.
            size = sum(columns.ends) - sum(columns.begins)
            size_left -= size
            count = min(max(size_left * (end - first) // size + 1, LEAST_AT_ONCE), MOST_AT_ONCE)
            first = end


def _spans(index: CommitIndex, place: int, log_start: int) -> Iterator[_Span | Entry]:
    """What is shown of an index from a place on."""
    while place < len(index):
        place_end = min(place + ENTRIES_AT_ONCE, len(index))
        first_offsets, producer_ids, firsts, counts = index.entries_between(place, place_end)
        kinds = [
            _kind_of(producer_id, first_offset < log_start, count)
            for first_offset, producer_id, count in zip(first_offsets, producer_ids, counts, strict=True)
        ]
        begin = 0
        for kind, same in itertools.groupby(kinds):
            end = begin + len(list(same))
            if kind is _Kind.SIDE_BY_SIDE:
                yield _Span(firsts[begin], firsts[end - 1] + counts[end - 1])
            elif kind is _Kind.ALONE:
                yield from (index[place + at] for at in range(begin, end))
            begin = end
        place = place_end


def _kind_of(producer_id: int, has_lost_first: bool, extent_count: int) -> _Kind | None:
    """How an entry is shown. None if it is not: the transaction is torn."""
    if producer_id == NO_PRODUCER:
        return _Kind.ALONE
    if has_lost_first:
        return None
    return _Kind.SIDE_BY_SIDE if extent_count < LONG_COUNT else _Kind.ALONE


def _parted(columns: ExtentColumns) -> Iterator[Stretch]:
    """Extents, parted by their segments."""
    segments, *_ = columns
    whole = Stretch(segments[0], columns.prefixes, columns.lengths, columns.begins, columns.ends)
    if segments == segments[:1] * len(segments):
        yield whole
        return
    begin = 0
    for segment, same in itertools.groupby(segments):
        end = begin + len(list(same))
        yield whole.part(begin, end)._replace(segment=segment)
        begin = end
