"""Who is in a group, and in which state is it?

    EMPTY ──rebalance──▶ PREPARING_REBALANCE ──joined──▶ COMPLETING_REBALANCE ──assigned──▶ STABLE
      ▲                    │      ▲     ▲                        │                            │
      └──────emptied───────┘      │     └───────rebalance────────┘                            │
                                  └─────────────────────rebalance─────────────────────────────┘

A group prepares a rebalance until its members have joined (or the time is over), completes it until the
leader has brought the assignment, and is stable then. Each round is a generation. What is not drawn does not
happen: `step` refuses it and changes nothing.

A group without members is empty; a *simple* group has never had any and only keeps offsets. Only a stable or
an empty generation is recorded: a crash in between takes a group back to the generation before.

Invariants: the leader is a member; every static member is in `static_ids` under its instance id; a member of
a completing or stable group supports the group's protocol.

Source: Kafka's classic group protocol; KIP-345 (static members), KIP-394 (member ids first), KIP-814
(skipping).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum

from stablelog.coordinators.consumer_groups.alarms import Alarm
from stablelog.coordinators.consumer_groups.answers import JoinedMember, Protocols, Token
from stablelog.coordinators.consumer_groups.records import GroupValue, MemberValue, subscribed_topics

CONSUMER_PROTOCOL = "consumer"
CLASSIC_TYPE = "classic"


class State(StrEnum):
    """Of a group, by the names that Kafka shows to people."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Step(Enum):
    """What takes a group from one state to the next."""

    REBALANCE = "a new generation is to be made"
    JOINED = "the members of the new generation are known"
    EMPTIED = "the new generation has no members"
    ASSIGNED = "the leader has assigned the work"
    DELETED = "the group is forgotten"


TRANSITIONS: Mapping[State, Mapping[Step, State]] = {
    State.EMPTY: {Step.REBALANCE: State.PREPARING_REBALANCE, Step.DELETED: State.DEAD},
    State.PREPARING_REBALANCE: {Step.JOINED: State.COMPLETING_REBALANCE, Step.EMPTIED: State.EMPTY},
    State.COMPLETING_REBALANCE: {Step.REBALANCE: State.PREPARING_REBALANCE, Step.ASSIGNED: State.STABLE},
    State.STABLE: {Step.REBALANCE: State.PREPARING_REBALANCE},
    State.DEAD: {},
}


class IllegalStepError(Exception):
    """A step that the group's state does not know: a bug of the caller. Nothing changed."""


@dataclass(slots=True, eq=False)
class Member:
    """A member of a group.

    Attributes:
        protocols: (name, metadata), the most wanted first.
        session: goes off when the member has not been heard of for its session timeout.
        is_new: it has not been in any generation yet, so it cannot send heartbeats.
        join_token, sync_token: the request of its that waits.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    session: Alarm
    assignment: bytes = b""
    is_new: bool = False
    join_token: Token | None = None
    sync_token: Token | None = None

    @property
    def is_waited_for(self) -> bool:
        """Whether its silence is its own fault: who waits for an answer of ours need not send heartbeats."""
        return self.is_new or (self.join_token is None and self.sync_token is None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """What it says under that protocol; nothing if it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")


class Group:
    """One group. Its methods keep the membership consistent; when they are called is `consumer_groups.rebalance`'s
    decision.

    Attributes:
        state_ms: since when it is in its state; -1 if an old record does not say.
        protocol_type: None if it is a simple group.
        pending_joins: ids that were handed out to members who have yet to come back with them.
        pending_syncs: members of this generation who have yet to ask for their assignment.
        is_initial: it rebalances from empty, and waits for more members whether or not all have joined.
        initial_delay_ms, initial_left_ms: of that wait, and set only then: its current stretch, and what it
            may still be prolonged by.
        subscribed: topics of the members; None if that cannot be known.
        recorded: the value of its last record in the log; None if it has none.
        join_alarm, sync_alarm, offsets_alarm: end of the join phase, of the sync phase; time to look at the
            offsets.
    """

    def __init__(self, group_id: str, join_alarm: Alarm, sync_alarm: Alarm, offsets_alarm: Alarm) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.state_ms = -1
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        self.pending_joins: dict[str, Alarm] = {}
        self.pending_syncs: set[str] = set()
        self.is_initial = False
        self.is_prolonged = False
        self.initial_delay_ms: int
        self.initial_left_ms: int
        self.subscribed: frozenset[str] | None = None
        self.recorded: bytes | None = None
        self.join_alarm = join_alarm
        self.sync_alarm = sync_alarm
        self.offsets_alarm = offsets_alarm

    def step(self, step: Step, now_ms: int) -> None:
        """Go to the next state.

        Raises:
            IllegalStepError: there is no such step from here; nothing changed.
        """
        following = TRANSITIONS[self.state].get(step)
        if following is None:
            raise IllegalStepError(f"group {self.group_id!r} is {self.state}: {step.value}?")
        self.state = following
        self.state_ms = now_ms

    # -- members ---------------------------------------------------------------------------------------------

    def add(self, member: Member, protocol_type: str) -> None:
        """Take a member in. The first one says what kind of protocol the group speaks, and leads it."""
        assert member.member_id not in self.members
        assert member.group_instance_id is None or member.group_instance_id not in self.static_ids
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_ids[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.pending_joins.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Take a member out. If it was the leader, the next one leads."""
        member = self.members.pop(member_id)
        if member.group_instance_id is not None:
            del self.static_ids[member.group_instance_id]
        self.pending_syncs.discard(member_id)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def replace(self, member: Member) -> None:
        """Put a static member into the place of its former self: its leadership, its assignment."""
        assert member.group_instance_id is not None
        former = self.members.pop(self.static_ids[member.group_instance_id])
        member.assignment = former.assignment
        self.members[member.member_id] = member
        self.static_ids[member.group_instance_id] = member.member_id
        if former.member_id in self.pending_syncs:
            self.pending_syncs.remove(former.member_id)
            self.pending_syncs.add(member.member_id)
        if self.leader_id == former.member_id:
            self.leader_id = member.member_id

    @property
    def has_all_joined(self) -> bool:
        """Whether nobody is left to wait for in the join phase."""
        return not self.pending_joins and all(
            member.join_token is not None for member in self.members.values()
        )

    @property
    def joined_count(self) -> int:
        """How many members wait for the new generation."""
        return sum(member.join_token is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a join phase lasts: as long as the slowest member asked for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined. False: nobody has."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].join_token is None:
            joined = (member.member_id for member in self.members.values() if member.join_token is not None)
            self.leader_id = next(joined, self.leader_id)
        return self.members[self.leader_id].join_token is not None

    # -- protocol --------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether one with these protocols fits in: every member must support one of them."""
        names = set(names)
        if self.state is State.EMPTY:
            return bool(protocol_type) and bool(names)
        return protocol_type == self.protocol_type and bool(names & self._common_protocols(names))

    def _common_protocols(self, start: Iterable[str]) -> set[str]:
        common = set(start)
        for member in self.members.values():
            common &= {name for name, _ in member.protocols}
        return common

    def vote(self) -> str:
        """The protocol that most members want of those that all support; of equals, the oldest's wish."""
        assert self.members
        common = self._common_protocols(name for name, _ in next(iter(self.members.values())).protocols)
        assert common, f"the members of group {self.group_id!r} have no protocol in common"
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return max(votes, key=votes.__getitem__)

    def begin_generation(self, now_ms: int) -> None:
        """Begin the next generation with the members there are."""
        self.step(Step.JOINED if self.members else Step.EMPTIED, now_ms)
        self.generation += 1
        self.protocol_name = self.vote() if self.members else None
        self.subscribed = self._subscriptions()
        self.pending_syncs.clear()
        self.is_initial = False

    def _subscriptions(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            subscribed = subscribed_topics(member.metadata(self.protocol_name))
            if subscribed is None:
                return None
            topics.update(subscribed)
        return frozenset(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads the topic, as far as can be known."""
        return (
            self.protocol_type == CONSUMER_PROTOCOL if self.subscribed is None else topic in self.subscribed
        )

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """What the leader needs to know for assigning the work."""
        return tuple(
            JoinedMember(member.member_id, member.group_instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        )

    # -- record ----------------------------------------------------------------------------------------------

    def value(self, assignments: Mapping[str, bytes]) -> GroupValue:
        """What is recorded of this generation.

        Args:
            assignments: by member id; a member that is not in it has none.
        """
        return GroupValue(
            self.protocol_type or "",
            self.generation,
            self.protocol_name,
            self.leader_id,
            self.state_ms,
            tuple(
                MemberValue(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata(self.protocol_name),
                    assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    def restore(self, value: GroupValue, members: Iterable[Member]) -> None:
        """Become what a record says. The group is a new one."""
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol_name = value.protocol_name
        self.state_ms = value.state_ms
        self.members = {member.member_id: member for member in members}
        self.static_ids = {
            member.group_instance_id: member.member_id
            for member in self.members.values()
            if member.group_instance_id is not None
        }
        self.leader_id = (
            value.leader_id if value.leader_id in self.members else next(iter(self.members), None)
        )
        self.state = State.STABLE if self.members else State.EMPTY
        self.subscribed = self._subscriptions()
