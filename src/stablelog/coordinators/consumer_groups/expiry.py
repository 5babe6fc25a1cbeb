"""Expiry of committed offsets (KIP-211)."""

from stablelog.coordinators.consumer_groups.membership import Group, State
from stablelog.coordinators.consumer_groups.records import OffsetValue
from stablelog.types import TopicPartition


def offset_expiry_ms(
    group: Group, partition: TopicPartition, offset: OffsetValue, retention_ms: int
) -> int | None:
    """Return the time, in ms, at which a committed offset expires.

    Do not call this for an offset that an open transaction may change: it does not expire before the transaction ends.

    Args:
        group: the consumer group that has committed the offset.
        partition: the partition of the offset.
        offset: the offset.
        retention_ms: the broker's retention of offsets.

    Returns:
        None if the offset does not expire in the group's present state.
    """
    since_ms = offset.commit_ms
    if group.protocol_type is not None and group.state is State.EMPTY:
        since_ms = offset.commit_ms if group.state_ms < 0 else group.state_ms
    elif group.protocol_type is not None:
        is_unread = group.subscribed is not None and not group.is_subscribed_to(partition[0])
        if group.state is not State.STABLE or not is_unread:
            return None
    return offset.expire_ms if offset.expire_ms >= 0 else since_ms + retention_ms
