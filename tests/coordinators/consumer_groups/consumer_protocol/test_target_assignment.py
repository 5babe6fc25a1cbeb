"""Target assignments are computed from a plan and the topics alone."""

import uuid

import pytest

from stablelog.coordinators.consumer_groups.consumer_protocol.model import SubscribableTopic
from stablelog.coordinators.consumer_groups.consumer_protocol.records import encode_target
from stablelog.coordinators.consumer_groups.consumer_protocol.target_assignment import (
    AssignmentPlan,
    PlannedMember,
    TargetAssignment,
    compute_target,
    topics_hash_of,
)
from tests.coordinators.consumer_groups.consumer_protocol.test_groups import FakeTopics

NOTHING = frozenset()


def a_plan(members, *, topics_hash=0, is_due=True, assignor="range"):
    """A plan of members with these (topics, former partitions)."""
    return AssignmentPlan(
        epoch=2,
        target_epoch=1,
        topics_version=0,
        topics_hash=topics_hash,
        is_due=is_due,
        assignor=assignor,
        members={name: PlannedMember(name, topics, former) for name, (topics, former) in members.items()},
    )


def indexes(target):
    return {name: sorted(index for _, index in partitions) for name, partitions in target.partitions.items()}


def test_the_partitions_of_subscribed_topics_are_shared_by_the_members():
    topics = FakeTopics(t=4, other=9)
    subscribed = frozenset({"t"})
    target = compute_target(a_plan({"a": (subscribed, NOTHING), "b": (subscribed, NOTHING)}), topics)
    assert indexes(target) == {"a": [0, 1], "b": [2, 3]}
    assert {topic for given in target.partitions.values() for topic, _ in given} == {
        topics.known["t"].topic_id
    }


def test_only_the_members_whose_partitions_have_changed_get_a_record():
    topics = FakeTopics(t=2)
    topic_id = topics.known["t"].topic_id
    subscribed = frozenset({"t"})
    members = {"a": (subscribed, frozenset({(topic_id, 0)})), "b": (subscribed, NOTHING)}
    target = compute_target(a_plan(members), topics)
    assert target.values == {"b": encode_target(frozenset({(topic_id, 1)}))}


def test_members_have_no_partitions_of_topics_that_do_not_exist():
    target = compute_target(
        a_plan({"a": (frozenset({"gone"}), frozenset({(uuid.UUID(int=1), 0)}))}), FakeTopics()
    )
    assert (target.partitions, target.topics_hash) == ({"a": NOTHING}, 0)
    assert target.values == {"a": encode_target(NOTHING)}


@pytest.mark.parametrize("is_due", [False, True])
def test_with_the_topics_of_the_epoch_the_former_target_stays_unless_a_new_one_is_due(is_due):
    topics = FakeTopics(t=2)
    known = topics_hash_of(topics.known)
    target = compute_target(
        a_plan({"a": (frozenset({"t"}), NOTHING)}, topics_hash=known, is_due=is_due), topics
    )
    assert (target == TargetAssignment(known, None, {})) is not is_due


def test_other_topics_need_another_target():
    topics = FakeTopics(t=2)
    before = topics_hash_of(topics.known)
    topics.put("t", 3)
    target = compute_target(
        a_plan({"a": (frozenset({"t"}), NOTHING)}, topics_hash=before, is_due=False), topics
    )
    assert indexes(target) == {"a": [0, 1, 2]}


def test_the_hash_tells_topics_apart_by_name_id_and_count_and_is_stored():
    topic = SubscribableTopic(uuid.UUID(int=1), 2)
    assert topics_hash_of({}) == 0
    hashes = [
        topics_hash_of(topics)
        for topics in (
            {"t": topic},
            {"u": topic},
            {"t": topic._replace(partition_count=3)},
            {"t": topic._replace(topic_id=uuid.UUID(int=2))},
            {"t": topic, "u": topic},
        )
    ]
    assert len(set(hashes)) == len(hashes)
    assert all(-(2**63) <= one < 2**63 for one in hashes)
    assert topics_hash_of({"u": topic, "t": topic}) == hashes[-1]


@pytest.mark.parametrize(
    ("topic_count", "member_count", "large"),
    [(1, 10, False), (1, 1001, True), (1001, 1, True), (500, 501, True)],
)
def test_a_plan_is_large_by_its_members_and_topics(topic_count, member_count, large):
    names = frozenset(f"t{number}" for number in range(topic_count))
    plan = a_plan({f"m{number}": (names, NOTHING) for number in range(member_count)})
    assert plan.is_large(FakeTopics()) is large


def test_partitions_and_former_partitions_count_too():
    topics, names = FakeTopics(t=990), frozenset({"t"})
    former = frozenset((topics.known["t"].topic_id, index) for index in range(8))
    # Each of these has a cost of 1,000 at most: a topic, a member, 990 partitions, and 8 former ones.
    assert not a_plan({"a": (names, former)}).is_large(topics)
    assert a_plan({"a": (names, former | {(uuid.UUID(int=1), 0)})}).is_large(topics)
    topics.put("t", 991)
    assert a_plan({"a": (names, former)}).is_large(topics)


def test_of_different_subscriptions_each_pair_of_member_and_partition_counts():
    same, other = frozenset({"t"}), frozenset({"t", "u"})
    # With one subscription: a topic, two members and 795 partitions. With two: three names and an eighth of the pairs.
    topics = FakeTopics(t=795)
    assert not a_plan({"a": (same, NOTHING), "b": (same, NOTHING)}).is_large(topics)
    assert not a_plan({"a": (same, NOTHING), "b": (other, NOTHING)}).is_large(topics)
    topics.put("t", 800)
    assert not a_plan({"a": (same, NOTHING), "b": (same, NOTHING)}).is_large(topics)
    assert a_plan({"a": (same, NOTHING), "b": (other, NOTHING)}).is_large(topics)
