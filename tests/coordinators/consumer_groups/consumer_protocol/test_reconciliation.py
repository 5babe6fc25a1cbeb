"""The way of a member to its target assignment: no partition has two owners."""

import uuid

from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.coordinators.consumer_groups.consumer_protocol.model import CurrentAssignment, MemberState
from stablelog.coordinators.consumer_groups.consumer_protocol.reconciliation import next_assignment
from tests.coordinators.consumer_groups.consumer_protocol.test_groups import Client, Room, indexes
from tests.scale import examples


def test_a_partition_is_given_only_after_it_was_revoked():
    room = Room()
    a, b = Client(room, "a"), Client(room, "b")
    a.beat()
    a.revokes = False
    b.beat()
    assert indexes(b) == []
    answer = a.beat()
    assert answer.member_epoch == 1, "it keeps its epoch until it has revoked"
    assert {index for _, index in answer.assignment} == {0, 1}
    assert room.group.state == "Reconciling"
    assert indexes(b) == []
    assert b.beat().assignment == frozenset()
    assert a.beat(owned=None).member_epoch == 1, "who says nothing has not revoked"
    b.beat()
    assert indexes(b) == []
    a.revokes = True
    a.beat()
    a.beat()
    b.beat()
    assert (indexes(a), indexes(b)) == ([0, 1], [2, 3])
    assert a.epoch == b.epoch == 2
    assert room.group.state == "Stable"


# -- one step ----------------------------------------------------------------------------------------------------------

A, B, C = [(uuid.UUID(int=1), index) for index in range(3)]
NOTHING = frozenset()
STABLE = CurrentAssignment(3, 2, MemberState.STABLE, frozenset({A, B}))


def step(current, target, epoch=4, owned=None, taken=()):
    return next_assignment(current, frozenset(target), epoch, owned, lambda partition: partition not in taken)


def test_a_member_in_the_target_epoch_stays_as_it_is():
    assert step(STABLE, {C}, epoch=3) is STABLE


def test_what_is_taken_away_is_revoked_first_and_the_epoch_stays():
    following = step(STABLE, {B, C})
    assert following == CurrentAssignment(3, 2, MemberState.UNREVOKED, frozenset({B}), frozenset({A}))
    assert step(following, {B, C}) is following, "a member that says nothing owns what it owned"
    assert step(following, {B, C}, owned=frozenset({A, B})) is following


def test_a_member_that_has_revoked_enters_the_epoch_and_gets_what_is_free():
    revoking = step(STABLE, {B, C})
    entered = step(revoking, {B, C}, owned=frozenset({B}))
    assert entered == CurrentAssignment(4, 3, MemberState.STABLE, frozenset({B, C}))


def test_a_member_waits_for_what_others_still_own():
    waiting = step(STABLE, {A, B, C}, taken={C})
    assert waiting == CurrentAssignment(4, 3, MemberState.UNRELEASED, frozenset({A, B}))
    assert step(waiting, {A, B, C}, taken={C}) is waiting
    assert step(waiting, {A, B, C}) == CurrentAssignment(4, 3, MemberState.STABLE, frozenset({A, B, C}))


def test_a_member_that_owns_nothing_of_what_is_taken_away_need_not_revoke_it():
    assert step(STABLE, {B}, owned=frozenset({B})) == CurrentAssignment(
        4, 3, MemberState.STABLE, frozenset({B})
    )


def test_a_later_target_that_gives_a_partition_back_while_it_is_revoked_does_not_end_the_revocation():
    revoking = step(STABLE, {B})
    assert step(revoking, {A, B}, epoch=5) is revoking
    back = step(revoking, {A, B}, epoch=5, owned=frozenset({B}))
    assert back == CurrentAssignment(5, 3, MemberState.STABLE, frozenset({A, B}))


PARTITIONS = [(uuid.UUID(int=1), index) for index in range(4)]
TARGETS = st.lists(st.integers(0, 2), min_size=4, max_size=4)


@settings(max_examples=examples(40))
@given(
    st.lists(TARGETS, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=30),
)
def test_no_partition_has_two_owners_and_all_members_arrive(targets, steps):
    members = [CurrentAssignment() for _ in range(3)]

    def owned(member):
        return members[member].assigned | members[member].revoking

    def move(member, target, epoch, *, says):
        said = members[member].assigned if says else None
        others = frozenset().union(*(owned(other) for other in range(3) if other != member))
        members[member] = next_assignment(
            members[member], target[member], epoch, said, lambda partition: partition not in others
        )
        everything = [partition for each in range(3) for partition in owned(each)]
        assert len(everything) == len(set(everything))

    target, epoch = [NOTHING] * 3, 0
    for epoch, owners in enumerate(targets, 1):
        target = [frozenset(p for p, to in zip(PARTITIONS, owners, strict=True) if to == m) for m in range(3)]
        for member, says in steps:
            move(member, target, epoch, says=says)
    for _ in range(4):
        for member in range(3):
            move(member, target, epoch, says=True)
    assert [(one.state, one.epoch, one.assigned) for one in members] == [
        (MemberState.STABLE, epoch, wanted) for wanted in target
    ]
