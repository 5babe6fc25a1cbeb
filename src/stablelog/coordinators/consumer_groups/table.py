"""State of the group coordinator: the groups and offsets that the offsets log contains.

`replay` of the log's records gives the same state. As in Kafka, the log does not contain members that have not joined
yet, generations without an assignment, and groups that never had an assignment or an offset.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from stablelog.coordinators.consumer_groups.classic_group import Alarm, ClassicGroup
from stablelog.coordinators.consumer_groups.consumer_protocol.group import ConsumerGroup
from stablelog.coordinators.consumer_groups.consumer_protocol.records import (
    GROUP_EPOCH_KEY_VERSION,
    ConsumerKey,
)
from stablelog.coordinators.consumer_groups.offsets import GroupOffsets
from stablelog.coordinators.consumer_groups.records import (
    GroupMetadataKey,
    OffsetValue,
    encode_group_key,
    encode_offset_key,
    encode_offset_value,
    read_group_value,
    read_key,
    read_offset_value,
)
from stablelog.coordinators.deadline_queue import DeadlineQueue
from stablelog.coordinators.live_state import LiveState, OwnedRecord
from stablelog.coordinators.record_fields import Record
from stablelog.types import TopicPartition

AnyGroup = ClassicGroup | ConsumerGroup


class GroupTable:
    """The groups of the group coordinator, their offsets and their deadlines.

    Attributes:
        groups: the classic groups and the consumer groups by group id.
        offsets: the offsets of all groups.
        deadlines: the deadlines of all groups.
    """

    def __init__(self) -> None:
        self.groups: dict[str, AnyGroup] = {}
        self.offsets = GroupOffsets()
        self.deadlines: DeadlineQueue[Alarm] = DeadlineQueue()

    def get_or_create(self, group_id: str) -> AnyGroup:
        """Return the group of this id. Create a missing group as a simple group, which only has offsets."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = ClassicGroup(group_id)
        return group

    def forget(self, group: AnyGroup) -> None:
        """Remove a group and its deadlines from the table. The group's offsets stay."""
        for alarm in group.alarms():
            self.deadlines.cancel(alarm)
        del self.groups[group.group_id]

    def remove_offset(self, group_id: str, partition: TopicPartition) -> Record:
        """Remove the offsets of a group for a partition, the committed one and those of open transactions. Return the
        tombstone for the log.
        """
        self.offsets.remove_offset(group_id, partition)
        return encode_offset_key(group_id, *partition), None

    def is_unused(self, group_id: str) -> bool:
        """Return whether no offsets use the group: it has neither committed ones nor pending ones of open transactions."""
        return not self.offsets.committed(group_id) and not self.offsets.has_open_transactions(group_id)

    # -- start and trimming ----------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None, producer_id: int | None = None) -> AnyGroup | None:
        """Apply a record of the offsets log to the table. A record whose key has an unknown kind is skipped.

        Args:
            key: the record's key.
            value: the record's value; None for a tombstone.
            producer_id: producer id of the record's transaction; None outside transactions.

        Returns:
            The group of a committed offset; None for any other record.

        Raises:
            DamageError: the record is damaged; nothing has changed.
        """
        subject = read_key(key)
        if isinstance(subject, GroupMetadataKey):
            self._replay_group(subject.group_id, value)
        elif isinstance(subject, ConsumerKey):
            self._replay_consumer_group(subject, value)
        elif subject is not None and value is None:
            self.offsets.remove_offset(subject.group_id, (subject.topic, subject.partition))
        elif subject is not None and value is not None:
            committed = read_offset_value(value)
            partition = (subject.topic, subject.partition)
            self.offsets.add_commit(subject.group_id, partition, committed, producer_id=producer_id)
            return self.get_or_create(subject.group_id)
        return None

    def _replay_group(self, group_id: str, value: bytes | None) -> None:
        generation = None if value is None else read_group_value(value)
        former = self.groups.get(group_id)
        if generation is None and isinstance(former, ConsumerGroup):
            return  # The consumer group has replaced the classic group.
        if former is not None:
            self.forget(former)
        if generation is not None:
            group = self.groups[group_id] = ClassicGroup(group_id)
            group.restore(generation)
            group.recorded = value
        elif not self.is_unused(group_id):
            self.get_or_create(group_id)

    def _replay_consumer_group(self, key: ConsumerKey, value: bytes | None) -> None:
        group = self.groups.get(key.group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            former, group = group, ConsumerGroup(key.group_id)
            group.replay(key, value)
            if former is not None:
                self.forget(former)
            self.groups[key.group_id] = group
        elif key.kind == GROUP_EPOCH_KEY_VERSION and value is None:
            self.forget(group)
            if not self.is_unused(key.group_id):
                self.get_or_create(key.group_id)
        else:
            group.replay(key, value)

    def live_state(self) -> LiveState:
        """Return the live state: records of all groups and of all committed and pending offsets, for a checkpoint of
        the log.

        When these records are in the log, all earlier records can be deleted. The coordinator may make decisions
        between two records of `rest`, and between two items of `ordered` (see `LiveState`).
        """
        ordered: list[tuple[str, AbstractSet[TopicPartition]]] = []
        return LiveState([], self._records(ordered), self._ordered(ordered))

    def _records(self, ordered: list[tuple[str, AbstractSet[TopicPartition]]]) -> Iterator[Record]:
        """Yield the records of groups and offsets whose order does not matter.

        Add to `ordered`, for each group, the partitions that have offsets in open transactions: the order of the
        records of these partitions matters, so they are left out here.
        """
        for group_id in list(self.groups):
            group = self.groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                for record in group.records():
                    if self.groups.get(group_id) is not group:
                        break
                    yield record
            elif group is not None and group.recorded is not None:
                yield encode_group_key(group_id), group.recorded
            partitions = self.offsets.pending_partitions(group_id)
            if partitions:
                ordered.append((group_id, partitions))
            for partition, value in self.offsets.commits_to_repeat(group_id, partitions):
                yield offset_record(group_id, partition, value)

    def _ordered(self, ordered: list[tuple[str, AbstractSet[TopicPartition]]]) -> Iterator[list[OwnedRecord]]:
        for group_id, partitions in ordered:
            for partition in partitions:
                yield [
                    OwnedRecord(producer_id, offset_record(group_id, partition, value))
                    for producer_id, value in self.offsets.commits_in_order(group_id, partition)
                ]


def offset_record(group_id: str, partition: TopicPartition, value: OffsetValue) -> Record:
    """Return the record of a committed offset for the offsets log."""
    return encode_offset_key(group_id, *partition), encode_offset_value(value)
