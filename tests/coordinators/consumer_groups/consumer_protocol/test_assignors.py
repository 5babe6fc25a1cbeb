"""The assignors, by what every assignment must have."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.coordinators.consumer_groups.consumer_protocol.assignors import (
    ASSIGNORS,
    Subscriber,
    assign_ranges,
    assign_uniformly,
)

TOPICS = [uuid.UUID(int=number) for number in range(1, 5)]
COUNTS = st.fixed_dictionaries({}, optional={topic: st.integers(0, 7) for topic in TOPICS})


@st.composite
def groups(draw, *, equal=None):
    """(subscribers, counts): members with former assignments that may overlap and name what is gone."""
    counts = draw(COUNTS)
    is_equal = draw(st.booleans()) if equal is None else equal
    choice = st.frozensets(st.sampled_from(sorted(counts)) if counts else st.nothing())
    one = draw(choice)
    former = st.frozensets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 8)))
    subscribers = {
        f"m{number}": Subscriber(f"m{number}", one if is_equal else draw(choice), draw(former))
        for number in range(draw(st.integers(0, 5)))
    }
    return subscribers, counts


def sizes(assigned):
    return sorted(map(len, assigned.values()))


@pytest.mark.extended
@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_every_subscribed_partition_has_one_subscriber(group, name):
    subscribers, counts = group
    assigned = ASSIGNORS[name](subscribers, counts)
    assert assigned.keys() == subscribers.keys()
    given_away = [partition for partitions in assigned.values() for partition in partitions]
    assert len(set(given_away)) == len(given_away)
    subscribed = frozenset().union(*(subscriber.topic_ids for subscriber in subscribers.values()))
    assert set(given_away) == {(topic, index) for topic in subscribed for index in range(counts[topic])}
    for member_id, partitions in assigned.items():
        assert {topic for topic, _ in partitions} <= subscribers[member_id].topic_ids


@pytest.mark.extended
@given(groups(equal=True))
def test_equal_members_get_equal_shares(group):
    counted = sizes(assign_uniformly(*group))
    assert not counted or counted[-1] - counted[0] <= 1


@pytest.mark.extended
@given(groups(equal=False))
def test_no_partition_could_move_to_a_member_with_two_fewer(group):
    subscribers, counts = group
    assigned = assign_uniformly(subscribers, counts)
    for giver, partitions in assigned.items():
        for topic, _ in partitions:
            for taker, subscriber in subscribers.items():
                if topic in subscriber.topic_ids:
                    assert len(assigned[giver]) - len(assigned[taker]) < 2


@given(groups())
def test_what_is_balanced_stays(group):
    subscribers, counts = group
    once = assign_uniformly(subscribers, counts)
    again = {name: subscriber._replace(former=once[name]) for name, subscriber in subscribers.items()}
    assert assign_uniformly(again, counts) == once


@pytest.mark.extended
@given(groups(equal=True), st.integers(0, 4))
def test_when_a_member_leaves_the_others_keep_what_they_have(group, which):
    subscribers, counts = group
    before = assign_uniformly(subscribers, counts)
    if len(before) < 2:
        return
    gone = sorted(before)[which % len(before)]
    left = {
        name: subscriber._replace(former=before[name])
        for name, subscriber in subscribers.items()
        if name != gone
    }
    after = assign_uniformly(left, counts)
    assert all(before[name] <= after[name] for name in left)


def test_ranges_are_contiguous_and_the_first_members_have_more():
    a, b = TOPICS[:2]
    subscribers = {name: Subscriber(name, frozenset({a, b}), frozenset()) for name in ("x", "y")}
    assigned = assign_ranges(subscribers, {a: 3, b: 3})
    assert assigned == {
        "x": {(a, 0), (a, 1), (b, 0), (b, 1)},
        "y": {(a, 2), (b, 2)},
    }
