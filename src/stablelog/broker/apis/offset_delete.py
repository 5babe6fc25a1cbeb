"""OffsetDelete (47): delete offsets of a group, except for topics that its members are subscribed to."""

from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
from kio.schema.offset_delete.v0.response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

from stablelog.broker.apis import NO_THROTTLE, Broker, Context
from stablelog.broker.topics.partition_state import CODES
from stablelog.coordinators.consumer_groups.answers import DeleteOffsetsAnswer

PARTITION_CODES = CODES["OffsetDelete"]


async def handle(broker: Broker, request: OffsetDeleteRequest, _context: Context) -> OffsetDeleteResponse:
    """Delete the offsets, wait until the deletion is durable, and return the response."""
    asked = [(topic.name, one.partition_index) for topic in request.topics for one in topic.partitions]
    refused = {at: code for at in asked if (code := PARTITION_CODES.of(broker.topics.state(*at)))}
    known = [at for at in asked if at not in refused]
    answer: DeleteOffsetsAnswer = await broker.groups.carry_out(
        broker.groups.coordinator.delete_offsets(request.group_id, known, now_ms=broker.now_ms())
    )
    topics: tuple[OffsetDeleteResponseTopic, ...] = ()
    if answer.code is ErrorCode.none:
        codes = {**answer.partitions, **refused}
        topics = tuple(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(
                        partition_index=one.partition_index,
                        error_code=codes[topic.name, one.partition_index],
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        )
    return OffsetDeleteResponse(error_code=answer.code, throttle_time=NO_THROTTLE, topics=topics)
