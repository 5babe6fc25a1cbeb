"""WriteTxnMarkers (27): write markers as they are given. It is how an administrator ends a hanging transaction.

Behaviour: the markers go to the partitions that are named, past the coordinator; a marker older than what the
partition knows is refused, and so is one for a coordinator's own log, and a commit in a commit-ordered topic: it would
have no number, and no cut could be made there. Answered when they are durable.
Version notes: v2 the transaction version, by which the epoch is judged.
"""

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v2.response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

from stablelog.batch.markers import Marker, MarkerType
from stablelog.broker.broker import Broker
from stablelog.broker.partition_state import CODES
from stablelog.broker.topics import CONSUMER_OFFSETS_TOPIC, group_of_log
from stablelog.errors import Refused
from stablelog.log.partition import MarkerWrite
from stablelog.views.commit_ordered import CommitOrderedPartition

PARTITION_CODES = CODES["WriteTxnMarkers"]


def _write(
    broker: Broker, name: str, index: int, asked: WritableTxnMarker, waits: "list[asyncio.Future[None]]"
) -> ErrorCode:
    marker = Marker(
        type=MarkerType.COMMIT if asked.transaction_result else MarkerType.ABORT,
        coordinator_epoch=asked.coordinator_epoch,
        group=None,
        commit_sequence=-1,
        low_watermark=-1,
    )
    if group_of_log(name) is not None:
        return ErrorCode.invalid_topic_exception  # no transaction ever writes to a commit log
    try:
        partition = broker.topics.partition(name, index, PARTITION_CODES)
        if asked.transaction_result and isinstance(partition, CommitOrderedPartition):
            return ErrorCode.invalid_request
        write = MarkerWrite(asked.producer_id, asked.producer_epoch, marker, asked.transaction_version)
        outcome = partition.append_markers([write], now_ms=broker.now_ms())[0]
    except Refused as refused:
        return refused.code
    if isinstance(outcome, Refused):
        return outcome.code
    if name == CONSUMER_OFFSETS_TOPIC:
        broker.groups.transaction_ended(asked.producer_id, commit=asked.transaction_result)
    future = broker.flush.durable(partition, partition.end_offset)
    if future is not None:
        waits.append(future)
    return ErrorCode.none


async def handle(broker: Broker, request: WriteTxnMarkersRequest, _context: Any) -> WriteTxnMarkersResponse:
    """Write, wait for durability, answer."""
    waits: list[asyncio.Future[None]] = []
    results = tuple(
        WritableTxnMarkerResult(
            producer_id=asked.producer_id,
            topics=tuple(
                WritableTxnMarkerTopicResult(
                    name=topic.name,
                    partitions=tuple(
                        WritableTxnMarkerPartitionResult(
                            partition_index=index, error_code=_write(broker, topic.name, index, asked, waits)
                        )
                        for index in topic.partition_indexes
                    ),
                )
                for topic in asked.topics
            ),
        )
        for asked in request.markers
    )
    for wait in waits:
        await wait
    return WriteTxnMarkersResponse(markers=results)
