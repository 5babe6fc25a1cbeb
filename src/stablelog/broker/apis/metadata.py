"""Metadata (3): the broker's address, and the topics with their partitions.

Behaviour: a partition that is opening or offline has leader -1 and an error code. Clients then wait for a leader, and
producers choose other partitions. An offline partition lists its replica as offline; an opening one does not. Version
notes: v0 an empty list of topics asks for all topics, v1+ for none; v4 the request says whether to create missing
topics; v8+ authorized operations of topics, and v8 to v10 also of the cluster, if the request asks for them; v10+ topic
ids.
"""

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, NOT_ASKED, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.apis.describe_cluster import cluster_operations
from stablelog.broker.loop.turns import AT_ONCE_MAX, in_turns
from stablelog.broker.topics.partition_state import PartitionCodes, PartitionState
from stablelog.broker.topics.topic import Topic
from stablelog.errors import RefusedError
from stablelog.security.api_rights import LEFT_OUT, on_cluster, on_topic
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.metadata.v13.request import MetadataRequest
    from kio.schema.metadata.v13.response import (
        MetadataResponse,
        MetadataResponsePartition,
        MetadataResponseTopic,
    )

# The response has this code and leader -1, as in Apache Kafka for a partition without a live replica: producers choose
# other partitions.
PARTITION_CODES = PartitionCodes(
    opening=ErrorCode.leader_not_available,
    offline=ErrorCode.leader_not_available,
    unknown=ErrorCode.unknown_topic_or_partition,
    unknown_id=ErrorCode.unknown_topic_id,
)
API = ServedApi(
    ApiKey.METADATA,
    first_version=0,
    last_version=13,
    is_heavy=True,
    has_long_response=True,
    rights=(
        on_topic(Operation.DESCRIBE, "each named topic", "the error code; by id UNKNOWN_TOPIC_ID"),
        on_topic(Operation.DESCRIBE, "each topic, if all are asked for", LEFT_OUT),
        on_cluster(Operation.CREATE, "the cluster, to create a missing topic", "the next right is needed"),
        on_topic(Operation.CREATE, "a missing topic that is to be created"),
    ),
    codes={"": PARTITION_CODES},
)
messages = API.messages

NO_LEADER_ID = -1


def _partition_response(broker: Broker, topic: Topic, index: int) -> "MetadataResponsePartition":
    here = (broker.node_id,)
    state = broker.partitions.state_in(topic, index)
    return messages.MetadataResponsePartition(
        error_code=PARTITION_CODES.code_for_state(state) or ErrorCode.none,
        partition_index=index,
        leader_id=broker.node_id if state is PartitionState.OPEN else NO_LEADER_ID,
        leader_epoch=broker.topics.leader_epoch,
        replica_nodes=here,
        isr_nodes=here,
        offline_replicas=here if state is PartitionState.OFFLINE else (),
    )


async def _topic_response(broker: Broker, topic: Topic, operations: int) -> "MetadataResponseTopic":
    indexes = in_turns(range(topic.partition_count), at_once=AT_ONCE_MAX)
    return messages.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple([_partition_response(broker, topic, index) async for index in indexes]),
        topic_authorized_operations=operations,
    )


def _topic_error(error: ErrorCode, name: str | None, topic_id: uuid.UUID | None) -> "MetadataResponseTopic":
    return messages.MetadataResponseTopic(
        error_code=error, name=name, topic_id=topic_id, is_internal=False, partitions=()
    )


async def _find_or_create(
    broker: Broker,
    name: str | None,
    topic_id: uuid.UUID | None,
    context: Context,
    operations: Callable[[str], int],
    *,
    create: bool,
) -> "MetadataResponseTopic":
    if name is None:
        name = broker.topics.name_of(topic_id)
        if name is None or not context.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
            refused = PARTITION_CODES.refusal(
                PartitionState.UNKNOWN_ID, f"there is no topic with the id {topic_id}"
            )
            return _topic_error(ErrorCode(refused.code), None, topic_id)
    elif not context.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
        return _topic_error(ErrorCode.topic_authorization_failed, name, None)
    topic = broker.topics.get(name)
    if topic is None and create:
        if not context.allows(Operation.CREATE, ResourceType.CLUSTER, is_logged=False):
            denied = context.denied_code(Operation.CREATE, ResourceType.TOPIC, name)
            if denied is not None:
                return _topic_error(denied, name, None)
        partition_count = broker.config["num.partitions"]
        try:
            if context.throttle is not None:
                broker.topics.reservations.check_new(name, partition_count, {})
            context.charge_partitions(partition_count, strict_since=0)
            topic = await broker.topic_changes.create_topic(name, partition_count, {})
        except RefusedError as refused:
            if refused.code in (ErrorCode.kafka_storage_error, ErrorCode.throttling_quota_exceeded):
                # Return a code after which all clients retry, as Kafka does while it creates a topic.
                return _topic_error(ErrorCode.leader_not_available, name, None)
            if refused.code is not ErrorCode.topic_already_exists:
                return _topic_error(ErrorCode(refused.code), name, None)
            topic = broker.topics.get(name)
            if topic is None:  # Another request is creating the topic.
                return _topic_error(ErrorCode.leader_not_available, name, None)
    if topic is None:
        return _topic_error(PARTITION_CODES.unknown, name, None)
    return await _topic_response(broker, topic, operations(name))


async def handle(broker: Broker, request: "MetadataRequest", context: Context) -> "MetadataResponse":
    """Return the broker's address and the topics. Missing topics are created, if the request and the settings allow it."""
    everything = request.topics is None or (context.api_version == 0 and not request.topics)

    def operations(name: str) -> int:
        is_asked = request.include_topic_authorized_operations
        return context.allowed_operations(ResourceType.TOPIC, name) if is_asked else NOT_ASKED

    if everything:
        topics = tuple(
            [
                await _topic_response(broker, topic, operations(topic.name))
                async for topic in in_turns(broker.topics)
                if context.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name, is_logged=False)
            ]
        )
    else:
        create = request.allow_auto_topic_creation and broker.config["auto.create.topics.enable"]
        asked = dict.fromkeys((topic.name, topic.topic_id) for topic in request.topics or ())
        topics = tuple(
            [
                await _find_or_create(broker, name, topic_id, context, operations, create=create)
                async for name, topic_id in in_turns(asked)
            ]
        )
    host, port = context.session.listener.advertised
    fields = {
        "throttle_time": NO_THROTTLE,
        "brokers": (messages.MetadataResponseBroker(node_id=broker.node_id, host=host, port=port),),
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "topics": topics,
        "error_code": ErrorCode.none,
    }
    if getattr(request, "include_cluster_authorized_operations", False):
        from stablelog.wire.cluster_metadata import ClusterMetadataResponse  # only for versions 8 to 10

        return ClusterMetadataResponse(**fields, cluster_authorized_operations=cluster_operations(context))
    return messages.MetadataResponse(**fields)
