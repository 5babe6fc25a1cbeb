"""Requests of the consumer group protocol: finds the group of a request, and decides what its members may do.

Source: KIP-848; Kafka's GroupMetadataManager for the error codes.
"""

from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import (
    CommittingMember,
    GroupConfig,
    GroupDecision,
    LeaveAnswer,
    LeavingMember,
)
from stablelog.coordinators.consumer_groups.classic_group import ClassicGroup, ClassicGroupState
from stablelog.coordinators.consumer_groups.consumer_protocol.group import ConsumerGroup
from stablelog.coordinators.consumer_groups.consumer_protocol.heartbeats import (
    STRING_SIZE_MAX,
    Heartbeats,
    check_member_epoch,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.model import (
    JOIN_EPOCH,
    DescribedConsumerGroup,
    HeartbeatAnswer,
    HeartbeatRequest,
    PatternSelection,
    SelectionKey,
    TopicLookup,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.target_assignment import (
    AssignmentPlan,
    TargetAssignment,
)
from stablelog.coordinators.consumer_groups.descriptions import describe_consumer_group
from stablelog.coordinators.consumer_groups.expiry import Expiry
from stablelog.coordinators.consumer_groups.records import encode_group_key
from stablelog.coordinators.consumer_groups.table import AnyGroup, GroupTable
from stablelog.errors import RefusedError


class ConsumerGroups:
    """The groups with the consumer group protocol (KIP-848).

    Attributes:
        heartbeats: decides about the heartbeats of members.
    """

    def __init__(self, config: GroupConfig, table: GroupTable, expiry: Expiry) -> None:
        self._table = table
        self._expiry = expiry
        self.heartbeats = Heartbeats(config, table.deadlines)

    def pattern_of(self, request: HeartbeatRequest) -> str | None:
        """Return the pattern (regular expression) of topic names in a request. The caller must find the topics that
        match it before it passes the request to `heartbeat`.

        The caller puts these topics into `HeartbeatRequest.selection`.

        Returns:
            The pattern. None if the sender has no pattern, or if the request is invalid and is going to be refused.
        """
        group = self._table.groups.get(request.group_id)
        try:
            self.heartbeats.check_request(request)
        except RefusedError:
            return None
        return self.heartbeats.pattern_of(group if isinstance(group, ConsumerGroup) else None, request)

    def known_selection(self, group_id: str, key: SelectionKey) -> PatternSelection | None:
        """Return the topics that a pattern (regular expression) has selected in an earlier heartbeat of the group.

        The selection is the same for all members with the same pattern and equal rights; `key` identifies both.

        Returns:
            The selection; None if no earlier heartbeat has stored one for this key.
        """
        group = self._table.groups.get(group_id)
        return group.selections.get(key) if isinstance(group, ConsumerGroup) else None

    def is_planned(self, group_id: str) -> bool:
        """Return whether a target assignment is planned: the group waits for one that is too large for a heartbeat, and
        the caller has to compute it.
        """
        group = self._table.groups.get(group_id)
        return isinstance(group, ConsumerGroup) and group.is_planned

    def begin_plan(self, group_id: str, topics: TopicLookup) -> AssignmentPlan | None:
        """Return the plan (the input) of a large target assignment that the group waits for; None if the group waits
        for none.

        The caller computes the plan with `compute_target`, possibly in a thread, and passes the result to
        `apply_target`. A second call in the meantime returns None.
        """
        group = self._table.groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or not group.is_planned:
            return None
        group.plan_in_work = group.plan(topics, is_changed=False)
        return group.plan_in_work

    def apply_target(
        self, group_id: str, plan: AssignmentPlan, target: TargetAssignment
    ) -> GroupDecision[None]:
        """Give a group the target assignment that was computed from a plan. Do nothing if the group was removed since
        the plan was made.
        """
        decision = GroupDecision(None)
        group = self._table.groups.get(group_id)
        if isinstance(group, ConsumerGroup) and group.plan_in_work is plan:
            self.heartbeats.apply_target(group, plan, target, decision)
        return decision

    def heartbeat(
        self, request: HeartbeatRequest, topics: TopicLookup, *, now_ms: int
    ) -> GroupDecision[HeartbeatAnswer]:
        """Decide about a ConsumerGroupHeartbeat request: a member joins, stays or leaves.

        Args:
            request: the request.
            topics: the topics of the broker.
            now_ms: broker time, which never goes back, in ms.

        Returns:
            A decision whose answer has the member's epoch and, if it has changed, its assignment; or the error code.
        """
        decision = GroupDecision(HeartbeatAnswer(ErrorCode.none))
        try:
            if not request.group_id or len(request.group_id.encode()) > STRING_SIZE_MAX:
                raise RefusedError(
                    ErrorCode.invalid_request,
                    f"the group id is empty, or has more than {STRING_SIZE_MAX} bytes",
                )
            self.heartbeats.check_request(request)
            former = self._table.groups.get(request.group_id)
            group = self._group(request, former)
            if request.member_epoch < JOIN_EPOCH:
                decision.answer = self.heartbeats.leave(group, request, decision)
            else:
                decision.answer = self.heartbeats.heartbeat(group, request, topics, decision, now_ms)
        except RefusedError as refused:
            decision.answer = HeartbeatAnswer(ErrorCode(refused.code), str(refused))
            return decision
        if former is not group:
            # The new group is added to the table only if the heartbeat is not refused.
            if isinstance(former, ClassicGroup):
                if former.recorded is not None:
                    decision.records.insert(0, (encode_group_key(former.group_id), None))
                self._table.forget(former)
            self._table.groups[group.group_id] = group
        if decision.records:
            self._expiry.check_soon(group, now_ms)
        return decision

    def _group(self, request: HeartbeatRequest, former: AnyGroup | None) -> ConsumerGroup:
        """Return the group of a heartbeat; a new one if there is none, or if the group is an empty classic group.

        A member that joins stays in the new group. Any other member is refused with UNKNOWN_MEMBER_ID, and joins again:
        its session had ended, and the group was deleted. Clients do not join again after GROUP_ID_NOT_FOUND.
        """
        if isinstance(former, ConsumerGroup):
            return former
        if former is None or (former.state is ClassicGroupState.EMPTY and not former.pending_joins):
            return ConsumerGroup(request.group_id)
        raise RefusedError(
            ErrorCode.group_id_not_found,
            f"group {request.group_id!r} is not a consumer group: it has members with the classic "
            "protocol; stop them first",
        )

    def describe(self, group_ids: Iterable[str]) -> GroupDecision[list[DescribedConsumerGroup]]:
        """Describe consumer groups. The description of a missing group, or of a classic one, has GROUP_ID_NOT_FOUND."""
        return GroupDecision(
            [describe_consumer_group(group_id, self._table.groups.get(group_id)) for group_id in group_ids]
        )

    def leave(
        self, group: ConsumerGroup, leaving: Iterable[LeavingMember], now_ms: int
    ) -> GroupDecision[LeaveAnswer]:
        """Remove static members that an operator removes by their instance ids (LeaveGroup)."""
        decision = GroupDecision(LeaveAnswer(ErrorCode.none))
        outcomes: list[tuple[LeavingMember, ErrorCode]] = []
        for one in leaving:
            static_id = group.static_ids.get(one.group_instance_id or "")
            if one.member_id or static_id is None:
                outcomes.append((one, ErrorCode.unknown_member_id))
            else:
                self.heartbeats.dismiss_member(group, static_id, decision)
                outcomes.append((one, ErrorCode.none))
        self._expiry.check_soon(group, now_ms)
        decision.answer = LeaveAnswer(ErrorCode.none, tuple(outcomes))
        return decision

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Check the member of an OffsetFetch request (v9+). A request without a member always passes.

        Returns:
            `ErrorCode.none`, or the reason why the member may not fetch offsets.
        """
        group = self._table.groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or (member_id is None and member_epoch < 0):
            return ErrorCode.none
        try:
            check_member_epoch(group, member_id or "", member_epoch)
        except RefusedError as refused:
            return ErrorCode(refused.code)
        return ErrorCode.none


def check_commit(group: ConsumerGroup, membership: CommittingMember, *, is_transactional: bool) -> None:
    """Check that the member of an offset commit belongs to the group and has its current epoch.

    Args:
        group: the group.
        membership: the member that the request names.
        is_transactional: whether the offsets are committed in a transaction.

    Raises:
        RefusedError: the member is unknown, or its epoch is stale. In a transaction, a stale epoch is
            ILLEGAL_GENERATION, as in Kafka.
    """
    try:
        check_member_epoch(group, membership.member_id, membership.generation)
    except RefusedError as refused:
        if is_transactional and refused.code is ErrorCode.stale_member_epoch:
            raise RefusedError(ErrorCode.illegal_generation, str(refused)) from None
        raise
