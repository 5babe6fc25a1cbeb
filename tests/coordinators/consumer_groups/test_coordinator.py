import struct
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import (
    CommittingMember,
    FetchedOffset,
    GroupConfig,
    GroupDecision,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    OffsetCommit,
    SyncAnswer,
    SyncRequest,
)
from stablelog.coordinators.consumer_groups.coordinator import (
    TICK_ALARMS_MAX,
    TICK_RECORDS_MAX,
    GroupCoordinator,
)
from stablelog.coordinators.consumer_groups.joining import PROTOCOLS_SIZE_MAX, STRING_SIZE_MAX
from stablelog.coordinators.consumer_groups.records import (
    GroupValue,
    MemberValue,
    OffsetValue,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from stablelog.errors import DamageError

T0, T1 = ("t", 0), ("t", 1)
HOUR_MS = 3_600_000
SUBSCRIPTION = struct.pack(">hih1si", 0, 1, 1, b"t", -1)


def a_coordinator(**settings: int) -> GroupCoordinator:
    return GroupCoordinator(GroupConfig(**{"initial_rebalance_delay_ms": 0, **settings}))


def a_join(**fields: Any) -> JoinRequest:
    return JoinRequest(
        **{
            "group_id": "g",
            "member_id": "",
            "fresh_id": "1",
            "protocol_type": "consumer",
            "protocols": (("range", SUBSCRIPTION),),
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "client_id": "A",
            "knows_member_id_required": False,
            **fields,
        }
    )


def answered(decision: GroupDecision[Any]) -> Any:
    ((_, answer),) = decision.answers
    return answer


def with_a_member(coordinator: GroupCoordinator, now_ms: int = 0) -> CommittingMember:
    """Let a member join and be stable."""
    joined = answered(coordinator.join(a_join(), "join", now_ms=now_ms))
    sync = SyncRequest(
        group_id="g",
        member_id=joined.member_id,
        generation=joined.generation,
        assignments={joined.member_id: b"work"},
    )
    assert answered(coordinator.sync(sync, "sync", now_ms=now_ms)).assignment == b"work"
    return CommittingMember(joined.member_id, joined.generation)


def fetched(
    coordinator: GroupCoordinator, group_id: str = "g", **options: bool
) -> dict[tuple[str, int], Any]:
    answer = coordinator.fetch_offsets(group_id, None, **options).answer
    return {p: one.code if one.code is not ErrorCode.none else one.offset for p, one in answer.items()}


def test_an_older_member_is_fenced_and_offsets_are_unstable_until_the_marker() -> None:
    """Scenario 47: given an old group member, TxnOffsetCommit v3 is fenced; a stable OffsetFetch returns 88 until the
    marker; of a mix of plain and transactional commits the later one is kept.
    """
    coordinator = a_coordinator()
    old = with_a_member(coordinator)
    coordinator.tick(20_000)  # its session is over
    new = with_a_member(coordinator, 20_000)

    def commit_in_transaction(membership: CommittingMember, offset: int) -> ErrorCode:
        decision = coordinator.txn_commit_offsets("g", {T0: OffsetCommit(offset)}, membership, now_ms=20_000)
        coordinator.txn_offsets_appended(7, decision.records, now_ms=20_000)
        return decision.answer[T0]

    assert commit_in_transaction(old, 1) is ErrorCode.illegal_generation
    assert commit_in_transaction(old._replace(member_id="gone"), 1) is ErrorCode.unknown_member_id
    assert commit_in_transaction(old._replace(group_instance_id="i"), 1) is ErrorCode.unknown_member_id
    assert commit_in_transaction(new, 2) is ErrorCode.none
    assert commit_in_transaction(CommittingMember(), 3) is ErrorCode.none
    assert fetched(coordinator) == {}
    assert ErrorCode.unstable_offset_commit.value == 88
    assert fetched(coordinator, require_stable=True) == {T0: ErrorCode.unstable_offset_commit}

    coordinator.commit_offsets("g", {T0: OffsetCommit(4)}, new, now_ms=20_000)
    coordinator.txn_ended(7, commit=True)
    assert fetched(coordinator, require_stable=True) == {T0: 4}


def test_a_transactional_commit_changes_nothing_before_its_batch_is_in_the_log() -> None:
    coordinator = a_coordinator()
    decision = coordinator.txn_commit_offsets("g", {T0: OffsetCommit(1)}, now_ms=0)
    assert decision.answer == {T0: ErrorCode.none}
    assert coordinator.list_groups().answer == []
    assert coordinator.next_deadline_ms() is None

    coordinator.txn_offsets_appended(7, decision.records, now_ms=0)
    assert fetched(coordinator, require_stable=True) == {T0: ErrorCode.unstable_offset_commit}


def test_a_group_id_must_be_there_and_fit_into_a_record() -> None:
    coordinator = a_coordinator()
    long = "g" * 40_000
    for group_id in ("", long):
        refused = JoinAnswer(ErrorCode.invalid_group_id)
        assert answered(coordinator.join(a_join(group_id=group_id), "token", now_ms=0)) == refused
        sync = SyncRequest(group_id=group_id, member_id="m", generation=1)
        assert answered(coordinator.sync(sync, "token", now_ms=0)) == SyncAnswer(ErrorCode.invalid_group_id)
        assert coordinator.heartbeat(group_id, "m", 1, now_ms=0).answer is ErrorCode.invalid_group_id
        assert coordinator.leave(group_id, [], now_ms=0).answer.code is ErrorCode.invalid_group_id
    codes = coordinator.commit_offsets(long, {T0: OffsetCommit(1)}, now_ms=0).answer
    assert codes == {T0: ErrorCode.invalid_group_id}
    assert STRING_SIZE_MAX == 32_000
    longest = "g" * STRING_SIZE_MAX
    for group_id, code in ((longest, ErrorCode.none), (f"{longest}g", ErrorCode.invalid_group_id)):
        assert coordinator.commit_offsets(group_id, {T0: OffsetCommit(1)}, now_ms=0).answer == {T0: code}
        joined = answered(coordinator.join(a_join(group_id=group_id), "token", now_ms=0))
        assert joined.code is code
    # As in Kafka, offsets of the group without a name can be kept.
    assert coordinator.commit_offsets("", {T0: OffsetCommit(1)}, now_ms=0).answer == {T0: ErrorCode.none}
    assert fetched(coordinator, "") == {T0: 1}


@pytest.mark.parametrize("field", ["client_id", "group_instance_id", "protocol_type"])
def test_a_name_that_does_not_fit_into_a_record_is_refused(field: str) -> None:
    coordinator = a_coordinator()
    longest = "n" * STRING_SIZE_MAX
    answer = answered(coordinator.join(a_join(**{field: f"{longest}n"}), "token", now_ms=0))
    assert answer.code is ErrorCode.invalid_request
    assert coordinator.list_groups().answer == []
    assert answered(coordinator.join(a_join(**{field: longest}), "token", now_ms=0)).code is ErrorCode.none


def test_a_refused_first_member_leaves_no_group_behind() -> None:
    coordinator = a_coordinator()
    answer = answered(coordinator.join(a_join(protocols=()), "token", now_ms=0))
    assert answer.code is ErrorCode.inconsistent_group_protocol
    assert coordinator.list_groups().answer == []
    assert coordinator.next_deadline_ms() is None


def test_people_see_the_subscriptions_of_a_stable_group_only() -> None:
    coordinator = a_coordinator()
    membership = with_a_member(coordinator)
    (described,) = coordinator.describe(["g"]).answer
    assert described.members[0].metadata == SUBSCRIPTION
    assert described.protocol_name == "range"

    coordinator.join(a_join(member_id=membership.member_id, fresh_id="2"), "join", now_ms=0)
    (described,) = coordinator.describe(["g"]).answer
    assert described.state == "CompletingRebalance"
    assert described.members[0].metadata == b""
    assert described.protocol_name == ""


def test_an_offset_keeps_its_epoch_and_metadata() -> None:
    coordinator = a_coordinator()
    coordinator.commit_offsets("g", {T0: OffsetCommit(5, 3, "here"), T1: OffsetCommit(6)}, now_ms=0)
    offsets = coordinator.fetch_offsets("g", [T0, T1]).answer
    assert offsets[T0][1:] == (5, 3, "here")
    assert offsets[T1][1:] == (6, -1, "")


def test_a_group_of_static_members_that_are_away_is_looked_at_again_in_a_second() -> None:
    """They may come back within their sessions, and a rebalance timeout of 0 must not keep the broker busy."""
    for rebalance_timeout_ms, again_ms in ((0, 1000), (999, 1000), (1001, 1001)):
        coordinator = a_coordinator()
        times = {"rebalance_timeout_ms": rebalance_timeout_ms}
        away = answered(coordinator.join(a_join(group_instance_id="i", **times), "a", now_ms=0))
        sync = SyncRequest(
            group_id="g", member_id=away.member_id, generation=1, group_instance_id="i", assignments={}
        )
        coordinator.sync(sync, "s", now_ms=0)
        coordinator.join(a_join(fresh_id="2", **times), "b", now_ms=0)
        assert coordinator.leave("g", [LeavingMember("A-2")], now_ms=0).answer.code is ErrorCode.none
        assert coordinator.next_deadline_ms() == rebalance_timeout_ms
        assert coordinator.tick(rebalance_timeout_ms) == GroupDecision(None)
        assert coordinator.next_deadline_ms() == rebalance_timeout_ms + again_ms


@pytest.mark.parametrize(("recorded_ms", "waits_ms"), [(-1, 10_000), (0, 0), (1, 1), (12_000, 12_000)])
def test_a_member_of_an_old_record_has_its_session_timeout_for_joining(
    recorded_ms: int, waits_ms: int
) -> None:
    """Records of version 0 do not say how long a member takes to join again."""
    coordinator = a_coordinator()
    member = MemberValue("A-1", None, "A", "/h", recorded_ms, 10_000, SUBSCRIPTION, b"work")
    value = GroupValue("consumer", 3, "range", "A-1", 0, (member,))
    coordinator.table.replay(encode_group_key("g"), encode_group_value(value))
    coordinator.finish_replay(0)
    coordinator.join(a_join(fresh_id="2", rebalance_timeout_ms=0), "b", now_ms=4000)
    heard = coordinator.heartbeat("g", "A-1", 3, now_ms=9000)
    assert heard.answer is ErrorCode.rebalance_in_progress
    assert coordinator.next_deadline_ms() == 4000 + waits_ms


def test_a_first_wait_is_prolonged_by_those_who_join_in_it_and_by_nobody_before() -> None:
    coordinator = a_coordinator(initial_rebalance_delay_ms=3000)

    def join(name: str, now_ms: int) -> None:
        asked = a_join(fresh_id=name, rebalance_timeout_ms=5000)
        assert coordinator.join(asked, name, now_ms=now_ms).answers == []

    join("1", 0)
    join("2", 1000)
    assert coordinator.tick(3000).answers == [], "2 has come, so others may"
    join("3", 4000)
    assert [token for token, _ in coordinator.tick(5000).answers] == ["1", "2", "3"]
    coordinator.leave("g", [LeavingMember(f"A-{name}") for name in "123"], now_ms=6000)
    coordinator.tick(11_000)
    (listed,) = coordinator.list_groups().answer
    assert listed.state == "Empty"
    join("4", 20_000)
    assert coordinator.tick(22_999).answers == []
    assert [token for token, _ in coordinator.tick(23_000).answers] == ["4"]


@pytest.mark.parametrize("how", ["it leaves", "its session is over", "it joins"])
def test_a_generation_begins_as_soon_as_nobody_is_waited_for(how: str) -> None:
    """Also where the last one that was waited for had only been given its id."""
    coordinator = a_coordinator()
    first = with_a_member(coordinator)
    asked = coordinator.join(
        a_join(fresh_id="2", knows_member_id_required=True, session_timeout_ms=7000), "b", now_ms=0
    )
    pending_id = answered(asked).member_id
    assert answered(asked).code is ErrorCode.member_id_required
    rejoined = coordinator.join(a_join(member_id=first.member_id), "a", now_ms=0)
    assert rejoined.answers == [], "the one that was given an id is waited for"
    if how == "it leaves":
        decision: GroupDecision[Any] = coordinator.leave("g", [LeavingMember(pending_id)], now_ms=5)
    elif how == "its session is over":
        assert coordinator.tick(6999) == GroupDecision(None)
        decision = coordinator.tick(7000)
    else:
        decision = coordinator.join(a_join(member_id=pending_id), "b", now_ms=5)
    answers = dict(decision.answers)
    assert set(answers) == ({"a", "b"} if how == "it joins" else {"a"})
    assert {(answer.code, answer.generation) for answer in answers.values()} == {(ErrorCode.none, 2)}


def test_one_tick_does_a_bounded_amount_of_work() -> None:
    coordinator = a_coordinator()
    for number in range(TICK_ALARMS_MAX + 10):
        coordinator.join(a_join(group_id=f"g{number}"), number, now_ms=0)

    coordinator.tick(10_000)  # every session is over
    deadline_ms = coordinator.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms <= 10_000

    coordinator.tick(10_000)
    assert coordinator.next_deadline_ms() == 600_000
    assert {group.state for group in coordinator.list_groups().answer} == {"Empty"}


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


def test_a_member_of_a_group_that_is_not_there_is_unknown_whatever_else_it_asks() -> None:
    coordinator = a_coordinator()
    joined = answered(coordinator.join(a_join(member_id="m", protocols=()), "token", now_ms=0))
    assert joined == JoinAnswer(ErrorCode.unknown_member_id, "m")


def test_a_commit_of_a_member_of_a_group_that_is_not_there_is_refused_in_words_that_the_client_knows() -> (
    None
):
    coordinator = a_coordinator()
    for knows, code in (
        ({}, ErrorCode.group_id_not_found),
        ({"knows_missing_group": True}, ErrorCode.group_id_not_found),
        ({"knows_missing_group": False}, ErrorCode.illegal_generation),
    ):
        commits, member = {T0: OffsetCommit(1)}, CommittingMember("m", 0)
        decision = coordinator.commit_offsets("nobody", commits, member, now_ms=0, **knows)
        assert (decision.answer, decision.records) == ({T0: code}, [])
    assert coordinator.list_groups().answer == []


def test_records_of_other_kinds_of_group_are_passed_over() -> None:
    coordinator = a_coordinator()
    coordinator.table.replay(b"\x00\x04\x00\x01g", b"whatever")
    coordinator.table.replay(b"\x00\x0f\x00\x01g", None)
    assert coordinator.list_groups().answer == []


def test_a_record_that_cannot_be_read_changes_nothing() -> None:
    coordinator = a_coordinator()
    coordinator.commit_offsets("g", {T0: OffsetCommit(1)}, now_ms=0)
    before = list(coordinator.table.live_state().rest)
    for key in (encode_group_key("g"), encode_offset_key("g", "t", 0), encode_offset_key("h", "t", 0)):
        with pytest.raises(DamageError, match=r"the metadata of a group|a committed offset"):
            coordinator.table.replay(key, b"\x00\x03nonsense")
    assert list(coordinator.table.live_state().rest) == before
    assert len(coordinator.list_groups().answer) == 1


def test_a_tombstone_of_a_group_leaves_offsets_that_are_still_there() -> None:
    coordinator = a_coordinator()
    coordinator.table.replay(
        encode_group_key("g"), encode_group_value(GroupValue("consumer", 3, None, None, 0, ()))
    )
    coordinator.table.replay(encode_offset_key("g", "t", 0), encode_offset_value(OffsetValue(1, -1, "", 0)))
    coordinator.table.replay(encode_group_key("g"), None)
    assert fetched(coordinator) == {T0: 1}
    (listed,) = coordinator.list_groups().answer
    assert listed.protocol_type == ""
    coordinator.table.replay(encode_group_key("nobody"), None)
    assert len(coordinator.list_groups().answer) == 1


def test_nothing_is_due_where_nothing_is() -> None:
    coordinator = a_coordinator()
    assert coordinator.next_deadline_ms() is None
    decision = coordinator.tick(10**15)
    assert not decision.records
    assert not decision.answers
    assert list(coordinator.table.live_state().rest) == []


def test_heartbeats_cost_no_memory() -> None:
    coordinator = a_coordinator()
    membership = with_a_member(coordinator)
    size = len(coordinator.table.deadlines)
    for now_ms in range(0, 50_000, 5):
        answer = coordinator.heartbeat("g", membership.member_id, membership.generation, now_ms=now_ms).answer
        assert answer is ErrorCode.none
    assert len(coordinator.table.deadlines) <= size + 1


def test_a_subscription_that_could_never_be_recorded_is_refused_at_once() -> None:
    coordinator = a_coordinator()
    assert PROTOCOLS_SIZE_MAX == 4 << 20
    protocols = (("range", bytes(3 << 20)), ("sticky", bytes(2 << 20)))
    refused = answered(coordinator.join(a_join(protocols=protocols), "token", now_ms=0))
    assert refused.code is ErrorCode.invalid_request
    assert coordinator.list_groups().answer == []
    room = PROTOCOLS_SIZE_MAX - len("range")
    refused = answered(coordinator.join(a_join(protocols=(("range", bytes(room + 1)),)), "token", now_ms=0))
    assert refused.code is ErrorCode.invalid_request
    coordinator.join(a_join(protocols=(("range", bytes(room)),)), "token", now_ms=0)
    assert len(coordinator.list_groups().answer) == 1


def with_a_static_member(size_max: int) -> tuple[GroupDecision[Any], GroupDecision[Any]]:
    """A static member gets its work, and starts anew, while records of groups have at most so many bytes."""
    coordinator = a_coordinator(group_metadata_size_max=size_max)
    joined = answered(coordinator.join(a_join(group_instance_id="i"), "join", now_ms=0))
    sync = SyncRequest(
        group_id="g",
        member_id=joined.member_id,
        generation=joined.generation,
        group_instance_id="i",
        assignments={joined.member_id: b"work"},
    )
    synced = coordinator.sync(sync, "sync", now_ms=0)
    return synced, coordinator.join(a_join(group_instance_id="i", fresh_id="22"), "again", now_ms=0)


def test_a_record_of_a_group_may_be_as_large_as_the_setting_says() -> None:
    whole_synced, whole_again = with_a_static_member(1_000_000)
    ((_, first),), ((_, second),) = whole_synced.records, whole_again.records
    assert first is not None
    assert second is not None
    assert len(second) > len(first), "its id is longer"
    assert with_a_static_member(len(second)) == (whole_synced, whole_again)
    synced, again = with_a_static_member(len(second) - 1)
    assert synced == whole_synced
    assert answered(again).generation == answered(whole_again).generation + 1, "the record is too large"
    synced, _ = with_a_static_member(len(first))
    assert answered(synced).assignment == b"work"
    synced, _ = with_a_static_member(len(first) - 1)
    assert answered(synced).code is ErrorCode.unknown_server_error


def test_what_is_not_said_is_kafkas_default() -> None:
    assert GroupConfig() == GroupConfig(
        initial_rebalance_delay_ms=3_000,
        session_timeout_ms_min=6_000,
        session_timeout_ms_max=30 * 60_000,
        group_size_max=2**31 - 1,
        offsets_retention_ms=7 * 24 * HOUR_MS,
        offsets_check_interval_ms=10 * 60_000,
        offset_metadata_size_max=4096,
        group_metadata_size_max=1_000_000,
        new_member_join_timeout_ms=5 * 60_000,
    )
    code = ErrorCode.unknown_member_id
    assert JoinAnswer(code) == JoinAnswer(code, "", -1, None, None, "", False, ())
    assert FetchedOffset(code) == (code, -1, -1, "")
    assert OffsetCommit(5) == (5, -1, None)
    assert CommittingMember() == ("", -1, None)
    assert a_join(knows_member_id_required=True).knows_skip_assignment
    assert JoinRequest(
        group_id="g",
        member_id="",
        fresh_id="1",
        protocol_type="",
        protocols=(),
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
    ).knows_member_id_required
