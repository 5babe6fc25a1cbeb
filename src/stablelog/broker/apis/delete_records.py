"""DeleteRecords (21): drop everything before an offset; -1 means before the high watermark."""

import logging
from typing import Any

from kio.schema.delete_records.v2.request import DeleteRecordsRequest
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE
from stablelog.broker.broker import Broker
from stablelog.broker.partition_state import CODES
from stablelog.broker.topics import is_internal
from stablelog.errors import Refused, Unavailable

HIGH_WATERMARK = -1
PARTITION_CODES = CODES["DeleteRecords"]

log = logging.getLogger(__name__)


async def handle(broker: Broker, request: DeleteRecordsRequest, _context: Any) -> DeleteRecordsResponse:
    """Delete, and answer once the new starts are durable."""

    def delete(name: str, asked: Any) -> DeleteRecordsPartitionResult:
        try:
            if is_internal(name):
                raise Refused(ErrorCode.invalid_topic_exception, f"{name} is the broker's own")
            partition = broker.topics.partition(name, asked.partition_index, PARTITION_CODES)
            before = partition.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
            start = partition.delete_records(before)
        except Refused as refused:
            return DeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=-1, error_code=refused.code
            )
        except Unavailable as failure:
            # The start stays where it was, and the other partitions are answered.
            log.warning("records of %s-%d were not deleted: %s", name, asked.partition_index, failure)
            return DeleteRecordsPartitionResult(
                partition_index=asked.partition_index,
                low_watermark=-1,
                error_code=ErrorCode.kafka_storage_error,
            )
        broker.waiters.wake(partition)
        return DeleteRecordsPartitionResult(
            partition_index=asked.partition_index, low_watermark=start, error_code=ErrorCode.none
        )

    topics = tuple(
        DeleteRecordsTopicResult(
            name=topic.name, partitions=tuple(delete(topic.name, p) for p in topic.partitions)
        )
        for topic in request.topics
    )
    broker.topics.write_log_starts()
    return DeleteRecordsResponse(throttle_time=NO_THROTTLE, topics=topics)
