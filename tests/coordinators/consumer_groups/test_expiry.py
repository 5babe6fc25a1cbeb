"""When committed offsets expire, and when a group without members and offsets is forgotten."""

import pytest

from stablelog.coordinators.consumer_groups.answers import (
    OffsetCommit,
)
from stablelog.coordinators.consumer_groups.classic_group import ClassicGroup, Step
from stablelog.coordinators.consumer_groups.consumer_protocol.group import ConsumerGroup
from stablelog.coordinators.consumer_groups.coordinator import (
    TICK_RECORDS_MAX,
)
from stablelog.coordinators.consumer_groups.expiry import is_empty, offset_expiry_ms
from stablelog.coordinators.consumer_groups.records import (
    GroupValue,
    OffsetValue,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from tests.coordinators.consumer_groups.test_coordinator import (
    HOUR_MS,
    T0,
    T1,
    a_coordinator,
    fetched,
    with_a_member,
)


def test_many_offsets_expire_over_several_ticks() -> None:
    coordinator = a_coordinator(offsets_retention_ms=HOUR_MS)
    count = TICK_RECORDS_MAX + 10
    coordinator.commit_offsets("g", {("t", index): OffsetCommit(1) for index in range(count)}, now_ms=0)
    coordinator.tick(600_000)

    assert len(coordinator.tick(HOUR_MS).records) == TICK_RECORDS_MAX
    assert len(fetched(coordinator)) == 10
    assert coordinator.next_deadline_ms() == HOUR_MS
    records = coordinator.tick(HOUR_MS).records
    assert len(records) == 11
    assert records[-1] == (encode_group_key("g"), None)
    assert coordinator.next_deadline_ms() is None


def test_a_group_lives_as_long_as_its_offsets() -> None:
    coordinator = a_coordinator()
    coordinator.commit_offsets("g", {T0: OffsetCommit(1)}, now_ms=0)
    coordinator.delete_offsets("g", [T0], now_ms=HOUR_MS)
    assert coordinator.tick(2 * HOUR_MS).records == [(encode_group_key("g"), None)]
    assert coordinator.list_groups().answer == []


def test_offsets_of_a_group_of_unknown_age_expire_by_their_own() -> None:
    coordinator = a_coordinator(offsets_retention_ms=HOUR_MS)
    group = GroupValue("consumer", 3, None, None, -1, ())
    coordinator.table.replay(encode_group_key("g"), encode_group_value(group))
    for partition, commit_ms in ((T0, 0), (T1, HOUR_MS)):
        value = encode_offset_value(OffsetValue(1, -1, "", commit_ms))
        coordinator.table.replay(encode_offset_key("g", *partition), value)
    coordinator.finish_replay(HOUR_MS)
    coordinator.tick(HOUR_MS + 600_000)
    assert set(fetched(coordinator)) == {T1}


@pytest.mark.parametrize(
    ("empty_since_ms", "expires_ms"), [(-1, HOUR_MS), (0, HOUR_MS), (HOUR_MS, 2 * HOUR_MS)]
)
def test_offsets_of_an_empty_group_expire_by_its_age_also_after_a_start(
    empty_since_ms: int, expires_ms: int
) -> None:
    coordinator = a_coordinator(offsets_retention_ms=HOUR_MS)
    group = GroupValue("consumer", 3, None, None, empty_since_ms, ())
    coordinator.table.replay(encode_group_key("g"), encode_group_value(group))
    coordinator.table.replay(encode_offset_key("g", *T0), encode_offset_value(OffsetValue(1, -1, "", 0)))
    coordinator.finish_replay(0)
    ended_ms = 0
    while fetched(coordinator):
        deadline_ms = coordinator.next_deadline_ms()
        assert deadline_ms is not None
        ended_ms = deadline_ms
        coordinator.tick(ended_ms)
    assert ended_ms == expires_ms


def test_expired_offsets_leave_a_minute_after_a_start_also_if_no_life_lasts_longer() -> None:
    coordinator = a_coordinator(offsets_retention_ms=HOUR_MS)
    value = encode_offset_value(OffsetValue(1, -1, "", 0))
    coordinator.table.replay(encode_offset_key("g", *T0), value)
    coordinator.finish_replay(HOUR_MS)
    assert coordinator.next_deadline_ms() == HOUR_MS + 60_000
    assert (encode_offset_key("g", *T0), None) in coordinator.tick(HOUR_MS + 60_000).records


def test_the_first_check_after_a_start_is_not_later_than_any_other() -> None:
    coordinator = a_coordinator(offsets_check_interval_ms=5)
    value = encode_offset_value(OffsetValue(1, -1, "", 0))
    coordinator.table.replay(encode_offset_key("g", *T0), value)
    coordinator.finish_replay(0)
    assert coordinator.next_deadline_ms() == 5


def test_an_offset_may_be_kept_for_no_time() -> None:
    """Also at the time 0, which is a time like any other. The record that says so knows no leader epoch."""
    for now_ms in (0, 1):
        coordinator = a_coordinator(offsets_retention_ms=HOUR_MS)
        commits = {T0: OffsetCommit(5, leader_epoch=3), T1: OffsetCommit(6)}
        coordinator.commit_offsets("g", {T0: commits[T0]}, retention_ms=0, now_ms=now_ms)
        coordinator.commit_offsets("g", {T1: commits[T1]}, now_ms=now_ms)
        assert coordinator.fetch_offsets("g", [T0]).answer[T0][1:] == (5, -1, "")
        assert coordinator.tick(now_ms + 600_000).records == [(encode_offset_key("g", *T0), None)]
        assert fetched(coordinator) == {T1: 6}


def test_offsets_of_a_group_that_is_empty_since_the_time_0_expire_by_that_time() -> None:
    coordinator = a_coordinator(offsets_retention_ms=HOUR_MS)
    group = GroupValue("consumer", 3, None, None, 0, ())
    coordinator.table.replay(encode_group_key("g"), encode_group_value(group))
    late = encode_offset_value(OffsetValue(1, -1, "", HOUR_MS // 2))
    coordinator.table.replay(encode_offset_key("g", *T0), late)
    coordinator.finish_replay(HOUR_MS)
    coordinator.tick(HOUR_MS + 600_000)
    assert fetched(coordinator) == {}


def test_offsets_of_a_group_with_members_expire_only_if_no_member_subscribes_to_their_topic() -> None:
    coordinator = a_coordinator(offsets_retention_ms=HOUR_MS)
    member = with_a_member(coordinator)
    commits = {T0: OffsetCommit(1), ("unread", 0): OffsetCommit(2)}
    coordinator.commit_offsets("g", commits, member, now_ms=0)
    for now_ms in range(0, 2 * HOUR_MS, 5_000):
        coordinator.heartbeat("g", member.member_id, member.generation, now_ms=now_ms)
        coordinator.tick(now_ms)
    assert fetched(coordinator) == {T0: 1}


def test_an_offset_that_an_open_transaction_may_change_does_not_expire() -> None:
    coordinator = a_coordinator(offsets_retention_ms=HOUR_MS)
    coordinator.commit_offsets("g", {T0: OffsetCommit(1)}, now_ms=0)
    pending = coordinator.txn_commit_offsets("g", {T0: OffsetCommit(2)}, now_ms=0)
    coordinator.txn_offsets_appended(7, pending.records, now_ms=0)
    for now_ms in range(0, 3 * HOUR_MS, 600_000):
        assert coordinator.tick(now_ms).records == []
    coordinator.txn_ended(7, commit=False)
    assert (encode_offset_key("g", *T0), None) in coordinator.tick(4 * HOUR_MS).records


def test_a_group_is_empty_if_it_has_no_members_and_none_on_their_way() -> None:
    assert is_empty(ConsumerGroup("g"))
    group = ClassicGroup("g")
    assert is_empty(group)
    group.change_state(Step.REBALANCE, 0)
    assert not is_empty(group)


@pytest.mark.parametrize(("expire_ms", "expected_ms"), [(-1, 105), (0, 0), (1, 1)])
def test_an_offset_expires_at_its_own_time_if_it_has_one_and_otherwise_by_the_retention(
    expire_ms: int, expected_ms: int
) -> None:
    offset = OffsetValue(1, -1, "", 5, expire_ms)
    for group in (ConsumerGroup("g"), ClassicGroup("g")):
        assert offset_expiry_ms(group, T0, offset, 100) == expected_ms
