"""DeleteRecords (21): delete all records before an offset; -1 means the high watermark.

Behaviour: the response is sent when the new log start offsets are durable. After a disk error at one partition, that
partition has an error code in the response, and its log start may have moved or not. The other partitions are not
affected. The new log start is in a file of the partition when the response is sent. Kafka's checkpoint file with the
log starts of all partitions is written later, within `CHECKPOINT_S` seconds.
"""

import logging
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.loop.turns import Turn, in_turns
from stablelog.broker.topic_names import check_clients_may_write
from stablelog.broker.topics.partition_state import COMMON, PARTITION_ERRORS
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_topic
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest
    from kio.schema.delete_records.v2.response import DeleteRecordsPartitionResult, DeleteRecordsResponse

PARTITION_CODES = COMMON
API = ServedApi(
    ApiKey.DELETE_RECORDS,
    first_version=0,
    last_version=2,
    is_alone=True,
    rights=(on_topic(Operation.DELETE),),
    codes={"": PARTITION_CODES},
)
messages = API.messages

HIGH_WATERMARK = -1

log = logging.getLogger(__name__)


async def handle(
    broker: Broker, request: "DeleteRecordsRequest", context: Context
) -> "DeleteRecordsResponse":
    """Delete the records before the given offset of each partition, and return the new log start offsets."""
    turn = Turn()
    topics = [
        messages.DeleteRecordsTopicResult(
            name=topic.name,
            partitions=tuple(
                [
                    await _delete_partition_records(broker, topic.name, asked, context)
                    async for asked in in_turns(topic.partitions, turn=turn)
                ]
            ),
        )
        async for topic in in_turns(request.topics, turn=turn)
    ]
    return messages.DeleteRecordsResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))


async def _delete_partition_records(
    broker: Broker, name: str, asked: "DeleteRecordsPartition", context: Context
) -> "DeleteRecordsPartitionResult":
    """Delete records of one partition, and return its new log start offset or its error code.

    The deletion may need commit indexes (lists of the transactions of a segment) that are in the object store. The
    function then loads them and repeats the deletion. The first attempt may already have moved the log start offset;
    the result is nevertheless the same.
    """
    try:
        context.require(Operation.DELETE, ResourceType.TOPIC, name)
        check_clients_may_write(name)
        partition = broker.partitions.require(name, asked.partition_index, PARTITION_CODES)
        before = partition.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
        start = await broker.tiering.reads.call_when_loaded(
            lambda: broker.reserve.attempt(lambda: partition.deletion.delete_records(before), frees=True)
        )
    except PARTITION_ERRORS as error:
        if not isinstance(error, RefusedError):
            log.warning("records of %s-%d were not deleted: %s", name, asked.partition_index, error)
        return messages.DeleteRecordsPartitionResult(
            partition_index=asked.partition_index,
            low_watermark=-1,
            error_code=PARTITION_CODES.code_for_error(error),
        )
    broker.long_polls.wake(partition)
    return messages.DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=start, error_code=ErrorCode.none
    )
