import struct

import pytest

from stablelog.coordinators.consumer_groups.classic_group import (
    SUBSCRIPTIONS_SIZE_MAX,
    TRANSITIONS,
    ClassicGroup,
    ClassicGroupState,
    ClassicMember,
    IllegalStepError,
    Step,
)


def a_group() -> ClassicGroup:
    return ClassicGroup("g")


def a_member(
    name: str, protocols: str = "range", instance: str | None = None, *, joined: bool = False
) -> ClassicMember:
    return ClassicMember(
        member_id=name,
        group_instance_id=instance,
        client_id=name,
        client_host="/h",
        session_timeout_ms=10,
        rebalance_timeout_ms=20,
        protocols=tuple((protocol, b"") for protocol in protocols.split(",")),
        join_token="token" if joined else None,
    )


@pytest.mark.parametrize("state", list(ClassicGroupState))
@pytest.mark.parametrize("step", list(Step))
def test_a_step_that_is_not_in_the_table_is_refused_and_changes_nothing(
    state: ClassicGroupState, step: Step
) -> None:
    group = a_group()
    group.state, group.state_ms = state, 5
    if step in TRANSITIONS[state]:
        group.change_state(step, 9)
        assert (group.state, group.state_ms) == (TRANSITIONS[state][step], 9)
        return
    with pytest.raises(IllegalStepError, match=f"'g' cannot change: the group is {state}, "):
        group.change_state(step, 9)
    assert (group.state, group.state_ms) == (state, 5)


def test_every_state_has_its_row() -> None:
    assert set(TRANSITIONS) == set(ClassicGroupState)


def test_the_first_member_leads_and_the_next_one_after_it() -> None:
    group = a_group()
    for name in "ABC":
        group.add(a_member(name), "consumer")
    assert group.leader_id == "A"
    group.remove("B")
    assert group.leader_id == "A"
    group.remove("A")
    assert group.leader_id == "C"
    group.remove("C")
    assert group.leader_id is None


def test_a_leader_that_has_not_joined_gives_way_to_one_that_has() -> None:
    group = a_group()
    assert not group.elect_joined_leader()
    group.add(a_member("A"), "consumer")
    group.add(a_member("B"), "consumer")
    assert not group.elect_joined_leader()
    assert group.leader_id == "A"
    group.members["B"].join_token = "token"
    assert group.elect_joined_leader()
    assert group.leader_id == "B"


def test_a_static_member_is_replaced_in_its_place() -> None:
    group = a_group()
    group.add(a_member("old", instance="i"), "consumer")
    group.add(a_member("B"), "consumer")
    group.members["old"].assignment = b"work"
    group.pending_syncs.update({"old", "B"})

    group.replace(a_member("new", instance="i"))

    assert group.leader_id == "new"
    assert group.members["new"].assignment == b"work"
    assert group.static_ids == {"i": "new"}
    assert group.pending_syncs == {"new", "B"}
    assert set(group.members) == {"new", "B"}


@pytest.mark.parametrize(
    ("wishes", "elected"),
    [
        (["a,b"], "a"),
        (["a,b", "b,a"], "a"),
        (["a,b", "b,a", "b,a"], "b"),
        (["a,b,c", "b,c", "c,b"], "b"),
        (["a,c", "b,c"], "c"),
    ],
)
def test_the_protocol_is_voted_for(wishes: list[str], elected: str) -> None:
    group = a_group()
    for number, wish in enumerate(wishes):
        group.add(a_member(str(number), wish), "consumer")
    assert group.choose_protocol() == elected


def test_whoever_shares_no_protocol_with_all_does_not_fit_in() -> None:
    group = a_group()
    assert group.supports("consumer", ["a"])
    assert not group.supports("", ["a"])
    assert not group.supports("consumer", [])
    group.add(a_member("A", "a,b"), "consumer")
    group.add(a_member("B", "b,c"), "consumer")
    group.state = ClassicGroupState.STABLE
    assert group.supports("consumer", ["b"])
    assert not group.supports("consumer", ["a", "c"])
    assert not group.supports("connect", ["b"])


def a_subscription(topic: str, size: int) -> bytes:
    """A member's metadata of this size, with one topic."""
    head = struct.pack(">hih", 0, 1, len(topic)) + topic.encode()
    return head + bytes(size - len(head))


@pytest.mark.parametrize(
    ("subscriptions", "known"),
    [
        ([a_subscription("t", SUBSCRIPTIONS_SIZE_MAX)], {"t"}),
        ([a_subscription("t", SUBSCRIPTIONS_SIZE_MAX)] * 5, {"t"}),
        ([a_subscription("t", SUBSCRIPTIONS_SIZE_MAX - 20), a_subscription("u", 20)], {"t", "u"}),
        ([a_subscription("t", SUBSCRIPTIONS_SIZE_MAX - 20), a_subscription("u", 21)], None),
    ],
)
def test_large_subscriptions_are_not_read_and_every_topic_may_be_one_of_them(
    subscriptions: list[bytes], known: set[str] | None
) -> None:
    group = a_group()
    for number, subscription in enumerate(subscriptions):
        member = a_member(str(number), joined=True)
        member.protocols = (("range", subscription),)
        group.add(member, "consumer")
    group.state = ClassicGroupState.PREPARING_REBALANCE
    group.begin_generation(1)
    assert group.subscribed == known
    assert group.is_subscribed_to("t")
    assert group.is_subscribed_to("other") is (known is None)
