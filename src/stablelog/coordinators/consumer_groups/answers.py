"""What goes into the group coordinator, and what comes out of it.

The broker turns Kafka's requests into these events, and these answers into Kafka's responses.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.records import OffsetValue
from stablelog.types import TopicPartition

Entry = tuple[bytes, bytes | None]
Token = Hashable
Protocols = tuple[tuple[str, bytes], ...]
Answer = TypeVar("Answer")

RETENTION_OF_BROKER = -1


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Settings of the group coordinator.

    Attributes:
        initial_rebalance_delay_ms: how long an empty group waits for more members before its first rebalance.
        session_timeout_ms_min: the shortest session that a member may ask for.
        session_timeout_ms_max: the longest.
        group_size_max: members of one group, and likewise members that were given an id and have yet to come
            back.
        offsets_retention_ms: offsets are forgotten so long after their group became empty.
        offsets_check_interval_ms: how soon a group without members and offsets is forgotten, at the earliest.
        offset_metadata_size_max: bytes of metadata of one committed offset.
        group_metadata_size_max: bytes of the record of one generation: subscriptions and assignments of all
            members.
        new_member_join_timeout_ms: how long a new member may wait for its first rebalance.
    """

    initial_rebalance_delay_ms: int = 3_000
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    group_size_max: int = 2**31 - 1
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_check_interval_ms: int = 600_000
    offset_metadata_size_max: int = 4_096
    group_metadata_size_max: int = 1_000_000
    new_member_join_timeout_ms: int = 300_000


# -- events --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A member wants to be in the next generation.

    Attributes:
        member_id: empty if it has none yet.
        fresh_id: a string that no other request carries, for the member id that may have to be made.
        protocols: (name, metadata), the most wanted first.
        knows_member_id_required: the client can be asked to come again with the id that it was given (v4+).
        knows_skip_assignment: the client, as leader, can be told that there is nothing to assign (v9+).
    """

    group_id: str
    member_id: str
    fresh_id: str
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    knows_member_id_required: bool = True
    knows_skip_assignment: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A member asks for its assignment; the leader brings everybody's (by member id)."""

    group_id: str
    member_id: str
    generation: int
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


class LeavingMember(NamedTuple):
    """A member that leaves: by its id or, with an empty id, by its group instance id."""

    member_id: str
    group_instance_id: str | None = None


class OffsetCommit(NamedTuple):
    """The offset that a group commits for one partition: the next one to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = None


class Membership(NamedTuple):
    """As whom a client commits. Without group management: no id, and generation -1."""

    member_id: str = ""
    generation: int = -1
    group_instance_id: str | None = None


# -- answers -------------------------------------------------------------------------------------------------


class JoinedMember(NamedTuple):
    """What the leader learns of a member."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The generation that a member is in, or why it is in none. `members` is for the leader only."""

    code: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """The assignment of a member."""

    code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """Who has left; `code` is about the request as a whole."""

    code: ErrorCode
    members: tuple[tuple[LeavingMember, ErrorCode], ...] = ()


class DescribedMember(NamedTuple):
    """A member for people; `metadata` only in a stable group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group for people. `code` says whether there is such a group; its state is "Dead" if not."""

    code: ErrorCode
    group_id: str
    state: str
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()


class ListedGroup(NamedTuple):
    """A group in a list."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


class FetchedOffset(NamedTuple):
    """A committed offset; -1 if there is none, or none that is sure (`code`)."""

    code: ErrorCode
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class DeleteOffsetsAnswer:
    """Which offsets are gone; `code` is about the request as a whole."""

    code: ErrorCode
    partitions: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


CodeByPartition = dict[TopicPartition, ErrorCode]
FetchedOffsets = dict[TopicPartition, FetchedOffset]


@dataclass(slots=True)
class GroupDecision(Generic[Answer]):
    """What the coordinator decided. Its own state has changed already; nobody may learn of it before it is
    durable.

    Attributes:
        records: (key, value) to be appended to the offsets log, in this order, before those of any later
            decision.
        answer: to the request that was asked; None where it is answered through its token.
        answers: (token, answer) of joins and syncs, of this request and of earlier ones.

    Every answer, also one without records, waits until the log is durable up to its end at the decision. So
    an offset that can be fetched cannot be lost, and no answer tells of a generation that a crash takes
    back.
    """

    answer: Answer
    records: list[Entry] = field(default_factory=list)
    answers: list[tuple[Token, JoinAnswer | SyncAnswer]] = field(default_factory=list)


__all__ = [
    "RETENTION_OF_BROKER",
    "Answer",
    "CodeByPartition",
    "DeleteOffsetsAnswer",
    "DescribedGroup",
    "DescribedMember",
    "Entry",
    "FetchedOffset",
    "FetchedOffsets",
    "GroupConfig",
    "GroupDecision",
    "JoinAnswer",
    "JoinRequest",
    "JoinedMember",
    "LeaveAnswer",
    "LeavingMember",
    "ListedGroup",
    "Membership",
    "OffsetCommit",
    "OffsetValue",
    "Protocols",
    "SyncAnswer",
    "SyncRequest",
    "Token",
    "TopicPartition",
]
