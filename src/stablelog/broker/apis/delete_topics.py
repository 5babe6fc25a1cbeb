"""DeleteTopics (20): delete topics.

Version notes: v5 THROTTLING_QUOTA_EXCEEDED (KIP-599); v6 by name or by topic id.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.topics.partition_state import NAMES_ONLY
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_topic
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
    from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse

PARTITION_CODES = NAMES_ONLY._replace(unknown_id=ErrorCode.unknown_topic_id)
API = ServedApi(
    ApiKey.DELETE_TOPICS,
    first_version=1,
    last_version=6,
    is_alone=True,
    rights=(
        on_topic(Operation.DELETE),
        on_topic(Operation.DESCRIBE, "each topic named by id", "the error lacks the name"),
    ),
    codes={"": PARTITION_CODES},
)
messages = API.messages

STRICT_SINCE = 5


async def _delete_topic(
    broker: Broker, asked: "DeleteTopicState", context: Context
) -> "DeletableTopicResult":
    name = asked.name if asked.name is not None else broker.topics.name_of(asked.topic_id)
    try:
        if not broker.config["delete.topic.enable"]:
            raise RefusedError(
                ErrorCode.topic_deletion_disabled,
                "topics cannot be deleted, because delete.topic.enable is false",
            )
        if name is None:
            raise RefusedError(ErrorCode.unknown_topic_id, f"there is no topic with the id {asked.topic_id}")
        if not context.allows(Operation.DELETE, ResourceType.TOPIC, name):
            # A client that may not describe the topic does not learn the name that belongs to the id.
            can_describe = context.allows(Operation.DESCRIBE, ResourceType.TOPIC, name, is_logged=False)
            return messages.DeletableTopicResult(
                name=name if can_describe else asked.name,
                topic_id=asked.topic_id,
                error_code=ErrorCode.topic_authorization_failed,
                error_message="the client is not authorized to DELETE the topic",
            )
        if context.throttle is not None:
            context.charge_partitions(broker.topics.named(name).partition_count, strict_since=STRICT_SINCE)
        await broker.topic_changes.delete_topic(name)
    except RefusedError as refused:
        return messages.DeletableTopicResult(
            name=asked.name, topic_id=asked.topic_id, error_code=refused.code, error_message=str(refused)
        )
    return messages.DeletableTopicResult(name=name, topic_id=asked.topic_id, error_code=ErrorCode.none)


async def handle(broker: Broker, request: "DeleteTopicsRequest", context: Context) -> "DeleteTopicsResponse":
    """Delete each topic that the request names, and return the error code of each topic. An error of one topic does not
    affect the others.
    """
    results = [await _delete_topic(broker, asked, context) async for asked in in_turns(request.topics)]
    return messages.DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=tuple(results))
