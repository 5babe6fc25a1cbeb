"""Searches in the rows of one commit index, each against a look at every entry."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stablelog.batch.header import PREFIX
from stablelog.commit_order import index_rows
from stablelog.commit_order.extents import EXTENT, LONG_COUNT, BatchExtent
from stablelog.commit_order.index_format import ENTRY, NO_PRODUCER, NOTHING, Entry
from stablelog.commit_order.index_rows import IndexRows
from stablelog.commit_order.remote_index import LoadedRows

# (positions between the entry before and this one, records, producer id, offset before its start at which it began)
STEPS = some.lists(
    some.tuples(
        some.integers(0, 3), some.integers(1, 4), some.sampled_from([NO_PRODUCER, 1, 2]), some.integers(0, 30)
    ),
    max_size=12,
)


class Index(IndexRows):
    """A commit index whose rows are in memory."""

    def __init__(self, entries, extents=(), latest_sequence=-1):
        self.latest_sequence = latest_sequence
        self.entries = LoadedRows(b"".join(ENTRY.pack(*one) for one in entries), ENTRY)
        self.extents = LoadedRows(b"".join(EXTENT.pack(*one) for one in extents), EXTENT)


def index(steps, latest_sequence=-1):
    """An index of entries, one for each step. Each commit has a commit sequence of its own, from 1 on."""
    entries, start, sequence = [], 100, latest_sequence
    for number, (gap, count, producer_id, before) in enumerate(steps):
        sequence += producer_id != NO_PRODUCER
        entries.append(
            Entry(start + gap, count, 1000 + start, start - before, producer_id, sequence, 3 * number, 3, 0)
        )
        start += gap + count
    return Index(entries, latest_sequence=sequence), entries


def first(entries, condition):
    return next((place for place, one in enumerate(entries) if condition(one)), len(entries))


@given(STEPS, some.integers(95, 160))
def test_the_entry_of_a_position_a_time_or_a_commit_sequence_is_found(steps, bound):
    made, entries = index(steps)
    assert [made[place] for place in range(len(made))] == entries
    assert made.place_of(bound) == first(entries, lambda one: one.end > bound)
    assert made.place_at_time(1000 + bound) == first(entries, lambda one: one.latest_ms >= 1000 + bound)
    after = first(entries, lambda one: one.latest_sequence > bound - 100)
    assert made.offset_after(bound - 100) == (entries[after].start if after < len(entries) else None)


@given(STEPS, some.integers(65, 160), some.sampled_from([1, 2, 1024]))
def test_the_least_and_the_last_offset_at_which_a_transaction_began_are_found(steps, log_start, at_once):
    made, entries = index(steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_rows, "COLUMNS_AT_ONCE", at_once)
        for place in range(len(entries) + 1):
            firsts = [one.first_offset for one in entries[place:] if not one.is_outside]
            assert made.least_first_offset_from(place) == min(firsts, default=NOTHING)
        torn = [place for place, one in enumerate(entries) if one.is_torn(log_start)]
        if torn:
            assert made.place_of_last_before(log_start) == torn[-1]
    for place in range(len(entries) + 1):
        sequences = [one.latest_sequence for one in entries[place:] if one.is_torn(log_start)]
        assert made.torn_sequence(log_start, place) == max(sequences, default=-1)


def test_fields_of_entries_are_read_as_columns():
    made, entries = index([(0, 2, 1, 5), (1, 1, NO_PRODUCER, 0), (0, 3, 2, 9)])
    columns = made.entries_between(1, 3)
    assert columns == tuple(
        [getattr(one, name) for one in entries[1:]]
        for name in ("first_offset", "producer_id", "extent_first", "extent_count")
    )


@pytest.mark.parametrize(
    ("position", "earlier", "found"),
    [(101, None, 6), (101, 9, 9), (101, 2, 6), (100, 5, 5), (100, None, -1)],
    ids=["entry before", "earlier is greater", "earlier is less", "only earlier", "unknown"],
)
def test_the_commit_sequence_before_a_position_is_that_of_the_entry_before_or_of_earlier_indexes(
    position, earlier, found
):
    made, _ = index([(0, 1, 1, 0), (0, 1, 1, 0)], latest_sequence=5)
    assert made.sequence_before(position, earlier) == found


def test_records_outside_transactions_at_the_beginning_tell_the_commit_sequence_before_them():
    made, _ = index([(0, 1, NO_PRODUCER, 0)], latest_sequence=5)
    assert made.sequence_before(100, None) == 5


def test_an_index_without_entries_tells_the_commit_sequence_before_it():
    made, _ = index([], latest_sequence=5)
    assert made.sequence_before(100, None) == 5


def extents(segments):
    """One extent of 4 positions and 50 bytes for each segment."""
    return [
        BatchExtent(100 + 4 * number, 38, 7, segment, 1000 + 50 * number, 1050 + 50 * number)
        for number, segment in enumerate(segments)
    ]


@given(some.lists(some.sampled_from([0, 64, 2**40]), min_size=1, max_size=8), some.data())
def test_extents_are_columns_one_for_each_run_in_the_same_segment(segments, data):
    rows = extents(segments)
    made = Index([], rows)
    begin = data.draw(some.integers(0, len(rows) - 1))
    end = data.draw(some.integers(begin + 1, len(rows)))
    parts = list(made.extents_between(begin, end))
    assert all(one.segment != other.segment for one, other in pairwise(parts))
    found = [
        (*PREFIX.unpack(prefix), part.segment, first, last)
        for part in parts
        for prefix, first, last in zip(part.prefixes, part.begins, part.ends, strict=True)
    ]
    assert found == rows[begin:end]
    assert [made.extent(place) for place in range(len(rows))] == rows


def test_extents_of_a_long_transaction_get_its_start_and_its_leader_epoch():
    rows = [one._replace(base_offset=one.base_offset - 100, leader_epoch=0) for one in extents([0, 0])]
    long = Entry(5000, 8, 0, 0, 1, 1, 0, LONG_COUNT, 9)
    (part,) = Index([long], rows).extents_between(0, 2, long)
    assert [PREFIX.unpack(one) for one in part.prefixes] == [(5000, 38, 9), (5004, 38, 9)]


@pytest.mark.parametrize("is_long", [False, True])
def test_the_extent_with_a_position_is_the_last_that_begins_at_it_or_before(is_long):
    rows = extents([0, 0, 0])
    entry = Entry(100, 12, 0, 0, 1, 1, 0, 3, 0)
    if is_long:
        rows = [one._replace(base_offset=one.base_offset - 100) for one in rows]
        rows += [BatchExtent(2**40, 38, 0, 0, 0, 50)] * (LONG_COUNT - 3)
        entry = entry._replace(extent_count=LONG_COUNT)
    made = Index([entry], rows)
    assert [made.extent_with(entry, position) for position in range(100, 112)] == [0] * 4 + [1] * 4 + [2] * 4
