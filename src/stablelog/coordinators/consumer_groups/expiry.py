"""Expiry of committed offsets, and of groups that have neither members nor offsets (KIP-211)."""

from typing import Any

from stablelog.coordinators.consumer_groups.answers import GroupConfig, GroupDecision
from stablelog.coordinators.consumer_groups.classic_group import ClassicGroup, ClassicGroupState, Due, Step
from stablelog.coordinators.consumer_groups.consumer_protocol.group import ConsumerGroup
from stablelog.coordinators.consumer_groups.records import OffsetValue, encode_group_key
from stablelog.coordinators.consumer_groups.table import AnyGroup, GroupTable
from stablelog.types import TopicPartition


def offset_expiry_ms(
    group: AnyGroup, partition: TopicPartition, offset: OffsetValue, retention_ms: int
) -> int | None:
    """Return the time at which a committed offset of a consumer group expires.

    An offset that an open transaction may change does not expire: do not call this function for it.

    Args:
        group: the group that has committed the offset.
        partition: the partition of the offset.
        offset: the offset.
        retention_ms: the broker's retention time of offsets.

    Returns:
        The time in ms, by broker time, which never goes back; None if the offset does not expire in the group's present
        state.
    """
    since_ms = offset.commit_ms
    if isinstance(group, ConsumerGroup):
        # As in Kafka, the retention counts from the commit: the log does not say since when such a group is empty.
        if group.is_subscribed_to(partition[0]):
            return None
        return offset.expire_ms if offset.expire_ms >= 0 else since_ms + retention_ms
    if group.protocol_type is not None and group.state is ClassicGroupState.EMPTY:
        since_ms = offset.commit_ms if group.state_ms < 0 else group.state_ms
    elif group.protocol_type is not None:
        is_unread = group.subscribed is not None and not group.is_subscribed_to(partition[0])
        if group.state is not ClassicGroupState.STABLE or not is_unread:
            return None
    return offset.expire_ms if offset.expire_ms >= 0 else since_ms + retention_ms


# The maximum number of records in one call of `tick`. The next call handles the rest.
TICK_RECORDS_MAX = 1_000
# The time from a start to the first check of all groups, in which their clients can connect and commit.
FIRST_CHECK_MS = 60_000

Decision = GroupDecision[Any]


class Expiry:
    """Removes expired offsets, and groups that have neither members nor offsets."""

    def __init__(self, config: GroupConfig, table: GroupTable) -> None:
        self._config = config
        self._table = table

    def check_first(self, group: AnyGroup, now_ms: int) -> None:
        """Schedule the first check of the group's offsets for expiry after a start of the broker.

        The check comes early, so that a broker that is restarted often removes expired offsets, too.
        """
        self._check_by(group, now_ms + min(FIRST_CHECK_MS, self._config.offsets_check_interval_ms))

    def check_soon(self, group: AnyGroup, now_ms: int) -> None:
        """Schedule a check of the group's offsets after a change of the group, because the offsets or the group itself
        may now expire earlier than at the scheduled check.
        """
        self._check_by(group, now_ms + self._config.offsets_check_interval_ms)

    def _check_by(self, group: AnyGroup, soon_ms: int) -> None:
        deadline_ms = self._table.deadlines.get(group.alarm(Due.OFFSETS))
        if deadline_ms is None or deadline_ms > soon_ms:
            self._table.deadlines.set(group.alarm(Due.OFFSETS), soon_ms)

    def remove_expired(self, group: AnyGroup, decision: Decision, now_ms: int) -> None:
        """Remove the group's expired offsets. Delete the group if it then has neither members nor offsets."""
        retention_ms = self._config.offsets_retention_ms
        next_ms = now_ms + retention_ms
        expired: list[TopicPartition] = []
        for partition, offset in self._table.offsets.committed(group.group_id).items():
            if self._table.offsets.is_pending(group.group_id, partition):
                continue
            expire_ms = offset_expiry_ms(group, partition, offset.value, retention_ms)
            if expire_ms is None:
                continue
            if expire_ms <= now_ms:
                expired.append(partition)
            else:
                next_ms = min(next_ms, expire_ms)
        for partition in expired[:TICK_RECORDS_MAX]:
            decision.records.append(self._table.remove_offset(group.group_id, partition))
        if len(expired) > TICK_RECORDS_MAX:
            self._table.deadlines.set(group.alarm(Due.OFFSETS), now_ms)
            return
        soon_ms = now_ms + self._config.offsets_check_interval_ms
        is_open = self._table.offsets.has_open_transactions(group.group_id) or (
            isinstance(group, ClassicGroup) and bool(group.pending_joins)
        )
        if is_empty(group) and not self._table.offsets.committed(group.group_id) and not is_open:
            self.delete_group(group, decision, now_ms)
            return
        self._table.deadlines.set(group.alarm(Due.OFFSETS), soon_ms if is_open else max(next_ms, soon_ms))

    def delete_group(self, group: AnyGroup, decision: Decision, now_ms: int) -> None:
        """Delete a group that has neither members nor offsets: remove it from the table, and add its tombstone to the
        decision.
        """
        if isinstance(group, ConsumerGroup):
            self._table.forget(group)
            decision.records.extend(group.tombstones())
            return
        group.change_state(Step.DELETED, now_ms)
        self._table.forget(group)
        decision.records.append((encode_group_key(group.group_id), None))


def is_empty(group: AnyGroup) -> bool:
    """Return whether the group has no members, and no client that has received a member id but has not joined with it
    yet.
    """
    return not group.members if isinstance(group, ConsumerGroup) else group.state is ClassicGroupState.EMPTY
