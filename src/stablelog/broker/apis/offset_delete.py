"""OffsetDelete (47): forget offsets of a group, except of topics that its members read."""

from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
from kio.schema.offset_delete.v0.response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

from stablelog.broker.apis import NO_THROTTLE
from stablelog.broker.broker import Broker
from stablelog.coordinators.consumer_groups.answers import DeleteOffsetsAnswer


async def handle(broker: Broker, request: OffsetDeleteRequest, _context: Any) -> OffsetDeleteResponse:
    """Delete, wait for durability, answer."""
    asked = [(topic.name, one.partition_index) for topic in request.topics for one in topic.partitions]
    known = [(name, index) for name, index in asked if _exists(broker, name, index)]
    answer: DeleteOffsetsAnswer = await broker.groups.carry_out(
        broker.groups.coordinator.delete_offsets(request.group_id, known, now_ms=broker.now_ms())
    )
    topics: tuple[OffsetDeleteResponseTopic, ...] = ()
    if answer.code is ErrorCode.none:
        topics = tuple(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(
                        partition_index=one.partition_index,
                        error_code=answer.partitions.get(
                            (topic.name, one.partition_index), ErrorCode.unknown_topic_or_partition
                        ),
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        )
    return OffsetDeleteResponse(error_code=answer.code, throttle_time=NO_THROTTLE, topics=topics)


def _exists(broker: Broker, name: str, index: int) -> bool:
    topic = broker.topics.get(name)
    return topic is not None and 0 <= index < topic.partition_count
