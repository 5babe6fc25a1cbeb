import itertools
import random
import time

import pytest

from stablelog.coordinators.consumer_groups import offsets as offsets_module
from stablelog.coordinators.consumer_groups.offsets import APPLIED_AT_ONCE, LOOKED_AT_ONCE, GroupOffsets
from stablelog.coordinators.consumer_groups.records import OffsetValue
from stablelog.types import TopicPartition
from tests.coordinators.transactions.test_memory import growth

T0, T1 = ("t", 0), ("t", 1)


def value(offset: int) -> OffsetValue:
    return OffsetValue(offset, -1, "", 0)


def committed(offsets: GroupOffsets, group_id: str = "g") -> dict[tuple[str, int], int]:
    return {partition: one.value.offset for partition, one in offsets.committed(group_id).items()}


def found(offsets: GroupOffsets, topic: str) -> list[tuple[str, TopicPartition]]:
    return list(itertools.chain(*offsets.slices_of_topic(topic)))


def test_a_pending_offset_counts_from_its_commit_on() -> None:
    offsets = GroupOffsets()
    offsets.add_commit("g", T0, value(1))
    offsets.add_commit("g", T0, value(5), producer_id=7)
    offsets.add_commit("g", T1, value(6), producer_id=7)
    assert committed(offsets) == {T0: 1}
    assert offsets.pending_partitions("g") == {T0, T1}

    offsets.end_transaction(7, commit=True)

    assert committed(offsets) == {T0: 5, T1: 6}
    assert offsets.pending_partitions("g") == set()
    assert not offsets.has_open_transactions("g")


def test_an_abort_leaves_no_trace() -> None:
    offsets = GroupOffsets()
    offsets.add_commit("g", T0, value(5), producer_id=7)
    offsets.end_transaction(7, commit=False)
    assert committed(offsets) == {}
    assert not offsets.has_offset("g", T0)
    assert not offsets.has_open_transactions("g")
    assert found(offsets, "t") == []


def test_the_later_record_wins_over_the_later_marker() -> None:
    """Scenario 47: given a mix of plain and transactional commits, then the later record is kept."""
    offsets = GroupOffsets()
    offsets.add_commit("g", T0, value(1), producer_id=7)
    offsets.add_commit("g", T0, value(2))
    offsets.add_commit("g", T1, value(3))
    offsets.add_commit("g", T1, value(4), producer_id=7)
    offsets.end_transaction(7, commit=True)
    assert committed(offsets) == {T0: 2, T1: 4}


def test_a_tombstone_takes_away_pending_offsets_too() -> None:
    offsets = GroupOffsets()
    offsets.add_commit("g", T0, value(1))
    offsets.add_commit("g", T0, value(5), producer_id=7)
    assert offsets.has_offset("g", T0)
    offsets.remove_offset("g", T0)
    assert not offsets.has_offset("g", T0)
    assert offsets.has_open_transactions("g")
    offsets.end_transaction(7, commit=True)
    assert committed(offsets) == {}
    assert not offsets.has_open_transactions("g")
    offsets.add_commit("g", T0, value(1))
    offsets.add_commit("g", T1, value(2))
    offsets.remove_offset("g", T0)
    assert committed(offsets) == {T1: 2}
    offsets.remove_offset("g", T1)
    offsets.remove_offset("g", T1)
    assert found(offsets, "t") == []


@pytest.mark.extended
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_group_without_offsets_takes_no_memory(is_committed: bool) -> None:
    offsets = GroupOffsets()

    def groups() -> None:
        for number in range(1000):
            group_id = f"g{number}"
            offsets.add_commit(group_id, T0, value(1))
            offsets.add_commit(group_id, T1, value(2), producer_id=number)
            offsets.end_transaction(number, commit=is_committed)
            for partition in (T0, T1):
                offsets.remove_offset(group_id, partition)

    assert growth(groups) < 20_000


def test_groups_and_producers_do_not_mix() -> None:
    offsets = GroupOffsets()
    offsets.add_commit("g", T0, value(1), producer_id=7)
    offsets.add_commit("h", T0, value(2), producer_id=7)
    offsets.add_commit("g", T1, value(3), producer_id=8)
    offsets.end_transaction(8, commit=True)
    offsets.end_transaction(9, commit=True)
    assert (committed(offsets, "g"), committed(offsets, "h")) == ({T1: 3}, {})
    offsets.end_transaction(7, commit=True)
    assert (committed(offsets, "g"), committed(offsets, "h")) == ({T0: 1, T1: 3}, {T0: 2})


def test_a_search_for_a_topic_looks_at_a_bounded_number_of_offsets_in_a_step() -> None:
    """The first groups have no offset of the topic, and one group has more than a step may look at."""
    offsets = GroupOffsets()
    for number in range(3 * LOOKED_AT_ONCE):
        offsets.add_commit(f"g{number % 7}", ("u", number), value(1))
    for number in range(2 * LOOKED_AT_ONCE + 1):
        offsets.add_commit("h", ("t", number), value(1), producer_id=7 if number % 2 else None)
    slices = list(offsets.slices_of_topic("t"))
    assert len(slices) == 6
    assert max(map(len, slices)) <= LOOKED_AT_ONCE
    assert sorted(itertools.chain(*slices)) == [("h", ("t", n)) for n in range(2 * LOOKED_AT_ONCE + 1)]


def test_what_was_committed_for_a_topic_is_found_once() -> None:
    offsets = GroupOffsets()
    offsets.add_commit("g", T0, value(1))
    offsets.add_commit("g", T0, value(2), producer_id=7)
    offsets.add_commit("h", T1, value(3), producer_id=8)
    offsets.add_commit("h", ("u", 0), value(4))
    assert sorted(found(offsets, "t")) == [("g", T0), ("h", T1)]


@pytest.mark.parametrize("is_trimmed", [False, True])
@pytest.mark.parametrize("is_changed", [False, True])
def test_a_checkpoint_keeps_the_order_of_committed_and_pending_offsets(
    is_trimmed: bool, is_changed: bool
) -> None:
    before = [(value(1), 6), (value(2), None), (value(3), 7), (value(4), 8)]
    after = [(value(5), 7)] if is_changed else []
    live = GroupOffsets()
    for one, owner in before + after:
        live.add_commit("g", T0, one, producer_id=owner)
    again = [(one, owner) for owner, one in live.commits_in_order("g", T0)]
    assert all(one.is_repeated for one, _ in again)
    assert [one.offset for one, _ in again] == ([1, 2, 4, 5] if is_changed else [1, 2, 3, 4])
    # Before the log is trimmed to a checkpoint, a crash may lose the last records of the checkpoint.
    parts = [again[:count] for count in range(len(again) + 1)]
    kept = [again + part for part in parts] if is_trimmed else parts
    for endings, some in itertools.product(itertools.permutations((6, 7, 8)), kept):
        replayed, expected = GroupOffsets(), GroupOffsets()
        for one, owner in ([] if is_trimmed else before) + after + some:
            replayed.add_commit("g", T0, one, producer_id=owner)
        for one, owner in before + after:
            expected.add_commit("g", T0, one, producer_id=owner)
        assert committed(replayed) == committed(expected) == {T0: 2}
        for producer_id in endings:
            for offsets in (replayed, expected):
                offsets.end_transaction(producer_id, commit=True)
            assert committed(replayed) == committed(expected)


def test_offsets_of_a_log_that_is_never_trimmed_come_before_those_of_a_checkpoint() -> None:
    """A log of Apache Kafka has further partitions: they are read first."""
    offsets = GroupOffsets()
    offsets.add_commit("g", T0, value(1))
    offsets.add_commit("g", T0, value(2), producer_id=6)
    offsets.begin_log()
    offsets.add_commit("g", T0, value(4), producer_id=7)
    for repeated, owner in ((value(3), None), (value(4), 7)):
        offsets.add_commit("g", T0, repeated._replace(is_repeated=True), producer_id=owner)
    assert committed(offsets) == {T0: 3}
    offsets.end_transaction(6, commit=True)
    assert committed(offsets) == {T0: 3}
    offsets.end_transaction(7, commit=True)
    assert committed(offsets) == {T0: 4}


def test_between_two_items_of_a_checkpoint_offsets_may_come_change_and_go() -> None:
    offsets = GroupOffsets()
    for partition in range(4):
        offsets.add_commit("g", ("t", partition), value(partition))
    taken = offsets.commits_to_repeat("g")
    assert next(taken) == (("t", 0), value(0))
    offsets.remove_offset("g", ("t", 1))
    offsets.add_commit("g", ("t", 2), value(20))
    offsets.add_commit("g", ("t", 4), value(4))
    assert list(taken) == [(("t", 2), value(20)), (("t", 3), value(3))]
    taken = offsets.commits_to_repeat("g")
    next(taken)
    for partition in range(5):
        offsets.remove_offset("g", ("t", partition))
    assert list(taken) == []


def seen(offsets: GroupOffsets, group_id: str) -> tuple[object, ...]:
    """All that readers see of a group."""
    partitions = [(topic, index) for topic in ("t", "u") for index in range(3)]
    known = offsets.committed(group_id)
    one_by_one = {partition: known[partition] for partition in partitions if partition in known}
    assert (len(known), bool(known)) == (len(one_by_one), bool(one_by_one))
    return (
        one_by_one,
        dict(known),
        offsets.pending_partitions(group_id),
        offsets.has_open_transactions(group_id),
        [offsets.has_offset(group_id, partition) for partition in partitions],
        dict(offsets.commits_to_repeat(group_id)),
        sorted(one for one in found(offsets, "t") if one[0] == group_id),
    )


@pytest.mark.parametrize("seed", range(20))
def test_offsets_that_are_not_settled_are_seen_like_settled_ones(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a transaction takes effect for all its offsets, and an abort for none, however few are settled."""
    choice = random.Random(seed)
    lazy, eager = GroupOffsets(), GroupOffsets()
    groups, producers = ("g", "h"), (1, 2, 3)

    def both(change: str, *arguments: object, **named: object) -> None:
        monkeypatch.setattr(offsets_module, "APPLIED_AT_ONCE", 0)
        getattr(lazy, change)(*arguments, **named)
        monkeypatch.setattr(offsets_module, "APPLIED_AT_ONCE", 1000)
        getattr(eager, change)(*arguments, **named)
        assert eager.is_all_applied

    for number in range(120):
        group, partition = choice.choice(groups), (choice.choice("tu"), choice.randrange(3))
        kind = choice.choice(["plain", "pending", "pending", "pending", "end", "remove", "settle"])
        if kind == "plain":
            both("add_commit", group, partition, value(number))
        elif kind == "pending":
            both("add_commit", group, partition, value(number), producer_id=choice.choice(producers))
        elif kind == "end":
            both("end_transaction", choice.choice(producers), commit=choice.random() < 0.7)
        elif kind == "remove":
            both("remove_offset", group, partition)
        else:
            monkeypatch.setattr(offsets_module, "APPLIED_AT_ONCE", choice.randrange(4))
            lazy.apply_ended()
        for one in groups:
            assert seen(lazy, one) == seen(eager, one)
    monkeypatch.setattr(offsets_module, "APPLIED_AT_ONCE", 1000)
    lazy.apply_ended()
    assert lazy.is_all_applied
    assert [seen(lazy, one) for one in groups] == [seen(eager, one) for one in groups]


def test_the_end_of_a_transaction_settles_a_portion_of_its_offsets() -> None:
    """However many there are, in one group or in many: the caller settles the rest later."""
    for in_groups in (False, True):
        offsets = GroupOffsets()
        names = [f"g{at}" if in_groups else "g" for at in range(5 * APPLIED_AT_ONCE)]
        for at, name in enumerate(names):
            offsets.add_commit(name, ("t", at), value(at), producer_id=7)
        offsets.end_transaction(7, commit=True)
        assert not offsets.is_all_applied
        assert {offsets.committed(name)["t", at].value.offset - at for at, name in enumerate(names[:9])} == {
            0
        }
        settles = 0
        while not offsets.is_all_applied:
            offsets.apply_ended()
            settles += 1
        assert settles >= 3
        assert offsets.committed(names[-1])["t", len(names) - 1].value.offset == len(names) - 1
        assert not offsets.has_open_transactions(names[0])


def test_the_price_of_a_portion_does_not_grow_with_the_groups_that_are_settled_already() -> None:
    """If the groups before are passed over one by one, the last portions take 8 times as long as the first ones, and
    a transaction with offsets of 300,000 groups stops the broker for 0.2 s again and again.
    """
    offsets, one = GroupOffsets(), value(1)
    for number in range(40_000):
        offsets.add_commit(f"g{number}", T0, one, producer_id=7)
    offsets.end_transaction(7, commit=False)
    prices_s = []
    while not offsets.is_all_applied:
        before_s = time.process_time()
        offsets.apply_ended()
        prices_s.append(time.process_time() - before_s)
    count = len(prices_s) // 4
    assert min(prices_s[-count:-1]) < 4 * min(prices_s[:count])


def test_the_price_of_a_commit_does_not_grow_with_the_open_transactions_of_its_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While offsets of another transaction are not settled. If it looks at each open one, it takes 50 times as long."""
    monkeypatch.setattr(offsets_module, "APPLIED_AT_ONCE", 0)

    def price_s(open_count: int) -> float:
        offsets = GroupOffsets()
        offsets.add_commit("h", T0, value(1), producer_id=7)
        offsets.end_transaction(7, commit=True)
        for number in range(open_count):
            offsets.add_commit("g", T0, value(2), producer_id=100 + number)
        assert not offsets.is_all_applied
        prices_s = []
        for number in range(9):
            before_s = time.process_time()
            for partition in range(50):
                offsets.add_commit("g", ("t", partition), value(number))
            prices_s.append(time.process_time() - before_s)
        return min(prices_s)

    assert price_s(3_000) < 10 * price_s(1)


def test_a_plain_commit_replaces_an_offset_that_is_not_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is repeated by a checkpoint, and has a place before a pending commit."""
    monkeypatch.setattr(offsets_module, "APPLIED_AT_ONCE", 0)
    offsets = GroupOffsets()
    offsets.add_commit("g", T0, value(5), producer_id=7)
    offsets.add_commit("g", T0, value(6), producer_id=8)
    offsets.end_transaction(8, commit=True)
    assert not offsets.is_all_applied
    offsets.add_commit("g", T0, value(9)._replace(is_repeated=True))
    assert committed(offsets) == {T0: 9}
