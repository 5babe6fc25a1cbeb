"""DescribeTopicPartitions (75): topics with their partitions, in pages.

Behaviour: the topics are in the order of their names, and each topic is listed once. A request without topics asks for
all. A page ends after `response_partition_limit` partitions, and after PAGE_SIZE_MAX at the latest; the response then
has a cursor that names the next partition. A request with a cursor begins at that partition. The cursor's topic must be
one of the request's topics; if the request asks for all topics, the page begins at the first topic from that name on. A
partition that is opening or offline has leader -1 and an error code, as in Metadata.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, NOT_ASKED, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.loop.turns import AT_ONCE_MAX, Turn, in_turns
from stablelog.broker.topic_names import check_topic_name, is_internal
from stablelog.broker.topics.partition_state import PartitionCodes, PartitionState
from stablelog.broker.topics.topic import Topic
from stablelog.errors import RefusedError
from stablelog.security.api_rights import LEFT_OUT, on_topic
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_topic_partitions.v0.request import Cursor as AskedCursor
    from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest
    from kio.schema.describe_topic_partitions.v0.response import (
        Cursor,
        DescribeTopicPartitionsResponse,
        DescribeTopicPartitionsResponsePartition,
        DescribeTopicPartitionsResponseTopic,
    )

PARTITION_CODES = PartitionCodes(
    opening=ErrorCode.leader_not_available,
    offline=ErrorCode.leader_not_available,
    unknown=ErrorCode.unknown_topic_or_partition,
)
API = ServedApi(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    first_version=0,
    last_version=0,
    is_heavy=True,
    has_long_response=True,
    rights=(
        on_topic(Operation.DESCRIBE, "each named topic"),
        on_topic(Operation.DESCRIBE, "each topic, if all are asked for", LEFT_OUT),
    ),
    codes={"": PARTITION_CODES},
)
messages = API.messages

NO_LEADER_ID = -1
PAGE_SIZE_MAX = 2000  # Kafka's default of max.request.partition.size.limit


def _sorted_once(names: Iterable[str]) -> Iterator[str]:
    """Yield each name once, in alphabetical order. Only as many names are sorted as the caller takes."""
    heap = list(set(names))
    heapify(heap)
    while heap:
        yield heappop(heap)


def _partition_response(
    broker: Broker, topic: Topic, index: int
) -> "DescribeTopicPartitionsResponsePartition":
    here = (broker.node_id,)
    state = broker.partitions.state_in(topic, index)
    return messages.DescribeTopicPartitionsResponsePartition(
        error_code=PARTITION_CODES.code_for_state(state) or ErrorCode.none,
        partition_index=index,
        leader_id=broker.node_id if state is PartitionState.OPEN else NO_LEADER_ID,
        leader_epoch=broker.topics.leader_epoch,
        replica_nodes=here,
        isr_nodes=here,
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=here if state is PartitionState.OFFLINE else (),
    )


def _topic_error(name: str, code: ErrorCode, operations: int) -> "DescribeTopicPartitionsResponseTopic":
    return messages.DescribeTopicPartitionsResponseTopic(
        error_code=code,
        name=name,
        topic_id=None,
        is_internal=is_internal(name),
        partitions=(),
        topic_authorized_operations=operations,
    )


def _unknown_topic(name: str, operations: int) -> "DescribeTopicPartitionsResponseTopic":
    try:
        check_topic_name(name)
    except RefusedError as refused:
        return _topic_error(name, ErrorCode(refused.code), operations)
    return _topic_error(name, PARTITION_CODES.unknown, operations)


def _first_partition(cursor: "AskedCursor | None", name: str) -> int:
    return cursor.partition_index if cursor is not None and cursor.topic_name == name else 0


async def _describe_page(
    broker: Broker,
    names: Iterable[str],
    cursor: "AskedCursor | None",
    limit: int,
    context: Context,
    *,
    skips_unknown: bool,
) -> "tuple[list[DescribeTopicPartitionsResponseTopic], Cursor | None]":
    """Describe topics until the page has `limit` partitions.

    Args:
        broker: the broker.
        names: the names in the order of the response, from the cursor's on.
        cursor: where the page begins.
        limit: the largest number of partitions of the page, at least 1.
        context: the client, which may describe the topics.
        skips_unknown: whether a topic that does not exist is left out; otherwise it gets an error code.

    Returns:
        The topics, and the cursor of the next page; None if this is the last page.
    """
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    turn = Turn()
    async for name in in_turns(names, turn=turn):
        topic = broker.topics.get(name)
        if limit == 0:
            return topics, messages.Cursor(topic_name=name, partition_index=0)
        if topic is None:
            if not skips_unknown:
                topics.append(_unknown_topic(name, context.allowed_operations(ResourceType.TOPIC, name)))
            continue
        start = _first_partition(cursor, name)
        end = min(start + limit, topic.partition_count)
        partitions = [
            _partition_response(broker, topic, index)
            async for index in in_turns(range(start, end), turn=turn)
        ]
        topics.append(
            messages.DescribeTopicPartitionsResponseTopic(
                error_code=ErrorCode.none,
                name=name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=tuple(partitions),
                topic_authorized_operations=context.allowed_operations(ResourceType.TOPIC, name),
            )
        )
        if end < topic.partition_count:
            return topics, messages.Cursor(topic_name=name, partition_index=end)
        limit -= len(partitions)
    return topics, None


async def handle(
    broker: Broker, request: "DescribeTopicPartitionsRequest", context: Context
) -> "DescribeTopicPartitionsResponse":
    """Return one page of the topics that the request names, or of all topics."""
    cursor = request.cursor
    names = {topic.name for topic in request.topics}
    is_valid = cursor is None or (cursor.partition_index >= 0 and (not names or cursor.topic_name in names))
    if not is_valid:
        refused = [
            _topic_error(
                name, ErrorCode.invalid_request, context.allowed_operations(ResourceType.TOPIC, name)
            )
            async for name in in_turns(_sorted_once(names))
        ]
        return messages.DescribeTopicPartitionsResponse(
            throttle_time=NO_THROTTLE, topics=tuple(refused), next_cursor=None
        )
    first = cursor.topic_name if cursor is not None else ""
    wanted, denied = [], []
    async for name in in_turns(names or {topic.name for topic in broker.topics}, at_once=AT_ONCE_MAX):
        if not context.allows(Operation.DESCRIBE, ResourceType.TOPIC, name, is_logged=bool(names)):
            denied.append(name)
        elif name >= first:
            wanted.append(name)
    limit = max(1, min(request.response_partition_limit, PAGE_SIZE_MAX))
    topics, next_cursor = await _describe_page(
        broker, _sorted_once(wanted), cursor, limit, context, skips_unknown=not names
    )
    if names:
        # As in Kafka, these are in every page, wherever it begins and ends.
        topics += [
            _topic_error(name, ErrorCode.topic_authorization_failed, NOT_ASKED)
            async for name in in_turns(_sorted_once(denied))
        ]
    return messages.DescribeTopicPartitionsResponse(
        throttle_time=NO_THROTTLE, topics=tuple(topics), next_cursor=next_cursor
    )
