"""Who reads what, and how far have they come: the coordinator of consumer groups.

An event goes in and a decision comes out (`GroupDecision`); the broker appends the decision's records to the
offsets log, waits until they are durable, and answers. State changes at once. Decisions must be logged in
the order in which they were made.

Commits in a transaction are the exception, since the log may refuse their batch: `txn_commit_offsets`
changes nothing, its records go into the log as a batch of the producer's transaction, and then
`txn_offsets_appended` tells of it. `txn_ended` follows with the marker.

What the log holds can be rebuilt from it: `replay` and `replay_marker` for every record, then `loaded`. Not
in the log, as in Kafka: members that have yet to join, generations without an assignment, groups that never
had either an assignment or an offset. `checkpoint` says all that is live, so that what lies before it can be
trimmed.

Deviations from Kafka, each to the safe side: a request whose member asks again is answered
(REBALANCE_IN_PROGRESS) instead of forgotten; a group with offsets in an open transaction can't be deleted by
request either; all offsets of a group, asked for with `require_stable`, include those that exist only in an
open transaction (UNSTABLE_OFFSET_COMMIT); a member that leaves before it ever joined disturbs nobody; ids
that were handed out are limited like members.

Source: Kafka's classic group protocol, KIP-98, KIP-211 (retention), KIP-345, KIP-394, KIP-447, KIP-814.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.alarms import Alarm, Alarms
from stablelog.coordinators.consumer_groups.answers import (
    RETENTION_OF_BROKER,
    CodeByPartition,
    DeleteOffsetsAnswer,
    DescribedGroup,
    DescribedMember,
    Entry,
    FetchedOffset,
    FetchedOffsets,
    GroupConfig,
    GroupDecision,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeavingMember,
    ListedGroup,
    Membership,
    OffsetCommit,
    SyncAnswer,
    SyncRequest,
    Token,
)
from stablelog.coordinators.consumer_groups.membership import (
    CLASSIC_TYPE,
    CONSUMER_PROTOCOL,
    Group,
    State,
    Step,
)
from stablelog.coordinators.consumer_groups.offsets import CommittedOffset, Offsets
from stablelog.coordinators.consumer_groups.rebalance import (
    STRING_SIZE_MAX,
    Rebalances,
    check_generation,
    check_member,
)
from stablelog.coordinators.consumer_groups.records import (
    GroupKey,
    OffsetValue,
    encode_group_key,
    encode_offset_key,
    encode_offset_value,
    read_group_value,
    read_key,
    read_offset_value,
)
from stablelog.coordinators.live_state import LiveState
from stablelog.errors import Corrupt, Refused
from stablelog.types import TopicPartition

# What one tick may do; the rest is due again at once.
TICK_ALARMS_MAX = 500
TICK_RECORDS_MAX = 1_000

NOBODY = Membership()


class GroupCoordinator:
    """All groups of one offsets log."""

    def __init__(self, config: GroupConfig) -> None:
        self._config = config
        self._alarms = Alarms()
        self._rebalances = Rebalances(config, self._alarms)
        self._offsets = Offsets()
        self._groups: dict[str, Group] = {}

    # -- membership ------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, token: Token, *, now_ms: int) -> GroupDecision[None]:
        """A member joins. The answer, a `JoinAnswer`, comes for the token: when the generation begins."""
        decision = GroupDecision(None)
        try:
            _check_group_id(request.group_id)
            self._rebalances.check_join(request)
            group = self._groups.get(request.group_id)
            if group is None:
                if request.member_id:
                    raise _no_such_member(request.group_id)
                group = self._new_group(request.group_id)
            self._rebalances.join(group, request, token, decision, now_ms)
        except Refused as refused:
            member_id = "" if refused.code is ErrorCode.group_max_size_reached else request.member_id
            decision.answers.append((token, JoinAnswer(refused.code, member_id)))
        else:
            self._keep(group, now_ms)
        return decision

    def sync(self, request: SyncRequest, token: Token, *, now_ms: int) -> GroupDecision[None]:
        """A member asks for its assignment. The answer, a `SyncAnswer`, comes for the token in time."""
        decision = GroupDecision(None)
        try:
            group = self._group_of_member(request.group_id)
            self._rebalances.sync(group, request, token, decision, now_ms)
        except Refused as refused:
            decision.answers.append((token, SyncAnswer(refused.code)))
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
        """A member is alive. REBALANCE_IN_PROGRESS tells it to join again."""
        try:
            group = self._group_of_member(group_id)
            return GroupDecision(
                self._rebalances.heartbeat(group, member_id, group_instance_id, generation, now_ms)
            )
        except Refused as refused:
            return GroupDecision(refused.code)

    def leave(
        self, group_id: str, leaving: Iterable[LeavingMember], *, now_ms: int
    ) -> GroupDecision[LeaveAnswer]:
        """Members leave, or are taken out by an operator (by instance id). Each stands for itself."""
        try:
            group = self._group_of_member(group_id)
        except Refused as refused:
            return GroupDecision(LeaveAnswer(refused.code))
        decision = GroupDecision(LeaveAnswer(ErrorCode.none))
        decision.answer = LeaveAnswer(
            ErrorCode.none, self._rebalances.leave(group, leaving, decision, now_ms)
        )
        self._look_soon(group, now_ms)
        return decision

    def _group_of_member(self, group_id: str) -> Group:
        _check_group_id(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise _no_such_member(group_id)
        return group

    # -- groups ----------------------------------------------------------------------------------------------

    def describe(self, group_ids: Iterable[str]) -> GroupDecision[list[DescribedGroup]]:
        """What groups look like from outside."""
        return GroupDecision([self._describe(group_id) for group_id in group_ids])

    def _describe(self, group_id: str) -> DescribedGroup:
        group = self._groups.get(group_id)
        if group is None:
            return DescribedGroup(ErrorCode.group_id_not_found, group_id, State.DEAD.value)
        is_stable = group.state is State.STABLE
        members = tuple(
            DescribedMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol_name) if is_stable else b"",
                member.assignment,
            )
            for member in group.members.values()
        )
        protocol_name = group.protocol_name or "" if is_stable else ""
        return DescribedGroup(
            ErrorCode.none, group_id, group.state.value, group.protocol_type or "", protocol_name, members
        )

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> GroupDecision[list[ListedGroup]]:
        """All groups, or those in the given states and of the given types, in any case of letters."""
        wanted_states = {state.lower() for state in states}
        if types and CLASSIC_TYPE not in {group_type.lower() for group_type in types}:
            return GroupDecision([])
        return GroupDecision(
            [
                ListedGroup(group.group_id, group.protocol_type or "", group.state.value, CLASSIC_TYPE)
                for group in self._groups.values()
                if not wanted_states or group.state.lower() in wanted_states
            ]
        )

    def delete_groups(self, group_ids: Iterable[str], *, now_ms: int) -> GroupDecision[dict[str, ErrorCode]]:
        """Forget groups with all their offsets. Each stands for itself."""
        decision: GroupDecision[dict[str, ErrorCode]] = GroupDecision({})
        for group_id in group_ids:
            if group_id not in decision.answer:
                decision.answer[group_id] = self._delete_if_empty(group_id, decision, now_ms)
        return decision

    def _delete_if_empty(self, group_id: str, decision: GroupDecision[Any], now_ms: int) -> ErrorCode:
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        # The offsets of an open transaction are as good as members: a commit that is acknowledged must count.
        if group.state is not State.EMPTY or self._offsets.has_open_transactions(group_id):
            return ErrorCode.non_empty_group
        for partition in list(self._offsets.committed(group_id)):
            self._remove_offset(group_id, partition, decision)
        self._delete(group, decision, now_ms)
        return ErrorCode.none

    def _delete(self, group: Group, decision: GroupDecision[Any], now_ms: int) -> None:
        group.step(Step.DELETED, now_ms)
        self._rebalances.forget(group)
        del self._groups[group.group_id]
        decision.records.append((encode_group_key(group.group_id), None))

    def _new_group(self, group_id: str) -> Group:
        """A group that is not kept yet."""
        offsets_alarm = Alarm(lambda decision, now_ms: self._look_at_offsets(group, decision, now_ms))
        group = self._rebalances.new_group(group_id, offsets_alarm)
        return group

    def _keep(self, group: Group, now_ms: int) -> None:
        self._groups[group.group_id] = group
        self._look_soon(group, now_ms)

    def _group_or_new(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = self._new_group(group_id)
        return group

    # -- offsets ---------------------------------------------------------------------------------------------

    def commit_offsets(
        self,
        group_id: str,
        commits: Mapping[TopicPartition, OffsetCommit],
        membership: Membership = NOBODY,
        *,
        retention_ms: int = RETENTION_OF_BROKER,
        knows_missing_group: bool = True,
        now_ms: int,
    ) -> GroupDecision[CodeByPartition]:
        """A group commits how far it has come.

        Args:
            group_id: the group; made, as a simple group, if it is not there and nobody commits as a member
                of it.
            commits: what to commit.
            membership: as whom.
            retention_ms: for how long, instead of the broker's retention (v2 to v4).
            knows_missing_group: the client understands GROUP_ID_NOT_FOUND (v9+).
            now_ms: the broker's time.
        """
        missing = ErrorCode.group_id_not_found if knows_missing_group else ErrorCode.illegal_generation
        try:
            self._check_commit(group_id, membership, missing, is_transactional=False)
        except Refused as refused:
            return GroupDecision(dict.fromkeys(commits, refused.code))
        decision: GroupDecision[CodeByPartition] = GroupDecision({})
        expire_ms = retention_ms if retention_ms == RETENTION_OF_BROKER else now_ms + retention_ms
        for partition, value in self._check_offsets(commits, decision.answer, expire_ms, now_ms):
            self._group_or_new(group_id)
            self._offsets.commit(group_id, partition, value)
            decision.records.append((encode_offset_key(group_id, *partition), encode_offset_value(value)))
        group = self._groups.get(group_id)
        if group is not None:
            self._rebalances.renew_session(group, membership.member_id, now_ms)
            self._look_soon(group, now_ms)
        return decision

    def txn_commit_offsets(
        self,
        group_id: str,
        commits: Mapping[TopicPartition, OffsetCommit],
        membership: Membership = NOBODY,
        *,
        now_ms: int,
    ) -> GroupDecision[CodeByPartition]:
        """A group commits in a transaction. Nothing changes yet.

        The records are to be appended as a batch of the producer's transaction; if that succeeds,
        `txn_offsets_appended` takes them in before anything else is decided. Without records, all was
        refused.
        """
        try:
            self._check_commit(group_id, membership, ErrorCode.illegal_generation, is_transactional=True)
        except Refused as refused:
            return GroupDecision(dict.fromkeys(commits, refused.code))
        decision: GroupDecision[CodeByPartition] = GroupDecision({})
        for partition, value in self._check_offsets(commits, decision.answer, RETENTION_OF_BROKER, now_ms):
            decision.records.append((encode_offset_key(group_id, *partition), encode_offset_value(value)))
        return decision

    def txn_offsets_appended(self, producer_id: int, records: Iterable[Entry], *, now_ms: int) -> None:
        """The records of `txn_commit_offsets` are in the log. They wait for the producer's marker."""
        for key, value in records:
            group = self._take_in(key, value, producer_id)
            if group is not None:
                self._look_soon(group, now_ms)

    def txn_ended(self, producer_id: int, *, commit: bool) -> GroupDecision[None]:
        """A marker of the producer is in the offsets log: its pending offsets count, or are dropped."""
        self._offsets.end(producer_id, commit=commit)
        return GroupDecision(None)

    def _check_commit(
        self, group_id: str, membership: Membership, missing: ErrorCode, *, is_transactional: bool
    ) -> None:
        """Check that somebody may commit. Transactional clients before KIP-447 don't say who they are."""
        if len(group_id.encode()) > STRING_SIZE_MAX:
            raise Refused(ErrorCode.invalid_group_id, "a group id of such a length cannot be recorded")
        group = self._groups.get(group_id)
        if group is None:
            if membership.generation >= 0:
                raise Refused(missing, f"there is no group {group_id!r}")
            return
        if membership.generation < 0 and group.state is State.EMPTY:
            return
        if membership != NOBODY:
            check_member(group, membership.member_id, membership.group_instance_id)
            check_generation(group, membership.generation)
        elif not is_transactional:
            raise Refused(
                ErrorCode.unknown_member_id, f"group {group_id!r} has members: only they may commit"
            )
        if group.state is State.COMPLETING_REBALANCE and not is_transactional:
            raise Refused(ErrorCode.rebalance_in_progress, f"group {group_id!r} is rebalancing: sync first")

    def _check_offsets(
        self,
        commits: Mapping[TopicPartition, OffsetCommit],
        codes: CodeByPartition,
        expire_ms: int,
        now_ms: int,
    ) -> Iterator[tuple[TopicPartition, OffsetValue]]:
        """Fill in the codes, and yield what can be committed."""
        for partition, commit in commits.items():
            metadata = commit.metadata or ""
            if len(metadata.encode()) > self._config.offset_metadata_size_max:
                codes[partition] = ErrorCode.offset_metadata_too_large
                continue
            codes[partition] = ErrorCode.none
            # The record that knows an expiry does not know an epoch.
            leader_epoch = commit.leader_epoch if expire_ms < 0 else -1
            yield partition, OffsetValue(commit.offset, leader_epoch, metadata, now_ms, expire_ms)

    def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None, *, require_stable: bool = False
    ) -> GroupDecision[FetchedOffsets]:
        """How far a group has come, in the given partitions or in all for which it has committed.

        Args:
            group_id: the group.
            partitions: None for all.
            require_stable: answer UNSTABLE_OFFSET_COMMIT where an open transaction may change it yet.
        """
        committed = self._offsets.committed(group_id)
        unstable = self._offsets.pending_partitions(group_id) if require_stable else set()
        if partitions is None:
            partitions = [
                *committed,
                *(partition for partition in sorted(unstable) if partition not in committed),
            ]
        return GroupDecision(
            {
                partition: FetchedOffset(ErrorCode.unstable_offset_commit)
                if partition in unstable
                else _fetched(committed.get(partition))
                for partition in partitions
            }
        )

    def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, now_ms: int
    ) -> GroupDecision[DeleteOffsetsAnswer]:
        """Forget offsets of a group, except of topics that its members read."""
        group = self._groups.get(group_id)
        if group is None:
            return GroupDecision(DeleteOffsetsAnswer(ErrorCode.group_id_not_found))
        if group.state is not State.EMPTY and group.protocol_type != CONSUMER_PROTOCOL:
            return GroupDecision(DeleteOffsetsAnswer(ErrorCode.non_empty_group))
        codes: CodeByPartition = {}
        decision = GroupDecision(DeleteOffsetsAnswer(ErrorCode.none, codes))
        for partition in partitions:
            if group.is_subscribed_to(partition[0]):
                codes[partition] = ErrorCode.group_subscribed_to_topic
                continue
            codes[partition] = ErrorCode.none
            if self._offsets.is_kept(group_id, partition):
                self._remove_offset(group_id, partition, decision)
        self._look_soon(group, now_ms)
        return decision

    def topic_deleted(self, topic: str, *, now_ms: int) -> Iterator[GroupDecision[None]]:
        """A topic is gone, and with it what groups have committed for it, pending or not.

        Each decision is good for one turn, and is carried out before the next one is taken. Other decisions may come between.
        """
        gone = iter(self._offsets.of_topic(topic))
        while some := list(islice(gone, TICK_RECORDS_MAX)):
            decision = GroupDecision(None)
            for group_id, partition in some:
                group = self._groups.get(group_id)
                if group is not None and self._offsets.is_kept(group_id, partition):
                    self._remove_offset(group_id, partition, decision)
                    self._look_soon(group, now_ms)
            yield decision

    def _remove_offset(self, group_id: str, partition: TopicPartition, decision: GroupDecision[Any]) -> None:
        self._offsets.remove(group_id, partition)
        decision.records.append((encode_offset_key(group_id, *partition), None))

    # -- time ------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None if never, as things stand. May lie in the past."""
        return self._alarms.next_deadline_ms()

    def tick(self, now_ms: int) -> GroupDecision[None]:
        """Do what is due, or as much of it as is good for one turn."""
        decision = GroupDecision(None)
        for _ in range(TICK_ALARMS_MAX):
            alarm = self._alarms.take_due(now_ms)
            if alarm is None:
                break
            alarm.action(decision, now_ms)
            if len(decision.records) >= TICK_RECORDS_MAX:
                break
        return decision

    def _look_soon(self, group: Group, now_ms: int) -> None:
        """Something changed that may let offsets, or the group, be forgotten earlier than was thought."""
        soon_ms = now_ms + self._config.offsets_check_interval_ms
        deadline_ms = group.offsets_alarm.deadline_ms
        if deadline_ms is None or deadline_ms > soon_ms:
            self._alarms.set(group.offsets_alarm, soon_ms)

    def _look_at_offsets(self, group: Group, decision: GroupDecision[Any], now_ms: int) -> None:
        """Forget what has expired; and the group, if nothing is left of it."""
        next_ms = now_ms + self._config.offsets_retention_ms
        expired: list[TopicPartition] = []
        for partition, offset in self._offsets.committed(group.group_id).items():
            expire_ms = self._expire_ms(group, partition, offset)
            if expire_ms is None:
                continue
            if expire_ms <= now_ms:
                expired.append(partition)
            else:
                next_ms = min(next_ms, expire_ms)
        for partition in expired[:TICK_RECORDS_MAX]:
            self._remove_offset(group.group_id, partition, decision)
        if len(expired) > TICK_RECORDS_MAX:
            self._alarms.set(group.offsets_alarm, now_ms)
            return
        soon_ms = now_ms + self._config.offsets_check_interval_ms
        is_open = self._offsets.has_open_transactions(group.group_id) or bool(group.pending_joins)
        if group.state is State.EMPTY and not self._offsets.committed(group.group_id) and not is_open:
            self._delete(group, decision, now_ms)
            return
        self._alarms.set(group.offsets_alarm, soon_ms if is_open else max(next_ms, soon_ms))

    def _expire_ms(self, group: Group, partition: TopicPartition, offset: CommittedOffset) -> int | None:
        """When an offset may be forgotten; None: not while things stand as they do (KIP-211)."""
        if self._offsets.is_pending(group.group_id, partition):
            return None
        if group.protocol_type is None:
            since_ms = offset.value.commit_ms
        elif group.state is State.EMPTY:
            since_ms = offset.value.commit_ms if group.state_ms < 0 else group.state_ms
        elif (
            group.state is State.STABLE
            and not group.is_subscribed_to(partition[0])
            and group.subscribed is not None
        ):
            since_ms = offset.value.commit_ms
        else:
            return None
        if offset.value.expire_ms >= 0:
            return offset.value.expire_ms
        return since_ms + self._config.offsets_retention_ms

    # -- log -------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None, offset: int, producer_id: int | None = None) -> None:
        """Take in a record of the log, in the log's order.

        Args:
            key: its key.
            value: its value; None is a tombstone.
            offset: its offset in the log.
            producer_id: whose transaction it is in; None if in none.

        Raises:
            Corrupt: it cannot be read; nothing changed.
        """
        try:
            self._take_in(key, value, producer_id)
        except Corrupt as corrupt:
            raise Corrupt(f"{corrupt}; it is at offset {offset}") from corrupt

    def replay_marker(self, producer_id: int, *, commit: bool) -> None:
        """Take in a marker of the log."""
        self._offsets.end(producer_id, commit=commit)

    def _take_in(self, key: bytes, value: bytes | None, producer_id: int | None) -> Group | None:
        """Become what a record says. Returns the group that commits an offset by it, if one does."""
        subject = read_key(key)
        if subject is None:
            return None  # of a kind of group that this coordinator does not have
        if isinstance(subject, GroupKey):
            self._take_in_group(subject.group_id, value)
            return None
        group_id, topic, index = subject
        if value is None:
            self._offsets.remove(group_id, (topic, index))
            return None
        committed = read_offset_value(value)
        group = self._group_or_new(group_id)
        self._offsets.commit(group_id, (topic, index), committed, producer_id=producer_id)
        return group

    def _take_in_group(self, group_id: str, value: bytes | None) -> None:
        generation = None if value is None else read_group_value(value)
        former = self._groups.pop(group_id, None)
        if former is not None:
            self._rebalances.forget(former)
        if generation is None:
            is_needed = self._offsets.committed(group_id) or self._offsets.has_open_transactions(group_id)
            if is_needed:
                self._group_or_new(group_id)
            return
        group = self._group_or_new(group_id)
        members = [
            self._rebalances.restored_member(group, member, generation.protocol_name)
            for member in generation.members
        ]
        group.restore(generation, members)
        group.recorded = value

    def loaded(self, now_ms: int) -> GroupDecision[None]:
        """The log has been read: every member has a fresh session."""
        decision = GroupDecision(None)
        for group in list(self._groups.values()):
            self._rebalances.resume(group, decision, now_ms)
            self._look_soon(group, now_ms)
        return decision

    def live_state(self) -> LiveState:
        """Records that say all that is live, so that what lies before them can be trimmed.

        Except for offsets in open transactions: what lies at or past the last stable offset *of the time of
        the call* has to stay. Decisions may be made between two records.
        """
        return LiveState([], self.checkpoint())

    def checkpoint(self) -> Iterator[Entry]:
        """The records of `live_state`, each from the state at the time when it is taken."""
        for group_id in list(self._groups):
            group = self._groups.get(group_id)
            if group is not None and group.recorded is not None:
                yield encode_group_key(group_id), group.recorded
            for partition, value in self._offsets.checkpoint(group_id):
                yield encode_offset_key(group_id, *partition), encode_offset_value(value)


def _check_group_id(group_id: str) -> None:
    if not group_id or len(group_id.encode()) > STRING_SIZE_MAX:
        raise Refused(ErrorCode.invalid_group_id, f"a group id has 1 to {STRING_SIZE_MAX} bytes")


def _no_such_member(group_id: str) -> Refused:
    return Refused(ErrorCode.unknown_member_id, f"there is no group {group_id!r}: join without a member id")


def _fetched(offset: CommittedOffset | None) -> FetchedOffset:
    if offset is None:
        return FetchedOffset(ErrorCode.none)
    value = offset.value
    return FetchedOffset(ErrorCode.none, value.offset, value.leader_epoch, value.metadata)


__all__ = [
    "DescribedGroup",
    "GroupConfig",
    "GroupCoordinator",
    "GroupDecision",
    "JoinAnswer",
    "JoinRequest",
    "LeavingMember",
    "Membership",
    "OffsetCommit",
    "SyncAnswer",
    "SyncRequest",
    "TopicPartition",
]
