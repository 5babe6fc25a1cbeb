"""Heartbeats of the consumer group protocol: members join, follow their target assignment, and leave.

A heartbeat may raise the group's epoch. The first heartbeat that finds the target assignment older than the epoch
computes a new one. Each heartbeat moves its own member one step towards the target (`reconciliation`).

A member is removed if it leaves, if it sends nothing for the session timeout, or if it does not revoke partitions
within its rebalance timeout. Its later heartbeats get UNKNOWN_MEMBER_ID, and the client joins again.

Source: KIP-848; Kafka's GroupMetadataManager for the error codes.
"""

from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import GroupConfig, GroupDecision
from stablelog.coordinators.consumer_groups.classic_group import Alarm, Due
from stablelog.coordinators.consumer_groups.consumer_protocol.assignors import ASSIGNORS
from stablelog.coordinators.consumer_groups.consumer_protocol.group import (
    ConsumerGroup,
    ConsumerMember,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.model import (
    JOIN_EPOCH,
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    CurrentAssignment,
    HeartbeatAnswer,
    HeartbeatRequest,
    MemberState,
    Subscription,
    TopicLookup,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.reconciliation import next_assignment
from stablelog.coordinators.consumer_groups.consumer_protocol.target_assignment import (
    AssignmentPlan,
    TargetAssignment,
    compute_target,
)
from stablelog.coordinators.deadline_queue import DeadlineQueue
from stablelog.coordinators.patterns import name_matcher
from stablelog.errors import RefusedError

Decision = GroupDecision[Any]

STRING_SIZE_MAX = 32_000  # The maximum size in bytes of a name in a request.
SUBSCRIPTION_COUNT_MAX = 20_000  # The maximum number of topics that a member names.
SUBSCRIPTION_SIZE_MAX = 4 << 20  # The maximum size in bytes of the names of all topics of a member.


class Heartbeats:
    """Decides about the heartbeats of members of consumer groups (KIP-848)."""

    def __init__(self, config: GroupConfig, deadlines: DeadlineQueue[Alarm]) -> None:
        self._config = config
        self._deadlines = deadlines

    def check_request(self, request: HeartbeatRequest) -> None:
        """Check the parts of a heartbeat that do not depend on the group.

        Raises:
            RefusedError: a field is not valid, or the assignor is unknown; the message says which.
        """
        why = _fault_of(request)
        if why is not None:
            raise RefusedError(ErrorCode.invalid_request, why)
        if request.assignor is not None and request.assignor not in ASSIGNORS:
            raise RefusedError(
                ErrorCode.unsupported_assignor,
                f"there is no assignor {request.assignor!r}; the assignors are {', '.join(ASSIGNORS)}",
            )
        name_matcher(request.pattern)

    def pattern_of(self, group: ConsumerGroup | None, request: HeartbeatRequest) -> str | None:
        """Return the pattern of topic names that the sender of a heartbeat subscribes to; None if it has none, or
        leaves.
        """
        if request.member_epoch < JOIN_EPOCH:
            return None
        if request.pattern is not None or group is None:
            return request.pattern or None
        member = group.members.get(request.member_id)
        return (
            None
            if member is None or request.member_epoch == JOIN_EPOCH
            else member.subscription.pattern or None
        )

    def heartbeat(
        self,
        group: ConsumerGroup,
        request: HeartbeatRequest,
        topics: TopicLookup,
        decision: Decision,
        now_ms: int,
    ) -> HeartbeatAnswer:
        """Decide about the heartbeat of a member that joins or stays.

        Raises:
            RefusedError: the member is unknown, its epoch is not the current one, or the group is full. Nothing has
                changed.
        """
        is_join = request.member_epoch == JOIN_EPOCH
        member_id = request.member_id or request.fresh_id
        former = self._former(group, request, member_id)
        is_new = former is None
        if former is not None and former.member_id != member_id:
            # A restarted static member takes the place of its former self, which owns nothing any more.
            target = group.target.get(former.member_id, NO_PARTITIONS)
            subscription = _subscription(request, former.subscription)
            is_changed = _wants(subscription) != _wants(former.subscription)
            self._remove(group, former.member_id, decision)
            decision.records.append(group.set_subscription(member_id, subscription))
            group.members[member_id].assigned_from = former.assigned_from
            decision.records.append(group.set_target_of(member_id, target))
        else:
            subscription = _subscription(request, None if former is None else former.subscription)
            is_changed = former is None or _wants(subscription) != _wants(former.subscription)
            if former is None or subscription != former.subscription:
                decision.records.append(group.set_subscription(member_id, subscription))
            if former is not None and is_join and former.current != CurrentAssignment():
                # The member has lost its state. It joins again, and owns nothing.
                decision.records.append(group.set_current(member_id, CurrentAssignment()))
        if request.selection is not None:
            is_changed |= group.select(member_id, request.selection, topics)
        self._update_target(group, topics, decision, is_changed=is_changed)
        member = group.members[member_id]
        before = member.current
        self._reconcile(group, member, request, decision, is_new=is_new)
        self._set_timers(group, member, before, now_ms)
        is_told = is_join or request.is_full or request.member_epoch != member.current.epoch
        return HeartbeatAnswer(
            ErrorCode.none,
            None,
            member_id,
            member.current.epoch,
            self._config.times_of(group.group_id)[1],
            member.current.assigned if is_told or before.assigned != member.current.assigned else None,
        )

    def _former(
        self, group: ConsumerGroup, request: HeartbeatRequest, member_id: str
    ) -> ConsumerMember | None:
        """Return the known member that a heartbeat comes from; None for a new member.

        A static member that joins again is the member that had its instance id before.
        """
        is_join = request.member_epoch == JOIN_EPOCH
        member = group.members.get(member_id)
        size_max = self._config.consumer_group_size_max
        if not is_join:
            _check_instance(group, member_id, request.instance_id)
        elif request.instance_id is not None:
            holder = group.members.get(group.static_ids.get(request.instance_id, ""))
            if holder is not None and holder.member_id != member_id:
                if holder.current.epoch != STATIC_LEAVE_EPOCH:
                    raise RefusedError(
                        ErrorCode.unreleased_instance_id,
                        f"group instance id {request.instance_id!r} belongs to member {holder.member_id!r} of group "
                        f"{group.group_id!r}, which has not left yet",
                    )
                return holder
        if member is None:
            if not is_join:
                raise _unknown(group, member_id)
            if len(group.members) >= size_max:
                raise RefusedError(
                    ErrorCode.group_max_size_reached,
                    f"group {group.group_id!r} has its maximum of {size_max} members: stop one of them "
                    "first, or raise group.consumer.max.size",
                )
            return None
        if not is_join:
            _check_heartbeat_epoch(group, member, request)
        return member

    def _update_target(
        self, group: ConsumerGroup, topics: TopicLookup, decision: Decision, *, is_changed: bool
    ) -> None:
        """Raise the group's epoch if its subscriptions (`is_changed`) or its topics have changed, and compute the
        target assignment.

        A large target assignment is not computed here: it is only marked as planned (`ConsumerGroup.is_planned`). Until
        it is computed, the members follow the former target assignment, and a new member has no partitions.
        """
        if (
            not is_changed
            and group.topics_version == topics.version
            and group.epoch == group.target_epoch
            and not group.is_planned
        ):
            return
        if not group.is_planned:
            plan = group.plan(topics, is_changed=is_changed)
            if not plan.is_large(topics):
                decision.records.extend(
                    group.apply_target(plan, compute_target(plan, topics), is_changed=is_changed)
                )
                return
            group.is_planned = True
        if is_changed:
            decision.records.append(group.raise_epoch())
        for member_id in group.members.keys() - group.target.keys():
            decision.records.append(group.set_target_of(member_id, NO_PARTITIONS))

    @staticmethod
    def apply_target(
        group: ConsumerGroup, plan: AssignmentPlan, target: TargetAssignment, decision: Decision
    ) -> None:
        """Apply a large target assignment, which was computed from a plan, to the group.

        If the group has changed since the plan was made, it needs a further target assignment:
        `ConsumerGroup.is_planned` is then True, and the caller makes another plan and computes that assignment, too.
        """
        decision.records.extend(group.apply_target(plan, target, is_changed=False))
        group.plan_in_work = None
        group.is_planned = group.topics_version != plan.topics_version or group.epoch > group.target_epoch

    def _reconcile(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        request: HeartbeatRequest,
        decision: Decision,
        *,
        is_new: bool,
    ) -> None:
        """Move a member one step from its current assignment towards its target assignment. Add the record of the
        change to the decision; a new member (`is_new`) gets a record even if nothing changes.
        """
        is_owned = group.is_owned_by_other(member.member_id)
        following = next_assignment(
            member.current,
            group.target[member.member_id],
            group.target_epoch,
            request.owned,
            lambda partition: not is_owned(partition),
        )
        if following is not member.current or is_new:
            decision.records.append(group.set_current(member.member_id, following))

    def _set_timers(
        self, group: ConsumerGroup, member: ConsumerMember, before: CurrentAssignment | None, now_ms: int
    ) -> None:
        """Set the timers of a member. Its session timeout begins again. If the member has to revoke partitions since
        this heartbeat, its rebalance timeout begins. `before` is the member's assignment before the heartbeat; None at
        a start of the broker.
        """
        session_timeout_ms, _ = self._config.times_of(group.group_id)
        self._deadlines.set(group.alarm(Due.SESSION, member.member_id), now_ms + session_timeout_ms)
        revocation = group.alarm(Due.REVOCATION, member.member_id)
        if member.current.state is not MemberState.UNREVOKED:
            self._deadlines.cancel(revocation)
        elif before is None or before.revoking != member.current.revoking:
            self._deadlines.set(revocation, now_ms + member.subscription.rebalance_timeout_ms)

    # -- leaving members -------------------------------------------------------------------------------------

    def leave(self, group: ConsumerGroup, request: HeartbeatRequest, decision: Decision) -> HeartbeatAnswer:
        """Remove a member that leaves. A static member that only stops for a while keeps its place.

        Raises:
            RefusedError: the group has no such member. Nothing has changed.
        """
        member_id = request.member_id
        _check_instance(group, member_id, request.instance_id)
        member = group.members.get(member_id)
        if member is None:
            raise _unknown(group, member_id)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            self._deadlines.cancel(group.alarm(Due.REVOCATION, member_id))
            current = replace(
                member.current,
                epoch=STATIC_LEAVE_EPOCH,
                previous_epoch=STATIC_LEAVE_EPOCH,
                state=MemberState.STABLE,
                revoking=NO_PARTITIONS,
            )
            decision.records.append(group.set_current(member_id, current))
        else:
            self.dismiss_member(group, member_id, decision)
        return HeartbeatAnswer(ErrorCode.none, None, member_id, request.member_epoch)

    def dismiss_member(self, group: ConsumerGroup, member_id: str, decision: Decision) -> None:
        """Remove a member, and begin the group's next epoch."""
        self._remove(group, member_id, decision)
        decision.records.append(group.raise_epoch())

    def _remove(self, group: ConsumerGroup, member_id: str, decision: Decision) -> None:
        for due in (Due.SESSION, Due.REVOCATION):
            self._deadlines.cancel(group.alarm(due, member_id))
        decision.records.extend(group.remove(member_id))

    def handle_alarm(self, group: ConsumerGroup, alarm: Alarm, decision: Decision) -> None:
        """Handle a deadline: remove a member whose session has ended, or that has not revoked its
        partitions in time.
        """
        assert alarm.due in {Due.SESSION, Due.REVOCATION}
        self.dismiss_member(group, alarm.member_id, decision)

    def begin_sessions(self, group: ConsumerGroup, decision: Decision, now_ms: int) -> None:
        """Begin the sessions of all members after a start of the broker.

        A member whose records contradict each other is removed. This happens only with a log that is incomplete or that
        another program has written.
        """
        for member in list(group.members.values()):
            owned = member.current.assigned | member.current.revoking
            if any(group.owners.get(partition) != member.member_id for partition in owned):
                self.dismiss_member(group, member.member_id, decision)
            else:
                group.target.setdefault(member.member_id, NO_PARTITIONS)
                self._set_timers(group, member, None, now_ms)


def _fault_of(request: HeartbeatRequest) -> str | None:
    """Return the reason why a heartbeat is invalid; None if it is valid."""
    is_join = request.member_epoch == JOIN_EPOCH
    names = (request.member_id, request.instance_id, request.rack_id, request.client_id, request.client_host)
    if any(len((name or "").encode()) > STRING_SIZE_MAX for name in names):
        return f"the request has a name of more than {STRING_SIZE_MAX} bytes"
    if len(request.topics or ()) > SUBSCRIPTION_COUNT_MAX:
        return f"the subscription names more than {SUBSCRIPTION_COUNT_MAX} topics: use a regular expression"
    if sum(map(len, request.topics or ())) > SUBSCRIPTION_SIZE_MAX:
        return f"the topic names in the subscription have more than {SUBSCRIPTION_SIZE_MAX} bytes"
    if request.instance_id == "" or request.rack_id == "":
        return "the instance id and the rack id must not be empty: leave them out instead"
    if not request.member_id and (request.makes_own_id or not is_join):
        return "the member id must not be empty"
    if request.member_epoch < STATIC_LEAVE_EPOCH:
        return f"the member epoch {request.member_epoch} is not valid: the smallest is {STATIC_LEAVE_EPOCH}"
    if request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        return f"only a static member leaves with epoch {STATIC_LEAVE_EPOCH}: the instance id is missing"
    if not is_join:
        return None
    if request.rebalance_timeout_ms == -1:
        return "the rebalance timeout is missing: it must be in the first request of a member"
    if request.owned is None or request.owned:
        return "a member that joins must own no partitions, and must say so"
    if request.topics is None and request.pattern is None:
        return "the subscription is missing: name topics or a regular expression"
    return None


def _subscription(request: HeartbeatRequest, former: Subscription | None) -> Subscription:
    """Return the member's subscription after a heartbeat. Fields that the heartbeat leaves out keep their former
    values.
    """
    is_join = request.member_epoch == JOIN_EPOCH
    known = former if former is not None and not is_join else None

    def new_or_former(new: Any, attribute: str, missing: Any) -> Any:
        if new is not None:
            return new
        return missing if known is None else getattr(known, attribute)

    timeout_ms = None if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
    topics = None if request.topics is None else tuple(sorted(set(request.topics)))
    return Subscription(
        instance_id=new_or_former(request.instance_id, "instance_id", None),
        rack_id=new_or_former(request.rack_id, "rack_id", None),
        client_id=request.client_id,
        client_host=request.client_host,
        topics=new_or_former(topics, "topics", ()),
        pattern=new_or_former(request.pattern, "pattern", None),
        rebalance_timeout_ms=new_or_former(timeout_ms, "rebalance_timeout_ms", -1),
        assignor=new_or_former(request.assignor, "assignor", None),
    )


def _wants(subscription: Subscription) -> tuple[tuple[str, ...], str, str | None]:
    """Return the part of a subscription on which the target assignment depends: topics, pattern (empty for none) and
    assignor.
    """
    return subscription.topics, subscription.pattern or "", subscription.assignor


# -- checks ----------------------------------------------------------------------------------------------------


def _unknown(group: ConsumerGroup, member_id: str) -> RefusedError:
    return RefusedError(
        ErrorCode.unknown_member_id,
        f"{member_id!r} is not a member of group {group.group_id!r}: join with member epoch 0",
    )


def _check_instance(group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
    """Check that the group instance id in the request is that of this member. A request without an instance id always
    passes.

    Raises:
        RefusedError: the instance id is unknown, or another client has it.
    """
    if instance_id is None:
        return
    if instance_id not in group.static_ids:
        raise RefusedError(
            ErrorCode.unknown_member_id,
            f"group {group.group_id!r} has no static member {instance_id!r}: join with member epoch 0",
        )
    if group.static_ids[instance_id] != member_id:
        raise RefusedError(
            ErrorCode.fenced_instance_id,
            f"another client has taken the place of static member {instance_id!r}: this client must stop",
        )


def _check_heartbeat_epoch(group: ConsumerGroup, member: ConsumerMember, request: HeartbeatRequest) -> None:
    """Check that a heartbeat has the member's current epoch.

    The previous epoch is accepted as well if the member owns only partitions that are assigned to it: the answer with
    the new epoch may have been lost.

    Raises:
        RefusedError: the epoch is another one; the error code is fenced_member_epoch, after which the client gives up
            its partitions and joins again.
    """
    current = member.current
    if request.member_epoch == current.epoch:
        return
    is_retry = (
        request.member_epoch == current.previous_epoch
        and request.owned is not None
        and request.owned <= current.assigned
    )
    if not is_retry:
        raise RefusedError(
            ErrorCode.fenced_member_epoch,
            f"member {member.member_id!r} of group {group.group_id!r} is in epoch {current.epoch}, not "
            f"{request.member_epoch}: give up all partitions and join with member epoch 0",
        )


def check_member_epoch(group: ConsumerGroup, member_id: str, epoch: int) -> None:
    """Check that an offset request comes from a member of the group, with the member's current epoch.

    Raises:
        RefusedError: UNKNOWN_MEMBER_ID, or STALE_MEMBER_EPOCH: the client retries with the epoch of its next heartbeat.
    """
    member = group.members.get(member_id)
    if member is None:
        raise _unknown(group, member_id)
    if epoch != member.current.epoch:
        raise RefusedError(
            ErrorCode.stale_member_epoch,
            f"member {member_id!r} of group {group.group_id!r} is in epoch {member.current.epoch}, not "
            f"{epoch}: send a heartbeat, and retry with the epoch in its answer",
        )
