"""Producer ids: each once, whatever crashes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.coordinators.transactions.producer_ids import (
    GIVEN_ID_MAX,
    PRODUCER_ID_MAX,
    ProducerIds,
    ProducerIdSpace,
)


def take(ids: ProducerIds) -> int:
    if ids.needs_block:
        ids.reserve_block()
    return ids.take_id()


def test_ids_are_handed_out_from_blocks() -> None:
    ids = ProducerIds(block_size=3)
    assert ids.needs_block
    assert ids.reserve_block() == 3
    assert [ids.take_id(), ids.take_id(), ids.take_id()] == [0, 1, 2]
    assert ids.needs_block
    assert ids.reserve_block() == 6


def test_in_the_beginning_no_id_is_reserved_and_none_was_met() -> None:
    ids = ProducerIds()
    assert (ids.reserved_end, ids.space.reserved_end, ids.space.used_end, ids.next_id) == (0, 0, 0, 0)


def test_a_write_is_needed_once_in_a_thousand_times() -> None:
    ids = ProducerIds()
    needed = []
    for number in range(2001):
        needed += [number] if ids.needs_block else []
        assert take(ids) == number
    assert needed == [0, 1000, 2000]
    assert ids.reserved_end == ids.space.reserved_end == 3000


def test_after_a_crash_the_rest_of_a_block_is_skipped() -> None:
    ids = ProducerIds(block_size=3)
    ids.replay(3)
    ids.replay(6)
    ids.replay(3)
    assert ids.needs_block
    assert take(ids) == 6


def test_an_id_that_someone_has_is_skipped_with_those_below() -> None:
    ids = ProducerIds(block_size=3)
    ids.space.skip_past(10)
    assert take(ids) == 11
    ids.space.skip_past(5)
    assert take(ids) == 12


def test_an_id_that_someone_made_up_does_not_use_up_all_others() -> None:
    ids = ProducerIds(block_size=3)
    ids.space.skip_past(7)
    ids.space.skip_past(PRODUCER_ID_MAX)
    assert take(ids) == 8
    ids.space.skip_past(GIVEN_ID_MAX)
    assert [take(ids) for _ in range(4)] == [GIVEN_ID_MAX + 1 + i for i in range(4)]


@given(
    st.lists(st.tuples(st.sampled_from(["take", "crash", "lose", "meet"]), st.integers(0, 40)), max_size=60)
)
def test_no_id_is_told_twice(steps: list[tuple[str, int]]) -> None:
    ids = ProducerIds(block_size=4)
    durable: list[int] = []
    told: set[int] = set()
    for what, number in steps:
        if what in ("take", "lose"):
            records = [ids.reserve_block()] if ids.needs_block else []
            taken = ids.take_id()
            if (
                what == "lose" and records
            ):  # the crash comes before the reservation is durable: nobody was told
                what = "crash"
            else:
                durable += records
                assert taken not in told
                told.add(taken)
        if what == "crash":
            ids = ProducerIds(block_size=4)
            for end in durable:
                ids.replay(end)
        if what == "meet":
            ids.space.skip_past(number)
            told |= set(range(number + 1))
            durable.append(number + 1)


@pytest.mark.extended
@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "take", "lose", "meet"]), st.integers(0, 2), st.integers(0, 60)),
        max_size=60,
    )
)
def test_no_id_is_told_twice_by_groups_that_share_them(steps: list[tuple[str, int, int]]) -> None:
    """Each writes its blocks into a log of its own, and a crash takes from one what it leaves another."""
    space = ProducerIdSpace()
    groups = [ProducerIds(4, space) for _ in range(3)]
    durable: list[list[int]] = [[], [], []]
    pending: list[list[int]] = [[], [], []]
    told: set[int] = set()
    for what, which, number in steps:
        if what == "take":
            ids = groups[which]
            if ids.needs_block:
                pending[which].append(ids.reserve_block())
            taken = ids.take_id()
            if number % 3:  # told, and so durable; or the client has gone before
                durable[which] += pending[which]
                pending[which].clear()
                assert taken not in told
                told.add(taken)
        elif what == "lose":
            space = ProducerIdSpace()
            groups = [ProducerIds(4, space) for _ in range(3)]
            pending = [[], [], []]
            for ids, ends in zip(groups, durable, strict=True):
                for end in ends:
                    ids.replay(end)
        else:
            groups[which].space.skip_past(number)
            told |= set(range(number + 1))
            durable[which].append(number + 1)


def test_an_id_that_nobody_can_have_been_given_is_passed_over() -> None:
    assert (GIVEN_ID_MAX, PRODUCER_ID_MAX) == (2**62 - 1, 2**63 - 1)
    ids = ProducerIds(block_size=3)
    for shown in (GIVEN_ID_MAX + 1, PRODUCER_ID_MAX):
        ids.space.skip_past(shown)
        assert ids.next_id == 0
    ids.space.skip_past(GIVEN_ID_MAX)
    assert ids.next_id == GIVEN_ID_MAX + 1
    assert take(ids) == GIVEN_ID_MAX + 1
