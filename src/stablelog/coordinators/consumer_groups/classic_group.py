"""Members and state of one classic group (JoinGroup and SyncGroup).

    EMPTY ──rebalance──▶ PREPARING_REBALANCE ──joined──▶ COMPLETING_REBALANCE ──assigned──▶ STABLE
      ▲                    │      ▲     ▲                        │                            │
      └──────emptied───────┘      │     └───────rebalance────────┘                            │
                                  └─────────────────────rebalance─────────────────────────────┘

In PREPARING_REBALANCE, the join phase, the group waits until its members have joined, or until the phase times out. In
COMPLETING_REBALANCE, the sync phase, it waits until the leader has sent the assignments. Then it is STABLE. Each such
round is a generation. `change_state` refuses every change of state that the figure does not have.

A group without members is empty. A *simple* group has never had members, and only keeps offsets. Only a stable or an
empty generation is recorded: after a crash in between, the group has its previous generation.

Invariants: the leader is a member; every static member is in `static_ids` under its instance id; a member of a
completing or stable group supports the group's protocol.

Source: Kafka's classic group protocol; KIP-345 (static members), KIP-394 (member ids first), KIP-814 (an answer that
nothing is to be assigned).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple

from stablelog.coordinators.consumer_groups.answers import JoinedMember, Protocols, Token
from stablelog.coordinators.consumer_groups.records import GroupValue, MemberValue, subscribed_topics

CONSUMER_PROTOCOL = "consumer"
CLASSIC_TYPE = "classic"
CONSUMER_TYPE = "consumer"
# If the members' different subscriptions are larger together, in bytes, the group's topics count as unknown. Reading
# them would hold the event loop.
SUBSCRIPTIONS_SIZE_MAX = 128 << 10


class ClassicGroupState(StrEnum):
    """The state of a classic group. The values are Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Step(Enum):
    """A step: one of the changes that the state of a classic group can make, such as the begin of a rebalance."""

    REBALANCE = "a rebalance begins"
    JOINED = "the members of the new generation are known"
    EMPTIED = "the new generation has no members"
    ASSIGNED = "the leader has sent the assignments"
    DELETED = "the group is forgotten"


TRANSITIONS: Mapping[ClassicGroupState, Mapping[Step, ClassicGroupState]] = {
    ClassicGroupState.EMPTY: {
        Step.REBALANCE: ClassicGroupState.PREPARING_REBALANCE,
        Step.DELETED: ClassicGroupState.DEAD,
    },
    ClassicGroupState.PREPARING_REBALANCE: {
        Step.JOINED: ClassicGroupState.COMPLETING_REBALANCE,
        Step.EMPTIED: ClassicGroupState.EMPTY,
    },
    ClassicGroupState.COMPLETING_REBALANCE: {
        Step.REBALANCE: ClassicGroupState.PREPARING_REBALANCE,
        Step.ASSIGNED: ClassicGroupState.STABLE,
    },
    ClassicGroupState.STABLE: {Step.REBALANCE: ClassicGroupState.PREPARING_REBALANCE},
    ClassicGroupState.DEAD: {},
}


class IllegalStepError(Exception):
    """A change of state that the group's present state does not allow: a bug of the caller. Nothing has changed."""


class Due(Enum):
    """The kinds of deadlines of a group: what the coordinator has to do then, such as to end a member's session."""

    JOIN = "the join phase ends"
    SYNC = "the sync phase ends"
    SESSION = "a member's session ends"
    REVOCATION = "a member of a consumer group must have revoked its partitions"
    OFFSETS = "the group's offsets are checked for expiry"


class Alarm(NamedTuple):
    """The key of a deadline of a group in the queue of deadlines: the kind of the deadline and the group.

    `member_id` is set only for `Due.SESSION` and `Due.REVOCATION`.
    """

    due: Due
    group_id: str
    member_id: str = ""


@dataclass(slots=True, eq=False)
class ClassicMember:
    """A member of a classic group.

    Attributes:
        protocols: (name, metadata), in the order of preference.
        is_new: whether the member has not been in any generation yet, so that it cannot send heartbeats.
        join_token, sync_token: the token (identifier) of its JoinGroup or SyncGroup request that waits for its answer;
            None if no request waits.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    join_token: Token | None = None
    sync_token: Token | None = None

    @property
    def can_time_out(self) -> bool:
        """Whether the session timeout of the member applies now.

        While a JoinGroup or SyncGroup of the member is pending, the timeout applies only to the first join of a new
        member.
        """
        return self.is_new or (self.join_token is None and self.sync_token is None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty if the member does not support the protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")


class ClassicGroup:
    """One classic group (JoinGroup and SyncGroup). Its methods keep the membership consistent; the modules `rebalance`
    and `joining` decide when they are called.

    Attributes:
        state_ms: the time of the last change of state; -1 if an old record does not have it.
        protocol_type: None for a simple group, which has only offsets and never had members.
        pending_joins: member ids that were handed out and that no member has joined with yet.
        pending_syncs: members of this generation that have not asked for their assignment yet.
        is_initial: whether the group was empty before this rebalance. Such a group waits for more members even if all
            members have joined.
        is_prolonged: whether a new member has joined in the current part of the wait for more members, so that the wait
            continues with a further part.
        initial_delay_ms, initial_left_ms: the length of the current part of the wait for more members, and the most by
            which this wait may still be prolonged. Set only during the wait.
        subscribed: topics that the members subscribe to; None if unknown. The members may then subscribe to any topic,
            so no offsets expire while the group has members.
        recorded: value of the group's last record in the log; None if it has none.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = ClassicGroupState.EMPTY
        self.state_ms = -1
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_ids: dict[str, str] = {}
        self.pending_joins: set[str] = set()
        self.pending_syncs: set[str] = set()
        self.is_initial = False
        self.is_prolonged = False
        self.initial_delay_ms: int
        self.initial_left_ms: int
        self.subscribed: frozenset[str] | None = None
        self.recorded: bytes | None = None

    def alarm(self, due: Due, member_id: str = "") -> Alarm:
        """Return an alarm, the key of one deadline of the group in the queue of deadlines."""
        return Alarm(due, self.group_id, member_id)

    def alarms(self) -> Iterable[Alarm]:
        """Return an iterator over the alarms of the group: the keys of all deadlines that it may have."""
        yield from (self.alarm(due) for due in (Due.JOIN, Due.SYNC, Due.OFFSETS))
        yield from (self.alarm(Due.SESSION, member_id) for member_id in (*self.pending_joins, *self.members))

    def change_state(self, step: Step, now_ms: int) -> None:
        """Change the state of the group by one step.

        Raises:
            IllegalStepError: the present state does not allow this change. Nothing has changed.
        """
        following = TRANSITIONS[self.state].get(step)
        if following is None:
            raise IllegalStepError(
                f"the state of group {self.group_id!r} cannot change: the group is {self.state}, in which "
                f"this step is not possible: {step.value}"
            )
        self.state = following
        self.state_ms = now_ms

    # -- members ---------------------------------------------------------------------------------------------

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """Add a member. The first member of an empty group becomes the leader, and its protocol type becomes that of
        the group.
        """
        assert member.member_id not in self.members
        assert member.group_instance_id is None or member.group_instance_id not in self.static_ids
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type
        self._put(member)
        self.leader_id = self.leader_id or member.member_id
        self.pending_joins.discard(member.member_id)

    def _put(self, member: ClassicMember) -> None:
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_ids[member.group_instance_id] = member.member_id

    def remove(self, member_id: str) -> None:
        """Remove a member. If it was the leader, the oldest member becomes the leader."""
        member = self.members.pop(member_id)
        if member.group_instance_id is not None:
            del self.static_ids[member.group_instance_id]
        self.pending_syncs.discard(member_id)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def replace(self, member: ClassicMember) -> None:
        """Put a restarted static member in its former place: the member keeps the leadership and the assignment."""
        assert member.group_instance_id is not None
        former = self.members.pop(self.static_ids[member.group_instance_id])
        member.assignment = former.assignment
        self._put(member)
        if former.member_id in self.pending_syncs:
            self.pending_syncs.remove(former.member_id)
            self.pending_syncs.add(member.member_id)
        if self.leader_id == former.member_id:
            self.leader_id = member.member_id

    @property
    def has_all_joined(self) -> bool:
        """Whether all members have sent JoinGroup since the rebalance began, so that the join phase can end."""
        return not self.pending_joins and self.joined_count == len(self.members)

    @property
    def joined_count(self) -> int:
        """The number of members that have joined and wait for the new generation."""
        return sum(member.join_token is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The length of a join phase: the longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Make the oldest joined member the leader, unless the leader itself has joined.

        Returns:
            True if the group now has a leader that has joined; False if no member has joined.
        """
        joined = [member.member_id for member in self.members.values() if member.join_token is not None]
        if joined and self.leader_id not in joined:
            self.leader_id = joined[0]
        return bool(joined)

    # -- protocol --------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether a member with these protocols may join the group.

        Args:
            protocol_type: the protocol type of the member, which must be that of the group.
            names: the names of its protocols. All members of the group must support at least one of them.
        """
        names = set(names)
        if self.state is ClassicGroupState.EMPTY:
            return bool(protocol_type) and bool(names)
        return protocol_type == self.protocol_type and bool(self._common_protocols(names))

    def _common_protocols(self, names: Iterable[str]) -> set[str]:
        """Return the protocols in `names` that all members support."""
        return set(names).intersection(*({name for name, _ in m.protocols} for m in self.members.values()))

    def choose_protocol(self) -> str:
        """Return the protocol that most members prefer, among those that all members support.

        If two protocols have equally many votes, the choice of the oldest member wins.
        """
        assert self.members
        common = self._common_protocols(name for name, _ in next(iter(self.members.values())).protocols)
        assert common, f"the members of group {self.group_id!r} have no protocol in common"
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return max(votes, key=votes.__getitem__)

    def begin_generation(self, now_ms: int) -> None:
        """Begin the next generation with the present members of the group."""
        self.change_state(Step.JOINED if self.members else Step.EMPTIED, now_ms)
        self.generation += 1
        self.protocol_name = self.choose_protocol() if self.members else None
        self.subscribed = self._subscriptions()
        self.pending_syncs.clear()
        self.is_initial = False

    def _subscriptions(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        subscriptions = {member.metadata(self.protocol_name) for member in self.members.values()}
        if sum(map(len, subscriptions)) > SUBSCRIPTIONS_SIZE_MAX:
            return None
        topics: set[str] = set()
        for subscription in subscriptions:
            subscribed = subscribed_topics(subscription)
            if subscribed is None:
                return None
            topics.update(subscribed)
        return frozenset(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to the topic; True also if the subscriptions of the group are unknown."""
        return (
            self.protocol_type == CONSUMER_PROTOCOL if self.subscribed is None else topic in self.subscribed
        )

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """Return all members, each with its id, its instance id and its metadata for the group's protocol. From these
        the leader computes the assignment.
        """
        return tuple(
            JoinedMember(member.member_id, member.group_instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        )

    # -- record ----------------------------------------------------------------------------------------------

    def value(self, assignments: Mapping[str, bytes]) -> GroupValue:
        """Return the value of the group's record in the offsets log, which describes the present generation.

        Args:
            assignments: the assignments by member id. A member that is missing here has an empty assignment.
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

    def restore(self, value: GroupValue) -> None:
        """Restore this group, which was just created, from the value of its record in the offsets log."""
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol_name = value.protocol_name
        self.state_ms = value.state_ms
        for member in value.members:
            timeout_ms = member.session_timeout_ms
            self._put(
                ClassicMember(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    timeout_ms,
                    timeout_ms if member.rebalance_timeout_ms < 0 else member.rebalance_timeout_ms,
                    ((value.protocol_name or "", member.subscription),),
                    member.assignment,
                )
            )
        self.leader_id = (
            value.leader_id if value.leader_id in self.members else next(iter(self.members), None)
        )
        self.state = ClassicGroupState.STABLE if self.members else ClassicGroupState.EMPTY
        self.subscribed = self._subscriptions()
