"""ListOffsets (2): the first offset, the end offset, or the first offset at or after a time.

Behaviour: for a read-committed reader the end offset is the last stable offset. The request waits for markers that are
written but not durable yet, so that a client that asks after the response to a commit finds the committed records. If a
request asks only for start and end offsets, of at most a thousand partitions, the broker reads all of them in one turn
of the event loop. A transaction in at most a hundred of these partitions therefore lies before all of their end offsets
or before none (`broker.loop.turns` names the exceptions). A lookup by time finds only records that the reader may see.
Unlike in Kafka, it does not find a transaction's marker, because a marker is not a record. A lookup that has to read
many headers lets other tasks run in between. Version notes: v2 isolation; v7 the offset of the newest timestamp (-3);
v8 the start on the local disk (-4); v9 the last offset in the object store (-5); v10 a time limit for reads from the
object store, after which the partition gets REQUEST_TIMED_OUT; v11 the first offset that is not in the object store
(-6). A special timestamp that the request's version does not have gets UNSUPPORTED_VERSION.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import (
    NO_THROTTLE,
    Broker,
    Context,
    Operation,
    ResourceType,
    ServedApi,
    error_code_for,
)
from stablelog.broker.apis.leader_epochs import check_leader_epoch
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.topics.partition_state import COMMON, PARTITION_ERRORS
from stablelog.errors import NotLoadedError, RefusedError, UnavailableError, UnprovenError
from stablelog.log.partition import Isolation, Partition
from stablelog.log.search.times import Lookup
from stablelog.log.time_lookup import look_up_newest, look_up_time
from stablelog.security.api_rights import on_topic
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsRequest
    from kio.schema.list_offsets.v11.response import ListOffsetsPartitionResponse, ListOffsetsResponse

PARTITION_CODES = COMMON
API = ServedApi(
    ApiKey.LIST_OFFSETS,
    first_version=1,
    last_version=11,
    is_heavy=True,
    rights=(on_topic(Operation.DESCRIBE),),
    codes={"": PARTITION_CODES},
)
messages = API.messages

LATEST, EARLIEST, NEWEST_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)
BOUNDS = (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
# The first version of the API that has each special timestamp.
FIRST_VERSIONS = {
    LATEST: 1,
    EARLIEST: 1,
    NEWEST_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
UNKNOWN_TIMESTAMP = 2**15  # A version that no client sends.
NOT_FOUND = -1
# The number of partitions whose end offsets are read in one turn of the event loop. That takes a millisecond or two.
BRIEF_MAX = 1000


class LookupOptions(NamedTuple):
    """The parts of a ListOffsets request that apply to all its partitions.

    Attributes:
        api_version: the version of the request.
        isolation: the isolation level of the reader.
        deadline_s: the end of the time in which a lookup may wait for the object store, by the clock of the event loop;
            None if the request has no time limit.
    """

    api_version: int
    isolation: Isolation
    deadline_s: float | None


async def _find_offset(
    broker: Broker, name: str, asked: "ListOffsetsPartition", limits: LookupOptions
) -> tuple[int, int, int]:
    """Find the offset that the request asks for in one partition.

    Returns:
        (offset, timestamp of the record at the offset, leader epoch of the offset). A value that does not exist is -1,
        for example if no record has such a timestamp.
    """
    isolation, timestamp = limits.isolation, asked.timestamp
    if timestamp < 0 and limits.api_version < FIRST_VERSIONS.get(timestamp, UNKNOWN_TIMESTAMP):
        raise RefusedError(
            ErrorCode.unsupported_version,
            f"version {limits.api_version} of ListOffsets does not support the special timestamp "
            f"{timestamp}: send a newer version",
        )
    partition = broker.partitions.require(name, asked.partition_index, PARTITION_CODES)
    check_leader_epoch(partition, asked.current_leader_epoch)
    if timestamp == LATEST:
        return partition.visible_end(isolation), -1, partition.leader_epoch
    if timestamp in BOUNDS:
        offset = _boundary_offset(partition, timestamp, isolation)
        return offset, -1, partition.leader_epoch if offset >= 0 else -1
    lookup, done = _start_lookup(partition, timestamp, isolation), None
    while True:
        try:
            work = lookup.send(done)
        except StopIteration as end:
            return end.value if end.value is not None else (NOT_FOUND, -1, -1)
        except NotLoadedError as missing:
            await _load_from_store(broker, partition, missing, limits.deadline_s)
            lookup, work = _start_lookup(partition, timestamp, isolation), None
        except UnprovenError as unproven:
            await broker.proofs.request(partition, unproven)
            lookup, work = _start_lookup(partition, timestamp, isolation), None
        done = None if work is None else await broker.run_batch_work(work)
        await asyncio.sleep(0)
        if broker.partitions.require(name, asked.partition_index, PARTITION_CODES) is not partition:
            raise RefusedError(
                ErrorCode.unknown_topic_or_partition,
                f"partition {name}-{asked.partition_index} was deleted and created again while the broker "
                "looked for the timestamp: repeat the request",
            )


async def _load_from_store(
    broker: Broker, partition: Partition, missing: NotLoadedError, deadline_s: float | None
) -> None:
    """Load from the object store what a lookup needs: the bytes that the error `missing` names. Wait until `deadline_s`
    at most.

    Raises:
        RefusedError: the time limit of the request has passed. The load continues, and a later request can use its
            result.
        UnavailableError, DamageError: the bytes cannot be loaded from the object store: see `RemoteReads.load_ranges`.
    """
    try:
        async with asyncio.timeout_at(deadline_s):
            await broker.tiering.reads.load_ranges(partition, missing)
    except TimeoutError as late:
        raise RefusedError(
            ErrorCode.request_timed_out,
            f"the timestamp was not found in {partition.topic}-{partition.index}, because the object "
            "store has not answered within the time limit of the request: retry",
        ) from late


def _boundary_offset(partition: Partition, timestamp: int, isolation: Isolation) -> int:
    """Return the offset that a special (negative) timestamp stands for, such as the first one on the local disk or the
    last one in the object store; -1 if there is no such offset.
    """
    remote, start = partition.remote, partition.visible_start(isolation)
    if timestamp == EARLIEST:
        return start
    if timestamp == EARLIEST_LOCAL:
        return max(start, partition.start_offset)
    if remote is None:
        return NOT_FOUND
    copied_end = remote.end_offset if remote.end_offset > start else NOT_FOUND
    if timestamp == LATEST_TIERED:
        return copied_end if copied_end == NOT_FOUND else copied_end - 1
    return max(start, remote.end_offset)


def _start_lookup(partition: Partition, timestamp: int, isolation: Isolation) -> Lookup:
    if timestamp == NEWEST_TIMESTAMP:
        return look_up_newest(partition, isolation)
    return look_up_time(partition, timestamp, isolation)


async def _wait_for_markers(broker: Broker, request: "ListOffsetsRequest", context: Context) -> None:
    """Wait until readers can see all writes that were made before this request, except those of open transactions.

    Topics that the client may not describe are left out: otherwise the time of the response would disclose writes to
    them.
    """
    waits = []
    all_asked = (
        (topic.name, asked)
        for topic in request.topics
        if context.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name, is_logged=False)
        for asked in topic.partitions
    )
    async for name, asked in in_turns(all_asked, at_once=BRIEF_MAX):
        # Ignore the error of this partition here: the lookup of its offset reports the error.
        with contextlib.suppress(RefusedError):
            partition = broker.partitions.require(name, asked.partition_index)
            waits.append(broker.flush.durable_future(partition, partition.end_offset))
    for wait in waits:
        if wait is not None:
            # The partition was deleted or failed during the wait. The lookup of its offset reports that error.
            with contextlib.suppress(UnavailableError):
                await wait


def _asks_only_bounds(request: "ListOffsetsRequest") -> bool:
    """Return whether the request asks only for bounds (start and end offsets), and for at most BRIEF_MAX of them."""
    return sum(len(topic.partitions) for topic in request.topics) <= BRIEF_MAX and all(
        asked.timestamp in (LATEST, EARLIEST) for topic in request.topics for asked in topic.partitions
    )


async def handle(broker: Broker, request: "ListOffsetsRequest", context: Context) -> "ListOffsetsResponse":
    """Return the offset that the request asks for in each partition."""
    time_s = request.timeout.total_seconds()
    deadline_s = asyncio.get_running_loop().time() + time_s if time_s > 0 else None
    isolation = Isolation.READ_COMMITTED if request.isolation_level == 1 else Isolation.READ_UNCOMMITTED
    if isolation is Isolation.READ_COMMITTED:
        await _wait_for_markers(broker, request, context)
    limits = LookupOptions(context.api_version, isolation, deadline_s)
    at_once = BRIEF_MAX if _asks_only_bounds(request) else 1

    async def answer(name: str, asked: "ListOffsetsPartition") -> "ListOffsetsPartitionResponse":
        try:
            context.require(Operation.DESCRIBE, ResourceType.TOPIC, name)
            offset, timestamp, epoch = await _find_offset(broker, name, asked, limits)
        except PARTITION_ERRORS as error:
            code = error_code_for(broker, error, PARTITION_CODES)
            return messages.ListOffsetsPartitionResponse(
                partition_index=asked.partition_index, error_code=code
            )
        return messages.ListOffsetsPartitionResponse(
            partition_index=asked.partition_index,
            error_code=ErrorCode.none,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=epoch,
        )

    return messages.ListOffsetsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            [
                messages.ListOffsetsTopicResponse(
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
