"""What requests and values of the consumer group protocol say."""

import uuid
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.coordinators.consumer_groups.consumer_protocol.model import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    CurrentAssignment,
    HeartbeatRequest,
    MemberState,
    PatternSelection,
    by_topic,
)
from tests.scale import examples

FULL = HeartbeatRequest(
    group_id="g",
    member_id="m",
    fresh_id="x",
    member_epoch=1,
    rebalance_timeout_ms=5,
    topics=("t",),
    owned=frozenset(),
)


def test_a_request_with_all_fields_is_full_and_gets_the_assignment():
    assert FULL.is_full
    assert replace(FULL, topics=None, pattern="t.*").is_full


@pytest.mark.parametrize(
    "missing", [{"topics": None}, {"owned": None}, {"rebalance_timeout_ms": -1}], ids=str
)
def test_a_request_that_leaves_out_what_has_not_changed_is_not_full(missing):
    assert not replace(FULL, **missing).is_full


def test_members_with_equal_patterns_and_rights_have_one_selection():
    selection = PatternSelection("t.*", "alice", 1, frozenset({"t1"}), frozenset({"t1"}))
    assert selection.key == replace(selection, rights_version=2, names=frozenset()).key
    assert selection.key != replace(selection, rights="bob").key
    assert selection.key != replace(selection, pattern="u").key


def test_the_epochs_by_which_a_member_joins_and_leaves_are_kafkas():
    assert (JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH) == (0, -1, -2)
    assert CurrentAssignment().epoch == JOIN_EPOCH


def test_the_numbers_of_a_members_state_are_kafkas():
    assert [(state.name, state.value) for state in MemberState] == [
        ("STABLE", 0),
        ("UNREVOKED", 1),
        ("UNRELEASED", 2),
    ]


@settings(max_examples=examples(25))
@given(st.frozensets(st.tuples(st.integers(0, 3).map(lambda n: uuid.UUID(int=n)), st.integers(0, 9))))
def test_partitions_by_topic_are_the_same_partitions_in_order(partitions):
    found = by_topic(partitions)
    assert [(topic, index) for topic, indexes in found for index in indexes] == sorted(partitions)
    assert len({topic for topic, _ in found}) == len(found)
