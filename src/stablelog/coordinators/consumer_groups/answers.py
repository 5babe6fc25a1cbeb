"""The group coordinator's own forms of requests and answers, and its decisions (each has an answer, and records for the
offsets log).

The broker converts Kafka's requests into these requests, and these answers into Kafka's responses.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from stablelog.coordinators.record_fields import Record
from stablelog.types import TopicPartition

Token = Hashable
Protocols = tuple[tuple[str, bytes], ...]
Answer = TypeVar("Answer")

RETENTION_OF_BROKER = -1


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Settings of the group coordinator.

    Attributes:
        initial_rebalance_delay_ms: the time for which an empty group waits for more members before its first rebalance.
        session_timeout_ms_min: the shortest session timeout that a member may ask for.
        session_timeout_ms_max: the longest session timeout that a member may ask for.
        group_size_max: maximum number of members of one group. It also limits the number of clients that were given a
            member id and have not joined with it yet.
        offsets_retention_ms: the time after which the offsets of a group expire, counted from the time at which the
            group became empty.
        offsets_check_interval_ms: a group without members and offsets is forgotten after this time at the earliest.
        offset_metadata_size_max: the maximum size in bytes of the metadata of one committed offset.
        group_metadata_size_max: the maximum size in bytes of the record of one generation, with the subscriptions and
            assignments of all members.
        new_member_join_timeout_ms: the longest time that a new member may wait for the end of its first rebalance.
        consumer_session_timeout_ms: the session timeout of the members of consumer groups (KIP-848).
        heartbeat_interval_ms: the time after which a member of a consumer group (KIP-848) sends its next heartbeat.
        consumer_group_size_max: maximum number of members of one consumer group.
        consumer_times: the session timeout and the heartbeat interval of each consumer group that has settings of its
            own. They replace `consumer_session_timeout_ms` and `heartbeat_interval_ms`. The caller may change the
            entries at any time.
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
    consumer_session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    consumer_group_size_max: int = 2**31 - 1
    consumer_times: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def times_of(self, group_id: str) -> tuple[int, int]:
        """Return the times that apply to a consumer group: its session timeout and its heartbeat interval,
        both in ms.
        """
        usual = self.consumer_session_timeout_ms, self.heartbeat_interval_ms
        return self.consumer_times.get(group_id, usual)


# -- requests ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup request: a member joins the next generation of a classic group.

    Attributes:
        member_id: empty if the member has no id yet.
        fresh_id: a string that no other request has, for a new member id.
        protocols: (name, metadata), in the order of preference.
        knows_member_id_required: whether the client supports MEMBER_ID_REQUIRED: it joins again with the member id in
            the answer (v4+).
        knows_skip_assignment: whether the client supports SkipAssignment, by which the answer tells the leader that
            nothing has to be assigned (v9+).
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
    """A SyncGroup request: a member requests its assignment.

    Only the request of the group's leader contains assignments: those of all members, by member id.
    """

    group_id: str
    member_id: str
    generation: int
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


class LeavingMember(NamedTuple):
    """A member that a LeaveGroup request names. If the member id is empty, the group instance id identifies the
    member.
    """

    member_id: str
    group_instance_id: str | None = None


class OffsetCommit(NamedTuple):
    """An offset in an OffsetCommit request: the next offset that the group reads in one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = None


class CommittingMember(NamedTuple):
    """The member that commits offsets, as the request names it: by its member id, its instance id, and its generation
    or member epoch.

    A consumer without group management has an empty member id and generation -1.
    """

    member_id: str = ""
    generation: int = -1
    group_instance_id: str | None = None


# -- answers -------------------------------------------------------------------------------------------------


NO_MEMBER = CommittingMember()


class JoinedMember(NamedTuple):
    """A member of the new generation, as the JoinGroup response of the group's leader lists it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The answer to JoinGroup: the member's generation, or an error code. `members` is set only in the
    leader's answer.
    """

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
    """The answer to SyncGroup: the assignment of the member, or an error code."""

    code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """The answer to LeaveGroup: the error code of each member. `code` is the error code of the whole request."""

    code: ErrorCode
    members: tuple[tuple[LeavingMember, ErrorCode], ...] = ()


class DescribedMember(NamedTuple):
    """A member in the answer to DescribeGroups. `metadata` is empty unless the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """The answer to DescribeGroups for one group. For a missing classic group, `code` is the error and the state is
    "Dead".
    """

    code: ErrorCode
    group_id: str
    state: str
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()


class GroupOverview(NamedTuple):
    """A group in the answer to ListGroups."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


class FetchedOffset(NamedTuple):
    """A committed offset in the answer to OffsetFetch.

    The offset is -1 if there is none, or if an open transaction may still change it; `code` tells which.
    """

    code: ErrorCode
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class DeleteOffsetsAnswer:
    """The answer to OffsetDelete: an error code for each partition. `code` is the error code of the whole request."""

    code: ErrorCode
    partitions: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


CodeByPartition = dict[TopicPartition, ErrorCode]
FetchedOffsets = dict[TopicPartition, FetchedOffset]


@dataclass(slots=True)
class GroupDecision(Generic[Answer]):
    """A decision of the coordinator. The coordinator's state has changed already.

    Attributes:
        answer: answer to the request; None for JoinGroup and SyncGroup. Each of these has a token, an identifier of the
            request, and a later decision may contain its answer.
        records: records for the offsets log, appended in this order and before the records of any later decision.
        answers: (token, answer) for those JoinGroup and SyncGroup requests that this decision answers, its own and
            earlier ones.

    Every answer, also of a decision without records, waits until all records that the offsets log had at the time of
    the decision are durable. A crash can therefore not undo anything that an answer has reported, such as an offset or
    a generation.
    """

    answer: Answer
    records: list[Record] = field(default_factory=list)
    answers: list[tuple[Token, JoinAnswer | SyncAnswer]] = field(default_factory=list)
