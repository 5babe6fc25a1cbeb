"""OffsetFetch (9): the committed offsets of consumer groups.

Version notes: v2+ null asks for all partitions; v7+ the client can ask for stable offsets only, and gets
UNSTABLE_OFFSET_COMMIT for an offset that an open transaction may change; v8+ several groups; v9+ a member of a consumer
group names itself and its epoch.
"""

from collections.abc import Collection
from itertools import islice
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.loop.turns import in_turns
from stablelog.coordinators.consumer_groups.answers import FetchedOffset, FetchedOffsets
from stablelog.security.api_rights import LEFT_OUT, on_group, on_topic
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.offset_fetch.v9.request import OffsetFetchRequest
    from kio.schema.offset_fetch.v9.response import (
        OffsetFetchResponse,
        OffsetFetchResponseGroup,
        OffsetFetchResponsePartitions,
    )

API = ServedApi(
    ApiKey.OFFSET_FETCH,
    first_version=1,
    last_version=9,
    is_heavy=True,
    has_long_response=True,
    rights=(
        on_group(Operation.DESCRIBE, "each group"),
        on_topic(Operation.DESCRIBE, "each named topic"),
        on_topic(Operation.DESCRIBE, "each topic, if all are asked for", LEFT_OUT),
    ),
)
messages = API.messages

NO_OFFSET = FetchedOffset(ErrorCode.topic_authorization_failed)
FETCHED_AT_ONCE = 1000  # The number of partitions whose offsets are looked up in one turn of the event loop.


async def _group_response(group_id: str, fetched: FetchedOffsets) -> "OffsetFetchResponseGroup":
    topics: dict[str, list[OffsetFetchResponsePartitions]] = {}
    async for (topic, index), offset in in_turns(fetched.items()):
        topics.setdefault(topic, []).append(
            messages.OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                error_code=offset.code,
            )
        )
    return messages.OffsetFetchResponseGroup(
        group_id=group_id,
        topics=tuple(
            messages.OffsetFetchResponseTopics(name=topic, partitions=tuple(partitions))
            for topic, partitions in topics.items()
        ),
        error_code=ErrorCode.none,
    )


async def _requested_partitions(
    request: "OffsetFetchRequest",
) -> dict[str, dict[TopicPartition, None] | None]:
    """Return the partitions that the request names, by group. The value of a group is None if the request asks for all
    its partitions. Each inner dictionary is an ordered set of partitions: its values are always None.
    """
    asked: dict[str, dict[TopicPartition, None] | None] = {}
    async for group in in_turns(request.groups):
        if group.topics is None:
            asked[group.group_id] = None
            continue
        partitions = asked.setdefault(group.group_id, {})
        if partitions is not None:
            pairs = ((topic.name, index) for topic in group.topics for index in topic.partition_indexes)
            async for pair in in_turns(pairs):
                partitions[pair] = None
    return asked


async def _fetch_offsets(
    broker: Broker,
    group_id: str,
    partitions: Collection[TopicPartition] | None,
    *,
    require_stable: bool,
) -> dict[TopicPartition, FetchedOffset]:
    """Return the committed offsets of a group, once they are durable.

    Args:
        broker: the broker.
        group_id: the group.
        partitions: the partitions; None for all that have an offset.
        require_stable: whether an offset gets UNSTABLE_OFFSET_COMMIT if an open transaction may change it.
    """
    coordinator = broker.groups.coordinator
    if partitions is None or len(partitions) <= FETCHED_AT_ONCE:
        decision = coordinator.fetch_offsets(group_id, partitions, require_stable=require_stable)
        return dict(await broker.groups.carry_out_decision(decision))
    found: dict[TopicPartition, FetchedOffset] = {}
    left = iter(partitions)
    async for some in in_turns(iter(lambda: list(islice(left, FETCHED_AT_ONCE)), [])):
        found.update(coordinator.fetch_offsets(group_id, some, require_stable=require_stable).answer)
    await broker.groups.wait_until_durable()
    return found


async def handle(broker: Broker, request: "OffsetFetchRequest", context: Context) -> "OffsetFetchResponse":
    """Return the committed offsets, once they are durable. A group that is named several times is returned once."""
    groups = []
    members = {group.group_id: (group.member_id, group.member_epoch) for group in request.groups}
    async for group_id, partitions in in_turns((await _requested_partitions(request)).items()):
        code = context.denied_code(
            Operation.DESCRIBE, ResourceType.GROUP, group_id
        ) or broker.groups.coordinator.consumers.check_fetch(group_id, *members[group_id])
        if code is not ErrorCode.none:
            groups.append(messages.OffsetFetchResponseGroup(group_id=group_id, topics=(), error_code=code))
            continue
        denied: dict[TopicPartition, FetchedOffset] = {}
        if context.access is not None and partitions is not None:
            allowed: dict[TopicPartition, None] = {}
            async for asked in in_turns(partitions):
                if context.allows(Operation.DESCRIBE, ResourceType.TOPIC, asked[0]):
                    allowed[asked] = None
                else:
                    denied[asked] = NO_OFFSET
            partitions = allowed
        fetched = await _fetch_offsets(broker, group_id, partitions, require_stable=request.require_stable)
        if context.access is not None and partitions is None:
            fetched = {
                target: offset
                async for target, offset in in_turns(fetched.items())
                if context.allows(Operation.DESCRIBE, ResourceType.TOPIC, target[0], is_logged=False)
            }
        fetched.update(denied)
        groups.append(await _group_response(group_id, fetched))
    return messages.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))
