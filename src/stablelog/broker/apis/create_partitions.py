"""CreatePartitions (37): add partitions to a topic."""

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse, CreatePartitionsTopicResult
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.topic_names import check_not_own
from stablelog.errors import RefusedError


async def _add(
    broker: Broker, asked: CreatePartitionsTopic, context: Context, *, validate_only: bool
) -> CreatePartitionsTopicResult:
    try:
        context.require(Operation.ALTER, ResourceType.TOPIC, asked.name)
        topic = broker.topics.named(asked.name)
        check_not_own(asked.name)
        if asked.assignments is not None and (
            len(asked.assignments) != asked.count - topic.partition_count
            or any(assignment.broker_ids != (broker.node_id,) for assignment in asked.assignments)
        ):
            raise RefusedError(
                ErrorCode.invalid_replica_assignment,
                f"each new partition must be assigned to broker {broker.node_id} alone",
            )
        if not validate_only:
            await broker.topic_changes.grow(asked.name, asked.count)
        elif asked.count <= topic.partition_count:
            raise RefusedError(
                ErrorCode.invalid_partitions, f"{asked.name} has {topic.partition_count} partitions already"
            )
    except RefusedError as refused:
        return CreatePartitionsTopicResult(
            name=asked.name, error_code=refused.code, error_message=str(refused)
        )
    return CreatePartitionsTopicResult(name=asked.name, error_code=ErrorCode.none)


async def handle(
    broker: Broker, request: CreatePartitionsRequest, context: Context
) -> CreatePartitionsResponse:
    """Add partitions to each topic that the request names. An error of one topic does not affect the others."""
    return CreatePartitionsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            [
                await _add(broker, asked, context, validate_only=request.validate_only)
                async for asked in in_turns(request.topics)
            ]
        ),
    )
