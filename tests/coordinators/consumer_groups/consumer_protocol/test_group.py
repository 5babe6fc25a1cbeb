"""One consumer group: its topics, its epochs, and that a replay of its records gives the same group."""

import uuid

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.consumer_protocol.group import ConsumerGroup
from stablelog.coordinators.consumer_groups.consumer_protocol.model import (
    CurrentAssignment,
    HeartbeatRequest,
    MemberState,
    PatternSelection,
    Subscription,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.records import ConsumerKey
from stablelog.coordinators.consumer_groups.records import read_key
from tests.coordinators.consumer_groups.consumer_protocol.test_groups import (
    Client,
    Room,
    indexes,
    names_of,
    settle,
)
from tests.scale import examples


def test_a_pattern_selects_the_topics_that_match_as_a_whole():
    room = Room()
    for name in ("orders-1", "orders-2", "my-orders-1"):
        room.topics.put(name, 1)
    a = Client(room, "a", topics=None, pattern="orders-.*")
    a.beat()
    assert {room.topics.name_of(topic) for topic, _ in a.owned} == {"orders-1", "orders-2"}
    room.topics.put("orders-3", 1)
    a.beat()
    assert len(a.owned) == 3
    b = Client(room, "b", topics=None, pattern="my-.*|t")
    b.beat()
    assert len(b.owned) == 5
    assert room.group.is_subscribed_to("orders-3")
    assert not room.group.is_subscribed_to("u")
    assert a.beat(pattern="(a").code is ErrorCode.invalid_regular_expression
    a.beat(pattern="", topics=("t",))
    settle(a)


def test_a_pattern_selects_only_topics_that_the_member_itself_may_describe():
    """Whoever sends the next heartbeat, no member gets topics by the rights of another one."""
    room = Room()
    for name in ("open", "secret"):
        room.topics.put(name, 2)
    a = Client(room, "a", topics=None, pattern=".*")
    b = Client(room, "b", topics=None, pattern=".*", allowed="open")
    settle(a, b)
    assert names_of(a) >= {"t", "secret"}
    assert names_of(b) == {"open"}
    for first, second in ((a, b), (b, a)):
        room.topics.put(f"secret-{first.member_id}", 2)
        settle(first, second)
        assert names_of(b) <= {"open"}
        assert len(a.owned) + len(b.owned) == sum(count for _, count in room.topics.known.values())
    owned = a.owned, b.owned
    epoch = room.group.epoch
    settle(b, a, b)
    assert ((a.owned, b.owned), room.group.epoch) == (owned, epoch)
    room.restart()
    settle(b, a, b)
    assert ((a.owned, b.owned), room.group.epoch) == (owned, epoch), "the rights of both are as before"


def test_members_with_equal_patterns_and_rights_follow_a_new_topic_in_one_epoch():
    room = Room()
    clients = [Client(room, name, topics=None, pattern="[a-z]") for name in "abcd"]
    settle(*clients)
    epoch = room.group.epoch
    room.topics.put("u", 4)
    settle(*clients)
    assert room.group.epoch == epoch + 1
    assert [len(client.owned) for client in clients] == [2, 2, 2, 2]
    assert len(room.group.selections) == 1
    clients[0].beat(pattern="u", topics=None)
    settle(*clients[1:])
    assert len(room.group.selections) == 2
    room.beat("a", member_epoch=-1)
    settle(*clients[1:])
    assert len(room.group.selections) == 1, "a selection without a member is forgotten"


def test_a_static_member_with_another_principal_does_not_keep_its_topics():
    room = Room()
    room.topics.put("secret", 2)
    a = Client(room, "a", instance_id="i", topics=None, pattern=".*")
    a.beat()
    room.beat("a", member_epoch=-2, instance_id="i")
    other = Client(room, "a2", instance_id="i", topics=None, pattern=".*", allowed="t")
    settle(other)
    assert names_of(other) == {"t"}


def test_a_pattern_that_changed_while_it_was_resolved_is_resolved_by_a_later_heartbeat():
    room = Room()
    a = Client(room, "a", topics=None, pattern="t")
    a.beat()
    late = PatternSelection("t", "", 0, frozenset(), frozenset({"t"}))
    request = HeartbeatRequest(
        group_id="g", member_id="a", fresh_id="x", member_epoch=1, pattern="u", selection=late
    )
    room.keep(room.coordinator.consumers.heartbeat(request, room.topics, now_ms=0))
    assert room.group.is_subscribed_to("anything")
    a.fields["pattern"] = "u"
    settle(a)
    assert not a.owned


def test_the_assignor_of_most_members_is_used():
    room = Room()
    clients = [
        Client(room, name, assignor=assignor)
        for name, assignor in (("a", "range"), ("b", "range"), ("c", None))
    ]
    settle(*clients)
    assert room.described().assignor == "range"
    assert [indexes(client) for client in clients] == [[0, 1], [2], [3]]


# -- the group alone ---------------------------------------------------------------------------------------------------

A, B, C = [(uuid.UUID(int=1), index) for index in range(3)]


def subscription(*topics, **fields):
    told = {"instance_id": None, "rack_id": None, "client_id": "c", "client_host": "h", "pattern": None}
    return Subscription(**{**told, "topics": topics, "rebalance_timeout_ms": 1, "assignor": None, **fields})


def state_of(group):
    """All that the records of a group have to give back."""
    members = {name: (one.subscription, one.current) for name, one in group.members.items()}
    epochs = group.epoch, group.topics_hash, group.target_epoch
    return epochs, members, group.target, group.static_ids, group.owners


def replayed(records):
    group = ConsumerGroup("g")
    for key, value in records:
        read = read_key(key)
        assert isinstance(read, ConsumerKey)
        group.replay(read, value)
    return group


class Changes(RuleBasedStateMachine):
    """Any sequence of changes: the records of the changes, and those of the state, give the same group."""

    names = st.sampled_from("abc")

    def __init__(self):
        super().__init__()
        self.group, self.log = ConsumerGroup("g"), []

    @rule(name=names, topics=st.frozensets(st.sampled_from("tu")), is_static=st.booleans())
    def subscribe(self, name, topics, is_static):
        told = subscription(*sorted(topics), instance_id=f"i-{name}" if is_static else None)
        self.log.append(self.group.set_subscription(name, told))

    @rule(name=names, wanted=st.frozensets(st.sampled_from([A, B, C])), epoch=st.integers(0, 9))
    def own(self, name, wanted, epoch):
        if name in self.group.members:
            is_owned = self.group.is_owned_by_other(name)
            free = frozenset(partition for partition in wanted if not is_owned(partition))
            self.log.append(self.group.set_current(name, CurrentAssignment(epoch, epoch - 1, assigned=free)))

    @rule(name=names, partitions=st.frozensets(st.sampled_from([A, B, C])))
    def target(self, name, partitions):
        if name in self.group.members:
            self.log.append(self.group.set_target_of(name, partitions))

    @rule(name=names)
    def remove(self, name):
        if name in self.group.members:
            self.log.extend(self.group.remove(name))

    @rule()
    def rise(self):
        self.log.append(self.group.raise_epoch())

    @invariant()
    def the_records_give_the_group(self):
        assert state_of(replayed(self.log)) == state_of(self.group)
        assert state_of(replayed(self.group.records())) == state_of(self.group)


Changes.TestCase.settings = settings(max_examples=examples(15), stateful_step_count=15, deadline=None)
TestChanges = Changes.TestCase


def test_a_partition_with_two_owners_is_a_fault_of_the_caller():
    group = ConsumerGroup("g")
    for name in "ab":
        group.set_subscription(name, subscription("t"))
    group.set_current("a", CurrentAssignment(1, 0, assigned=frozenset({A})))
    assert group.is_owned_by_other("b")(A)
    assert not group.is_owned_by_other("a")(A)
    with pytest.raises(AssertionError, match="of group 'g' has two owners"):
        group.set_current("b", CurrentAssignment(1, 0, assigned=frozenset({A})))


def test_the_state_follows_the_epochs_of_the_group_and_of_its_members():
    group = ConsumerGroup("g")
    assert group.state == "Empty"
    group.set_subscription("a", subscription("t"))
    group.raise_epoch()
    assert group.state == "Assigning"
    group.target_epoch = 1
    assert group.state == "Reconciling"
    group.set_current("a", CurrentAssignment(1, 0))
    assert group.state == "Stable"
    group.set_current("a", CurrentAssignment(1, 0, MemberState.UNRELEASED))
    assert group.state == "Reconciling"


def test_a_group_without_a_preference_has_the_default_assignor():
    group = ConsumerGroup("g")
    assert group.assignor == "uniform"
    for name, assignor in (("a", "range"), ("b", None), ("c", None)):
        group.set_subscription(name, subscription("t", assignor=assignor))
    assert group.assignor == "range"


def test_the_deadlines_of_a_group_are_those_of_its_offsets_and_members():
    group = ConsumerGroup("g")
    group.set_subscription("a", subscription("t"))
    assert {(alarm.due.name, alarm.member_id) for alarm in group.alarms()} == {
        ("OFFSETS", ""),
        ("SESSION", "a"),
        ("REVOCATION", "a"),
    }


def test_a_group_is_subscribed_to_the_topics_that_its_members_name():
    group = ConsumerGroup("g")
    group.set_subscription("a", subscription("t"))
    assert group.is_subscribed_to("t")
    assert not group.is_subscribed_to("u")
    group.set_subscription("a", subscription("u"))
    assert (group.is_subscribed_to("t"), group.is_subscribed_to("u")) == (False, True)
    group.set_subscription("b", subscription(pattern="x"))
    assert group.is_subscribed_to("anything"), "the pattern is not resolved yet"
    list(group.remove("b"))
    assert not group.is_subscribed_to("anything")
