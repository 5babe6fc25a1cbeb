"""OffsetFetch (9): the committed offsets of consumer groups.

Version notes: v2+ null asks for all partitions; v7+ the client can ask for stable offsets only, and gets
UNSTABLE_OFFSET_COMMIT for an offset that an open transaction may change; v8+ several groups.
"""

from kio.schema.errors import ErrorCode
from kio.schema.offset_fetch.v9.request import OffsetFetchRequest
from kio.schema.offset_fetch.v9.response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

from stablelog.broker.apis import NO_THROTTLE, Broker, Context
from stablelog.coordinators.consumer_groups.answers import FetchedOffsets


def _group(group_id: str, fetched: FetchedOffsets) -> OffsetFetchResponseGroup:
    topics: dict[str, list[OffsetFetchResponsePartitions]] = {}
    for (topic, index), offset in fetched.items():
        topics.setdefault(topic, []).append(
            OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                error_code=offset.code,
            )
        )
    return OffsetFetchResponseGroup(
        group_id=group_id,
        topics=tuple(
            OffsetFetchResponseTopics(name=topic, partitions=tuple(partitions))
            for topic, partitions in topics.items()
        ),
        error_code=ErrorCode.none,
    )


async def handle(broker: Broker, request: OffsetFetchRequest, _context: Context) -> OffsetFetchResponse:
    """Return the committed offsets, once they are durable."""
    groups = []
    for asked in request.groups:
        partitions = None
        if asked.topics is not None:
            partitions = [(topic.name, index) for topic in asked.topics for index in topic.partition_indexes]
        fetched = await broker.groups.carry_out(
            broker.groups.coordinator.fetch_offsets(
                asked.group_id, partitions, require_stable=request.require_stable
            )
        )
        groups.append(_group(asked.group_id, fetched))
    return OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))
