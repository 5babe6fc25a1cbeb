"""The ends of the last reads: a reader that reads on is recognised, and more is loaded ahead of it each time."""

import pytest

from stablelog.tier.read_ends import AHEAD, ENDS_MAX, ReadEnd, ReadEnds
from tests.tier.test_manifest import segment

ONE, OTHER = segment(0), segment(1)


@pytest.fixture
def ends():
    return ReadEnds()


def test_a_read_is_remembered_by_its_end(ends):
    ends.add_read(3, 8, ONE, 100, 250)
    assert ends.end_at(8) == ReadEnd(ONE.segment_id, 0, 100, 250, 0)
    assert ends.end_at(7) is None


def test_of_another_segment_no_read_has_ended_there(ends):
    ends.add_read(3, 8, ONE, 100, 250)
    assert ends.end_at(8, ONE) == ends.end_at(8)
    assert ends.end_at(8, OTHER) is None


def test_reads_without_a_gap_make_a_streak(ends):
    for number in range(4):
        ends.add_read(10 * number, 10 * number + 10, ONE, 0, 100)
        assert ends.end_at(10 * number + 10).streak == number
    ends.add_read(35, 45, ONE, 0, 100)
    assert ends.end_at(45).streak == 0, "no read has ended where this one began"


@pytest.mark.parametrize(("streak", "count"), [(0, 1), (1, 2), (2, 4), (3, 4), (100, 4)])
def test_the_longer_the_streak_the_more_chunks_are_loaded_ahead(streak, count):
    assert ReadEnd(ONE.segment_id, 0, 0, 0, streak).ahead_count == 1 + count
    assert count in AHEAD


def test_the_read_that_ended_longest_ago_is_forgotten(ends):
    for number in range(ENDS_MAX):
        ends.add_read(1000, number, ONE, 0, number)
    ends.add_read(1000, 0, ONE, 0, 77)  # the first is used again, so the second is the oldest
    ends.add_read(1000, ENDS_MAX, ONE, 0, 0)
    assert ends.end_at(1) is None
    assert [ends.end_at(number) is not None for number in (0, 2, ENDS_MAX)] == [True] * 3
    assert ends.end_at(0).position == 77
