"""Group coordinator: decides about the members of groups and their committed offsets.

Each method takes an event, with the time as an argument, and returns a decision (`GroupDecision`). The broker appends
the decision's records to the offsets log, waits until they are durable, and sends the answers. The coordinator's state
changes at once. Decisions must be logged in the order in which they were made.

Commits in a transaction are an exception, because the log may refuse the batch of their records. `txn_commit_offsets`
does not change the state. Its records go into the log as a batch of the producer's transaction, and
`txn_offsets_appended` then adds them to the state. `txn_ended` follows with the marker.

Classic groups (JoinGroup) and consumer groups (ConsumerGroupHeartbeat, package `consumer_protocol`) share the group
ids. The first member of an empty group decides which kind the group is. A group with members does not change its kind.

At a start the caller passes each record to `table.replay` and each marker to `txn_ended`, and then calls `finish_replay`.
`table.live_state` gives the records of a checkpoint.

Deviations from Kafka, each of which is safer for clients:

- If a member repeats a pending request, the first request gets the answer REBALANCE_IN_PROGRESS. Kafka never answers
  the first request.
- DeleteGroups refuses a group that has offsets in an open transaction.
- If a client asks for all offsets of a group with `require_stable`, the answer includes offsets that exist only in an
  open transaction (UNSTABLE_OFFSET_COMMIT).
- A member that leaves before it has joined causes no rebalance.
- The number of member ids that were handed out and not used yet has the same limit as the number of members.

Source: Kafka's classic group protocol, KIP-98, KIP-211 (retention), KIP-345, KIP-394, KIP-447, KIP-814,
KIP-848.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import (
    NO_MEMBER,
    RETENTION_OF_BROKER,
    CodeByPartition,
    CommittingMember,
    DeleteOffsetsAnswer,
    DescribedGroup,
    FetchedOffsets,
    GroupConfig,
    GroupDecision,
    GroupOverview,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeavingMember,
    OffsetCommit,
    SyncAnswer,
    SyncRequest,
    Token,
)
from stablelog.coordinators.consumer_groups.classic_group import (
    CONSUMER_PROTOCOL,
    ClassicGroup,
    ClassicGroupState,
    Due,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.group import ConsumerGroup
from stablelog.coordinators.consumer_groups.consumer_protocol.groups import ConsumerGroups
from stablelog.coordinators.consumer_groups.descriptions import describe_classic_group, overviews
from stablelog.coordinators.consumer_groups.expiry import TICK_RECORDS_MAX, Expiry, is_empty
from stablelog.coordinators.consumer_groups.joining import STRING_SIZE_MAX, Joining
from stablelog.coordinators.consumer_groups.offset_commits import (
    check_committer,
    fetched_offsets,
    valid_offsets,
)
from stablelog.coordinators.consumer_groups.rebalance import Decision, Rebalances
from stablelog.coordinators.consumer_groups.table import GroupTable, offset_record
from stablelog.coordinators.record_fields import Record
from stablelog.errors import RefusedError
from stablelog.types import TopicPartition

# The maximum number of deadlines in one call of `tick`, besides TICK_RECORDS_MAX. The next call handles the rest.
TICK_ALARMS_MAX = 500


class GroupCoordinator:
    """The coordinator of all consumer groups. It decides about their members and their committed offsets.

    Attributes:
        table: the state of the groups and of their offsets.
        consumers: decides about the members of groups with the consumer group protocol (KIP-848).
    """

    def __init__(self, config: GroupConfig) -> None:
        self._config = config
        self.table = GroupTable()
        self._groups = self.table.groups
        self._offsets = self.table.offsets
        self._deadlines = self.table.deadlines
        self._rebalances = Rebalances(config, self._deadlines)
        self._joining = Joining(config, self._deadlines, self._rebalances)
        self._expiry = Expiry(config, self.table)
        self.consumers = ConsumerGroups(config, self.table, self._expiry)

    # -- membership ------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, token: Token, *, now_ms: int) -> GroupDecision[None]:
        """Decide about JoinGroup: a member joins the next generation of a classic group.

        The decision that begins the generation, this one or a later one, contains a `JoinAnswer` for `token`.
        """
        decision = GroupDecision(None)
        try:
            _check_group_id(request.group_id)
            self._joining.check_request(request)
            former = self._groups.get(request.group_id)
            if isinstance(former, ConsumerGroup) and former.members:
                raise RefusedError(
                    ErrorCode.inconsistent_group_protocol,
                    f"group {request.group_id!r} has members of the consumer group protocol: use "
                    "group.protocol=consumer, or stop them first",
                )
            if former is None or isinstance(former, ConsumerGroup):
                if request.member_id:
                    raise _no_such_member(request.group_id)
                # The new group is added to the table only if the join is not refused.
                group = ClassicGroup(request.group_id)
            else:
                group = former
            self._joining.join(group, request, token, decision, now_ms)
        except RefusedError as refused:
            member_id = "" if refused.code is ErrorCode.group_max_size_reached else request.member_id
            decision.answers.append((token, JoinAnswer(ErrorCode(refused.code), member_id)))
        else:
            if isinstance(former, ConsumerGroup):
                decision.records[:0] = former.tombstones()
                self.table.forget(former)
            self._groups[group.group_id] = group
            self._expiry.check_soon(group, now_ms)
        return decision

    def sync(self, request: SyncRequest, token: Token, *, now_ms: int) -> GroupDecision[None]:
        """Decide about SyncGroup: a member of a classic group requests its assignment.

        The answer is a `SyncAnswer` for `token`, in this decision, or in a later one when the leader sends the
        assignments.
        """
        decision = GroupDecision(None)
        try:
            group = self._group_of_member(request.group_id)
            self._rebalances.sync(group, request, token, decision, now_ms)
        except RefusedError as refused:
            decision.answers.append((token, SyncAnswer(ErrorCode(refused.code))))
        return decision

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        *,
        group_instance_id: str | None = None,
        now_ms: int,
    ) -> GroupDecision[ErrorCode]:
        """Renew the session of a member of a classic group. The answer REBALANCE_IN_PROGRESS makes the client join
        again.
        """
        try:
            group = self._group_of_member(group_id)
            return GroupDecision(
                self._rebalances.heartbeat(group, member_id, group_instance_id, generation, now_ms)
            )
        except RefusedError as refused:
            return GroupDecision(ErrorCode(refused.code))

    def leave(
        self, group_id: str, leaving: Iterable[LeavingMember], *, now_ms: int
    ) -> GroupDecision[LeaveAnswer]:
        """Remove members that leave, or that an operator removes (LeaveGroup). The answer has an error code for each
        member.

        In a group with the consumer group protocol, only an operator uses this request: to remove static members, by
        their instance ids.
        """
        consumers = self._groups.get(group_id)
        if isinstance(consumers, ConsumerGroup):
            return self.consumers.leave(consumers, leaving, now_ms)
        try:
            group = self._group_of_member(group_id)
        except RefusedError as refused:
            return GroupDecision(LeaveAnswer(ErrorCode(refused.code)))
        decision = GroupDecision(LeaveAnswer(ErrorCode.none))
        decision.answer = LeaveAnswer(
            ErrorCode.none, self._rebalances.leave(group, leaving, decision, now_ms)
        )
        self._expiry.check_soon(group, now_ms)
        return decision

    def _group_of_member(self, group_id: str) -> ClassicGroup:
        _check_group_id(group_id)
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise _no_such_member(group_id)
        return group

    # -- groups ----------------------------------------------------------------------------------------------

    def describe(self, group_ids: Iterable[str]) -> GroupDecision[list[DescribedGroup]]:
        """Describe classic groups. The description of a missing group has GROUP_ID_NOT_FOUND."""
        return GroupDecision(
            [describe_classic_group(group_id, self._groups.get(group_id)) for group_id in group_ids]
        )

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> GroupDecision[list[GroupOverview]]:
        """List the groups in the given states and of the given types; by default all. The case of the names does not
        matter.
        """
        return GroupDecision(list(overviews(self._groups.values(), states, types)))

    def delete_groups(self, group_ids: Iterable[str], *, now_ms: int) -> GroupDecision[dict[str, ErrorCode]]:
        """Delete groups without members, and all their offsets. The answer has an error code for each group.

        One call deletes at most TICK_RECORDS_MAX offsets. If a group has more, the answer has no code for the group,
        and the caller calls this method again.
        """
        decision: GroupDecision[dict[str, ErrorCode]] = GroupDecision({})
        for group_id in dict.fromkeys(group_ids):
            code = self._delete_if_empty(group_id, decision, now_ms)
            if code is not None:
                decision.answer[group_id] = code
        return decision

    def _delete_if_empty(self, group_id: str, decision: Decision, now_ms: int) -> ErrorCode | None:
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        # A group with offsets in an open transaction is not deleted: their acknowledged commit must take effect.
        if not is_empty(group) or self._offsets.has_open_transactions(group_id):
            return ErrorCode.non_empty_group
        for partition in list(islice(self._offsets.committed(group_id), TICK_RECORDS_MAX)):
            decision.records.append(self.table.remove_offset(group_id, partition))
        if self._offsets.committed(group_id):
            return None
        self._expiry.delete_group(group, decision, now_ms)
        return ErrorCode.none

    # -- offsets ---------------------------------------------------------------------------------------------

    def commit_offsets(
        self,
        group_id: str,
        commits: Mapping[TopicPartition, OffsetCommit],
        membership: CommittingMember = NO_MEMBER,
        *,
        retention_ms: int = RETENTION_OF_BROKER,
        knows_missing_group: bool = True,
        now_ms: int,
    ) -> GroupDecision[CodeByPartition]:
        """Commit offsets of a group.

        Args:
            group_id: the group. If it is missing and the request names no member, it is created to keep offsets only.
            commits: the offsets.
            membership: the member that commits.
            retention_ms: the time after which the offsets expire, instead of the broker's retention (request v2 to v4).
            knows_missing_group: whether the client supports GROUP_ID_NOT_FOUND (request v9+).
            now_ms: broker time, which never goes back, in ms.
        """
        missing = ErrorCode.group_id_not_found if knows_missing_group else ErrorCode.illegal_generation
        try:
            check_committer(self._groups, group_id, membership, missing, is_transactional=False)
            if not knows_missing_group and self._has_consumers(group_id):
                raise RefusedError(
                    ErrorCode.unsupported_version,
                    f"group {group_id!r} uses the consumer group protocol: OffsetCommit needs version 9",
                )
        except RefusedError as refused:
            return GroupDecision(dict.fromkeys(commits, ErrorCode(refused.code)))
        decision: GroupDecision[CodeByPartition] = GroupDecision({})
        expire_ms = retention_ms if retention_ms == RETENTION_OF_BROKER else now_ms + retention_ms
        for partition, value in valid_offsets(
            commits,
            decision.answer,
            metadata_size_max=self._config.offset_metadata_size_max,
            expire_ms=expire_ms,
            now_ms=now_ms,
        ):
            self.table.get_or_create(group_id)
            self._offsets.add_commit(group_id, partition, value)
            decision.records.append(offset_record(group_id, partition, value))
        group = self._groups.get(group_id)
        if isinstance(group, ClassicGroup):
            member = group.members.get(membership.member_id)
            if member is not None and group.state in {
                ClassicGroupState.STABLE,
                ClassicGroupState.PREPARING_REBALANCE,
            }:
                self._rebalances.renew_session(group, member, now_ms)
        if group is not None:
            self._expiry.check_soon(group, now_ms)
        return decision

    def txn_commit_offsets(
        self,
        group_id: str,
        commits: Mapping[TopicPartition, OffsetCommit],
        membership: CommittingMember = NO_MEMBER,
        *,
        now_ms: int,
    ) -> GroupDecision[CodeByPartition]:
        """Decide about an offset commit in a transaction. The coordinator's state does not change yet.

        The caller appends the records of the decision as a batch of the producer's transaction. If that succeeds, the
        caller calls `txn_offsets_appended` before any other decision. A decision without records refuses all offsets.
        """
        try:
            check_committer(
                self._groups, group_id, membership, ErrorCode.illegal_generation, is_transactional=True
            )
        except RefusedError as refused:
            return GroupDecision(dict.fromkeys(commits, ErrorCode(refused.code)))
        decision: GroupDecision[CodeByPartition] = GroupDecision({})
        for partition, value in valid_offsets(
            commits,
            decision.answer,
            metadata_size_max=self._config.offset_metadata_size_max,
            expire_ms=RETENTION_OF_BROKER,
            now_ms=now_ms,
        ):
            decision.records.append(offset_record(group_id, partition, value))
        return decision

    def txn_offsets_appended(self, producer_id: int, records: Iterable[Record], *, now_ms: int) -> None:
        """Add a transaction's offsets as pending (until its marker), after their records were appended to the log."""
        for key, value in records:
            group = self.table.replay(key, value, producer_id)
            if group is not None:
                self._expiry.check_soon(group, now_ms)

    def txn_ended(self, producer_id: int, *, commit: bool) -> None:
        """Apply a marker in the offsets log: a commit marker makes the producer's pending offsets take effect, an abort
        marker drops them.
        """
        self._offsets.end_transaction(producer_id, commit=commit)

    def _has_consumers(self, group_id: str) -> bool:
        group = self._groups.get(group_id)
        return isinstance(group, ConsumerGroup) and bool(group.members)

    def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None, *, require_stable: bool = False
    ) -> GroupDecision[FetchedOffsets]:
        """Return the committed offsets of a group.

        Args:
            group_id: the group.
            partitions: the partitions; None for all partitions with an offset.
            require_stable: whether a partition gets UNSTABLE_OFFSET_COMMIT if an open transaction may still change its
                offset.
        """
        committed = self._offsets.committed(group_id)
        unstable = self._offsets.pending_partitions(group_id) if require_stable else set()
        return GroupDecision(fetched_offsets(committed, unstable, partitions))

    def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, now_ms: int
    ) -> GroupDecision[DeleteOffsetsAnswer]:
        """Delete offsets of a group. Offsets of topics that a member subscribes to are kept, and get an error code."""
        group = self._groups.get(group_id)
        if group is None:
            return GroupDecision(DeleteOffsetsAnswer(ErrorCode.group_id_not_found))
        if not is_empty(group) and group.protocol_type != CONSUMER_PROTOCOL:
            return GroupDecision(DeleteOffsetsAnswer(ErrorCode.non_empty_group))
        codes: CodeByPartition = {}
        decision = GroupDecision(DeleteOffsetsAnswer(ErrorCode.none, codes))
        for partition in partitions:
            if group.is_subscribed_to(partition[0]):
                codes[partition] = ErrorCode.group_subscribed_to_topic
                continue
            codes[partition] = ErrorCode.none
            if self._offsets.has_offset(group_id, partition):
                decision.records.append(self.table.remove_offset(group_id, partition))
        self._expiry.check_soon(group, now_ms)
        return decision

    def topic_deleted(self, topic: str, *, now_ms: int) -> Iterator[GroupDecision[None]]:
        """Remove the offsets of all groups for a deleted topic: committed ones, and pending ones of open transactions.

        Yields:
            Decisions, each small enough for one turn of the event loop. The caller carries one out before it takes the
                next one. The coordinator may make other decisions in between.
        """
        for some in self._offsets.slices_of_topic(topic):
            decision = GroupDecision(None)
            for group_id, partition in some:
                group = self._groups.get(group_id)
                if group is not None and self._offsets.has_offset(group_id, partition):
                    decision.records.append(self.table.remove_offset(group_id, partition))
                    self._expiry.check_soon(group, now_ms)
            yield decision

    # -- time ------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return the time at which the caller must call `tick` next; None if there is no deadline. The time may be in
        the past.
        """
        return self._deadlines.next_ms()

    def tick(self, now_ms: int) -> GroupDecision[None]:
        """Handle deadlines that have passed: timeouts of members and rebalances, and checks for expired offsets.

        One call handles as many deadlines as one turn of the event loop can take.
        """
        decision = GroupDecision(None)
        for alarm in self._deadlines.pop_due(now_ms, TICK_ALARMS_MAX):
            group = self._groups[alarm.group_id]
            if alarm.due is Due.OFFSETS:
                self._expiry.remove_expired(group, decision, now_ms)
            elif isinstance(group, ConsumerGroup):
                self.consumers.heartbeats.handle_alarm(group, alarm, decision)
                self._expiry.check_soon(group, now_ms)
            else:
                self._rebalances.handle_alarm(group, alarm, decision, now_ms)
            if len(decision.records) >= TICK_RECORDS_MAX:
                break
        return decision

    # -- start -----------------------------------------------------------------------------------------------

    def finish_replay(self, now_ms: int) -> GroupDecision[None]:
        """Finish the replay of the offsets log after a start. The session of every member begins now."""
        decision = GroupDecision(None)
        for group in list(self._groups.values()):
            if isinstance(group, ConsumerGroup):
                self.consumers.heartbeats.begin_sessions(group, decision, now_ms)
            else:
                self._rebalances.begin_sessions(group, decision, now_ms)
            self._expiry.check_first(group, now_ms)
        return decision


def _check_group_id(group_id: str) -> None:
    if not group_id or len(group_id.encode()) > STRING_SIZE_MAX:
        raise RefusedError(ErrorCode.invalid_group_id, f"the group id must have 1 to {STRING_SIZE_MAX} bytes")


def _no_such_member(group_id: str) -> RefusedError:
    return RefusedError(
        ErrorCode.unknown_member_id, f"there is no group {group_id!r}: join without a member id"
    )
