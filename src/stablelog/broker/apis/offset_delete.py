"""OffsetDelete (47): delete committed offsets of a group, except those for topics to which members of the group are
subscribed.
"""

import asyncio
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import (
    NO_THROTTLE,
    Broker,
    Context,
    Operation,
    ResourceType,
    ServedApi,
    for_each_part,
)
from stablelog.broker.topics.partition_state import NAMES_ONLY
from stablelog.coordinators.consumer_groups.answers import CodeByPartition
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_group, on_topic
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
    from kio.schema.offset_delete.v0.response import OffsetDeleteResponse

PARTITION_CODES = NAMES_ONLY
API = ServedApi(
    ApiKey.OFFSET_DELETE,
    first_version=0,
    last_version=0,
    is_appending=True,
    rights=(on_group(Operation.DELETE), on_topic(Operation.READ)),
    codes={"": PARTITION_CODES},
)
messages = API.messages

DELETED_AT_ONCE = 500


async def _delete_offsets(
    broker: Broker, group_id: str, asked: list[TopicPartition], context: Context
) -> CodeByPartition:
    """Delete the offsets of the partitions that exist, and return the error code of each partition.

    The offsets are deleted in slices; other tasks of the event loop run between two slices.

    Raises:
        RefusedError: the group does not exist or has members, or the client may not delete its offsets. If the group
            has changed between two slices, the offsets of the earlier slices are deleted nevertheless.
    """
    context.require(Operation.DELETE, ResourceType.GROUP, group_id)
    codes: CodeByPartition = {}
    for begin in range(0, max(len(asked), 1), DELETED_AT_ONCE):
        if begin:
            await asyncio.sleep(0)
        some = asked[begin : begin + DELETED_AT_ONCE]
        refused = {
            at: code
            for at in some
            if (code := context.denied_code(Operation.READ, ResourceType.TOPIC, at[0]))
            or (code := PARTITION_CODES.code_for_state(broker.partitions.state(*at)))
        }
        known = [at for at in some if at not in refused]
        decision = broker.groups.coordinator.delete_offsets(group_id, known, now_ms=broker.now_ms())
        broker.groups.apply_decision(decision)
        answer = decision.answer
        if answer.code is not ErrorCode.none:
            reason = answer.code.name.replace("_", " ")
            raise RefusedError(answer.code, f"the offsets of group {group_id!r} cannot be deleted: {reason}")
        codes |= {**answer.partitions, **refused}
    return codes


async def handle(broker: Broker, request: "OffsetDeleteRequest", context: Context) -> "OffsetDeleteResponse":
    """Delete the offsets, wait until the deletion is durable, and return the response."""
    # Hold the lock `appending`, so that the offsets of one connection are changed in the order of its requests.
    async with context.appending:
        asked = dict.fromkeys(
            (topic.name, one.partition_index) for topic in request.topics for one in topic.partitions
        )
        try:
            codes = await _delete_offsets(broker, request.group_id, list(asked), context)
        except RefusedError as refused:
            code = refused.code
        else:
            code = ErrorCode.none
    await broker.groups.wait_until_durable()
    if code is not ErrorCode.none:
        return messages.OffsetDeleteResponse(error_code=code, throttle_time=NO_THROTTLE, topics=())
    return messages.OffsetDeleteResponse(
        error_code=ErrorCode.none,
        throttle_time=NO_THROTTLE,
        topics=await for_each_part(
            request.topics,
            lambda topic: topic.partitions,
            lambda topic, one: messages.OffsetDeleteResponsePartition(
                partition_index=one.partition_index, error_code=codes[topic.name, one.partition_index]
            ),
            lambda topic, partitions: messages.OffsetDeleteResponseTopic(
                name=topic.name, partitions=partitions
            ),
        ),
    )
