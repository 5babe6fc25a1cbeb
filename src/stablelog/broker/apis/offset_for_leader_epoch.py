"""OffsetForLeaderEpoch (23): the end offset of a leader epoch, by which a reader finds out that records were lost."""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import (
    NO_THROTTLE,
    Broker,
    Context,
    Operation,
    ResourceType,
    ServedApi,
    error_code_for,
    for_each_part,
)
from stablelog.broker.apis.leader_epochs import check_leader_epoch
from stablelog.broker.topics.partition_state import COMMON, PARTITION_ERRORS
from stablelog.security.api_rights import on_topic
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.offset_for_leader_epoch.v4.request import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderPartition,
        OffsetForLeaderTopic,
    )
    from kio.schema.offset_for_leader_epoch.v4.response import EpochEndOffset, OffsetForLeaderEpochResponse

PARTITION_CODES = COMMON
API = ServedApi(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    first_version=2,
    last_version=4,
    rights=(on_topic(Operation.DESCRIBE),),
    codes={"": PARTITION_CODES},
)
messages = API.messages


async def handle(
    broker: Broker, request: "OffsetForLeaderEpochRequest", context: Context
) -> "OffsetForLeaderEpochResponse":
    """Return the end offset of the given leader epoch in each partition, by which the client finds the place where its
    records differ from the log.
    """

    def answer(topic: "OffsetForLeaderTopic", asked: "OffsetForLeaderPartition") -> "EpochEndOffset":
        try:
            context.require(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic)
            partition = broker.partitions.require(topic.topic, asked.partition, PARTITION_CODES)
            check_leader_epoch(partition, asked.current_leader_epoch)
            epoch, end = partition.replication.end_offset_for_epoch(asked.leader_epoch)
        except PARTITION_ERRORS as error:
            code = error_code_for(broker, error, PARTITION_CODES)
            return messages.EpochEndOffset(error_code=code, partition=asked.partition)
        return messages.EpochEndOffset(
            error_code=ErrorCode.none, partition=asked.partition, leader_epoch=epoch, end_offset=end
        )

    return messages.OffsetForLeaderEpochResponse(
        throttle_time=NO_THROTTLE,
        topics=await for_each_part(
            request.topics,
            lambda topic: topic.partitions,
            answer,
            lambda topic, ends: messages.OffsetForLeaderTopicResult(topic=topic.topic, partitions=ends),
        ),
    )
