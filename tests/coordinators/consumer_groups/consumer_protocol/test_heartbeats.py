"""Heartbeats: members join, stay and leave, and who is refused."""

import uuid
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import (
    GroupConfig,
    GroupDecision,
    LeavingMember,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.heartbeats import Heartbeats, check_member_epoch
from stablelog.coordinators.consumer_groups.consumer_protocol.model import HeartbeatRequest
from stablelog.coordinators.deadline_queue import DeadlineQueue
from stablelog.errors import RefusedError
from tests.coordinators.consumer_groups.consumer_protocol.test_groups import (
    SESSION_MS,
    Client,
    Room,
    indexes,
    settle,
)


def test_who_does_not_revoke_in_time_is_removed():
    room = Room()
    a, b = Client(room, "a", rebalance_timeout_ms=20_000), Client(room, "b")
    a.beat()
    a.revokes = False
    b.beat()
    a.beat()
    room.wait(19_999)
    a.beat()
    b.beat()
    room.wait(1)
    assert a.beat().code is ErrorCode.unknown_member_id
    b.beat()
    assert indexes(b) == [0, 1, 2, 3]


def test_a_silent_member_expires_and_its_partitions_go_on():
    room = Room()
    a, b = Client(room, "a"), Client(room, "b")
    settle(a, b)
    room.wait(SESSION_MS - 1)
    b.beat()
    room.wait(1)
    b.beat()
    assert indexes(b) == [0, 1, 2, 3]
    assert a.beat().code is ErrorCode.unknown_member_id
    settle(a, b)
    assert len(a.owned) == len(b.owned) == 2


def test_a_member_that_leaves_is_gone_at_once():
    room = Room()
    a, b = Client(room, "a"), Client(room, "b")
    settle(a, b)
    assert room.beat("a", member_epoch=-1).member_epoch == -1
    b.beat()
    assert indexes(b) == [0, 1, 2, 3]
    assert room.beat("b", member_epoch=-1).code is ErrorCode.none
    assert room.group.state == "Empty"


def test_a_member_with_an_old_or_wrong_epoch_is_fenced_and_joins_again():
    room = Room()
    a, b = Client(room, "a"), Client(room, "b")
    settle(a, b)
    assert a.epoch == 2
    assert room.beat("a", member_epoch=3).code is ErrorCode.fenced_member_epoch
    assert a.beat(member_epoch=1, owned=None).code is ErrorCode.fenced_member_epoch
    assert a.epoch == 0
    settle(a, b)
    assert len(a.owned) == 2


def test_the_epoch_before_is_accepted_because_an_answer_may_be_lost():
    room = Room()
    a, b = Client(room, "a"), Client(room, "b")
    settle(a, b)
    assert a.epoch == 2
    answer = a.beat(member_epoch=1)
    assert (answer.code, answer.member_epoch, answer.assignment) == (ErrorCode.none, 2, a.owned)


def test_static_members_keep_their_place():
    room = Room()
    a, b = Client(room, "a", instance_id="i"), Client(room, "b")
    settle(a, b)
    had = a.owned
    other = Client(room, "a2", instance_id="i")
    assert other.beat().code is ErrorCode.unreleased_instance_id
    assert room.beat("a", member_epoch=-2, instance_id="i").member_epoch == -2
    b.beat()
    epoch = room.group.epoch
    assert len(b.owned) == 2, "the place is reserved"
    other.beat()
    assert (other.owned, room.group.epoch) == (had, epoch)
    room.restart()
    assert (sorted(room.group.members), room.group.epoch) == (["a2", "b"], epoch)
    assert a.beat(member_epoch=2).code is ErrorCode.fenced_instance_id
    assert room.beat("b", member_epoch=-2).code is ErrorCode.invalid_request
    assert room.beat("a2", member_epoch=-2, instance_id="j").code is ErrorCode.unknown_member_id
    leaving = [LeavingMember("", "i"), LeavingMember("b", None), LeavingMember("", "j")]
    left = room.keep(room.coordinator.leave("g", leaving, now_ms=0)).answer
    assert [code.name for _, code in left.members] == ["none", "unknown_member_id", "unknown_member_id"]
    b.beat()
    assert len(b.owned) == 4


def test_a_static_member_that_does_not_come_back_expires():
    room = Room()
    a, b = Client(room, "a", instance_id="i"), Client(room, "b")
    settle(a, b)
    room.beat("a", member_epoch=-2, instance_id="i")
    room.wait(SESSION_MS - 1)
    b.beat()
    assert len(b.owned) == 2
    room.wait(1)
    b.beat()
    assert len(b.owned) == 4


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"rebalance_timeout_ms": -1}, "invalid_request"),
        ({"owned": None}, "invalid_request"),
        ({"owned": frozenset({(uuid.UUID(int=1), 0)})}, "invalid_request"),
        ({"topics": None}, "invalid_request"),
        ({"instance_id": ""}, "invalid_request"),
        ({"rack_id": ""}, "invalid_request"),
        ({"member_epoch": -3}, "invalid_request"),
        ({"member_epoch": -2}, "invalid_request"),
        ({"topics": ("x" * (5 << 20),)}, "invalid_request"),
        ({"topics": tuple(map(str, range(20_001)))}, "invalid_request"),
        ({"client_id": "x" * 32_001}, "invalid_request"),
        ({"group_id": ""}, "invalid_request"),
        ({"assignor": "mine"}, "unsupported_assignor"),
        ({"member_epoch": 1}, "unknown_member_id"),
    ],
)
def test_a_bad_request_is_refused_with_a_sentence_and_leaves_nothing(fields, code):
    room = Room()
    asked = {"member_epoch": 0, "owned": frozenset(), "topics": ("t",), "rebalance_timeout_ms": 1} | fields
    answer = room.beat("a", **asked)
    assert answer.code is ErrorCode[code]
    assert answer.message
    assert room.log == []
    assert room.coordinator.list_groups().answer == []


def test_only_clients_of_the_first_version_get_their_id_from_the_broker():
    room = Room()
    asked = {"member_epoch": 0, "owned": frozenset(), "topics": ("t",), "rebalance_timeout_ms": 1}
    assert room.beat("", **asked).code is ErrorCode.invalid_request
    assert room.beat("", **asked, makes_own_id=False).member_id == "fresh"


def test_a_full_group_takes_no_more_members():
    room = Room(consumer_group_size_max=1)
    a, b = Client(room, "a"), Client(room, "b")
    a.beat()
    assert b.beat().code is ErrorCode.group_max_size_reached
    assert a.beat(member_epoch=0, owned=frozenset()).code is ErrorCode.none


def test_a_restart_begins_the_time_to_revoke_again():
    room = Room()
    a, b = Client(room, "a"), Client(room, "b")
    a.beat()
    a.revokes = False
    b.beat()
    a.beat()
    room.restart()
    room.wait(30_000)
    a.beat()
    b.beat()
    room.wait(30_000)
    assert a.beat().code is ErrorCode.unknown_member_id


# -- the rules alone ---------------------------------------------------------------------------------------------------

JOIN = HeartbeatRequest(
    group_id="g",
    member_id="a",
    fresh_id="x",
    member_epoch=0,
    topics=("t",),
    owned=frozenset(),
    rebalance_timeout_ms=1,
)


def heartbeats() -> Heartbeats:
    return Heartbeats(GroupConfig(), DeadlineQueue())


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"rebalance_timeout_ms": -1},
            "the rebalance timeout is missing: it must be in the first request of a member",
        ),
        ({"owned": None}, "a member that joins must own no partitions, and must say so"),
        ({"topics": None}, "the subscription is missing: name topics or a regular expression"),
        ({"instance_id": ""}, "the instance id and the rack id must not be empty: leave them out instead"),
        ({"member_id": ""}, "the member id must not be empty"),
        ({"member_epoch": -3}, "the member epoch -3 is not valid: the smallest is -2"),
        ({"member_epoch": -2}, "only a static member leaves with epoch -2: the instance id is missing"),
        (
            {"topics": tuple(map(str, range(20_001)))},
            "names more than 20000 topics: use a regular expression",
        ),
        ({"assignor": "mine"}, "there is no assignor 'mine'; the assignors are uniform, range"),
        ({"pattern": "("}, "regular expression"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_invalid_request_is_refused_with_what_to_do(fields, why):
    heartbeats().check_request(JOIN)
    with pytest.raises(RefusedError, match=why):
        heartbeats().check_request(replace(JOIN, **fields))


def test_the_pattern_of_a_member_is_that_of_its_request_or_the_one_before():
    room = Room()
    Client(room, "a", topics=None, pattern="t.*").beat()
    pattern_of = heartbeats().pattern_of
    later = replace(JOIN, member_epoch=1, topics=None)
    assert pattern_of(room.group, later) == "t.*"
    assert pattern_of(room.group, replace(later, pattern="u")) == "u"
    assert pattern_of(room.group, replace(later, pattern="")) is None
    assert pattern_of(room.group, replace(later, member_epoch=-1)) is None
    assert pattern_of(room.group, JOIN) is None, "who joins says all anew"
    assert pattern_of(room.group, replace(later, member_id="b")) is None
    assert pattern_of(None, later) is None


def test_a_member_that_loses_its_state_joins_again_and_owns_nothing():
    room = Room()
    a = Client(room, "a")
    a.beat()
    room.topics.put("t", 8)
    a.lose()
    answer = a.beat()
    assert (answer.code, answer.member_epoch, len(answer.assignment)) == (ErrorCode.none, 2, 8)


def test_offsets_are_checked_against_the_epoch_of_the_member():
    room = Room()
    Client(room, "a").beat()
    check_member_epoch(room.group, "a", 1)
    with pytest.raises(RefusedError, match="member 'a' of group 'g' is in epoch 1, not 0") as refused:
        check_member_epoch(room.group, "a", 0)
    assert refused.value.code is ErrorCode.stale_member_epoch
    with pytest.raises(
        RefusedError, match="'b' is not a member of group 'g': join with member epoch 0"
    ) as refused:
        check_member_epoch(room.group, "b", 1)
    assert refused.value.code is ErrorCode.unknown_member_id


def test_after_a_start_a_member_whose_records_do_not_agree_is_removed():
    room = Room()
    Client(room, "a").beat()
    room.group.owners.clear()
    decision = GroupDecision(None)
    heartbeats().begin_sessions(room.group, decision, 0)
    assert room.group.members == {}
    assert decision.records, "its records are removed, and the epoch rises"


def test_a_member_that_has_revoked_in_time_is_not_removed_later():
    room = Room()
    a, b = Client(room, "a", rebalance_timeout_ms=20_000), Client(room, "b")
    a.beat()
    a.revokes = False
    b.beat()
    a.beat()
    a.revokes = True
    a.beat()
    a.beat()
    room.wait(20_000)
    assert a.beat().code is ErrorCode.none
