"""OffsetForLeaderEpoch (23): the end offset of a leader epoch, so that a reader notices lost records."""

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

from stablelog.broker.apis import (
    NO_THROTTLE,
    Broker,
    Context,
    Operation,
    ResourceType,
    code_for,
    for_each_part,
)
from stablelog.broker.apis.leader_epochs import check_leader_epoch
from stablelog.broker.topics.partition_state import CODES, PARTITION_ERRORS

PARTITION_CODES = CODES["OffsetForLeaderEpoch"]


async def handle(
    broker: Broker, request: OffsetForLeaderEpochRequest, context: Context
) -> OffsetForLeaderEpochResponse:
    """Handle the request."""

    def answer(topic: OffsetForLeaderTopic, asked: OffsetForLeaderPartition) -> EpochEndOffset:
        try:
            context.require(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic)
            partition = broker.topics.partition(topic.topic, asked.partition, PARTITION_CODES)
            check_leader_epoch(partition, asked.current_leader_epoch)
            epoch, end = partition.end_offset_for_epoch(asked.leader_epoch)
        except PARTITION_ERRORS as error:
            code = code_for(broker, error, PARTITION_CODES)
            return EpochEndOffset(error_code=code, partition=asked.partition)
        return EpochEndOffset(
            error_code=ErrorCode.none, partition=asked.partition, leader_epoch=epoch, end_offset=end
        )

    return OffsetForLeaderEpochResponse(
        throttle_time=NO_THROTTLE,
        topics=await for_each_part(
            request.topics,
            lambda topic: topic.partitions,
            answer,
            lambda topic, ends: OffsetForLeaderTopicResult(topic=topic.topic, partitions=ends),
        ),
    )
