"""DeleteRecords (21): delete all records before an offset; -1 means the high watermark.

Behaviour: the response is sent when the new log start offsets are durable. After a disk error at one partition, that
partition has an error code in the response, and its log start may have moved or not. The other partitions are not
affected. The new log start is in a file of the partition when the response is sent. Kafka's checkpoint file with the
log starts of all partitions is written later, within `CHECKPOINT_S` seconds.
"""

import contextlib
import logging
from functools import partial

from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, for_each
from stablelog.broker.loop.turns import Turn, in_turns
from stablelog.broker.topic_names import check_not_own
from stablelog.broker.topics.partition_state import CODES, PARTITION_ERRORS
from stablelog.errors import Refused

HIGH_WATERMARK = -1
PARTITION_CODES = CODES["DeleteRecords"]

log = logging.getLogger(__name__)


async def handle(broker: Broker, request: DeleteRecordsRequest, _context: Context) -> DeleteRecordsResponse:
    """Handle the request."""
    await _load_commit_indexes(broker, request)

    def delete(name: str, asked: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        try:
            check_not_own(name)
            partition = broker.topics.partition(name, asked.partition_index, PARTITION_CODES)
            before = partition.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
            start = broker.reserve.attempt(lambda: partition.delete_records(before), frees=True)
        except PARTITION_ERRORS as error:
            if not isinstance(error, Refused):
                log.warning("records of %s-%d were not deleted: %s", name, asked.partition_index, error)
            return DeleteRecordsPartitionResult(
                partition_index=asked.partition_index,
                low_watermark=-1,
                error_code=PARTITION_CODES.of_error(error),
            )
        broker.waiters.wake(partition)
        return DeleteRecordsPartitionResult(
            partition_index=asked.partition_index, low_watermark=start, error_code=ErrorCode.none
        )

    turn = Turn()
    topics = tuple(
        [
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=await for_each(topic.partitions, partial(delete, topic.name), turn=turn),
            )
            async for topic in in_turns(request.topics, turn=turn)
        ]
    )
    return DeleteRecordsResponse(throttle_time=NO_THROTTLE, topics=topics)


async def _load_commit_indexes(broker: Broker, request: DeleteRecordsRequest) -> None:
    """Load the commit indexes in an object store that the deletion needs: if an offset is in the middle of a transaction,
    the view in commit order begins behind this transaction.
    """
    all_asked = ((topic.name, asked) for topic in request.topics for asked in topic.partitions)
    async for name, asked in in_turns(all_asked):
        with contextlib.suppress(*PARTITION_ERRORS):  # the deletion gets the same error, and reports it
            partition = broker.topics.partition(name, asked.partition_index, PARTITION_CODES)
            view = partition.view
            if view is not None and 0 <= asked.offset < partition.start_offset:
                await broker.tiering.reads.loading(partial(view.whole_from, asked.offset))
