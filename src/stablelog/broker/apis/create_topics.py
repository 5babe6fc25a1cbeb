"""CreateTopics (19): create topics.

Version notes: v4 a count of -1 asks for the broker's default; v5 the response contains the settings; v6
THROTTLING_QUOTA_EXCEEDED (KIP-599); v7 also the topic id.
"""

from collections import Counter
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.apis.config_resources import topic_config_values
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.topic_changes import NO_NEW_PARTITIONS
from stablelog.broker.topics.topic import Topic
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_cluster, on_topic
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
    from kio.schema.create_topics.v7.response import CreatableTopicResult, CreateTopicsResponse

API = ServedApi(
    ApiKey.CREATE_TOPICS,
    first_version=2,
    last_version=7,
    is_alone=True,
    rights=(
        on_cluster(Operation.CREATE, without="the next right is needed"),
        on_topic(Operation.CREATE),
        on_topic(Operation.DESCRIBE_CONFIGS, without="the response lacks the settings"),
    ),
    while_full=NO_NEW_PARTITIONS,
)
messages = API.messages

DEFAULT = -1
STRICT_SINCE = 6


def _partition_count(broker: Broker, asked: "CreatableTopic") -> int:
    """Return the number of partitions of a new topic that the request asks for.

    Raises:
        RefusedError: the number or the replica assignment in the request is not possible with one broker, or the
            request has both.
    """
    if asked.assignments:
        if asked.num_partitions != DEFAULT or asked.replication_factor != DEFAULT:
            raise RefusedError(
                ErrorCode.invalid_request,
                "the request has a replica assignment, and also a number of partitions or replicas: send only one of the two",
            )
        indexes = sorted(assignment.partition_index for assignment in asked.assignments)
        if indexes != list(range(len(indexes))) or any(
            a.broker_ids != (broker.node_id,) for a in asked.assignments
        ):
            raise RefusedError(
                ErrorCode.invalid_replica_assignment,
                f"the replica assignment must have partitions 0, 1, ..., each on broker {broker.node_id} alone",
            )
        return len(indexes)
    if asked.replication_factor not in (DEFAULT, 1):
        raise RefusedError(
            ErrorCode.invalid_replication_factor,
            f"replication factor {asked.replication_factor} is not supported: one broker has one replica",
        )
    return broker.config["num.partitions"] if asked.num_partitions == DEFAULT else int(asked.num_partitions)


async def _create_topic(
    broker: Broker, asked: "CreatableTopic", context: Context, *, validate_only: bool
) -> "CreatableTopicResult":
    configs = {config.name: config.value for config in asked.configs if config.value is not None}
    try:
        if not context.allows(Operation.CREATE, ResourceType.CLUSTER, is_logged=False):
            context.require(Operation.CREATE, ResourceType.TOPIC, asked.name)
        count = _partition_count(broker, asked)
        topic: Topic | None = None
        if validate_only or context.throttle is not None:
            broker.topics.reservations.check_new(asked.name, count, configs)
            context.charge_partitions(count, strict_since=STRICT_SINCE)
        if not validate_only:
            topic = await broker.topic_changes.create_topic(asked.name, count, configs)
    except RefusedError as refused:
        return messages.CreatableTopicResult(
            name=asked.name,
            topic_id=None,
            error_code=refused.code,
            error_message=str(refused),
            configs=None,
        )
    if not context.allows(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, asked.name, is_logged=False):
        return messages.CreatableTopicResult(
            name=asked.name,
            topic_id=topic.topic_id if topic else None,
            error_code=ErrorCode.none,
            error_message=None,
            topic_config_error_code=ErrorCode.topic_authorization_failed,
            configs=(),
        )
    return messages.CreatableTopicResult(
        name=asked.name,
        topic_id=topic.topic_id if topic else None,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=count,
        replication_factor=1,
        configs=tuple(
            messages.CreatableTopicConfigs(
                name=value.name,
                value=value.text,
                read_only=value.read_only,
                config_source=value.source.value,
                is_sensitive=False,
            )
            for value in topic_config_values(broker, configs)
        ),
    )


async def handle(broker: Broker, request: "CreateTopicsRequest", context: Context) -> "CreateTopicsResponse":
    """Create each topic that the request names. Return its id and its settings, or an error code. An error of one topic
    does not affect the others.
    """
    named = Counter(topic.name for topic in request.topics)
    results = []
    async for asked in in_turns(request.topics):
        if named[asked.name] > 1:
            results.append(
                messages.CreatableTopicResult(
                    name=asked.name,
                    topic_id=None,
                    error_code=ErrorCode.invalid_request,
                    error_message=f"topic {asked.name!r} is named more than once in the request",
                    configs=None,
                )
            )
        else:
            results.append(await _create_topic(broker, asked, context, validate_only=request.validate_only))
    return messages.CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=tuple(results))
