"""ConsumerGroupHeartbeat (68): a member of a consumer group joins, follows its assignment, or leaves (KIP-848).

Behaviour: the response is sent once the member's new epoch and assignment are durable.
Version notes: v0 the broker makes the member id; v1+ the client makes it, and can subscribe by a regular expression.
"""

import uuid
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.topics.topic_list import TopicList
from stablelog.coordinators.consumer_groups.consumer_protocol.model import (
    JOIN_EPOCH,
    HeartbeatAnswer,
    HeartbeatRequest,
    Partitions,
    PatternSelection,
    SubscribableTopic,
    by_topic,
)
from stablelog.coordinators.patterns import name_matcher
from stablelog.errors import RefusedError
from stablelog.security.api_rights import LEFT_OUT, on_group, on_topic
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
    from kio.schema.consumer_group_heartbeat.v1.request import TopicPartitions as OwnedPartitions
    from kio.schema.consumer_group_heartbeat.v1.response import ConsumerGroupHeartbeatResponse

# Only for a member that joins.
WHILE_FULL = WhileFull(
    ErrorCode.coordinator_load_in_progress,
    is_served_from_half=True,
    exception="Only the request of a member that joins is refused.",
)
API = ServedApi(
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    first_version=0,
    last_version=1,
    is_appending=True,
    rights=(
        on_group(Operation.READ),
        on_topic(Operation.DESCRIBE, "each topic that the member subscribes to"),
        on_topic(Operation.DESCRIBE, "each topic that matches its regular expression", LEFT_OUT),
    ),
    while_full=WHILE_FULL,
)
messages = API.messages

OWN_ID_VERSION = 1
ONE_MS = timedelta(milliseconds=1)


class SubscribableTopics:
    """The topics of the broker, in the form that the group coordinator needs to compute assignments."""

    def __init__(self, topics: TopicList) -> None:
        self._topics = topics

    @property
    def version(self) -> int:
        """A number that changes whenever a topic is created, gets more partitions or is deleted."""
        return self._topics.version

    def find(self, name: str) -> SubscribableTopic | None:
        """Return the topic of this name; None if there is none."""
        topic = self._topics.get(name)
        return None if topic is None else SubscribableTopic(topic.topic_id, topic.partition_count)

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of the topic with this id; None if there is none."""
        return self._topics.name_of(topic_id)


async def _select_topics(
    broker: Broker, context: Context, request: HeartbeatRequest
) -> PatternSelection | None:
    """Return the topics that match the regular expression of a member and that the client may describe; None if the
    member has no regular expression.

    Only topics that are new since an earlier heartbeat of the group are compared with the expression, unless the rights
    of clients have changed. If many topics have to be compared, other tasks of the event loop run in between.
    """
    consumers = broker.groups.coordinator.consumers
    pattern = consumers.pattern_of(request)
    if pattern is None:
        return None
    rights, rights_version = (None, 0) if context.access is None else context.access.rights
    names = broker.topics.reservations.existing
    before = consumers.known_selection(request.group_id, (pattern, rights))
    if before is None or before.rights_version != rights_version:
        before = PatternSelection(pattern, rights, rights_version, frozenset(), frozenset())
    elif before.seen is names:
        return before
    matches = name_matcher(pattern)
    added = {
        name
        async for name in in_turns(names - before.seen)
        if matches(name) and context.allows(Operation.DESCRIBE, ResourceType.TOPIC, name, is_logged=False)
    }
    return replace(before, seen=names, names=(before.names & names) | added)


def _parse_owned(topics: "Iterable[OwnedPartitions] | None") -> Partitions | None:
    if topics is None:
        return None
    return frozenset(
        (topic.topic_id, index)
        for topic in topics
        if topic.topic_id is not None
        for index in topic.partitions
    )


def _heartbeat_response(answer: HeartbeatAnswer) -> "ConsumerGroupHeartbeatResponse":
    assignment = None
    if answer.assignment is not None:
        assignment = messages.Assignment(
            topic_partitions=tuple(
                messages.TopicPartitions(topic_id=topic_id, partitions=tuple(indexes))
                for topic_id, indexes in by_topic(answer.assignment)
            )
        )
    return messages.ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=answer.code,
        error_message=answer.message,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=answer.heartbeat_interval_ms * ONE_MS,
        assignment=assignment,
    )


async def handle(
    broker: Broker, request: "ConsumerGroupHeartbeatRequest", context: Context
) -> "ConsumerGroupHeartbeatResponse":
    """Handle the heartbeat, wait until its records are durable, and return the member's epoch and, if it has changed,
    the member's assignment.
    """
    heartbeat = HeartbeatRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        fresh_id=str(uuid.uuid4()),
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout // ONE_MS,
        topics=request.subscribed_topic_names,
        pattern=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=_parse_owned(request.topic_partitions),
        client_id=context.client_id or "",
        client_host=context.client_host,
        makes_own_id=context.api_version >= OWN_ID_VERSION,
    )
    # Hold the lock `appending`, so that the members of one connection join and leave in the order of its requests.
    async with context.appending:
        try:
            context.require(Operation.READ, ResourceType.GROUP, request.group_id)
            if context.access is not None:
                async for name in in_turns(request.subscribed_topic_names or ()):
                    context.require(Operation.DESCRIBE, ResourceType.TOPIC, name)
            if request.member_epoch == JOIN_EPOCH:
                broker.reserve.check(WHILE_FULL)
            heartbeat = replace(heartbeat, selection=await _select_topics(broker, context, heartbeat))
        except RefusedError as refused:
            return _heartbeat_response(HeartbeatAnswer(ErrorCode(refused.code), str(refused)))
        topics = SubscribableTopics(broker.topics)
        decision = broker.groups.coordinator.consumers.heartbeat(heartbeat, topics, now_ms=broker.now_ms())
        broker.groups.assign_soon(request.group_id, topics)
        broker.groups.apply_decision(decision)
    await broker.groups.wait_until_durable()
    return _heartbeat_response(decision.answer)
