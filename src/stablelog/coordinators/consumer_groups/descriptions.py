"""Descriptions of groups, for DescribeGroups, ConsumerGroupDescribe and ListGroups."""

from collections.abc import Collection, Iterable, Iterator

from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import DescribedGroup, DescribedMember, GroupOverview
from stablelog.coordinators.consumer_groups.classic_group import (
    CLASSIC_TYPE,
    CONSUMER_TYPE,
    ClassicGroup,
    ClassicGroupState,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.group import ConsumerGroup
from stablelog.coordinators.consumer_groups.consumer_protocol.model import DescribedConsumerGroup


def describe_classic_group(group_id: str, group: ClassicGroup | ConsumerGroup | None) -> DescribedGroup:
    """Return the description of a classic group for DescribeGroups.

    For a missing group, or a group of another type, the description has the error GROUP_ID_NOT_FOUND.
    """
    if not isinstance(group, ClassicGroup):
        return DescribedGroup(ErrorCode.group_id_not_found, group_id, ClassicGroupState.DEAD.value)
    is_stable = group.state is ClassicGroupState.STABLE
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


def describe_consumer_group(
    group_id: str, group: ClassicGroup | ConsumerGroup | None
) -> DescribedConsumerGroup:
    """Return the description of a consumer group (KIP-848) for ConsumerGroupDescribe.

    For a missing group, or a group of another type, the description has the error GROUP_ID_NOT_FOUND.
    """
    if not isinstance(group, ConsumerGroup):
        return DescribedConsumerGroup(ErrorCode.group_id_not_found, group_id, ClassicGroupState.DEAD.value)
    return DescribedConsumerGroup(
        ErrorCode.none,
        group_id,
        group.state.value,
        group.epoch,
        group.target_epoch,
        group.assignor,
        group.described_members(),
    )


def overviews(
    groups: Iterable[ClassicGroup | ConsumerGroup], states: Collection[str], types: Collection[str]
) -> Iterator[GroupOverview]:
    """Yield the overviews of groups for ListGroups.

    Args:
        groups: the groups.
        states: Kafka's names of the states of the groups that are yielded, in any case; empty for all.
        types: the types of the groups that are yielded, in any case; empty for all.
    """
    wanted_states = {state.lower() for state in states}
    wanted_types = {group_type.lower() for group_type in types}
    for group in groups:
        group_type = CONSUMER_TYPE if isinstance(group, ConsumerGroup) else CLASSIC_TYPE
        state = group.state.value
        has_type = not wanted_types or group_type in wanted_types
        if has_type and (not wanted_states or state.lower() in wanted_states):
            yield GroupOverview(group.group_id, group.protocol_type or "", state, group_type)
