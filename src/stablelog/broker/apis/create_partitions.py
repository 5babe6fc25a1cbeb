"""CreatePartitions (37): add partitions to topics.

Version notes: v3 THROTTLING_QUOTA_EXCEEDED (KIP-599).
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.topic_changes import NO_NEW_PARTITIONS
from stablelog.broker.topic_names import check_clients_may_write
from stablelog.broker.topics.partition_state import NAMES_ONLY
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_topic
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
    from kio.schema.create_partitions.v3.response import CreatePartitionsResponse, CreatePartitionsTopicResult

PARTITION_CODES = NAMES_ONLY
API = ServedApi(
    ApiKey.CREATE_PARTITIONS,
    first_version=0,
    last_version=3,
    is_alone=True,
    rights=(on_topic(Operation.ALTER),),
    codes={"": PARTITION_CODES},
    while_full=NO_NEW_PARTITIONS,
)
messages = API.messages

STRICT_SINCE = 3


async def _add_partitions(
    broker: Broker, asked: "CreatePartitionsTopic", context: Context, *, validate_only: bool
) -> "CreatePartitionsTopicResult":
    try:
        context.require(Operation.ALTER, ResourceType.TOPIC, asked.name)
        topic = broker.topics.named(asked.name)
        check_clients_may_write(asked.name)
        if asked.assignments is not None and (
            len(asked.assignments) != asked.count - topic.partition_count
            or any(assignment.broker_ids != (broker.node_id,) for assignment in asked.assignments)
        ):
            raise RefusedError(
                ErrorCode.invalid_replica_assignment,
                f"the replica assignment in the request is not possible: each new partition must be on broker {broker.node_id} alone",
            )
        if asked.count <= topic.partition_count:
            raise RefusedError(
                ErrorCode.invalid_partitions,
                f"topic {asked.name} has {topic.partition_count} partitions already: ask for a greater number",
            )
        context.charge_partitions(asked.count - topic.partition_count, strict_since=STRICT_SINCE)
        if not validate_only:
            await broker.topic_changes.grow_topic(asked.name, asked.count)
    except RefusedError as refused:
        return messages.CreatePartitionsTopicResult(
            name=asked.name, error_code=refused.code, error_message=str(refused)
        )
    return messages.CreatePartitionsTopicResult(name=asked.name, error_code=ErrorCode.none)


async def handle(
    broker: Broker, request: "CreatePartitionsRequest", context: Context
) -> "CreatePartitionsResponse":
    """Add partitions to each topic that the request names, and return the error code of each topic. An error of one
    topic does not affect the others.
    """
    return messages.CreatePartitionsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            [
                await _add_partitions(broker, asked, context, validate_only=request.validate_only)
                async for asked in in_turns(request.topics)
            ]
        ),
    )
