"""Consumer groups: conversations of members with the coordinator, and invariants of every conversation."""

import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import (
    CommittingMember,
    GroupConfig,
    JoinRequest,
    LeavingMember,
    OffsetCommit,
)
from stablelog.coordinators.consumer_groups.consumer_protocol import target_assignment as target_module
from stablelog.coordinators.consumer_groups.consumer_protocol.group import ConsumerGroup
from stablelog.coordinators.consumer_groups.consumer_protocol.model import (
    HeartbeatAnswer,
    HeartbeatRequest,
    PatternSelection,
    SubscribableTopic,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.target_assignment import compute_target
from stablelog.coordinators.consumer_groups.coordinator import GroupCoordinator
from stablelog.coordinators.patterns import name_matcher
from tests.scale import examples

SESSION_MS = 45_000
T0 = ("t", 0)


class FakeTopics:
    """Topics that a test creates, grows and deletes."""

    def __init__(self, **counts: int) -> None:
        self.version = 0
        self.known: dict[str, SubscribableTopic] = {}
        for name, count in counts.items():
            self.put(name, count)

    def put(self, name: str, count: int) -> None:
        topic_id = self.known[name].topic_id if name in self.known else uuid.uuid4()
        self.known[name] = SubscribableTopic(topic_id, count)
        self.version += 1

    def delete(self, name: str) -> None:
        del self.known[name]
        self.version += 1

    def find(self, name: str) -> SubscribableTopic | None:
        return self.known.get(name)

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        return next((name for name, topic in self.known.items() if topic.topic_id == topic_id), None)


class Client:
    """A client of the consumer protocol that does what it is told: it revokes at once, or when `revokes` is set."""

    def __init__(self, room: "Room", member_id: str, *, topics=("t",), instance_id=None, **more: Any) -> None:
        self.room = room
        self.fields = {"topics": topics, "instance_id": instance_id, "rebalance_timeout_ms": 60_000} | more
        self.member_id = member_id
        self.epoch = 0
        self.owned: frozenset[Any] = frozenset()
        self.target: frozenset[Any] = frozenset()
        self.revokes = True

    def beat(self, **fields: Any) -> HeartbeatAnswer:
        """Send a heartbeat with all fields, and follow the answer."""
        asked = {"member_epoch": self.epoch, "owned": self.owned} | self.fields | fields
        answer = self.room.beat(self.member_id, **asked)
        if answer.code is ErrorCode.none:
            assert answer.member_epoch >= self.epoch or answer.member_epoch < 0
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.target = answer.assignment
            # What is new is owned at once; what is to be revoked is given away if the client does so.
            self.owned = self.target if self.revokes else self.owned | self.target
        elif answer.code in {ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id}:
            self.lose()
        return answer

    def lose(self) -> None:
        self.epoch = 0
        self.owned = self.target = frozenset()


class Room:
    """A coordinator with its log, topics and time."""

    def __init__(self, **config: int) -> None:
        self.config = GroupConfig(initial_rebalance_delay_ms=0, **config)
        self.coordinator = GroupCoordinator(self.config)
        self.topics = FakeTopics(t=4)
        self.computes_at_once = True
        self.log: list[tuple[bytes, bytes | None]] = []
        self.now_ms = 0

    def keep(self, decision):
        self.log += decision.records
        return decision

    def beat(
        self, member_id: str, group_id: str = "g", *, allowed: str = "", **fields: Any
    ) -> HeartbeatAnswer:
        """Send a heartbeat of a member that may describe the topics whose names match `allowed`, by default all."""
        request = HeartbeatRequest(group_id=group_id, member_id=member_id, fresh_id="fresh", **fields)
        pattern = self.coordinator.consumers.pattern_of(request)
        if pattern is not None:
            matches, is_allowed = name_matcher(pattern), name_matcher(allowed)
            names = frozenset(name for name in self.topics.known if matches(name) and is_allowed(name))
            seen = frozenset(self.topics.known)
            request = replace(request, selection=PatternSelection(pattern, allowed, 0, seen, names))
        answer = self.keep(
            self.coordinator.consumers.heartbeat(request, self.topics, now_ms=self.now_ms)
        ).answer
        while self.computes_at_once and self.compute(group_id):
            pass
        return answer

    def compute(self, group_id: str = "g") -> bool:
        """Compute the target assignment of a group, if a large one is due."""
        plan = self.coordinator.consumers.begin_plan(group_id, self.topics)
        if plan is not None:
            self.keep(
                self.coordinator.consumers.apply_target(group_id, plan, compute_target(plan, self.topics))
            )
        return plan is not None

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        while (next_ms := self.coordinator.next_deadline_ms()) is not None and next_ms <= self.now_ms:
            self.keep(self.coordinator.tick(self.now_ms))

    def restart(self) -> None:
        self.coordinator = GroupCoordinator(self.config)
        for key, value in self.log:
            self.coordinator.table.replay(key, value)
        self.keep(self.coordinator.finish_replay(self.now_ms))

    @property
    def group(self) -> ConsumerGroup:
        group = self.coordinator.table.groups["g"]
        assert isinstance(group, ConsumerGroup)
        return group

    def described(self):
        return self.coordinator.consumers.describe(["g"]).answer[0]

    def join(self, member_id="old", protocol="range"):
        request = JoinRequest(
            group_id="g",
            member_id=member_id,
            fresh_id="x",
            protocol_type="consumer",
            protocols=((protocol, b"\0\0\0\0\0\0"),),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            knows_member_id_required=False,
        )
        decision = self.keep(self.coordinator.join(request, "token", now_ms=self.now_ms))
        return dict(decision.answers).get("token")


def settle(*clients: Client) -> None:
    for _ in range(6):
        for client in clients:
            client.beat()


def indexes(client: Client) -> list[int]:
    return sorted(index for _, index in client.owned)


def test_a_first_member_gets_everything():
    room = Room()
    a = Client(room, "a")
    answer = a.beat()
    assert (answer.code, answer.member_id, answer.member_epoch) == (ErrorCode.none, "a", 1)
    assert answer.heartbeat_interval_ms == 5_000
    assert indexes(a) == [0, 1, 2, 3]
    assert room.group.state == "Stable"
    assert a.beat(owned=None, topics=None, rebalance_timeout_ms=-1).assignment is None, "nothing has changed"


@pytest.mark.parametrize("change", [lambda topics: topics.put("t", 6), lambda topics: topics.put("u", 2)])
def test_topics_that_grow_or_appear_are_assigned(change):
    room = Room()
    a, b = Client(room, "a", topics=("t", "u")), Client(room, "b", topics=("t", "u"))
    settle(a, b)
    before = room.group.epoch
    change(room.topics)
    settle(a, b)
    assert room.group.epoch == before + 1
    assert len(a.owned) == len(b.owned) == 3


def test_a_deleted_topic_is_taken_away():
    room = Room()
    a = Client(room, "a")
    a.beat()
    room.topics.delete("t")
    settle(a)
    assert indexes(a) == []
    assert room.group.state == "Stable"


def names_of(client: Client) -> set[str | None]:
    return {client.room.topics.name_of(topic) for topic, _ in client.owned}


def test_a_member_that_loses_rights_loses_the_topics_also_after_a_restart():
    for restarts in (False, True):
        room = Room()
        room.topics.put("secret", 2)
        a = Client(room, "a", topics=None, pattern=".*")
        a.beat()
        assert names_of(a) == {"t", "secret"}
        if restarts:
            room.restart()
        a.fields["allowed"] = "t"
        settle(a)
        assert names_of(a) == {"t"}


def test_after_a_restart_topics_that_only_a_silent_member_selects_are_found_with_its_heartbeat():
    for joins in (False, True):
        room = Room()
        a = Client(room, "a", topics=None, pattern="t")
        b = Client(room, "b", topics=None, pattern="t|u")
        settle(a, b)
        room.restart()
        room.topics.put("u", 3)
        a.beat()
        c = Client(room, "c", topics=None, pattern="t")
        settle(*([a, c] if joins else [a]))
        assert "u" not in names_of(a) | names_of(c)
        settle(a, b, *([c] if joins else []))
        assert names_of(b) >= {"u"}
        assert len(a.owned) + len(b.owned) + len(c.owned) == 7


@pytest.fixture
def large(monkeypatch):
    """Every target assignment is one that takes long."""
    monkeypatch.setattr(target_module, "UNDIVIDED_MAX", -1)


def test_a_large_target_assignment_is_computed_outside_of_heartbeats(large):
    room = Room()
    room.computes_at_once = False
    a, b = Client(room, "a", topics=None, pattern="[tu]"), Client(room, "b")
    a.beat()
    a.beat()
    assert (a.owned, room.group.epoch, room.group.state) == (frozenset(), 1, "Assigning")
    assert room.compute()
    a.beat()
    assert (len(a.owned), room.group.state) == (4, "Stable")
    assert not room.compute()
    room.topics.put("u", 2)
    a.beat()
    assert room.compute()
    settle(a)
    assert (len(a.owned), room.group.epoch) == (6, 2)
    plan = None
    for _ in range(2):  # The group changes while its plan is computed.
        b.beat(member_epoch=0, owned=frozenset())
        plan = room.coordinator.consumers.begin_plan("g", room.topics)
        room.beat("b", member_epoch=-1)
        room.keep(room.coordinator.consumers.apply_target("g", plan, compute_target(plan, room.topics)))
        a.beat()
    assert room.group.state == "Assigning"
    room.computes_at_once = True
    settle(a)
    assert (len(a.owned), room.group.state) == (6, "Stable")


def test_a_plan_of_a_group_that_was_made_again_is_not_followed(large):
    room = Room()
    room.computes_at_once = False
    a = Client(room, "a")
    a.beat()
    plan = room.coordinator.consumers.begin_plan("g", room.topics)
    room.beat("a", member_epoch=-1)
    room.keep(room.coordinator.delete_groups(["g"], now_ms=0))
    Client(room, "a", topics=("none",)).beat()
    length = len(room.log)
    room.keep(room.coordinator.consumers.apply_target("g", plan, compute_target(plan, room.topics)))
    assert len(room.log) == length


def test_offsets_are_committed_by_members_in_their_epoch():
    room = Room()
    a = Client(room, "a")
    a.beat()

    def commit(member_id, epoch, **more):
        decision = room.coordinator.commit_offsets(
            "g", {T0: OffsetCommit(1)}, CommittingMember(member_id, epoch), now_ms=0, **more
        )
        return room.keep(decision).answer[T0].name

    def txn(*who):
        decision = room.coordinator.txn_commit_offsets(
            "g", {T0: OffsetCommit(1)}, CommittingMember(*who), now_ms=0
        )
        return decision.answer[T0].name

    check = room.coordinator.consumers.check_fetch
    assert commit("a", 1) == "none"
    assert commit("a", 0) == commit("a", 2) == "stale_member_epoch"
    assert commit("b", 1) == commit("", -1) == "unknown_member_id"
    assert commit("a", 1, knows_missing_group=False) == "unsupported_version"
    assert [txn(*who) for who in (("a", 1), ("a", 2), ("b", 1), ())] == [
        "none",
        "illegal_generation",
        "unknown_member_id",
        "none",
    ]
    assert [check("g", *who).name for who in ((None, -1), ("a", 1), ("a", 2), ("b", 1))] == [
        "none",
        "none",
        "stale_member_epoch",
        "unknown_member_id",
    ]
    room.beat("a", member_epoch=-1)
    assert commit("", -1) == "none", "an empty group takes offsets from an operator"
    assert check("none", "a", 1) is ErrorCode.none


def test_offsets_of_subscribed_topics_are_kept():
    room = Room(offsets_retention_ms=100_000)
    a = Client(room, "a")
    a.beat()
    commits = {T0: OffsetCommit(1), ("u", 0): OffsetCommit(2)}
    room.keep(room.coordinator.commit_offsets("g", commits, CommittingMember("a", 1), now_ms=0))
    answer = room.keep(room.coordinator.delete_offsets("g", commits, now_ms=0)).answer
    assert answer.partitions[T0] is ErrorCode.group_subscribed_to_topic
    assert answer.partitions["u", 0] is ErrorCode.none
    for _ in range(40):
        a.beat()
        room.wait(40_000)
    assert list(room.coordinator.fetch_offsets("g", None).answer) == [T0]
    assert room.coordinator.delete_groups(["g"], now_ms=0).answer == {"g": ErrorCode.non_empty_group}
    room.beat("a", member_epoch=-1)
    room.restart()
    room.wait(10**7)
    assert room.coordinator.list_groups().answer == []
    room.restart()
    assert room.coordinator.list_groups().answer == []


def test_the_two_kinds_of_group_share_the_ids():
    room = Room()
    a = Client(room, "a")
    a.beat()
    room.keep(room.coordinator.commit_offsets("g", {T0: OffsetCommit(7)}, CommittingMember("a", 1), now_ms=0))
    assert room.join("").code is ErrorCode.inconsistent_group_protocol
    heartbeat = room.coordinator.heartbeat("g", "a", 1, now_ms=0)
    assert heartbeat.answer is ErrorCode.unknown_member_id
    assert room.coordinator.describe(["g"]).answer[0].code is ErrorCode.group_id_not_found
    room.beat("a", member_epoch=-1)
    joined = room.join("")
    assert joined.code is ErrorCode.none
    assert a.beat(member_epoch=0, owned=frozenset()).code is ErrorCode.group_id_not_found
    assert room.described().code is ErrorCode.group_id_not_found
    room.restart()
    assert [group.group_type for group in room.coordinator.list_groups().answer] == ["classic"]
    a.lose()
    assert a.beat().code is ErrorCode.none, "the generation was not recorded, so the group is empty"
    room.restart()
    (listed,) = room.coordinator.list_groups().answer
    assert (listed.group_type, listed.state) == ("consumer", "Stable")
    assert room.coordinator.list_groups([], ["Classic"]).answer == []
    assert len(room.coordinator.list_groups(["stable"], ["Consumer"]).answer) == 1
    assert room.coordinator.fetch_offsets("g", [T0]).answer[T0].offset == 7
    room.beat("a", member_epoch=-1)
    deleted = room.keep(room.coordinator.delete_groups(["g"], now_ms=0))
    assert deleted.answer == {"g": ErrorCode.none}
    room.restart()
    assert room.coordinator.list_groups().answer == []


def test_after_a_restart_members_go_on():
    room = Room()
    a, b = Client(room, "a"), Client(room, "b", topics=None, pattern="t")
    settle(a, b)
    before, epoch = (a.owned, b.owned), room.group.epoch
    room.restart()
    assert room.group.is_subscribed_to("anything"), "the pattern is not resolved yet"
    settle(a, b)
    assert (a.owned, b.owned) == before
    assert room.group.epoch == epoch, "the topics are the same"
    room.restart()
    room.topics.put("t", 6)
    settle(a, b)
    assert len(a.owned) == len(b.owned) == 3
    room.restart()
    room.wait(SESSION_MS)
    assert room.group.state == "Empty"


def test_a_member_of_a_group_that_has_expired_joins_again():
    """Clients stop at GROUP_ID_NOT_FOUND. The first check after a start deletes the group soon after the session."""
    room = Room()
    a = Client(room, "a", topics=())
    a.beat()
    room.restart()
    settle(a)
    room.wait(30_000)
    room.wait(30_000)
    assert room.coordinator.list_groups().answer == []
    answer = a.beat()
    assert answer.code is ErrorCode.unknown_member_id
    assert "join with member epoch 0" in answer.message
    assert room.coordinator.list_groups().answer == []
    assert a.beat().code is ErrorCode.none
    assert room.group.state == "Stable"


def delete_group(room):
    assert room.keep(room.coordinator.delete_groups(["g"], now_ms=room.now_ms)).answer["g"] is ErrorCode.none


def become_an_empty_classic_group(room):
    member_id = room.join("").member_id
    room.keep(room.coordinator.leave("g", [LeavingMember(member_id)], now_ms=room.now_ms))


@pytest.mark.parametrize("lose_group", [delete_group, become_an_empty_classic_group])
def test_a_member_of_a_group_that_has_gone_is_unknown_whatever_it_asks(lose_group):
    room = Room()
    a = Client(room, "a", instance_id="one")
    settle(a)
    room.wait(SESSION_MS)
    lose_group(room)
    before = len(room.log)
    for fields in ({}, {"instance_id": None}, {"member_epoch": -1}, {"member_epoch": -2}):
        asked = {"member_epoch": a.epoch, "owned": a.owned} | a.fields | fields
        assert room.beat("a", **asked).code is ErrorCode.unknown_member_id
    assert len(room.log) == before, "who is refused changes nothing"
    a.lose()
    assert a.beat().code is ErrorCode.none
    assert indexes(a) == [0, 1, 2, 3]


NAMES = st.sampled_from("abcd")
TOPIC_NAMES = st.sampled_from(["t", "u", "v"])


class Members(RuleBasedStateMachine):
    """Members that join, lag, leave and expire, with topics that change and restarts of the broker."""

    def __init__(self) -> None:
        super().__init__()
        self.room = Room()
        self.clients: dict[str, Client] = {}
        self.epoch = 0

    @rule(name=NAMES, topics=st.frozensets(TOPIC_NAMES).map(tuple), assignor=st.sampled_from([None, "range"]))
    def join(self, name, topics, assignor):
        if name not in self.clients:
            self.clients[name] = Client(self.room, name, topics=topics, assignor=assignor)
            assert self.clients[name].beat().code is ErrorCode.none

    @rule(name=NAMES)
    def join_by_pattern(self, name):
        if name not in self.clients:
            self.clients[name] = Client(self.room, name, topics=None, pattern="[tu]")
            assert self.clients[name].beat().code is ErrorCode.none

    @rule(name=NAMES, topics=st.frozensets(TOPIC_NAMES, min_size=1).map(tuple))
    def subscribe(self, name, topics):
        if name in self.clients:
            self.clients[name].fields |= {"topics": topics, "pattern": ""}

    @rule(name=NAMES, revokes=st.booleans())
    def beat(self, name, revokes):
        if name in self.clients:
            self.clients[name].revokes = revokes
            self.clients[name].beat()

    @rule(name=NAMES)
    def beat_without_fields(self, name):
        """A heartbeat that says only that the member is alive."""
        client = self.clients.get(name)
        if client is not None and client.epoch:
            client.revokes = False
            client.beat(owned=None, topics=None, pattern=None, rebalance_timeout_ms=-1)

    @rule(name=NAMES)
    def lose_an_answer(self, name):
        """The client did not get the answer: it sends the same again, and is served or fenced."""
        client = self.clients.get(name)
        if client is not None:
            self.room.beat(name, member_epoch=client.epoch, owned=client.owned, **client.fields)
            assert client.beat().code in {
                ErrorCode.none,
                ErrorCode.fenced_member_epoch,
                ErrorCode.unknown_member_id,
            }

    @rule(name=NAMES)
    def crash_and_join(self, name):
        if name in self.clients:
            self.clients[name].lose()
            assert self.clients[name].beat().code is ErrorCode.none

    @rule(name=NAMES)
    def leave(self, name):
        if self.clients.pop(name, None):
            code = self.room.beat(name, member_epoch=-1).code
            assert code in {ErrorCode.none, ErrorCode.unknown_member_id, ErrorCode.group_id_not_found}

    @rule(ms=st.sampled_from([1_000, 30_000, 46_000]))
    def wait(self, ms):
        self.room.wait(ms)

    @rule(name=TOPIC_NAMES, count=st.integers(1, 6))
    def make_or_grow(self, name, count):
        known = self.room.topics.known.get(name)
        self.room.topics.put(name, max(count, known.partition_count if known else 0))

    @rule(name=TOPIC_NAMES)
    def delete(self, name):
        if name in self.room.topics.known:
            self.room.topics.delete(name)

    @rule()
    def restart(self):
        before = list(self.room.coordinator.table.live_state().rest)
        self.room.restart()
        assert sorted(self.room.coordinator.table.live_state().rest) == sorted(before)

    @rule()
    def trim(self):
        """The log is only what a checkpoint writes."""
        self.room.log = list(self.room.coordinator.table.live_state().rest)

    @property
    def group(self):
        return self.room.coordinator.table.groups.get("g")

    @precondition(lambda self: self.clients)
    @rule()
    def converge(self):
        for client in self.clients.values():
            client.revokes = True
        settle(*self.clients.values(), *self.clients.values())
        assert self.group.state == "Stable"
        names = {name for client in self.clients.values() for name in client.fields["topics"] or ()}
        if any(client.fields.get("pattern") for client in self.clients.values()):
            names |= {"t", "u"}
        wanted = {
            (topic.topic_id, index)
            for name, topic in self.room.topics.known.items()
            if name in names
            for index in range(topic.partition_count)
        }
        owned = [partition for client in self.clients.values() for partition in client.owned]
        assert sorted(owned) == sorted(wanted)
        for name, client in self.clients.items():
            assert client.owned == self.group.target[name]

    @invariant()
    def no_partition_has_two_owners(self):
        """Members that the group knows, and that have its epoch, own what no other such member owns."""
        if self.group is None:
            return
        owned = [
            partition
            for name, client in self.clients.items()
            if name in self.group.members and client.epoch
            for partition in client.owned
        ]
        assert len(owned) == len(set(owned))

    @invariant()
    def the_epoch_of_a_group_never_falls(self):
        if self.group is None:
            self.epoch = 0
            return
        assert self.group.epoch >= self.epoch
        assert self.group.target_epoch <= self.group.epoch
        self.epoch = self.group.epoch


Members.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
Members.TestCase.pytestmark = [pytest.mark.extended]
TestMembers = Members.TestCase


class MembersOfLargeGroups(Members):
    """Every target assignment is computed outside of heartbeats, and members go on meanwhile."""

    def __init__(self):
        super().__init__()
        self.undivided_max, target_module.UNDIVIDED_MAX = target_module.UNDIVIDED_MAX, -1
        self.room.computes_at_once = False
        self.result = None

    def teardown(self):
        target_module.UNDIVIDED_MAX = self.undivided_max

    @rule()
    def begin(self):
        plan = self.room.coordinator.consumers.begin_plan("g", self.room.topics)
        self.result = None if plan is None else (plan, compute_target(plan, self.room.topics))

    @rule()
    def end(self):
        if self.result is not None:
            self.room.keep(self.room.coordinator.consumers.apply_target("g", *self.result))
            self.result = None

    @precondition(lambda self: self.clients)
    @rule()
    def converge(self):
        self.room.computes_at_once = True
        super().converge()
        self.room.computes_at_once = False


MembersOfLargeGroups.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
MembersOfLargeGroups.TestCase.pytestmark = [pytest.mark.extended]
TestMembersOfLargeGroups = MembersOfLargeGroups.TestCase
