"""Rebalances: when a generation begins, who is waited for, and what every member is answered."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import (
    GroupConfig,
    GroupDecision,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from stablelog.coordinators.consumer_groups.classic_group import (
    Alarm,
    ClassicGroup,
    ClassicGroupState,
    ClassicMember,
    Due,
)
from stablelog.coordinators.consumer_groups.rebalance import Rebalances
from stablelog.coordinators.consumer_groups.records import (
    GroupValue,
    MemberValue,
    encode_group_key,
    encode_group_value,
)
from stablelog.coordinators.deadline_queue import DeadlineQueue
from stablelog.errors import RefusedError
from tests.coordinators.consumer_groups.test_coordinator import (
    SUBSCRIPTION,
    a_coordinator,
    a_join,
    answered,
    with_a_member,
)


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


# -- the rules alone ---------------------------------------------------------------------------------------------------


def a_member(name: str, instance: str | None = None, *, token: str | None = None) -> ClassicMember:
    return ClassicMember(name, instance, name, "/h", 10_000, 60_000, (("range", b""),), join_token=token)


class Group:
    """A group of one dynamic and one static member that has all joined, and its decision."""

    def __init__(self) -> None:
        self.deadlines: DeadlineQueue[Alarm] = DeadlineQueue()
        self.rebalances = Rebalances(GroupConfig(initial_rebalance_delay_ms=0), self.deadlines)
        self.decision: GroupDecision[Any] = GroupDecision(None)
        self.group = ClassicGroup("g")
        for member in (a_member("a", token="join a"), a_member("b", "i", token="join b")):
            self.group.add(member, "consumer")
        self.rebalances.rebalance_or_complete(self.group, self.decision, 0)

    def sync(self, member_id: str, **fields: Any) -> None:
        request = SyncRequest(**{"group_id": "g", "member_id": member_id, "generation": 1, **fields})
        self.rebalances.sync(self.group, request, f"sync {member_id}", self.decision, 5)

    @property
    def answers(self) -> dict[Any, Any]:
        return dict(self.decision.answers)


def test_all_that_have_joined_get_the_generation_and_the_leader_gets_the_members() -> None:
    group = Group()
    assert group.group.state is ClassicGroupState.COMPLETING_REBALANCE
    assert {token: (answer.generation, answer.leader_id) for token, answer in group.answers.items()} == {
        "join a": (1, "a"),
        "join b": (1, "a"),
    }
    assert [member.member_id for member in group.answers["join a"].members] == ["a", "b"]
    assert group.answers["join b"].members == ()
    assert group.decision.records == [], "a generation without an assignment is not recorded"


def test_syncs_wait_for_the_leader_and_each_member_gets_its_own_assignment() -> None:
    group = Group()
    group.sync("b", group_instance_id="i")
    assert "sync b" not in group.answers
    group.sync("a", assignments={"a": b"left", "b": b"right"})
    assert (group.answers["sync a"].assignment, group.answers["sync b"].assignment) == (b"left", b"right")
    assert group.group.state is ClassicGroupState.STABLE
    assert [key for key, _ in group.decision.records] == [encode_group_key("g")]
    assert group.group.recorded == group.decision.records[0][1]


@pytest.mark.parametrize(
    ("member_id", "fields", "code", "why"),
    [
        ("x", {}, "unknown_member_id", "'x' is not a member of group 'g': join as a new member"),
        ("a", {"generation": 2}, "illegal_generation", "group 'g' is in generation 1, not 2: join again"),
        (
            "a",
            {"protocol_type": "connect"},
            "inconsistent_group_protocol",
            "has the protocol type 'connect', but group 'g' has 'con",
        ),
        (
            "a",
            {"protocol_name": "sticky"},
            "inconsistent_group_protocol",
            "has the protocol 'sticky', but group 'g' has 'range'",
        ),
        ("a", {"group_instance_id": "j"}, "unknown_member_id", "group 'g' has no static member 'j'"),
        (
            "a",
            {"group_instance_id": "i"},
            "fenced_instance_id",
            "taken the place of static member 'i': this client must",
        ),
    ],
)
def test_a_sync_that_does_not_fit_the_generation_is_refused_with_the_reason(
    member_id: str, fields: dict[str, Any], code: str, why: str
) -> None:
    group = Group()
    with pytest.raises(RefusedError, match=why) as refused:
        group.sync(member_id, **fields)
    assert refused.value.code is ErrorCode[code]
    assert group.group.pending_syncs == {"a", "b"}, "nothing has changed"


def test_during_the_join_phase_a_sync_is_told_to_join_again_and_a_heartbeat_too() -> None:
    group = Group()
    group.rebalances.rebalance(group.group, group.decision, 5)
    with pytest.raises(RefusedError, match="group 'g' is rebalancing: send JoinGroup again"):
        group.sync("a")
    told = group.rebalances.heartbeat(group.group, "a", None, 1, 5)
    assert told is ErrorCode.rebalance_in_progress


def test_who_did_not_sync_in_time_is_removed() -> None:
    group = Group()
    group.sync("a", assignments={"a": b"left"})
    group.rebalances.handle_alarm(group.group, group.group.alarm(Due.SYNC), group.decision, 60_000)
    assert list(group.group.members) == ["a"]
    assert group.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_a_join_phase_that_times_out_keeps_the_static_members_that_are_away() -> None:
    group = Group()
    group.rebalances.rebalance(group.group, group.decision, 5)
    group.rebalances.handle_alarm(group.group, group.group.alarm(Due.JOIN), group.decision, 60_005)
    assert list(group.group.members) == ["b"]
    assert group.deadlines.get(group.group.alarm(Due.JOIN)) == 120_005


def test_a_member_that_is_dismissed_gets_an_answer_to_what_it_waits_for() -> None:
    group = Group()
    group.sync("b", group_instance_id="i")
    group.rebalances.dismiss_member(group.group, group.group.members["b"], group.decision)
    assert group.answers["sync b"] == SyncAnswer(ErrorCode.unknown_member_id)
    assert group.deadlines.get(group.group.alarm(Due.SESSION, "b")) is None


def test_of_members_that_leave_together_one_error_does_not_stop_the_others() -> None:
    group = Group()
    leaving = [LeavingMember("x"), LeavingMember("", "i"), LeavingMember("", "j")]
    outcomes = group.rebalances.leave(group.group, leaving, group.decision, 5)
    assert [code.name for _, code in outcomes] == ["unknown_member_id", "none", "unknown_member_id"]
    assert list(group.group.members) == ["a"]
    assert group.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_after_a_start_all_sessions_begin_and_a_group_that_is_too_large_rebalances() -> None:
    for size_max, state in (
        (2, ClassicGroupState.COMPLETING_REBALANCE),
        (1, ClassicGroupState.PREPARING_REBALANCE),
    ):
        group = Group()
        rebalances = Rebalances(GroupConfig(group_size_max=size_max), group.deadlines)
        rebalances.begin_sessions(group.group, group.decision, 100)
        assert group.deadlines.get(group.group.alarm(Due.SESSION, "a")) == 10_100
        assert group.group.state is state
