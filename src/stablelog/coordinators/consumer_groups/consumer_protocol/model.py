"""Values of the consumer group protocol (KIP-848): topics, subscriptions, assignments, requests and answers."""

import uuid
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from kio.schema.errors import ErrorCode

TopicIdPartition = tuple[uuid.UUID, int]
Partitions = frozenset[TopicIdPartition]

NO_PARTITIONS: Partitions = frozenset()

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2  # A static member stops and will come back: its partitions stay reserved.


class SubscribableTopic(NamedTuple):
    """A topic that members of consumer groups can subscribe to."""

    topic_id: uuid.UUID
    partition_count: int


class TopicLookup(Protocol):
    """The topics of the broker, as the group coordinator needs them.

    Attributes:
        version: a number that changes whenever a topic is created, gets more partitions or is deleted.
    """

    @property
    def version(self) -> int:
        """A number that changes whenever a topic is created, gets more partitions or is deleted."""

    def find(self, name: str) -> SubscribableTopic | None:
        """Return the topic of this name; None if there is none."""

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of the topic with this id; None if there is none."""


class MemberState(IntEnum):
    """The state of a member between its current assignment and its target assignment. The numbers are Kafka's."""

    STABLE = 0  # The member has its target assignment.
    UNREVOKED = 1  # The member must first revoke partitions. It keeps its epoch until then.
    UNRELEASED = 2  # The member is in the target epoch, and other members still own some of its partitions.


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a member wants: the topics that it subscribes to, and the assignor that it prefers.

    Attributes:
        topics: the names of the topics, sorted.
        pattern: a regular expression that selects further topics (RE2 syntax); None or empty for none.
        assignor: the assignor that the member prefers; None for no preference.
    """

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str | None
    rebalance_timeout_ms: int
    assignor: str | None


@dataclass(frozen=True, slots=True)
class PatternSelection:
    """The topics that a member's pattern (a regular expression) selects, among the topics that the member may describe.

    Attributes:
        pattern: the pattern.
        rights: identifies the member's rights to describe topics: equal for members with equal rights, whatever the
            ACLs are.
        rights_version: the version of the broker's ACLs at the time when the topics were selected.
        seen: the names of all topics at that time, selected or not.
        names: the names of the selected topics.
    """

    pattern: str
    rights: Hashable
    rights_version: int
    seen: frozenset[str]
    names: frozenset[str]

    @property
    def key(self) -> "SelectionKey":
        """The key of the selection: its pattern and rights. Members with an equal key share one selection."""
        return self.pattern, self.rights


SelectionKey = tuple[str, Hashable]


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """The epoch and the present partitions of a member.

    Attributes:
        previous_epoch: the member's epoch before `epoch`. The member still sends this one if the answer with the new
            epoch was lost.
        assigned: the partitions that the member owns or has just been given.
        revoking: the partitions that the member has to revoke. It still owns them.
    """

    epoch: int = JOIN_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """A ConsumerGroupHeartbeat request: a member joins, stays, or leaves.

    Attributes:
        member_id: empty if the member joins with a version of the API in which the broker assigns the id (v0).
        fresh_id: a string that no other request has, for a new member id.
        member_epoch: 0 to join, -1 to leave, -2 if a static member stops for a while.
        instance_id, rack_id, topics, pattern, assignor: None if unchanged since the last heartbeat.
        rebalance_timeout_ms: -1 if unchanged.
        owned: the partitions that the member owns; None if unchanged.
        selection: the topics that the member's pattern selects; None if the member has no pattern.
        makes_own_id: whether a client of this version makes its member id itself (v1+).
    """

    group_id: str
    member_id: str
    fresh_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    selection: PatternSelection | None = None
    client_id: str = ""
    client_host: str = ""
    makes_own_id: bool = True

    @property
    def is_full(self) -> bool:
        """Whether the request has all fields. The answer then contains the member's assignment."""
        is_subscribed = self.topics is not None or self.pattern is not None
        return self.rebalance_timeout_ms != -1 and is_subscribed and self.owned is not None


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The answer to ConsumerGroupHeartbeat.

    Attributes:
        assignment: the partitions of the member; None if they have not changed.
    """

    code: ErrorCode
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


@dataclass(frozen=True, slots=True)
class DescribedConsumer:
    """A member of a group in the answer to ConsumerGroupDescribe, with its subscription and its assignments."""

    member_id: str
    member_epoch: int
    subscription: Subscription
    assigned: Partitions
    target: Partitions


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    """The answer to ConsumerGroupDescribe for one group. For a missing consumer group, `code` is the error."""

    code: ErrorCode
    group_id: str
    state: str
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()


def by_topic(partitions: Iterable[TopicIdPartition]) -> list[tuple[uuid.UUID, list[int]]]:
    """Group partitions by topic.

    Returns:
        The id of each topic with the indexes of its partitions, both in rising order.
    """
    found: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        found.setdefault(topic_id, []).append(index)
    return list(found.items())
