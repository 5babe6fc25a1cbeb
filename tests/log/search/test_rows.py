"""Rows of stored segments: the segment of an offset, and the segments whose transaction indexes concern a range."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stablelog.log.search.rows import SegmentRows


class Row(NamedTuple):
    base_offset: int
    end_offset: int
    stable_offset: int | None = None
    least_aborted_offset: int | None = None


def rows_of(bases, end):
    return [Row(base, after) for base, after in zip(bases, [*bases[1:], end], strict=True)]


ROWS = rows_of([10, 20, 35], 40)


@pytest.mark.parametrize(
    ("offset", "of", "behind"),
    [
        (0, 0, 0),
        (10, 0, 0),
        (19, 0, 0),
        (20, 1, 1),
        (34, 1, 1),
        (35, 2, 2),
        (39, 2, 2),
        (40, 2, 3),
        (99, 2, 3),
    ],
)
def test_the_segment_of_an_offset_and_the_first_that_ends_after_it_are_found(offset, of, behind):
    rows = SegmentRows(ROWS)
    assert rows.place_of(offset) == of
    assert rows.place_behind(offset) == behind
    assert list(rows.ending_behind(offset)) == ROWS[behind:]


def test_of_no_segments_none_is_found():
    rows = SegmentRows([])
    assert (len(rows), rows.place_of(5), rows.place_behind(5)) == (0, 0, 0)
    assert list(rows.ending_behind(5)) == []
    assert rows.with_aborts(0, 10) == ([], False)


def test_a_gap_that_compaction_has_left_belongs_to_the_segment_before_it():
    rows = SegmentRows([Row(0, 5), Row(20, 30)])
    assert rows.place_of(12) == 0
    assert rows.place_behind(12) == 1


# (offsets in the segment, how far its oldest open transaction reaches back, how far its aborts do; None for no abort)
STEPS = some.lists(
    some.tuples(some.integers(1, 10), some.integers(0, 25), some.one_of(some.none(), some.integers(0, 25))),
    max_size=15,
)


def log_of(steps):
    """Rows of a log. The stable offset never decreases, and no abort began before the stable offset of the segment before."""
    rows, base, stable = [], 0, 0
    for count, open_back, aborted_back in steps:
        end = base + count
        least = None if aborted_back is None else max(end - 1 - aborted_back, stable)
        stable = max(stable, end - open_back)
        rows.append(Row(base, end, stable, least))
        base = end
    return rows


def needed(rows, start, end):
    """By a look at each row: the segments that end after `start`, up to the first whose stable offset reaches `end`."""
    found = []
    for row in rows:
        if row.end_offset <= start:
            continue
        if row.least_aborted_offset is not None and row.least_aborted_offset < end:
            found.append(row)
        if row.stable_offset >= end:
            return found, True
    return found, False


@given(STEPS, some.integers(0, 80), some.integers(1, 40), some.booleans())
def test_the_segments_whose_aborts_concern_a_range_are_those_of_a_look_at_each(steps, start, size, grows):
    rows = log_of(steps)
    end = min(start + size, rows[-1].end_offset if rows else 0)
    if not rows or start >= end:
        return
    found, is_complete = SegmentRows(rows, grows=grows).with_aborts(start, end)
    wanted, is_known = needed(rows, start, end)
    assert found == wanted
    assert is_complete == (
        is_known
        and not (grows and rows[-1].stable_offset >= end > max([0, *(r.stable_offset for r in rows[:-1])]))
    )


def test_an_unknown_stable_offset_ends_no_search():
    rows = [Row(0, 10, 10, None), Row(10, 20, None, 12), Row(20, 30, None, 12)]
    assert SegmentRows(rows).with_aborts(0, 10) == ([], True)
    assert SegmentRows(rows).with_aborts(0, 15) == (rows[1:], False)


def test_the_growing_segment_is_looked_at_in_each_search():
    growing = Row(10, 20, None, None)
    rows = SegmentRows([Row(0, 10, 5, None), growing], grows=True)
    assert rows.with_aborts(6, 20) == ([], False)
    rows[1]  # a list of rows is read, and the last one again each time
    later = SegmentRows([Row(0, 10, 5, None), growing._replace(least_aborted_offset=7)], grows=True)
    assert later.with_aborts(6, 20) == ([later[1]], False)


class GrowingRows(SegmentRows):
    def add(self, row):
        self._row.append(row)
        self.bases.append(row.base_offset)


def test_rows_are_numbered_once_and_those_that_follow_are_added():
    rows = GrowingRows([Row(0, 10, 10, 3), Row(10, 20, 20, None)])
    assert rows.with_aborts(0, 100) == ([rows[0]], False)
    rows.add(Row(20, 30, 30, 25))
    for _ in range(2):
        assert rows.with_aborts(0, 100) == ([rows[0], rows[2]], False)
        assert rows.with_aborts(10, 100) == ([rows[2]], False)
        assert rows.with_aborts(10, 30) == ([rows[2]], True)
