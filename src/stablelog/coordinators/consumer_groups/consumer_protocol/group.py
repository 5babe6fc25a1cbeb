"""Members, epochs and assignments of one consumer group.

A group has an *epoch*, which rises when its members, their subscriptions or their topics change. The *target
assignment* of an epoch says which partitions each member is to have. Each member moves to it step by step
(`reconciliation`), and has an epoch of its own: that of the target assignment it has reached.

    EMPTY        no members
    ASSIGNING    the target assignment is older than the group's epoch
    RECONCILING  some member has not reached the target assignment
    STABLE       all members have

Invariant: no partition has two owners. A member owns the partitions that are assigned to it and those that it still has
to revoke.

Source: KIP-848.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from stablelog.coordinators.consumer_groups.classic_group import CONSUMER_PROTOCOL, Alarm, Due
from stablelog.coordinators.consumer_groups.consumer_protocol.assignors import DEFAULT_ASSIGNOR
from stablelog.coordinators.consumer_groups.consumer_protocol.model import (
    NO_PARTITIONS,
    CurrentAssignment,
    DescribedConsumer,
    MemberState,
    Partitions,
    PatternSelection,
    SelectionKey,
    Subscription,
    TopicIdPartition,
    TopicLookup,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.records import (
    CURRENT_KEY_VERSION,
    GROUP_EPOCH_KEY_VERSION,
    MEMBER_KEY_VERSION,
    MEMBER_KEY_VERSIONS,
    TARGET_EPOCH_KEY_VERSION,
    TARGET_KEY_VERSION,
    ConsumerKey,
    GroupEpochs,
    encode_consumer_key,
    encode_current,
    encode_group_epochs,
    encode_subscription,
    encode_target,
    encode_target_epoch,
    read_current,
    read_group_epochs,
    read_subscription,
    read_target,
    read_target_epoch,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.target_assignment import (
    AssignmentPlan,
    PlannedMember,
    TargetAssignment,
)
from stablelog.coordinators.record_fields import Record

NO_TOPICS: frozenset[str] = frozenset()


class ConsumerState(StrEnum):
    """The state of a consumer group. The values are Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(slots=True, eq=False)
class ConsumerMember:
    """A member of a consumer group (KIP-848).

    Attributes:
        selection_key: the member's pattern and rights, which identify the topics that it selects; None without a
            pattern, or before the first heartbeat since the start of the broker or since the pattern has changed.
        assigned_from: the topics that the pattern selected when a change of them last raised the group's epoch; None
            after a start of the broker.
    """

    member_id: str
    subscription: Subscription
    current: CurrentAssignment
    selection_key: SelectionKey | None = None
    assigned_from: frozenset[str] | None = None


class ConsumerGroup:
    """One consumer group. Its methods change it and return the records of the change.

    Attributes:
        epoch: the group's epoch.
        topics_hash: a hash of the subscribed topics of this epoch and their partition counts.
        target_epoch: the epoch of the target assignment.
        target: the target assignment: the partitions by member id.
        members: the members by id.
        static_ids: member ids by instance id.
        owners: the member that owns a partition, by partition.
        topics_version: the version of the broker's list of topics with which `topics_hash` was last compared; None if
            there was no comparison since the start or since a subscription has changed.
        selections: the topics that members' patterns (regular expressions) select, as far as the members may describe
            them.
        is_planned: whether the caller has to compute a target assignment that is too large for a heartbeat.
        plan_in_work: the input of the target assignment that the caller is computing; None if it computes none.
    """

    protocol_type = CONSUMER_PROTOCOL

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.topics_hash = 0
        self.target_epoch = 0
        self.target: dict[str, Partitions] = {}
        self.members: dict[str, ConsumerMember] = {}
        self.static_ids: dict[str, str] = {}
        self.owners: dict[TopicIdPartition, str] = {}
        self.topics_version: int | None = None
        self.selections: dict[SelectionKey, PatternSelection] = {}
        self._subscribed: frozenset[str] | None = None
        self.is_planned = False
        self.plan_in_work: AssignmentPlan | None = None

    def alarm(self, due: Due, member_id: str = "") -> Alarm:
        """Return an alarm, the key of one of the group's deadlines in the queue of deadlines."""
        return Alarm(due, self.group_id, member_id)

    def alarms(self) -> Iterable[Alarm]:
        """Return an iterator over the alarms of the group: the keys of all deadlines that it may have."""
        yield self.alarm(Due.OFFSETS)
        for member_id in self.members:
            yield self.alarm(Due.SESSION, member_id)
            yield self.alarm(Due.REVOCATION, member_id)

    @property
    def state(self) -> ConsumerState:
        """The state of the group."""
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerState.ASSIGNING
        for member in self.members.values():
            if member.current.state is not MemberState.STABLE or member.current.epoch != self.target_epoch:
                return ConsumerState.RECONCILING
        return ConsumerState.STABLE

    # -- topics ----------------------------------------------------------------------------------------------

    def select(self, member_id: str, selection: PatternSelection, topics: TopicLookup) -> bool:
        """Set the topics that a member's pattern selects. Return whether the target assignment has to be computed
        again.

        After a start of the broker, the target assignment from before the start stays in use if the member may still
        describe all topics that are assigned to it.
        """
        member = self.members[member_id]
        if selection.pattern != member.subscription.pattern:
            return False  # The subscription has changed since the pattern was resolved. A later heartbeat resolves it.
        if self.selections.get(selection.key) is not selection:
            self.selections[selection.key] = selection
            self._subscribed = None
        if member.selection_key != selection.key:
            member.selection_key = selection.key
            self._subscribed = None
        if member.assigned_from is not None:
            is_changed = member.assigned_from != selection.names
        else:
            allowed = selection.names.union(member.subscription.topics)
            is_changed = not allowed.issuperset(self._target_names(member, topics))
            self.topics_version = None  # The group may subscribe to more topics.
            member.assigned_from = selection.names
        if is_changed:
            for each in self.members.values():
                if each.selection_key == selection.key:
                    each.assigned_from = selection.names
        return is_changed

    def _selected(self, member: ConsumerMember, topics: TopicLookup) -> frozenset[str]:
        """Return the names of the topics that a member's pattern (regular expression) selects.

        Until the member's first heartbeat after a start of the broker, these are the topics of its target assignment.
        """
        if not member.subscription.pattern:
            return NO_TOPICS
        if member.selection_key is None:
            return self._target_names(member, topics)
        return self.selections[member.selection_key].names

    def _target_names(self, member: ConsumerMember, topics: TopicLookup) -> frozenset[str]:
        ids = {topic_id for topic_id, _ in self.target.get(member.member_id, NO_PARTITIONS)}
        return frozenset(name for topic_id in ids if (name := topics.name_of(topic_id)) is not None)

    def plan(self, topics: TopicLookup, *, is_changed: bool) -> AssignmentPlan:
        """Return the plan of the next target assignment: its input. Also forget patterns that no member uses any more.

        Args:
            topics: the topics of the broker.
            is_changed: whether members or subscriptions have changed, so that the group's epoch is going to rise.
        """
        used = {member.selection_key for member in self.members.values()}
        self.selections = {key: self.selections[key] for key in self.selections if key in used}
        known: dict[tuple[tuple[str, ...], Hashable], frozenset[str]] = {}
        members: dict[str, PlannedMember] = {}
        for member in self.members.values():
            subscription = member.subscription
            is_resolved = member.selection_key is not None or not subscription.pattern
            key = subscription.topics, member.selection_key if is_resolved else member
            if key not in known:
                selected = self._selected(member, topics)
                known[key] = selected.union(subscription.topics) if subscription.topics else selected
            members[member.member_id] = PlannedMember(
                subscription.instance_id or member.member_id,
                known[key],
                self.target.get(member.member_id, NO_PARTITIONS),
            )
        return AssignmentPlan(
            epoch=self.epoch,
            target_epoch=self.target_epoch,
            topics_version=topics.version,
            topics_hash=self.topics_hash,
            is_due=is_changed or self.epoch > self.target_epoch,
            assignor=self.assignor,
            members=members,
        )

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to the topic.

        After a start, a pattern counts as subscribed to every topic until a heartbeat of its member resolves the
        pattern.
        """
        if self._subscribed is None:
            keys: set[SelectionKey] = set()
            names: set[tuple[str, ...]] = set()
            for member in self.members.values():
                names.add(member.subscription.topics)
                if member.subscription.pattern:
                    if member.selection_key is None:
                        return True
                    keys.add(member.selection_key)
            self._subscribed = frozenset().union(*names, *(self.selections[key].names for key in keys))
        return topic in self._subscribed

    # -- changes ---------------------------------------------------------------------------------------------

    def _key(self, kind: int, member_id: str = "") -> bytes:
        return encode_consumer_key(ConsumerKey(kind, self.group_id, member_id))

    def raise_epoch(self) -> Record:
        """Begin the group's next epoch, and return the record of the new epoch for the log."""
        self.epoch += 1
        return self._epoch_record()

    def set_subscription(self, member_id: str, subscription: Subscription) -> Record:
        """Add a member, or change its subscription. Return the record of the change for the offsets log."""
        member = self.members.get(member_id)
        if member is None:
            member = self.members[member_id] = ConsumerMember(member_id, subscription, CurrentAssignment())
        elif member.subscription.instance_id is not None:
            self.static_ids.pop(member.subscription.instance_id, None)
        if member.subscription.pattern != subscription.pattern:
            member.selection_key = None
        member.subscription = subscription
        if subscription.instance_id is not None:
            self.static_ids[subscription.instance_id] = member_id
        self.topics_version = self._subscribed = None
        return self._key(MEMBER_KEY_VERSION, member_id), encode_subscription(subscription)

    def set_current(self, member_id: str, current: CurrentAssignment) -> Record:
        """Set the current assignment of a member: its epoch and its partitions. Return the record of the change."""
        member = self.members[member_id]
        self._disown(member)
        for partition in current.assigned | current.revoking:
            assert partition not in self.owners, f"{partition} of group {self.group_id!r} has two owners"
            self.owners[partition] = member_id
        member.current = current
        return self._key(CURRENT_KEY_VERSION, member_id), encode_current(current)

    def _disown(self, member: ConsumerMember) -> None:
        for partition in member.current.assigned | member.current.revoking:
            if self.owners.get(partition) == member.member_id:
                del self.owners[partition]

    def apply_target(
        self, plan: AssignmentPlan, target: TargetAssignment, *, is_changed: bool
    ) -> Iterator[Record]:
        """Set the group's target assignment to that computed from a plan. Since the plan, the group may have changed.

        Args:
            plan: the plan.
            target: its result.
            is_changed: whether the epoch rises even if the topics are unchanged, because members or subscriptions have
                changed.

        Yields:
            The records of the changes. Each change is made when the caller takes its record.
        """
        is_latest = plan.epoch == self.epoch
        is_new_hash = target.topics_hash != self.topics_hash
        self.topics_hash = target.topics_hash
        if is_changed or (is_new_hash and self.epoch == self.target_epoch):
            yield self.raise_epoch()
        elif is_new_hash:
            yield self._epoch_record()
        if is_latest:
            self.topics_version = plan.topics_version
        # A target epoch has one target assignment. If the former one still has the epoch of the plan, the next plan follows.
        if target.partitions is None or not (is_latest or plan.epoch > self.target_epoch):
            return
        for member_id, partitions in target.partitions.items():
            member = self.members.get(member_id)
            if member is None:
                continue
            if member.assigned_from is None:
                member.assigned_from = (
                    NO_TOPICS  # The member's own heartbeat finds out what its pattern selects.
                )
            if self.target.get(member_id) != partitions:
                self.target[member_id] = partitions
                value = target.values.get(member_id)
                yield (
                    self._key(TARGET_KEY_VERSION, member_id),
                    encode_target(partitions) if value is None else value,
                )
        self.target_epoch = self.epoch if is_latest else plan.epoch
        yield self._target_epoch_record()

    def set_target_of(self, member_id: str, partitions: Partitions) -> Record:
        """Set the target assignment of one member. Return the record of the change for the offsets log."""
        self.target[member_id] = partitions
        return self._key(TARGET_KEY_VERSION, member_id), encode_target(partitions)

    def remove(self, member_id: str) -> Iterator[Record]:
        """Remove a member with its assignments. Other members may get the partitions that it owned.

        Yields:
            The tombstones that remove the records of the member from the log. The member is removed when the first one
            is taken.
        """
        self.forget_member(member_id)
        for kind in reversed(MEMBER_KEY_VERSIONS):
            yield self._key(kind, member_id), None

    def forget_member(self, member_id: str) -> None:
        """Remove a member from memory only: no record for the log is made."""
        member = self.members.pop(member_id)
        self._disown(member)
        instance_id = member.subscription.instance_id
        if instance_id is not None and self.static_ids.get(instance_id) == member_id:
            del self.static_ids[instance_id]
        self.target.pop(member_id, None)
        self.topics_version = self._subscribed = None

    def tombstones(self) -> list[Record]:
        """Return the records that remove the group from the log. The group must have no members."""
        assert not self.members
        return [(self._key(TARGET_EPOCH_KEY_VERSION), None), (self._key(GROUP_EPOCH_KEY_VERSION), None)]

    def is_owned_by_other(self, member_id: str) -> Callable[[TopicIdPartition], bool]:
        """Return a function that tells whether a given partition is owned by another member than `member_id`."""
        return lambda partition: self.owners.get(partition, member_id) != member_id

    @property
    def assignor(self) -> str:
        """The assignor that most members prefer; the default if none has a preference."""
        votes = Counter(member.subscription.assignor for member in self.members.values())
        del votes[None]
        return max(sorted(filter(None, votes)), key=votes.__getitem__, default=DEFAULT_ASSIGNOR)

    def described_members(self) -> tuple[DescribedConsumer, ...]:
        """Return the description of each member for ConsumerGroupDescribe."""
        return tuple(
            DescribedConsumer(
                member.member_id,
                member.current.epoch,
                member.subscription,
                member.current.assigned,
                self.target.get(member.member_id, NO_PARTITIONS),
            )
            for member in self.members.values()
        )

    # -- records ---------------------------------------------------------------------------------------------

    def _epoch_record(self) -> Record:
        return self._key(GROUP_EPOCH_KEY_VERSION), encode_group_epochs(
            GroupEpochs(self.epoch, self.topics_hash)
        )

    def _target_epoch_record(self) -> Record:
        return self._key(TARGET_EPOCH_KEY_VERSION), encode_target_epoch(self.target_epoch)

    def records(self) -> Iterator[Record]:
        """Yield the records of the group's present state, for a checkpoint. Each is made when the caller takes it."""
        yield self._epoch_record()
        for member_id in list(self.members):
            member = self.members.get(member_id)
            if member is None:
                continue
            yield self._key(MEMBER_KEY_VERSION, member_id), encode_subscription(member.subscription)
            if member_id in self.members and member_id in self.target:
                yield self._key(TARGET_KEY_VERSION, member_id), encode_target(self.target[member_id])
            if member_id in self.members:
                yield self._key(CURRENT_KEY_VERSION, member_id), encode_current(member.current)
        yield self._target_epoch_record()

    def replay(self, key: ConsumerKey, value: bytes | None) -> None:
        """Apply a record of the group. The caller handles the tombstone that removes the whole group.

        Args:
            key: the record's key.
            value: the record's value; None for a tombstone, which removes what the key names.

        Raises:
            DamageError, UnknownFormatError: the value cannot be read. Nothing has changed.
        """
        member = self.members.get(key.member_id)
        if key.kind == GROUP_EPOCH_KEY_VERSION:
            assert value is not None
            self.epoch, self.topics_hash = read_group_epochs(value)
        elif key.kind == TARGET_EPOCH_KEY_VERSION:
            self.target_epoch = 0 if value is None else read_target_epoch(value)
        elif key.kind == TARGET_KEY_VERSION:
            if value is None:
                self.target.pop(key.member_id, None)
            else:
                self.target[key.member_id] = read_target(value)
        elif key.kind == MEMBER_KEY_VERSION:
            if value is not None:
                self.set_subscription(key.member_id, read_subscription(value))
            elif member is not None:
                self.forget_member(key.member_id)
        elif member is not None:
            self._replay_current(member, CurrentAssignment() if value is None else read_current(value))

    def _replay_current(self, member: ConsumerMember, current: CurrentAssignment) -> None:
        """Set a member's current assignment from a record, in a replay of the log.

        Another member may still own one of the partitions, if the record of its loss follows in the log.
        """
        self._disown(member)
        member.current = current
        self.owners.update(dict.fromkeys(current.assigned | current.revoking, member.member_id))
