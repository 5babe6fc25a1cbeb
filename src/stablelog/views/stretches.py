"""Which batches does a reader get next in commit order, and where does each of them stand?

The index has an entry for each transaction and a row for nearly each batch. A reader of small transactions passes
thousands of them in one answer, so that many are looked up together, whatever transactions they are of, and become
columns: what is done for each batch is then a turn of a list comprehension, and no more.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from stablelog.views.commit_index import NO_PRODUCER, CommitIndex, Entry

FIRST_COUNT = 16  # extents that are looked up together at first: a fetch may want but a few
COUNT_MAX = 512  # and at most


class Stretch(NamedTuple):
    """Extents in one segment's log, as they follow each other in the view. All columns have the same length.

    Attributes:
        segment: its base offset.
        positions: of the first batch of each, in the log.
        sizes: of each, with `SHARED`.
        base_offsets: of the first batch of each, in the view.
        leader_epochs: of the markers.
        producer_ids: whose batches they are.
    """

    segment: int
    positions: list[int]
    sizes: list[int]
    base_offsets: list[int]
    leader_epochs: list[int]
    producer_ids: list[int]

    def add(self, position: int, size: int, base_offset: int, leader_epoch: int, producer_id: int) -> None:
        """One more."""
        self.positions.append(position)
        self.sizes.append(size)
        self.base_offsets.append(base_offset)
        self.leader_epochs.append(leader_epoch)
        self.producer_ids.append(producer_id)

    def part(self, first: int, end: int) -> "Stretch":
        """Those from one place up to another."""
        return Stretch(self.segment, *[column[first:end] for column in self[1:]])


class _Span(NamedTuple):
    """Extents of one transaction, [first, end) in the index."""

    first: int
    end: int
    start: int
    leader_epoch: int
    producer_id: int


def stretches(index: CommitIndex, start: int, log_start: int) -> Iterator[Stretch | Entry]:
    """What the view shows from a position on, as far as an index goes: an entry is a run outside transactions.

    Args:
        index: of one segment.
        start: a position. The first extent is the one in which it stands.
        log_start: a transaction that began before this offset is torn, and passed over.
    """
    spans: list[_Span] = []
    room = count_max = FIRST_COUNT
    for entry in index.entries_from(index.place_of(start)):
        view_start, _, _, first_offset, producer_id, _, first, extent_count, leader_epoch = entry
        if producer_id == NO_PRODUCER or first_offset < log_start:
            # The spans of a stretch lie side by side in the index, and these extents are none of theirs.
            yield from _columns(index, spans)
            spans, room = [], count_max
            if producer_id == NO_PRODUCER:
                yield Entry(*entry)
            continue
        end = first + extent_count
        if view_start < start:
            first = index.extent_with(Entry(*entry), start - view_start)
        while first < end:
            upto = min(end, first + room)
            spans.append(_Span(first, upto, view_start, leader_epoch, producer_id))
            room -= upto - first
            first = upto
            if not room:
                yield from _columns(index, spans)
                spans, room = [], min(2 * count_max, COUNT_MAX)
                count_max = room
    yield from _columns(index, spans)


def _columns(index: CommitIndex, spans: list[_Span]) -> Iterator[Stretch]:
    """The extents of spans that lie side by side, parted by their segments."""
    if not spans:
        return
    at = spans[0].first
    segments, positions, sizes, before_counts = index.extents_between(at, spans[-1].end)
    base_offsets: list[int] = []
    leader_epochs: list[int] = []
    producer_ids: list[int] = []
    for first, end, view_start, leader_epoch, producer_id in spans:
        base_offsets += [view_start + count for count in before_counts[first - at : end - at]]
        leader_epochs += [leader_epoch] * (end - first)
        producer_ids += [producer_id] * (end - first)
    stretch = Stretch(segments[0], positions, sizes, base_offsets, leader_epochs, producer_ids)
    if segments.count(segments[0]) == len(segments):
        yield stretch
        return
    begin = 0
    for segment, same in itertools.groupby(segments):
        end = begin + len(list(same))
        yield stretch.part(begin, end)._replace(segment=segment)
        begin = end
