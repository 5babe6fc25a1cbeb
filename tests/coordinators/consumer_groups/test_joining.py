"""Which members join a group."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import (
    GroupConfig,
    JoinAnswer,
    SyncRequest,
)
from stablelog.coordinators.consumer_groups.joining import PROTOCOLS_SIZE_MAX, STRING_SIZE_MAX, Joining
from stablelog.coordinators.consumer_groups.rebalance import Rebalances
from stablelog.coordinators.deadline_queue import DeadlineQueue
from stablelog.errors import RefusedError
from tests.coordinators.consumer_groups.test_coordinator import a_coordinator, a_join, answered, with_a_member


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


def test_a_member_of_a_group_that_is_not_there_is_unknown_whatever_else_it_asks() -> None:
    coordinator = a_coordinator()
    joined = answered(coordinator.join(a_join(member_id="m", protocols=()), "token", now_ms=0))
    assert joined == JoinAnswer(ErrorCode.unknown_member_id, "m")


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


def error_of(**fields: object) -> tuple[ErrorCode, str]:
    """Why a first JoinGroup with these fields is refused before its group is looked at."""
    joining = Joining(GroupConfig(), DeadlineQueue(), Rebalances(GroupConfig(), DeadlineQueue()))
    with pytest.raises(RefusedError) as refused:
        joining.check_request(a_join(**fields))
    return ErrorCode(refused.value.code), str(refused.value)


def test_a_session_timeout_outside_of_the_settings_is_refused_with_them() -> None:
    for timeout_ms in (5_999, 1_800_001):
        assert error_of(session_timeout_ms=timeout_ms) == (
            ErrorCode.invalid_session_timeout,
            f"a session timeout of {timeout_ms} ms is not valid; 6000 to 1800000 are allowed",
        )


def test_a_request_that_is_too_large_to_keep_is_refused_with_the_limit() -> None:
    protocols = tuple((str(number), b"") for number in range(101))
    assert error_of(protocols=protocols) == (
        ErrorCode.invalid_request,
        "the member has 101 protocols; at most 100 are allowed",
    )
    assert error_of(protocols=(("x" * 32_001, b""),))[1] == "the request has a name of more than 32000 bytes"
    assert "have more than 4194304 bytes" in error_of(protocols=(("x", bytes(4 << 20)),))[1]


def test_a_client_that_knows_it_is_given_its_id_first_and_joins_with_it() -> None:
    coordinator = a_coordinator()
    first = answered(coordinator.join(a_join(knows_member_id_required=True), "a", now_ms=0))
    assert first == JoinAnswer(ErrorCode.member_id_required, "A-1")
    assert coordinator.describe(["g"]).answer[0].members == ()
    joined = answered(coordinator.join(a_join(member_id="A-1", knows_member_id_required=True), "b", now_ms=0))
    assert (joined.code, joined.member_id, joined.generation, joined.leader_id) == (
        ErrorCode.none,
        "A-1",
        1,
        "A-1",
    )


def test_a_member_without_a_protocol_in_common_is_refused() -> None:
    coordinator = a_coordinator()
    with_a_member(coordinator)
    for fields in ({"protocols": (("other", b""),)}, {"protocol_type": "connect"}):
        answer = answered(coordinator.join(a_join(fresh_id="2", **fields), "b", now_ms=0))
        assert answer.code is ErrorCode.inconsistent_group_protocol
    assert coordinator.describe(["g"]).answer[0].state == "Stable"


def test_a_full_group_takes_no_more_members() -> None:
    coordinator = a_coordinator(group_size_max=1)
    member = with_a_member(coordinator)
    answer = answered(coordinator.join(a_join(fresh_id="2"), "b", now_ms=0))
    assert answer.code is ErrorCode.group_max_size_reached
    again = answered(coordinator.join(a_join(member_id=member.member_id), "c", now_ms=0))
    assert again.code is ErrorCode.none, "a member of the group may join again"


def test_a_restarted_static_member_takes_its_former_place_without_a_rebalance() -> None:
    coordinator = a_coordinator()
    joined = answered(coordinator.join(a_join(group_instance_id="i"), "a", now_ms=0))
    sync = SyncRequest(
        group_id="g",
        member_id=joined.member_id,
        generation=1,
        group_instance_id="i",
        assignments={joined.member_id: b"work"},
    )
    coordinator.sync(sync, "s", now_ms=0)
    again = answered(coordinator.join(a_join(group_instance_id="i", fresh_id="2"), "b", now_ms=4_000))
    assert coordinator.next_deadline_ms() == 14_000, "its session begins anew"
    assert (again.code, again.member_id, again.generation) == (ErrorCode.none, "i-2", 1)
    assert again.skip_assignment, "the leader is not to assign again"
    (member,) = coordinator.describe(["g"]).answer[0].members
    assert (member.member_id, member.assignment) == ("i-2", b"work")
    fenced = coordinator.heartbeat("g", joined.member_id, 1, group_instance_id="i", now_ms=0).answer
    assert fenced is ErrorCode.fenced_instance_id


def test_a_member_that_joins_again_without_a_change_gets_the_present_generation() -> None:
    coordinator = a_coordinator()
    a = with_a_member(coordinator)
    coordinator.join(a_join(fresh_id="2"), "b", now_ms=0)
    joined = dict(coordinator.join(a_join(member_id=a.member_id), "a", now_ms=0).answers)
    assert {answer.generation for answer in joined.values()} == {2}
    again = answered(coordinator.join(a_join(member_id="A-2"), "c", now_ms=0))
    assert (again.code, again.generation) == (ErrorCode.none, 2)
    changed = coordinator.join(a_join(member_id="A-2", protocols=(("range", b"new"),)), "d", now_ms=0)
    assert changed.answers == [], "a new generation waits for the other member"
