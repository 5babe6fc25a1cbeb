"""Decides about JoinGroup requests: whether a member may join a classic group, be it a new member, one that joins
again, or a restarted static member.

Source: Kafka's classic group protocol; KIP-345 (static members), KIP-394 (member ids first), KIP-814 (an answer that
nothing is to be assigned).
"""

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import (
    GroupConfig,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    Token,
)
from stablelog.coordinators.consumer_groups.classic_group import (
    Alarm,
    ClassicGroup,
    ClassicGroupState,
    ClassicMember,
    Due,
)
from stablelog.coordinators.consumer_groups.rebalance import (
    Decision,
    Rebalances,
    answer_join,
    answer_sync,
    check_member,
    join_answer,
    record_generation,
)
from stablelog.coordinators.consumer_groups.records import encode_group_value
from stablelog.coordinators.deadline_queue import DeadlineQueue
from stablelog.errors import RefusedError

PROTOCOLS_SIZE_MAX = 4 << 20  # The maximum size in bytes of the protocols of one member.
# The maximum number of protocols of one member; clients have one for each of their assignors.
PROTOCOL_COUNT_MAX = 100
STRING_SIZE_MAX = 32_000  # The maximum size in bytes of a string in a record; the format allows 32,767.


class _Join(NamedTuple):
    """A JoinGroup request that the coordinator is deciding, with the group and with the decision that it makes."""

    group: ClassicGroup
    request: JoinRequest
    token: Token
    decision: Decision
    now_ms: int


class Joining:
    """Decides about JoinGroup requests, in all classic groups."""

    def __init__(self, config: GroupConfig, deadlines: DeadlineQueue[Alarm], rebalances: Rebalances) -> None:
        self._config = config
        self._deadlines = deadlines
        self._rebalances = rebalances

    def check_request(self, request: JoinRequest) -> None:
        """Check the parts of a JoinGroup request that do not depend on the group.

        Raises:
            RefusedError: a timeout, a name or the number or size of the protocols is not valid; the message says which.
        """
        config = self._config
        if not config.session_timeout_ms_min <= request.session_timeout_ms <= config.session_timeout_ms_max:
            raise RefusedError(
                ErrorCode.invalid_session_timeout,
                f"a session timeout of {request.session_timeout_ms} ms is not valid; "
                f"{config.session_timeout_ms_min} to {config.session_timeout_ms_max} are allowed",
            )
        if len(request.protocols) > PROTOCOL_COUNT_MAX:
            raise RefusedError(
                ErrorCode.invalid_request,
                f"the member has {len(request.protocols)} protocols; at most {PROTOCOL_COUNT_MAX} are allowed",
            )
        names = [
            request.group_instance_id or "",
            request.client_id,
            request.client_host,
            request.protocol_type,
            *(name for name, _ in request.protocols),
        ]
        if any(len(name.encode()) > STRING_SIZE_MAX for name in names):
            raise RefusedError(
                ErrorCode.invalid_request, f"the request has a name of more than {STRING_SIZE_MAX} bytes"
            )
        # The size is limited, because the coordinator keeps the protocols in memory as long as the member exists.
        # Larger protocols would not fit into the group's record anyway.
        if sum(len(name) + len(metadata) for name, metadata in request.protocols) > PROTOCOLS_SIZE_MAX:
            raise RefusedError(
                ErrorCode.invalid_request,
                f"the protocols of the member, with their subscriptions, have more than {PROTOCOLS_SIZE_MAX} bytes",
            )

    def join(
        self, group: ClassicGroup, request: JoinRequest, token: Token, decision: Decision, now_ms: int
    ) -> None:
        """Let a member join the next generation of its group. If the join changes nothing, the member gets the current
        generation as the answer at once.

        Raises:
            RefusedError: the member cannot join; the message says why. Nothing has changed, except that a member may be
                removed if the group has more members than allowed.
        """
        join = _Join(group, request, token, decision, now_ms)
        member_id = request.member_id
        if not self._has_room(group, member_id):
            # The maximum size of the group was lowered below its number of members, and this member is one too many.
            if member_id in group.members:
                self._rebalances.dismiss_member(group, group.members[member_id], decision)
                self._rebalances.complete_join_if_ready(group, decision, now_ms)
            raise RefusedError(
                ErrorCode.group_max_size_reached,
                f"group {group.group_id!r} has its maximum of {self._config.group_size_max} members: stop "
                "one of them first, or raise group.max.size",
            )
        if not group.supports(request.protocol_type, (name for name, _ in request.protocols)):
            raise RefusedError(
                ErrorCode.inconsistent_group_protocol,
                f"group {group.group_id!r} has no protocol in common with this member: use the same "
                "assignment strategy in all members",
            )
        if not member_id:
            self._join_new(join)
        elif member_id in group.pending_joins:
            if request.group_instance_id is not None:
                raise RefusedError(
                    ErrorCode.unknown_member_id,
                    f"member id {member_id!r} belongs to a member without a group instance id: "
                    "join with an empty member id",
                )
            self._admit(join, member_id)
        else:
            check_member(group, member_id, request.group_instance_id)
            self._rejoin(join)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        size_max = self._config.group_size_max
        member = group.members.get(member_id)
        if group.state is ClassicGroupState.EMPTY:
            return True
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            # Count only members that have joined again, so that a group that is too large dismisses the members that
            # join last.
            return (member is not None and member.join_token is not None) or group.joined_count < size_max
        return member is not None or len(group.members) < size_max

    def _join_new(self, join: _Join) -> None:
        group, request = join.group, join.request
        instance_id = request.group_instance_id
        if instance_id is not None:
            member_id = f"{instance_id}-{request.fresh_id}"
            if instance_id in group.static_ids:
                self._replace_static(join, member_id, group.members[group.static_ids[instance_id]])
            else:
                self._admit(join, member_id)
            return
        member_id = f"{request.client_id}-{request.fresh_id}"
        assert member_id not in group.members
        if not request.knows_member_id_required:
            self._admit(join, member_id)
            return
        if len(group.pending_joins) >= self._config.group_size_max:
            raise RefusedError(
                ErrorCode.group_max_size_reached,
                f"too many new members of group {group.group_id!r} have an id and have not joined yet; try again later",
            )
        group.pending_joins.add(member_id)
        self._deadlines.set(group.alarm(Due.SESSION, member_id), join.now_ms + request.session_timeout_ms)
        join.decision.answers.append((join.token, JoinAnswer(ErrorCode.member_id_required, member_id)))

    def _admit(self, join: _Join, member_id: str) -> None:
        """Add a new member to the group, and begin a rebalance."""
        group = join.group
        if group.is_initial:
            group.is_prolonged = True
        member = _new_member(join, member_id)
        member.is_new = True
        group.add(member, join.request.protocol_type)
        # The member cannot send heartbeats before it knows its generation. If the member's client has stopped, the end
        # of this first session removes the member, so that the group does not wait for a stopped client.
        timeout_ms = self._config.new_member_join_timeout_ms
        self._deadlines.set(group.alarm(Due.SESSION, member_id), join.now_ms + timeout_ms)
        self._rebalances.rebalance_or_complete(group, join.decision, join.now_ms)

    def _replace_static(self, join: _Join, member_id: str, former: ClassicMember) -> None:
        """Put a restarted static member in the place that it had before, under a new member id. The earlier client is
        fenced.
        """
        group, request, decision = join.group, join.request, join.decision
        former_leader_id = group.leader_id or ""
        self._deadlines.cancel(group.alarm(Due.SESSION, former.member_id))
        answer_join(former, JoinAnswer(ErrorCode.fenced_instance_id, former.member_id), decision)
        answer_sync(former, SyncAnswer(ErrorCode.fenced_instance_id), decision)
        member = _new_member(join, member_id)
        group.replace(member)
        self._rebalances.renew_session(group, member, join.now_ms)
        value = self._unchanged_generation(group)
        if value is None:
            self._rebalances.rebalance_or_complete(group, decision, join.now_ms)
            return
        record_generation(group, value, decision)
        leads = group.leader_id == member_id
        if request.knows_skip_assignment:
            answer = join_answer(group, member_id, with_members=leads, skip_assignment=leads)
        else:
            # A leader with an older client would assign the partitions again. So the answer names its former member id
            # as the leader, and the client does not see itself as the leader.
            answer = join_answer(group, member_id, leader_id=former_leader_id)
        answer_join(member, answer, decision)

    def _unchanged_generation(self, group: ClassicGroup) -> bytes | None:
        """Return the record of the present generation, if the generation can stay unchanged although a restarted client
        has taken the place of a static member.

        Returns:
            The encoded value of the record; None if the replacement needs a new generation.
        """
        if group.state is not ClassicGroupState.STABLE or group.choose_protocol() != group.protocol_name:
            # In the sync phase the leader may know only the former id of the static member that was replaced. It would
            # then assign nothing to the new id.
            return None
        assignments = {member.member_id: member.assignment for member in group.members.values()}
        value = encode_group_value(group.value(assignments))
        return value if len(value) <= self._config.group_metadata_size_max else None

    def _rejoin(self, join: _Join) -> None:
        """Let a member of the group join again. A rebalance begins, unless the join changes nothing."""
        group, request = join.group, join.request
        assert group.state is not ClassicGroupState.EMPTY
        member = group.members[request.member_id]
        leads = group.leader_id == request.member_id
        is_joining = group.state is ClassicGroupState.PREPARING_REBALANCE
        # If the leader of a stable group joins again, it wants a new assignment, for example because a topic has
        # changed.
        is_new_assignment = group.state is ClassicGroupState.STABLE and leads
        if not is_joining and not is_new_assignment and member.protocols == request.protocols:
            # The member joins again without a change, for example because the answer to its first join was lost.
            answer = join_answer(group, request.member_id, with_members=leads)
            join.decision.answers.append((join.token, answer))
            return
        answer_join(member, JoinAnswer(ErrorCode.rebalance_in_progress, member.member_id), join.decision)
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.join_token = join.token
        self._rebalances.rebalance_or_complete(group, join.decision, join.now_ms)


def _new_member(join: _Join, member_id: str) -> ClassicMember:
    request = join.request
    return ClassicMember(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        join_token=join.token,
    )
