"""How members come to an agreement: joins, syncs, heartbeats, leaves and timeouts of one group.

What a request does depends on the state of the group, and each has its table: `_HEARTBEAT`, `_SYNC`,
`_REJOIN`. A request is checked first (`Refused`), and nothing has changed if it is refused.

A join or a sync is answered through its token, at once or in a later decision, and exactly once: also when
its member leaves, is thrown out, is replaced, or asks again.

Source: Kafka's classic group protocol; KIP-345 (static members), KIP-394 (member ids first), KIP-814
(skipping).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.alarms import Alarm, Alarms
from stablelog.coordinators.consumer_groups.answers import (
    GroupConfig,
    GroupDecision,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
    Token,
)
from stablelog.coordinators.consumer_groups.membership import Group, Member, State, Step
from stablelog.coordinators.consumer_groups.records import MemberValue, encode_group_key, encode_group_value
from stablelog.errors import Refused

PROTOCOLS_SIZE_MAX = 4 << 20  # of one member
STRING_SIZE_MAX = 32_000  # of a string in a record, less than the 32,767 that it can say
FRUITLESS_JOIN_MS_MIN = 1_000  # how soon a join phase in which nobody joined is looked at again

Decision = GroupDecision[Any]


class _Join(NamedTuple):
    """A join being worked on."""

    group: Group
    request: JoinRequest
    token: Token
    decision: Decision
    now_ms: int


class _Sync(NamedTuple):
    """A sync being worked on."""

    group: Group
    request: SyncRequest
    token: Token
    decision: Decision
    now_ms: int


class Rebalances:
    """Membership changes of any group."""

    def __init__(self, config: GroupConfig, alarms: Alarms) -> None:
        self._config = config
        self._alarms = alarms

    # -- join ------------------------------------------------------------------------------------------------

    def check_join(self, request: JoinRequest) -> None:
        """Check what can be checked without a group.

        Raises:
            Refused: and why.
        """
        config = self._config
        if not config.session_timeout_ms_min <= request.session_timeout_ms <= config.session_timeout_ms_max:
            raise Refused(
                ErrorCode.invalid_session_timeout,
                f"a session timeout of {request.session_timeout_ms} ms; "
                f"{config.session_timeout_ms_min} to {config.session_timeout_ms_max} are allowed",
            )
        names = [
            request.group_instance_id or "",
            request.client_id,
            request.client_host,
            request.protocol_type,
        ]
        names += (name for name, _ in request.protocols)
        if any(len(name.encode()) > STRING_SIZE_MAX for name in names):
            raise Refused(ErrorCode.invalid_request, f"a name of more than {STRING_SIZE_MAX} bytes")
        # They are kept as long as the member is; such as these no group's record could hold.
        if sum(len(name) + len(metadata) for name, metadata in request.protocols) > PROTOCOLS_SIZE_MAX:
            raise Refused(
                ErrorCode.invalid_request,
                f"more than {PROTOCOLS_SIZE_MAX} bytes of protocols and their subscriptions",
            )

    def join(self, group: Group, request: JoinRequest, token: Token, decision: Decision, now_ms: int) -> None:
        """Let a member into the next generation, or give it the current one if its coming changes nothing.

        Raises:
            Refused: and why. Nothing changed, but that a member which is one too many may be out.
        """
        join = _Join(group, request, token, decision, now_ms)
        member_id = request.member_id
        if not self._has_room(group, member_id):
            if member_id in group.members:  # the limit was lowered, and this one comes last
                self._dismiss(group, group.members[member_id], decision)
                self._complete_join_if_ready(group, decision, now_ms)
            raise Refused(
                ErrorCode.group_max_size_reached,
                f"group {group.group_id!r} has reached its size of {self._config.group_size_max}",
            )
        if not group.supports(request.protocol_type, (name for name, _ in request.protocols)):
            raise Refused(
                ErrorCode.inconsistent_group_protocol,
                f"group {group.group_id!r} has no protocol in common with this member",
            )
        if not member_id:
            self._join_new(join)
        elif member_id in group.pending_joins:
            if request.group_instance_id is not None:
                raise Refused(
                    ErrorCode.unknown_member_id, f"{member_id!r} was given to a member without an instance id"
                )
            self._admit(join, member_id)
        else:
            check_member(group, member_id, request.group_instance_id)
            self._REJOIN[group.state](self, join)

    def _has_room(self, group: Group, member_id: str) -> bool:
        size_max = self._config.group_size_max
        member = group.members.get(member_id)
        if group.state is State.EMPTY:
            return True
        if group.state is State.PREPARING_REBALANCE:
            # Those who have joined count, so that a group that is too large sheds its last ones.
            return (member is not None and member.join_token is not None) or group.joined_count < size_max
        return member is not None or len(group.members) < size_max

    def _join_new(self, join: _Join) -> None:
        group, request = join.group, join.request
        if request.group_instance_id is not None:
            member_id = f"{request.group_instance_id}-{request.fresh_id}"
            if request.group_instance_id in group.static_ids:
                self._replace_static(join, member_id)
            else:
                self._admit(join, member_id)
            return
        member_id = f"{request.client_id}-{request.fresh_id}"
        assert member_id not in group.members
        if not request.knows_member_id_required:
            self._admit(join, member_id)
            return
        if len(group.pending_joins) >= self._config.group_size_max:
            raise Refused(
                ErrorCode.group_max_size_reached, f"group {group.group_id!r} waits for too many members"
            )
        alarm = self._session_alarm(group, member_id)
        group.pending_joins[member_id] = alarm
        self._alarms.set(alarm, join.now_ms + request.session_timeout_ms)
        join.decision.answers.append((join.token, JoinAnswer(ErrorCode.member_id_required, member_id)))

    def _session_alarm(self, group: Group, member_id: str) -> Alarm:
        return Alarm(partial(self._session_over, group, member_id))

    def _new_member(self, join: _Join, member_id: str) -> Member:
        request = join.request
        return Member(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            session=self._session_alarm(join.group, member_id),
            join_token=join.token,
        )

    def _admit(self, join: _Join, member_id: str) -> None:
        """Take in a new member."""
        group = join.group
        pending = group.pending_joins.get(member_id)
        if pending is not None:
            self._alarms.cancel(pending)
        if group.is_initial:
            group.is_prolonged = True
        member = self._new_member(join, member_id)
        member.is_new = True
        group.add(member, join.request.protocol_type)
        # It cannot send heartbeats before it knows its generation. If it is gone, this ends the waiting for
        # it.
        self._alarms.set(member.session, join.now_ms + self._config.new_member_join_timeout_ms)
        self._rebalance_or_complete(group, join.decision, join.now_ms)

    def _replace_static(self, join: _Join, member_id: str) -> None:
        """A static member has started anew: it takes its former place, and its former self is fenced."""
        group, request, decision = join.group, join.request, join.decision
        assert request.group_instance_id is not None
        former = group.members[group.static_ids[request.group_instance_id]]
        former_leader_id = group.leader_id or ""
        self._alarms.cancel(former.session)
        self._answer_join(former, JoinAnswer(ErrorCode.fenced_instance_id, former.member_id), decision)
        self._answer_sync(former, SyncAnswer(ErrorCode.fenced_instance_id), decision)
        member = self._new_member(join, member_id)
        group.replace(member)
        self._renew_session(member, join.now_ms)
        record = self._unchanged_generation(group)
        if record is None:
            self._rebalance_or_complete(group, decision, join.now_ms)
            return
        self._record(group, record, decision)
        leads = group.leader_id == member_id
        if request.knows_skip_assignment:
            answer = self._generation_of(group, member_id, with_members=leads, skip_assignment=leads)
        else:
            # An older client would assign anew if it heard that it leads, so it hears of its former self.
            answer = self._generation_of(group, member_id, leader_id=former_leader_id)
        self._answer_join(member, answer, decision)

    def _unchanged_generation(self, group: Group) -> bytes | None:
        """The record of the current generation with a member replaced; None if there must be a new one."""
        if group.state is not State.STABLE or group.vote() != group.protocol_name:
            # In the sync phase the leader may have been told of the former id, and would assign to nobody.
            return None
        assignments = {member.member_id: member.assignment for member in group.members.values()}
        record = encode_group_value(group.value(assignments))
        return record if len(record) <= self._config.group_metadata_size_max else None

    def _rejoin(self, join: _Join) -> None:
        """A member joins again, and a new generation begins."""
        request = join.request
        member = join.group.members[request.member_id]
        self._answer_join(
            member, JoinAnswer(ErrorCode.rebalance_in_progress, member.member_id), join.decision
        )
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.join_token = join.token
        self._rebalance_or_complete(join.group, join.decision, join.now_ms)

    def _rejoin_completing(self, join: _Join) -> None:
        group, request = join.group, join.request
        if group.members[request.member_id].protocols != request.protocols:
            self._rejoin(join)
            return
        # It may not have got the answer to its first join.
        leads = group.leader_id == request.member_id
        answer = self._generation_of(group, request.member_id, with_members=leads)
        join.decision.answers.append((join.token, answer))

    def _rejoin_stable(self, join: _Join) -> None:
        group, request = join.group, join.request
        # The leader joins again to have the work assigned anew, for reasons that only it knows.
        if (
            group.leader_id == request.member_id
            or group.members[request.member_id].protocols != request.protocols
        ):
            self._rejoin(join)
            return
        join.decision.answers.append((join.token, self._generation_of(group, request.member_id)))

    def _rejoin_empty(self, join: _Join) -> None:
        raise AssertionError(f"group {join.group.group_id!r} is empty and has a member")

    _REJOIN: ClassVar[Mapping[State, Callable[..., None]]] = {
        State.EMPTY: _rejoin_empty,
        State.PREPARING_REBALANCE: _rejoin,
        State.COMPLETING_REBALANCE: _rejoin_completing,
        State.STABLE: _rejoin_stable,
    }

    # -- the join phase --------------------------------------------------------------------------------------

    def _rebalance_or_complete(self, group: Group, decision: Decision, now_ms: int) -> None:
        """Begin a join phase or, if one is under way, end it if nobody is left to wait for."""
        if group.state is not State.PREPARING_REBALANCE:
            self.rebalance(group, decision, now_ms)
        elif not group.is_initial:
            self._complete_join_if_ready(group, decision, now_ms)

    def rebalance(self, group: Group, decision: Decision, now_ms: int) -> None:
        """Begin a join phase."""
        if group.state is State.COMPLETING_REBALANCE:
            for member in group.members.values():
                if self._answer_sync(member, SyncAnswer(ErrorCode.rebalance_in_progress), decision):
                    self._renew_session(member, now_ms)
        group.pending_syncs.clear()
        self._alarms.cancel(group.sync_alarm)
        is_initial = group.state is State.EMPTY
        group.step(Step.REBALANCE, now_ms)
        if not is_initial:
            self._alarms.set(group.join_alarm, now_ms + group.rebalance_timeout_ms)
            self._complete_join_if_ready(group, decision, now_ms)
            return
        delay_ms = self._config.initial_rebalance_delay_ms
        group.is_initial = True
        group.is_prolonged = False
        group.initial_delay_ms = delay_ms
        group.initial_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        if delay_ms:
            self._alarms.set(group.join_alarm, now_ms + delay_ms)
        else:
            self._complete_join(group, decision, now_ms)

    def _join_phase_over(self, group: Group, decision: Decision, now_ms: int) -> None:
        assert group.state is State.PREPARING_REBALANCE
        if group.is_initial and group.is_prolonged and group.initial_left_ms:
            group.is_prolonged = False
            delay_ms = min(self._config.initial_rebalance_delay_ms, group.initial_left_ms)
            group.initial_left_ms = max(group.initial_left_ms - group.initial_delay_ms, 0)
            group.initial_delay_ms = delay_ms
            self._alarms.set(group.join_alarm, now_ms + delay_ms)
            return
        self._complete_join(group, decision, now_ms)

    def _complete_join_if_ready(self, group: Group, decision: Decision, now_ms: int) -> None:
        if group.state is State.PREPARING_REBALANCE and group.has_all_joined:
            self._complete_join(group, decision, now_ms)

    def _complete_join(self, group: Group, decision: Decision, now_ms: int) -> None:
        """End the join phase: whoever has not joined is out, except static members, who may come back."""
        self._alarms.cancel(group.join_alarm)
        for member in list(group.members.values()):
            if member.join_token is None and member.group_instance_id is None:
                self._dismiss(group, member, decision)
        if group.members and not group.elect_joined_leader():
            # Only static members, and none of them here: their sessions decide.
            wait_ms = max(group.rebalance_timeout_ms, FRUITLESS_JOIN_MS_MIN)
            self._alarms.set(group.join_alarm, now_ms + wait_ms)
            return
        group.begin_generation(now_ms)
        if group.state is State.EMPTY:
            self._record(group, encode_group_value(group.value({})), decision)
            return
        group.pending_syncs.update(group.members)
        for member in group.members.values():
            leads = member.member_id == group.leader_id
            self._answer_join(
                member, self._generation_of(group, member.member_id, with_members=leads), decision
            )
            member.is_new = False
            self._renew_session(member, now_ms)
        self._alarms.set(group.sync_alarm, now_ms + group.rebalance_timeout_ms)

    def _generation_of(
        self,
        group: Group,
        member_id: str,
        *,
        with_members: bool = False,
        skip_assignment: bool = False,
        leader_id: str | None = None,
    ) -> JoinAnswer:
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

    # -- sync ------------------------------------------------------------------------------------------------

    def sync(self, group: Group, request: SyncRequest, token: Token, decision: Decision, now_ms: int) -> None:
        """Give a member its assignment, now or once the leader has brought it."""
        check_member(group, request.member_id, request.group_instance_id)
        check_generation(group, request.generation)
        for name, asked, actual in (
            ("protocol type", request.protocol_type, group.protocol_type),
            ("protocol", request.protocol_name, group.protocol_name),
        ):
            if asked is not None and actual is not None and asked != actual:
                raise Refused(
                    ErrorCode.inconsistent_group_protocol,
                    f"group {group.group_id!r} has the {name} {actual!r}, not {asked!r}",
                )
        self._SYNC[group.state](self, _Sync(group, request, token, decision, now_ms))

    def _sync_empty(self, sync: _Sync) -> None:
        raise AssertionError(f"group {sync.group.group_id!r} is empty and has a member")

    def _sync_preparing(self, sync: _Sync) -> None:
        raise Refused(
            ErrorCode.rebalance_in_progress, f"group {sync.group.group_id!r} rebalances: join again"
        )

    def _sync_completing(self, sync: _Sync) -> None:
        group = sync.group
        member = group.members[sync.request.member_id]
        self._answer_sync(member, SyncAnswer(ErrorCode.rebalance_in_progress), sync.decision)
        member.sync_token = sync.token
        self._has_synced(group, member.member_id)
        if group.leader_id == member.member_id:
            self._assign(group, sync.request.assignments, sync.decision, sync.now_ms)

    def _sync_stable(self, sync: _Sync) -> None:
        group = sync.group
        self._has_synced(group, sync.request.member_id)
        answer = self._assignment_of(group, group.members[sync.request.member_id])
        sync.decision.answers.append((sync.token, answer))

    _SYNC: ClassVar[Mapping[State, Callable[..., None]]] = {
        State.EMPTY: _sync_empty,
        State.PREPARING_REBALANCE: _sync_preparing,
        State.COMPLETING_REBALANCE: _sync_completing,
        State.STABLE: _sync_stable,
    }

    def _has_synced(self, group: Group, member_id: str) -> None:
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            self._alarms.cancel(group.sync_alarm)

    def _assign(
        self, group: Group, assignments: Mapping[str, bytes], decision: Decision, now_ms: int
    ) -> None:
        """The leader has assigned the work: record it and hand it out."""
        value = group.value(assignments)._replace(state_ms=now_ms)
        record = encode_group_value(value)
        if len(record) > self._config.group_metadata_size_max:
            for member in group.members.values():
                self._answer_sync(member, SyncAnswer(ErrorCode.unknown_server_error), decision)
                self._renew_session(member, now_ms)
            self.rebalance(group, decision, now_ms)
            return
        group.step(Step.ASSIGNED, now_ms)
        self._record(group, record, decision)
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if self._answer_sync(member, self._assignment_of(group, member), decision):
                self._renew_session(member, now_ms)

    def _assignment_of(self, group: Group, member: Member) -> SyncAnswer:
        return SyncAnswer(ErrorCode.none, group.protocol_type, group.protocol_name, member.assignment)

    def _sync_phase_over(self, group: Group, decision: Decision, now_ms: int) -> None:
        """Throw out whoever took a generation but never asked for its assignment."""
        assert group.state in {State.COMPLETING_REBALANCE, State.STABLE}
        assert group.pending_syncs
        for member_id in list(group.pending_syncs):
            self._dismiss(group, group.members[member_id], decision)
        self.rebalance(group, decision, now_ms)

    # -- staying and leaving ---------------------------------------------------------------------------------

    _HEARTBEAT: ClassVar[Mapping[State, ErrorCode]] = {
        State.EMPTY: ErrorCode.unknown_member_id,
        State.PREPARING_REBALANCE: ErrorCode.rebalance_in_progress,
        State.COMPLETING_REBALANCE: ErrorCode.none,
        State.STABLE: ErrorCode.none,
    }

    def heartbeat(
        self, group: Group, member_id: str, group_instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Hear of a member, and tell it whether to join again."""
        check_member(group, member_id, group_instance_id)
        check_generation(group, generation)
        self._renew_session(group.members[member_id], now_ms)
        return self._HEARTBEAT[group.state]

    def renew_session(self, group: Group, member_id: str, now_ms: int) -> None:
        """Hear of a member by something else than a heartbeat."""
        member = group.members.get(member_id)
        if member is not None and group.state in {State.STABLE, State.PREPARING_REBALANCE}:
            self._renew_session(member, now_ms)

    def _renew_session(self, member: Member, now_ms: int) -> None:
        self._alarms.set(member.session, now_ms + member.session_timeout_ms)

    def leave(
        self, group: Group, leaving: Iterable[LeavingMember], decision: Decision, now_ms: int
    ) -> tuple[tuple[LeavingMember, ErrorCode], ...]:
        """Let members go; each stands for itself."""
        outcomes: list[tuple[LeavingMember, ErrorCode]] = []
        size_before = len(group.members)
        for one in leaving:
            try:
                self._leave_one(group, one, decision)
                outcomes.append((one, ErrorCode.none))
            except Refused as refused:
                outcomes.append((one, refused.code))
        if len(group.members) < size_before:
            self._rebalance_or_complete(group, decision, now_ms)
        elif not group.is_initial:
            self._complete_join_if_ready(group, decision, now_ms)
        return tuple(outcomes)

    def _leave_one(self, group: Group, leaving: LeavingMember, decision: Decision) -> None:
        member_id = leaving.member_id
        if not member_id:
            instance_id = leaving.group_instance_id
            if instance_id is None or instance_id not in group.static_ids:
                raise Refused(ErrorCode.unknown_member_id, f"no static member {instance_id!r}")
            member_id = group.static_ids[instance_id]
        elif member_id in group.pending_joins:
            self._alarms.cancel(group.pending_joins.pop(member_id))
            return
        else:
            check_member(group, member_id, leaving.group_instance_id)
        self._dismiss(group, group.members[member_id], decision)

    def _dismiss(self, group: Group, member: Member, decision: Decision) -> None:
        """Take a member out. If it is still there after all, it learns that it has to begin anew."""
        self._alarms.cancel(member.session)
        self._answer_join(member, JoinAnswer(ErrorCode.unknown_member_id), decision)
        self._answer_sync(member, SyncAnswer(ErrorCode.unknown_member_id), decision)
        group.remove(member.member_id)

    def _session_over(self, group: Group, member_id: str, decision: Decision, now_ms: int) -> None:
        """Nothing was heard of a member for its session timeout."""
        if member_id in group.pending_joins:
            del group.pending_joins[member_id]
            self._complete_join_if_ready(group, decision, now_ms)
            return
        member = group.members[member_id]
        if not member.is_waited_for:
            return  # the answer that it waits for will begin a new session
        self._dismiss(group, member, decision)
        if group.state is State.PREPARING_REBALANCE:
            self._complete_join_if_ready(group, decision, now_ms)
        else:
            self.rebalance(group, decision, now_ms)

    # -- help ------------------------------------------------------------------------------------------------

    def _record(self, group: Group, value: bytes, decision: Decision) -> None:
        group.recorded = value
        decision.records.append((encode_group_key(group.group_id), value))

    @staticmethod
    def _answer_join(member: Member, answer: JoinAnswer, decision: Decision) -> None:
        if member.join_token is not None:
            decision.answers.append((member.join_token, answer))
            member.join_token = None

    @staticmethod
    def _answer_sync(member: Member, answer: SyncAnswer, decision: Decision) -> bool:
        if member.sync_token is None:
            return False
        decision.answers.append((member.sync_token, answer))
        member.sync_token = None
        return True

    # -- groups ----------------------------------------------------------------------------------------------

    def new_group(self, group_id: str, offsets_alarm: Alarm) -> Group:
        """A group without members."""
        join_alarm, sync_alarm = Alarm(_unset), Alarm(_unset)
        group = Group(group_id, join_alarm, sync_alarm, offsets_alarm)
        join_alarm.action = partial(self._join_phase_over, group)
        sync_alarm.action = partial(self._sync_phase_over, group)
        return group

    def restored_member(self, group: Group, value: MemberValue, protocol_name: str | None) -> Member:
        """A member as its record tells of it. Its session begins with `resume`."""
        timeout_ms = value.session_timeout_ms
        return Member(
            member_id=value.member_id,
            group_instance_id=value.group_instance_id,
            client_id=value.client_id,
            client_host=value.client_host,
            session_timeout_ms=timeout_ms,
            rebalance_timeout_ms=timeout_ms if value.rebalance_timeout_ms < 0 else value.rebalance_timeout_ms,
            protocols=((protocol_name or "", value.subscription),),
            session=self._session_alarm(group, value.member_id),
            assignment=value.assignment,
        )

    def resume(self, group: Group, decision: Decision, now_ms: int) -> None:
        """Give the members of a group that was read from the log a fresh session."""
        for member in group.members.values():
            self._renew_session(member, now_ms)
        if len(group.members) > self._config.group_size_max:
            self.rebalance(group, decision, now_ms)

    def forget(self, group: Group) -> None:
        """Let nothing go off any more for a group that is no more."""
        alarms = [group.join_alarm, group.sync_alarm, group.offsets_alarm, *group.pending_joins.values()]
        for alarm in (*alarms, *(member.session for member in group.members.values())):
            self._alarms.end(alarm)


def _unset(_decision: Decision, _now_ms: int) -> None:
    raise AssertionError("an alarm without an action")


def check_member(group: Group, member_id: str, group_instance_id: str | None) -> None:
    """Check that a member is who it says it is.

    Raises:
        Refused: UNKNOWN_MEMBER_ID: join anew; FENCED_INSTANCE_ID: another client has taken its place, stop.
    """
    if group_instance_id is not None:
        static_id = group.static_ids.get(group_instance_id)
        if static_id is None:
            raise Refused(
                ErrorCode.unknown_member_id, f"group {group.group_id!r} knows no {group_instance_id!r}"
            )
        if static_id != member_id:
            raise Refused(
                ErrorCode.fenced_instance_id,
                f"another client has taken the place of {group_instance_id!r}: stop",
            )
    if member_id not in group.members:
        raise Refused(
            ErrorCode.unknown_member_id, f"{member_id!r} is not a member of group {group.group_id!r}: join"
        )


def check_generation(group: Group, generation: int) -> None:
    """Check that a member speaks of the current generation.

    Raises:
        Refused: ILLEGAL_GENERATION.
    """
    if generation != group.generation:
        raise Refused(
            ErrorCode.illegal_generation,
            f"group {group.group_id!r} is in generation {group.generation}, not {generation}: join again",
        )
