"""Requests for consumer groups: list, describe, delete, and their committed offsets (KIP-88, KIP-222, KIP-496, KIP-709,
KIP-848).
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.client.core.admin.brokers import every_connection
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.connection import INVALID
from stablelog.client.core.coordinators import GROUP_COORDINATOR
from stablelog.client.core.steps import Steps
from stablelog.client.responses import RetriableError, check
from stablelog.client.topics import by_topic
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey

CLASSIC, CONSUMER = "classic", "consumer"
DEAD: Final = "Dead"  # the state of a group that does not exist
# The first versions that name several groups in one request (KIP-709), and the type of a group (KIP-848).
SEVERAL_GROUPS: Final = 8
SCHEMA_VERSION = struct.Struct(">h")


class ListedGroup(NamedTuple):
    """A consumer group in a list: its id, its type and its state. The type is "classic" or "consumer", or empty if the
    broker does not report it.
    """

    group_id: str
    group_type: str
    state: str


class Member(NamedTuple):
    """A member of a consumer group, and the partitions assigned to it."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class Group(NamedTuple):
    """A described consumer group. Its state is "Dead" if the group does not exist.

    Attributes:
        group_id: the id of the group.
        group_type: "classic" or "consumer" (KIP-848).
        state: Kafka's name of its state, such as "Stable" or "Empty".
        protocol: the assignor that divides the partitions among the members; empty if the group has no members.
        members: its members.
    """

    group_id: str
    group_type: str
    state: str
    protocol: str
    members: tuple[Member, ...]


class CommittedOffset(NamedTuple):
    """The offset that a group has committed for a partition, with the leader epoch and the metadata. The leader epoch
    is -1 if none was committed with the offset.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def list_groups(cluster: Cluster) -> Steps[list[ListedGroup]]:
    """Return the groups of all brokers that the user may see, in the order of their ids.

    Raises:
        UnavailableError: a broker does not respond.
    """
    from kio.schema.list_groups.v5.request import ListGroupsRequest

    request = ListGroupsRequest(states_filter=(), types_filter=())

    def attempt() -> Steps[list[ListedGroup]]:
        found: dict[str, ListedGroup] = {}
        for connection in (yield from every_connection(cluster)):
            response = yield from connection.request_steps(request)
            check(response.error_code, "listing groups")
            for group in response.groups:
                found[group.group_id] = ListedGroup(
                    group.group_id, group.group_type.lower(), group.group_state
                )
        return sorted(found.values())

    return (yield from cluster.retrying("listing groups", attempt))


def describe_group(cluster: Cluster, group_id: str) -> Steps[Group]:
    """Return a group with its members and their partitions.

    Raises:
        RefusedError: the user may not describe the group.
        UnavailableError: its coordinator does not respond.
    """

    def attempt() -> Steps[Group]:
        connection = yield from cluster.coordinator(group_id, GROUP_COORDINATOR)
        if connection.supports_api(ApiKey.CONSUMER_GROUP_DESCRIBE):
            from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest

            request = ConsumerGroupDescribeRequest(group_ids=(group_id,), include_authorized_operations=False)
            (found,) = (yield from connection.request_steps(request)).groups
            # A classic group has no id here.
            if found.error_code is not ErrorCode.group_id_not_found:
                check(found.error_code, f"group {group_id!r}", found.error_message)
                return _consumer_group(found)
        from kio.schema.describe_groups.v5.request import DescribeGroupsRequest

        classic = DescribeGroupsRequest(groups=(group_id,), include_authorized_operations=False)
        (described,) = (yield from connection.request_steps(classic)).groups
        check(described.error_code, f"group {group_id!r}")
        return _classic_group(described)

    return (yield from cluster.retrying(f"asking for group {group_id!r}", attempt))


def _consumer_group(found: Any) -> Group:
    members = tuple(
        Member(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            tuple(
                (topic.topic_name, index)
                for topic in member.assignment.topic_partitions
                for index in topic.partitions
            ),
        )
        for member in found.members
    )
    return Group(found.group_id, CONSUMER, found.group_state, found.assignor_name, members)


def _classic_group(found: Any) -> Group:
    members = tuple(
        Member(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            _assigned(member.member_assignment) if found.protocol_type == CONSUMER else (),
        )
        for member in found.members
    )
    return Group(found.group_id, CLASSIC, found.group_state, found.protocol_data, members)


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """Decode the partitions that are assigned to a member in the classic protocol.

    Args:
        data: the assignment as the consumer has encoded it. The broker does not check these bytes.

    Returns:
        The topic and partition of each assigned partition. The tuple is empty if the bytes cannot be decoded.
    """
    from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment
    from kio.serial import entity_reader

    if len(data) < SCHEMA_VERSION.size:
        return ()
    try:
        assignment, _ = entity_reader(ConsumerProtocolAssignment)(bytes(data), SCHEMA_VERSION.size)
    except INVALID:
        return ()
    return tuple(
        (topic.topic, index) for topic in assignment.assigned_partitions for index in topic.partitions
    )


def committed_offsets(
    cluster: Cluster, group_id: str, *, stable: bool = False
) -> Steps[dict[TopicPartition, CommittedOffset]]:
    """Return the committed offsets of a group in all its partitions.

    Args:
        cluster: the brokers.
        group_id: the group.
        stable: whether to wait until open transactions with offsets of the group have ended (KIP-447).

    Raises:
        RefusedError: the user may not describe the group.
        UnavailableError: its coordinator does not respond.
    """

    def attempt() -> Steps[dict[TopicPartition, CommittedOffset]]:
        connection = yield from cluster.coordinator(group_id, GROUP_COORDINATOR)
        if connection.supports_api(ApiKey.OFFSET_FETCH, SEVERAL_GROUPS):
            from kio.schema.offset_fetch.v9.request import OffsetFetchRequest, OffsetFetchRequestGroup

            wanted = OffsetFetchRequestGroup(group_id=group_id, topics=None)
            request = OffsetFetchRequest(groups=(wanted,), require_stable=stable)
            (answer,) = (yield from connection.request_steps(request)).groups
        else:
            from kio.schema.offset_fetch.v7.request import OffsetFetchRequest as OneGroupRequest

            one = OneGroupRequest(group_id=group_id, topics=None, require_stable=stable)
            answer = yield from connection.request_steps(one)
        return offsets_in_response(answer, group_id)

    return (yield from cluster.retrying(f"asking for the offsets of group {group_id!r}", attempt))


def offsets_in_response(answer: Any, group_id: str) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offsets of one group in a response to OffsetFetch. Partitions without a committed offset are
    left out.

    Raises:
        RetriableError: an open transaction has written offsets of the group, or the epoch of the member is not the
            present one.
        RefusedError: the user may not see the offsets.
    """
    _check_offsets(answer.error_code, group_id)
    found = {}
    for topic in answer.topics:
        for at in topic.partitions:
            _check_offsets(at.error_code, group_id)
            if at.committed_offset >= 0:
                found[topic.name, at.partition_index] = CommittedOffset(
                    at.committed_offset, at.committed_leader_epoch, at.metadata or ""
                )
    return found


def _check_offsets(code: ErrorCode, group_id: str) -> None:
    if code is ErrorCode.unstable_offset_commit:
        raise RetriableError(
            f"a transaction with offsets of group {group_id!r} is open: wait until it has ended"
        )
    if code is ErrorCode.stale_member_epoch:
        raise RetriableError(f"the epoch of the member of group {group_id!r} has changed")
    check(code, f"the offsets of group {group_id!r}")


def remove_committed(answer: Any, left: dict[TopicPartition, int]) -> list[tuple[ErrorCode, str]]:
    """Read the response to a commit of offsets: remove from `left` the partitions whose offsets the broker has
    accepted, so that only those remain that still have to be committed.

    Args:
        answer: the response to OffsetCommit or TxnOffsetCommit.
        left: by partition, the offset that has still to be committed; changed in place.

    Returns:
        For each partition whose offset the broker has refused, a pair: the error code, and the partition as text.
    """
    failures = []
    for topic in answer.topics:
        for at in topic.partitions:
            if at.error_code is ErrorCode.none:
                left.pop((topic.name, at.partition_index), None)
            else:
                failures.append((at.error_code, f"{topic.name}-{at.partition_index}"))
    return failures


def commit_offsets(
    cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]
) -> Steps[None]:
    """Commit offsets for a group that has no members.

    Args:
        cluster: the brokers.
        group_id: the group.
        offsets: by (topic, partition), the offset of the next record to read.

    Raises:
        RefusedError: the group has members, or a partition does not exist. The offsets of other partitions may be
            committed.
        UnavailableError: its coordinator does not respond.
    """
    from kio.schema.offset_commit.v9.request import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
    )

    def partition(target: TopicPartition) -> OffsetCommitRequestPartition:
        given = offsets[target]
        at = given if isinstance(given, CommittedOffset) else CommittedOffset(given)
        return OffsetCommitRequestPartition(
            partition_index=target[1],
            committed_offset=at.offset,
            committed_leader_epoch=at.leader_epoch,
            committed_metadata=at.metadata,
        )

    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=tuple(
            OffsetCommitRequestTopic(
                name=topic, partitions=tuple(partition((topic, index)) for index in indexes)
            )
            for topic, indexes in by_topic(offsets).items()
        ),
    )

    def attempt() -> Steps[None]:
        connection = yield from cluster.coordinator(group_id, GROUP_COORDINATOR)
        response = yield from connection.request_steps(request)
        for topic in response.topics:
            for at in topic.partitions:
                check(at.error_code, f"the offset of {topic.name}-{at.partition_index} of group {group_id!r}")

    yield from cluster.retrying(f"committing offsets of group {group_id!r}", attempt)


def delete_offsets(cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition]) -> Steps[None]:
    """Delete the committed offsets of partitions that no member of the group reads.

    Raises:
        RefusedError: the group does not exist, or a member of the group has subscribed to the topic of a partition.
        UnavailableError: its coordinator does not respond.
    """
    from kio.schema.offset_delete.v0.request import (
        OffsetDeleteRequest,
        OffsetDeleteRequestPartition,
        OffsetDeleteRequestTopic,
    )

    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=tuple(
            OffsetDeleteRequestTopic(
                name=topic,
                partitions=tuple(OffsetDeleteRequestPartition(partition_index=index) for index in indexes),
            )
            for topic, indexes in by_topic(partitions).items()
        ),
    )

    def attempt() -> Steps[None]:
        connection = yield from cluster.coordinator(group_id, GROUP_COORDINATOR)
        response = yield from connection.request_steps(request)
        check(response.error_code, f"deleting offsets of group {group_id!r}")
        for topic in response.topics:
            for at in topic.partitions:
                name = f"{topic.name}-{at.partition_index}"
                check(at.error_code, f"deleting the offset of {name} of group {group_id!r}")

    yield from cluster.retrying(f"deleting offsets of group {group_id!r}", attempt)


def delete_group(cluster: Cluster, group_id: str) -> Steps[None]:
    """Delete a group that has no members, with its committed offsets.

    Raises:
        RefusedError: the group does not exist; or it has members, or an open transaction that commits its offsets.
        UnavailableError: its coordinator does not respond.
    """
    from kio.schema.delete_groups.v2.request import DeleteGroupsRequest

    request = DeleteGroupsRequest(groups_names=(group_id,))

    def attempt() -> Steps[None]:
        connection = yield from cluster.coordinator(group_id, GROUP_COORDINATOR)
        (deleted,) = (yield from connection.request_steps(request)).results
        check(deleted.error_code, f"deleting group {group_id!r}")

    yield from cluster.retrying(f"deleting group {group_id!r}", attempt)
