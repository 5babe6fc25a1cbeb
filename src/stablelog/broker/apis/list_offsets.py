"""ListOffsets (2): the first, the last, or the offset at a time.

Behaviour: what a read-committed reader asks ends at the last stable offset. Markers that are written and not
durable yet are waited for: who asks after a commit was answered finds what it committed. Ends that are asked for
together, a thousand at most, are of one moment. A transaction in a hundred partitions at most lies before all of them or
before none. A time that is found only among records that the reader may not see yet is not found. Other than in Kafka,
a transaction's marker is no record, so its time is not found. A lookup that has to read many headers lets others go on
in between.
Version notes: v2 isolation; v7 the offset of the newest timestamp (-3); v8 the local log's start (-4).
"""

import asyncio
import contextlib
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v8.request import ListOffsetsRequest
from kio.schema.list_offsets.v8.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

from stablelog.broker.apis import NO_THROTTLE
from stablelog.broker.apis.leader_epochs import check_leader_epoch
from stablelog.broker.broker import Broker
from stablelog.broker.partition_state import CODES, PARTITION_ERRORS
from stablelog.broker.turns import in_turns
from stablelog.errors import Refused, Unavailable, Unproven
from stablelog.log.partition import Isolation, Partition
from stablelog.log.read import Lookup

LATEST, EARLIEST, NEWEST_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
NOT_FOUND = -1
PARTITION_CODES = CODES["ListOffsets"]
AT_ONCE_MAX = 1000  # partitions whose ends are told without a look at the clock: a millisecond or two


async def _look_up(broker: Broker, name: str, asked: Any, isolation: Isolation) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch); -1 for each that is not to be had."""
    partition, timestamp = (
        broker.topics.partition(name, asked.partition_index, PARTITION_CODES),
        asked.timestamp,
    )
    check_leader_epoch(partition, asked.current_leader_epoch)
    if timestamp == LATEST:
        return partition.visible_end(isolation), -1, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return partition.visible_start(isolation), -1, partition.leader_epoch
    if timestamp < 0 and timestamp != NEWEST_TIMESTAMP:
        raise Refused(ErrorCode.unsupported_version, f"no meaning is known for the timestamp {timestamp}")
    lookup, done = _lookup(partition, timestamp, isolation), None
    while True:
        try:
            work = lookup.send(done)
        except StopIteration as end:
            return end.value if end.value is not None else (NOT_FOUND, -1, -1)
        except Unproven as unproven:
            await broker.proofs.request(partition, unproven)
            lookup, work = _lookup(partition, timestamp, isolation), None
        done = None if work is None else await broker.look_into_batch(work)
        await asyncio.sleep(0)
        if broker.topics.partition(name, asked.partition_index, PARTITION_CODES) is not partition:
            raise Refused(
                ErrorCode.unknown_topic_or_partition,
                f"{name}-{asked.partition_index} was deleted and created again while a time was looked up in it",
            )


def _lookup(partition: Partition, timestamp: int, isolation: Isolation) -> Lookup:
    if timestamp == NEWEST_TIMESTAMP:
        return partition.look_up_newest(isolation)
    return partition.look_up_time(timestamp, isolation)


async def _markers_durable(broker: Broker, request: ListOffsetsRequest) -> None:
    """Wait until all that was written before can be seen, if its fate is known."""
    waits = []
    for topic in request.topics:
        async for asked in in_turns(topic.partitions, at_once=AT_ONCE_MAX):
            with contextlib.suppress(Refused):  # the answer says why
                partition = broker.topics.partition(topic.name, asked.partition_index)
                waits.append(broker.flush.durable(partition, partition.end_offset))
    for wait in waits:
        if wait is not None:
            with contextlib.suppress(Unavailable):  # the topic was deleted meanwhile
                await wait


def _is_brief(request: ListOffsetsRequest) -> bool:
    """Whether only ends are asked for, and few of them."""
    return sum(len(topic.partitions) for topic in request.topics) <= AT_ONCE_MAX and all(
        asked.timestamp in (LATEST, EARLIEST) for topic in request.topics for asked in topic.partitions
    )


async def handle(broker: Broker, request: ListOffsetsRequest, _context: Any) -> ListOffsetsResponse:
    """Answer."""
    isolation = Isolation.READ_COMMITTED if request.isolation_level == 1 else Isolation.READ_UNCOMMITTED
    if isolation is Isolation.READ_COMMITTED:
        await _markers_durable(broker, request)
    at_once = AT_ONCE_MAX if _is_brief(request) else 1

    async def answer(name: str, asked: Any) -> ListOffsetsPartitionResponse:
        try:
            offset, timestamp, epoch = await _look_up(broker, name, asked, isolation)
        except PARTITION_ERRORS as error:
            broker.damage_log.note(error)
            return ListOffsetsPartitionResponse(
                partition_index=asked.partition_index, error_code=PARTITION_CODES.of_error(error)
            )
        return ListOffsetsPartitionResponse(
            partition_index=asked.partition_index,
            error_code=ErrorCode.none,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=epoch,
        )

    return ListOffsetsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            [
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        [
                            await answer(topic.name, p)
                            async for p in in_turns(topic.partitions, at_once=at_once)
                        ]
                    ),
                )
                async for topic in in_turns(request.topics, at_once=at_once)
            ]
        ),
    )
