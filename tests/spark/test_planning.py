"""Tasks are of about one size, hold everything once, and keep to what was asked of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.spark.planning import (
    TARGET_SIZE_MAX,
    TARGET_SIZE_MIN,
    FetchSpan,
    TaskLimits,
    plan_tasks,
    shares,
)

MB = 1 << 20


def span(partition, count, size, start=0):
    return FetchSpan("x", partition, start, start + count, size)


spans = st.lists(
    st.builds(span, st.integers(0, 9), st.integers(0, 1000), st.integers(0, 400 * MB), st.integers(0, 50)),
    max_size=20,
)
limits = st.builds(
    TaskLimits,
    st.none() | st.integers(1, 200 * MB),
    st.integers(1, 8),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 500),
)


def test_small_partitions_share_a_task():
    planned = plan_tasks([span(n, 10, 1000) for n in range(200)], TaskLimits(core_count=2))
    assert [len(pieces) for pieces in planned] == [200]


def test_a_large_partition_is_read_by_tasks_of_128_mb():
    planned = plan_tasks([span(0, 1_000_000, 1024 * MB)], TaskLimits(core_count=2))
    assert [piece.size for pieces in planned for piece in pieces] == [128 * MB] * 8


def test_cores_are_kept_busy_where_it_pays():
    assert len(plan_tasks([span(0, 1000, 100 * MB)], TaskLimits(core_count=4))) == 4
    assert len(plan_tasks([span(0, 1000, TARGET_SIZE_MIN)], TaskLimits(core_count=4))) == 1


@pytest.mark.extended
def test_as_many_tasks_as_were_asked_for():
    assert len(plan_tasks([span(0, 100, 1000)], TaskLimits(count_min=10))) == 10
    assert len(plan_tasks([span(0, 3, 1000)], TaskLimits(count_min=10))) == 3
    many = plan_tasks([span(n, 8, 1000 + n) for n in range(3000)], TaskLimits(count_min=20_000))
    assert len(many) == 20_000
    assert [piece.partition for pieces in many for piece in pieces] == sorted(
        piece.partition for pieces in many for piece in pieces
    )


def test_no_task_has_more_offsets_than_were_asked_for():
    planned = plan_tasks([span(0, 1000, MB), span(1, 50, MB), span(2, 60, MB)], TaskLimits(offsets_max=100))
    assert max(sum(piece.end - piece.start for piece in pieces) for pieces in planned) <= 100


def test_nothing_to_read_is_no_task():
    assert plan_tasks([span(0, 0, 0)], TaskLimits(count_min=3)) == []


@pytest.mark.extended
@given(spans, limits)
def test_every_offset_is_read_once_and_in_order(wanted, asked):
    planned = plan_tasks(wanted, asked)
    read = [
        (piece.partition, offset)
        for task in planned
        for piece in task
        for offset in range(piece.start, piece.end)
    ]
    assert sorted(read) == sorted(
        (one.partition, offset) for one in wanted for offset in range(one.start, one.end)
    )
    assert all(pieces for pieces in planned)


@pytest.mark.extended
@given(spans, limits)
def test_no_task_is_much_larger_than_the_target_unless_one_offset_is(wanted, asked):
    target = asked.target_size or TARGET_SIZE_MAX
    for pieces in plan_tasks(wanted, asked):
        largest = max(-(-piece.size // (piece.end - piece.start)) for piece in pieces)
        assert sum(piece.size for piece in pieces) <= target + target // 8 + largest


@given(st.dictionaries(st.integers(), st.integers(0, 10_000), max_size=30), st.integers(1, 20_000))
def test_shares_keep_to_the_limit_and_use_it(amounts, limit):
    found = shares(amounts, limit)
    assert sum(found.values()) <= limit
    assert all(0 <= found[key] <= amounts[key] for key in amounts)
    if sum(amounts.values()) >= limit:
        assert sum(found.values()) >= limit - len(amounts)
        assert sum(found.values()) > 0
    else:
        assert found == amounts


@given(st.dictionaries(st.integers(), st.integers(1, 10_000), min_size=1, max_size=30))
def test_no_amount_starves(amounts):
    assert all(shares(amounts, len(amounts)).values())
