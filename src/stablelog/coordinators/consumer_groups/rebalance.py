"""Rebalances of a group: the join phase, the sync phase, sessions and leaving members.

Each request is first checked. A request that is refused (`RefusedError`) changes nothing. A JoinGroup or SyncGroup
request is answered through its token (an identifier of the request), at once or in a later decision. Each gets exactly
one answer, even if its member leaves, is removed, is replaced, or sends the request again. `joining` decides which
member may join.

To *dismiss* a member is to remove it and to answer its pending requests with UNKNOWN_MEMBER_ID.

Source: Kafka's classic group protocol; KIP-345 (static members), KIP-394 (member ids first), KIP-814 (an answer that
nothing is to be assigned).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import (
    GroupConfig,
    GroupDecision,
    JoinAnswer,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
    Token,
)
from stablelog.coordinators.consumer_groups.classic_group import (
    Alarm,
    ClassicGroup,
    ClassicGroupState,
    ClassicMember,
    Due,
    Step,
)
from stablelog.coordinators.consumer_groups.records import encode_group_key, encode_group_value
from stablelog.coordinators.deadline_queue import DeadlineQueue
from stablelog.errors import RefusedError

# If no member has joined, the join phase goes on for at least this time, in milliseconds.
FRUITLESS_JOIN_MS_MIN = 1_000

Decision = GroupDecision[Any]


class Rebalances:
    """Rebalances of all classic groups: join phases, sync phases, sessions, and members that leave."""

    def __init__(self, config: GroupConfig, deadlines: DeadlineQueue[Alarm]) -> None:
        self._config = config
        self._deadlines = deadlines

    # -- the join phase --------------------------------------------------------------------------------------

    def rebalance_or_complete(self, group: ClassicGroup, decision: Decision, now_ms: int) -> None:
        """Begin a join phase of the group, in which its members send JoinGroup, or end the present one if all members
        have joined.

        The first join phase of a group that was empty does not end here: it lasts until the wait for more members is
        over.
        """
        if group.state is not ClassicGroupState.PREPARING_REBALANCE:
            self.rebalance(group, decision, now_ms)
        elif not group.is_initial:
            self.complete_join_if_ready(group, decision, now_ms)

    def rebalance(self, group: ClassicGroup, decision: Decision, now_ms: int) -> None:
        """Begin a join phase of the group: all members have to send JoinGroup again."""
        if group.state is ClassicGroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                if answer_sync(member, SyncAnswer(ErrorCode.rebalance_in_progress), decision):
                    self.renew_session(group, member, now_ms)
        group.pending_syncs.clear()
        self._deadlines.cancel(group.alarm(Due.SYNC))
        is_initial = group.state is ClassicGroupState.EMPTY
        group.change_state(Step.REBALANCE, now_ms)
        if not is_initial:
            self._deadlines.set(group.alarm(Due.JOIN), now_ms + group.rebalance_timeout_ms)
            self.complete_join_if_ready(group, decision, now_ms)
            return
        delay_ms = self._config.initial_rebalance_delay_ms
        group.is_initial = True
        group.is_prolonged = False
        group.initial_delay_ms = delay_ms
        group.initial_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        if delay_ms:
            self._deadlines.set(group.alarm(Due.JOIN), now_ms + delay_ms)
        else:
            self._complete_join(group, decision, now_ms)

    def _end_join_phase(self, group: ClassicGroup, decision: Decision, now_ms: int) -> None:
        """Handle the timeout of a join phase, in which the members of a group send JoinGroup. The phase ends; only the
        first join phase of a group that was empty is prolonged if further members have joined meanwhile.
        """
        assert group.state is ClassicGroupState.PREPARING_REBALANCE
        if group.is_initial and group.is_prolonged and group.initial_left_ms:
            group.is_prolonged = False
            delay_ms = min(self._config.initial_rebalance_delay_ms, group.initial_left_ms)
            group.initial_left_ms = max(group.initial_left_ms - group.initial_delay_ms, 0)
            group.initial_delay_ms = delay_ms
            self._deadlines.set(group.alarm(Due.JOIN), now_ms + delay_ms)
            return
        self._complete_join(group, decision, now_ms)

    def complete_join_if_ready(self, group: ClassicGroup, decision: Decision, now_ms: int) -> None:
        """End the join phase of the group, in which its members send JoinGroup, if all of them have joined."""
        if group.state is ClassicGroupState.PREPARING_REBALANCE and group.has_all_joined:
            self._complete_join(group, decision, now_ms)

    def _complete_join(self, group: ClassicGroup, decision: Decision, now_ms: int) -> None:
        """End the join phase of a group. Members that have not sent JoinGroup in it are removed, except static ones,
        which may come back.
        """
        self._deadlines.cancel(group.alarm(Due.JOIN))
        for member in list(group.members.values()):
            if member.join_token is None and member.group_instance_id is None:
                self.dismiss_member(group, member, decision)
        if group.members and not group.elect_joined_leader():
            # No member has joined, and only static members are left: wait until they join or their sessions end.
            wait_ms = max(group.rebalance_timeout_ms, FRUITLESS_JOIN_MS_MIN)
            self._deadlines.set(group.alarm(Due.JOIN), now_ms + wait_ms)
            return
        group.begin_generation(now_ms)
        if group.state is ClassicGroupState.EMPTY:
            record_generation(group, encode_group_value(group.value({})), decision)
            return
        group.pending_syncs.update(group.members)
        for member in group.members.values():
            leads = member.member_id == group.leader_id
            answer_join(member, join_answer(group, member.member_id, with_members=leads), decision)
            member.is_new = False
            self.renew_session(group, member, now_ms)
        self._deadlines.set(group.alarm(Due.SYNC), now_ms + group.rebalance_timeout_ms)

    # -- the sync phase --------------------------------------------------------------------------------------

    def sync(
        self, group: ClassicGroup, request: SyncRequest, token: Token, decision: Decision, now_ms: int
    ) -> None:
        """Answer SyncGroup with the assignment of the member, now or when the leader has sent the assignments.

        Raises:
            RefusedError: the sender is not a member of this generation, or the group is rebalancing.
        """
        check_member(group, request.member_id, request.group_instance_id)
        check_generation(group, request.generation)
        for name, asked, actual in (
            ("protocol type", request.protocol_type, group.protocol_type),
            ("protocol", request.protocol_name, group.protocol_name),
        ):
            if asked is not None and actual is not None and asked != actual:
                raise RefusedError(
                    ErrorCode.inconsistent_group_protocol,
                    f"the request has the {name} {asked!r}, but group {group.group_id!r} has {actual!r}: join "
                    "again",
                )
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            raise RefusedError(
                ErrorCode.rebalance_in_progress,
                f"group {group.group_id!r} is rebalancing: send JoinGroup again",
            )
        member = group.members[request.member_id]
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            self._deadlines.cancel(group.alarm(Due.SYNC))
        if group.state is ClassicGroupState.STABLE:
            decision.answers.append((token, _assignment_of(group, member)))
            return
        answer_sync(member, SyncAnswer(ErrorCode.rebalance_in_progress), decision)
        member.sync_token = token
        if group.leader_id == member.member_id:
            self._assign(group, request.assignments, decision, now_ms)

    def _assign(
        self, group: ClassicGroup, assignments: Mapping[str, bytes], decision: Decision, now_ms: int
    ) -> None:
        """Record the leader's assignments in the log, and answer the pending SyncGroup requests with them."""
        value = group.value(assignments)._replace(state_ms=now_ms)
        encoded = encode_group_value(value)
        if len(encoded) > self._config.group_metadata_size_max:
            for member in group.members.values():
                answer_sync(member, SyncAnswer(ErrorCode.unknown_server_error), decision)
                self.renew_session(group, member, now_ms)
            self.rebalance(group, decision, now_ms)
            return
        group.change_state(Step.ASSIGNED, now_ms)
        record_generation(group, encoded, decision)
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if answer_sync(member, _assignment_of(group, member), decision):
                self.renew_session(group, member, now_ms)

    def _end_sync_phase(self, group: ClassicGroup, decision: Decision, now_ms: int) -> None:
        """Handle the timeout of a sync phase, in which members send SyncGroup: remove those that have not requested
        their assignment.
        """
        assert group.state in {ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.STABLE}
        assert group.pending_syncs
        for member_id in list(group.pending_syncs):
            self.dismiss_member(group, group.members[member_id], decision)
        self.rebalance(group, decision, now_ms)

    # -- sessions and leaving members ------------------------------------------------------------------------

    def heartbeat(
        self, group: ClassicGroup, member_id: str, group_instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Renew the session of a member, and return the error code of the answer. REBALANCE_IN_PROGRESS makes the
        client join again.

        Args:
            group: the group.
            member_id: the member.
            group_instance_id: the instance id of a static member; None for any other member.
            generation: the generation that the request names.
            now_ms: broker time, which never goes back, in ms.
        """
        check_member(group, member_id, group_instance_id)
        check_generation(group, generation)
        self.renew_session(group, group.members[member_id], now_ms)
        is_joining = group.state is ClassicGroupState.PREPARING_REBALANCE
        return ErrorCode.rebalance_in_progress if is_joining else ErrorCode.none

    def renew_session(self, group: ClassicGroup, member: ClassicMember, now_ms: int) -> None:
        """Restart the session timeout of a member: its session now ends one timeout after `now_ms`."""
        self._deadlines.set(group.alarm(Due.SESSION, member.member_id), now_ms + member.session_timeout_ms)

    def leave(
        self, group: ClassicGroup, leaving: Iterable[LeavingMember], decision: Decision, now_ms: int
    ) -> tuple[tuple[LeavingMember, ErrorCode], ...]:
        """Remove members that leave. An error of one member does not affect the others.

        Returns:
            A pair for each member of the request: the member, and its error code.
        """
        outcomes: list[tuple[LeavingMember, ErrorCode]] = []
        size_before = len(group.members)
        for one in leaving:
            try:
                self._leave_one(group, one, decision)
                outcomes.append((one, ErrorCode.none))
            except RefusedError as refused:
                outcomes.append((one, ErrorCode(refused.code)))
        if len(group.members) < size_before:
            self.rebalance_or_complete(group, decision, now_ms)
        elif not group.is_initial:
            self.complete_join_if_ready(group, decision, now_ms)
        return tuple(outcomes)

    def _leave_one(self, group: ClassicGroup, leaving: LeavingMember, decision: Decision) -> None:
        member_id = leaving.member_id
        if not member_id:
            instance_id = leaving.group_instance_id
            if instance_id is None or instance_id not in group.static_ids:
                raise RefusedError(
                    ErrorCode.unknown_member_id,
                    f"the request removes static member {instance_id!r}, which the group does not have",
                )
            member_id = group.static_ids[instance_id]
        elif member_id in group.pending_joins:
            group.pending_joins.remove(member_id)
            self._deadlines.cancel(group.alarm(Due.SESSION, member_id))
            return
        else:
            check_member(group, member_id, leaving.group_instance_id)
        self.dismiss_member(group, group.members[member_id], decision)

    def dismiss_member(self, group: ClassicGroup, member: ClassicMember, decision: Decision) -> None:
        """Remove a member, and answer its pending requests with UNKNOWN_MEMBER_ID.

        A client that still runs then joins as a new member.
        """
        self._deadlines.cancel(group.alarm(Due.SESSION, member.member_id))
        answer_join(member, JoinAnswer(ErrorCode.unknown_member_id), decision)
        answer_sync(member, SyncAnswer(ErrorCode.unknown_member_id), decision)
        group.remove(member.member_id)

    def _end_session(self, group: ClassicGroup, member_id: str, decision: Decision, now_ms: int) -> None:
        """Remove a member that has sent nothing for its session timeout."""
        if member_id in group.pending_joins:
            group.pending_joins.remove(member_id)
            self.complete_join_if_ready(group, decision, now_ms)
            return
        member = group.members[member_id]
        if not member.can_time_out:
            # The session does not end while a JoinGroup or SyncGroup of the member is pending: the answer begins a new
            # session.
            return
        self.dismiss_member(group, member, decision)
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            self.complete_join_if_ready(group, decision, now_ms)
        else:
            self.rebalance(group, decision, now_ms)

    def handle_alarm(self, group: ClassicGroup, alarm: Alarm, decision: Decision, now_ms: int) -> None:
        """Handle a deadline of a group: its join phase, its sync phase or the session of a member has ended."""
        if alarm.due is Due.SESSION:
            self._end_session(group, alarm.member_id, decision, now_ms)
        elif alarm.due is Due.JOIN:
            self._end_join_phase(group, decision, now_ms)
        else:
            self._end_sync_phase(group, decision, now_ms)

    def begin_sessions(self, group: ClassicGroup, decision: Decision, now_ms: int) -> None:
        """Begin the sessions of all members of a group after a start of the broker.

        A group with more members than allowed begins a rebalance.
        """
        for member in group.members.values():
            self.renew_session(group, member, now_ms)
        if len(group.members) > self._config.group_size_max:
            self.rebalance(group, decision, now_ms)


# -- answers and records ---------------------------------------------------------------------------------------


def join_answer(
    group: ClassicGroup,
    member_id: str,
    *,
    with_members: bool = False,
    skip_assignment: bool = False,
    leader_id: str | None = None,
) -> JoinAnswer:
    """Return the answer to JoinGroup for a member of the present generation.

    Args:
        group: the group.
        member_id: the member.
        with_members: whether the answer lists all members, as the leader needs them for the assignment.
        skip_assignment: whether the answer tells the leader that nothing has to be assigned (KIP-814).
        leader_id: the leader that the answer names; None for the group's leader.
    """
    return JoinAnswer(
        ErrorCode.none,
        member_id,
        group.generation,
        group.protocol_type,
        group.protocol_name,
        leader_id if leader_id is not None else group.leader_id or "",
        skip_assignment,
        group.joined_members() if with_members else (),
    )


def _assignment_of(group: ClassicGroup, member: ClassicMember) -> SyncAnswer:
    return SyncAnswer(ErrorCode.none, group.protocol_type, group.protocol_name, member.assignment)


def answer_join(member: ClassicMember, answer: JoinAnswer, decision: Decision) -> None:
    """Answer the JoinGroup request of a member that waits for its answer, if there is one."""
    if member.join_token is not None:
        decision.answers.append((member.join_token, answer))
        member.join_token = None


def answer_sync(member: ClassicMember, answer: SyncAnswer, decision: Decision) -> bool:
    """Answer the SyncGroup request of a member that waits for its answer. Return whether there was one."""
    if member.sync_token is None:
        return False
    decision.answers.append((member.sync_token, answer))
    member.sync_token = None
    return True


def record_generation(group: ClassicGroup, value: bytes, decision: Decision) -> None:
    """Append the record of a group's generation to a decision, whose records the broker writes to the offsets log.
    `value` is the encoded value of the record.
    """
    group.recorded = value
    decision.records.append((encode_group_key(group.group_id), value))


# -- checks ----------------------------------------------------------------------------------------------------


def check_member(group: ClassicGroup, member_id: str, group_instance_id: str | None) -> None:
    """Check that a request comes from a member of the group.

    Raises:
        RefusedError: UNKNOWN_MEMBER_ID if the client must join as a new member; FENCED_INSTANCE_ID if another client
            has taken the static member's place, and this client must stop.
    """
    if group_instance_id is not None:
        static_id = group.static_ids.get(group_instance_id)
        if static_id is None:
            raise RefusedError(
                ErrorCode.unknown_member_id,
                f"group {group.group_id!r} has no static member {group_instance_id!r}",
            )
        if static_id != member_id:
            raise RefusedError(
                ErrorCode.fenced_instance_id,
                f"another client has taken the place of static member {group_instance_id!r}: this client must stop",
            )
    if member_id not in group.members:
        raise RefusedError(
            ErrorCode.unknown_member_id,
            f"{member_id!r} is not a member of group {group.group_id!r}: join as a new member",
        )


def check_generation(group: ClassicGroup, generation: int) -> None:
    """Check that a request has the current generation of the group.

    Raises:
        RefusedError: it has another generation; the error code is ILLEGAL_GENERATION.
    """
    if generation != group.generation:
        raise RefusedError(
            ErrorCode.illegal_generation,
            f"group {group.group_id!r} is in generation {group.generation}, not {generation}: join again",
        )
