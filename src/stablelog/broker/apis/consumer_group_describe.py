"""ConsumerGroupDescribe (69): state, members, epochs and assignments of consumer groups (KIP-848).

Version notes: v1 adds the kind of each member (classic or consumer protocol).
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from stablelog.broker.apis import (
    NO_THROTTLE,
    NOT_ASKED,
    Broker,
    Context,
    Operation,
    ResourceType,
    ServedApi,
    for_each,
    for_each_part,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.model import (
    DescribedConsumer,
    DescribedConsumerGroup,
    Partitions,
    by_topic,
)
from stablelog.security.api_rights import on_group, on_topic
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
    from kio.schema.consumer_group_describe.v1.response import (
        Assignment,
        ConsumerGroupDescribeResponse,
        DescribedGroup,
        Member,
    )

API = ServedApi(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    first_version=0,
    last_version=1,
    is_heavy=True,
    has_long_response=True,
    rights=(
        on_group(Operation.DESCRIBE, "each group"),
        on_topic(Operation.DESCRIBE, "each topic of the group", "an error for the group"),
    ),
)
messages = API.messages

CONSUMER_MEMBER = i8(1)


def _assignment_response(broker: Broker, partitions: Partitions) -> "Assignment":
    """Return the partitions of an assignment in the form of the response, without those of deleted topics."""
    return messages.Assignment(
        topic_partitions=tuple(
            messages.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=tuple(indexes))
            for topic_id, indexes in by_topic(partitions)
            if (name := broker.topics.name_of(topic_id)) is not None
        )
    )


def _member_response(broker: Broker, member: DescribedConsumer) -> "Member":
    subscription = member.subscription
    return messages.Member(
        member_id=member.member_id,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        member_epoch=member.member_epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=subscription.topics,
        subscribed_topic_regex=subscription.pattern or None,
        assignment=_assignment_response(broker, member.assigned),
        target_assignment=_assignment_response(broker, member.target),
        member_type=CONSUMER_MEMBER,
    )


def _topic_names(broker: Broker, group: DescribedConsumerGroup) -> set[str]:
    """Return the names of all topics in the description of a group."""
    ids = {topic_id for member in group.members for topic_id, _ in member.assigned | member.target}
    names = {name for topic_id in ids if (name := broker.topics.name_of(topic_id)) is not None}
    return names.union(*(member.subscription.topics for member in group.members))


MESSAGES = {
    ErrorCode.group_id_not_found: "There is no consumer group {}.",
    ErrorCode.group_authorization_failed: "The client is not authorized to describe the group {}.",
    ErrorCode.topic_authorization_failed: "The client is not authorized to describe a topic of the group {}.",
}


def _group_response(
    described: DescribedConsumerGroup, members: "tuple[Member, ...]", operations: int
) -> "DescribedGroup":
    message = MESSAGES.get(described.code)
    if described.code in (ErrorCode.group_authorization_failed, ErrorCode.topic_authorization_failed):
        operations = NOT_ASKED
    return messages.DescribedGroup(
        error_code=described.code,
        error_message=message.format(described.group_id) if message is not None else None,
        group_id=described.group_id,
        group_state=described.state,
        group_epoch=described.epoch,
        assignment_epoch=described.target_epoch,
        assignor_name=described.assignor,
        members=members,
        authorized_operations=operations,
    )


async def handle(
    broker: Broker, request: "ConsumerGroupDescribeRequest", context: Context
) -> "ConsumerGroupDescribeResponse":
    """Describe each group that the request names.

    The description contains the present state of the coordinator. The response is sent when the records of this state
    are durable, so that it reports nothing that a crash could undo.
    """
    coordinator = broker.groups.coordinator

    def describe(group_id: str) -> DescribedConsumerGroup:
        denied = context.denied_code(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        if denied is not None:
            return DescribedConsumerGroup(denied, group_id, "")
        found = coordinator.consumers.describe([group_id]).answer[0]
        if all(
            context.allows(Operation.DESCRIBE, ResourceType.TOPIC, name)
            for name in _topic_names(broker, found)
        ):
            return found
        return DescribedConsumerGroup(ErrorCode.topic_authorization_failed, group_id, "")

    def operations(group_id: str) -> int:
        is_asked = request.include_authorized_operations
        return context.allowed_operations(ResourceType.GROUP, group_id) if is_asked else NOT_ASKED

    described = await for_each(dict.fromkeys(request.group_ids), describe)
    await broker.groups.wait_until_durable()
    return messages.ConsumerGroupDescribeResponse(
        throttle_time=NO_THROTTLE,
        groups=await for_each_part(
            described,
            lambda group: group.members,
            lambda _group_of, member: _member_response(broker, member),
            lambda group, members: _group_response(group, members, operations(group.group_id)),
        ),
    )
