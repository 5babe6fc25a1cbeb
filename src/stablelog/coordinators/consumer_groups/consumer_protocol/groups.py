"""Consumer groups: which group a request is for, and what its members may do.

Source: KIP-848; Kafka's GroupMetadataManager for the error codes.
"""

from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import (
    GroupConfig,
    GroupDecision,
    LeaveAnswer,
    LeavingMember,
    Membership,
)
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
    Selection,
    SelectionKey,
    TopicLookup,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.target import Plan, Target
from stablelog.coordinators.consumer_groups.descriptions import described_consumer_group
from stablelog.coordinators.consumer_groups.expiry import Expiry
from stablelog.coordinators.consumer_groups.membership import Group, State
from stablelog.coordinators.consumer_groups.records import encode_group_key
from stablelog.coordinators.consumer_groups.table import AnyGroup, GroupTable
from stablelog.errors import RefusedError


class ConsumerGroups:
    """The consumer groups of one offsets log.

    Attributes:
        heartbeats: decides about the members.
    """

    def __init__(self, config: GroupConfig, table: GroupTable, expiry: Expiry) -> None:
        self._table = table
        self._expiry = expiry
        self.heartbeats = Heartbeats(config, table.deadlines)

    def pattern_of(self, request: HeartbeatRequest) -> str | None:
        """Return the pattern that the caller has to resolve before it hands in a heartbeat (`HeartbeatRequest.selection`).

        Returns:
            None if the sender has no pattern, or if the request is refused without regard to its group.
        """
        group = self._table.groups.get(request.group_id)
        try:
            self.heartbeats.check(request)
        except RefusedError:
            return None
        return self.heartbeats.pattern_of(group if isinstance(group, ConsumerGroup) else None, request)

    def selection(self, group_id: str, key: SelectionKey) -> Selection | None:
        """Return what a pattern selected in an earlier heartbeat of a group, for members with the same rights."""
        group = self._table.groups.get(group_id)
        return group.selections.get(key) if isinstance(group, ConsumerGroup) else None

    def is_planned(self, group_id: str) -> bool:
        """Whether a group waits for a large target assignment."""
        group = self._table.groups.get(group_id)
        return isinstance(group, ConsumerGroup) and group.is_planned

    def plan(self, group_id: str, topics: TopicLookup) -> Plan | None:
        """Return the large plan that a group waits for; None if there is none.

        The caller computes it (`computed`), and hands the result to `follow`. One plan of a group is computed at a time.
        """
        group = self._table.groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or not group.is_planned:
            return None
        group.plan_in_work = group.plan(topics, is_changed=False)
        return group.plan_in_work

    def follow(self, group_id: str, plan: Plan, target: Target) -> GroupDecision[None]:
        """Take the result of a plan. Nothing changes if the group was removed meanwhile, also if it was made again."""
        decision = GroupDecision(None)
        group = self._table.groups.get(group_id)
        if isinstance(group, ConsumerGroup) and group.plan_in_work is plan:
            self.heartbeats.follow(group, plan, target, decision)
        return decision

    def heartbeat(
        self, request: HeartbeatRequest, topics: TopicLookup, *, now_ms: int
    ) -> GroupDecision[HeartbeatAnswer]:
        """Handle a ConsumerGroupHeartbeat: a member joins, stays or leaves.

        Args:
            request: the request.
            topics: the topics of the broker.
            now_ms: broker time.
        """
        decision = GroupDecision(HeartbeatAnswer(ErrorCode.none))
        try:
            if not request.group_id or len(request.group_id.encode()) > STRING_SIZE_MAX:
                raise RefusedError(ErrorCode.invalid_request, f"a group id has 1 to {STRING_SIZE_MAX} bytes")
            self.heartbeats.check(request)
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
            if isinstance(former, Group):
                if former.recorded is not None:
                    decision.records.insert(0, (encode_group_key(former.group_id), None))
                self._table.forget(former)
            self._table.groups[group.group_id] = group
        if decision.records:
            self._expiry.check_soon(group, now_ms)
        return decision

    def _group(self, request: HeartbeatRequest, former: AnyGroup | None) -> ConsumerGroup:
        """Return the group of a heartbeat, a new one if there is none or if it is an empty classic group.

        A member that joins stays in the new group. Any other member is refused with UNKNOWN_MEMBER_ID, and joins again:
        the group was deleted after the member's session had ended. Clients do not join again after GROUP_ID_NOT_FOUND.
        """
        if isinstance(former, ConsumerGroup):
            return former
        if former is None or (former.state is State.EMPTY and not former.pending_joins):
            return ConsumerGroup(request.group_id)
        raise RefusedError(
            ErrorCode.group_id_not_found, f"group {request.group_id!r} is not a consumer group"
        )

    def describe(self, group_ids: Iterable[str]) -> GroupDecision[list[DescribedConsumerGroup]]:
        """Describe consumer groups. The description of any other or a missing group has GROUP_ID_NOT_FOUND."""
        return GroupDecision(
            [described_consumer_group(group_id, self._table.groups.get(group_id)) for group_id in group_ids]
        )

    def leave(
        self, group: ConsumerGroup, leaving: Iterable[LeavingMember], now_ms: int
    ) -> GroupDecision[LeaveAnswer]:
        """Remove static members that an operator names by their instance ids (LeaveGroup)."""
        decision = GroupDecision(LeaveAnswer(ErrorCode.none))
        outcomes: list[tuple[LeavingMember, ErrorCode]] = []
        for one in leaving:
            static_id = group.static_ids.get(one.group_instance_id or "")
            if one.member_id or static_id is None:
                outcomes.append((one, ErrorCode.unknown_member_id))
            else:
                self.heartbeats.dismiss(group, static_id, decision)
                outcomes.append((one, ErrorCode.none))
        self._expiry.check_soon(group, now_ms)
        decision.answer = LeaveAnswer(ErrorCode.none, tuple(outcomes))
        return decision

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Check the member of an OffsetFetch (v9+). A request that names no member is not checked."""
        group = self._table.groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or (member_id is None and member_epoch < 0):
            return ErrorCode.none
        try:
            check_member_epoch(group, member_id or "", member_epoch)
        except RefusedError as refused:
            return ErrorCode(refused.code)
        return ErrorCode.none


def check_commit(group: ConsumerGroup, membership: Membership, *, is_transactional: bool) -> None:
    """Check the member of a commit. In a transaction, a stale epoch is ILLEGAL_GENERATION, as in Kafka."""
    try:
        check_member_epoch(group, membership.member_id, membership.generation)
    except RefusedError as refused:
        if is_transactional and refused.code is ErrorCode.stale_member_epoch:
            raise RefusedError(ErrorCode.illegal_generation, str(refused)) from None
        raise
