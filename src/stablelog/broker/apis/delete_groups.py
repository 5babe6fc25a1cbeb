"""DeleteGroups (42): delete consumer groups that have no members, with all their committed offsets.

Behaviour: the broker deletes the committed offsets of a group in several steps. The last step also deletes the group
itself. If the broker stops between two steps, or a member joins the group meanwhile, the group continues to exist, but
the offsets that were deleted already are lost.
"""

import asyncio
from typing import TYPE_CHECKING

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.loop.turns import in_turns
from stablelog.security.api_rights import on_group
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
    from kio.schema.delete_groups.v2.response import DeletableGroupResult, DeleteGroupsResponse

API = ServedApi(
    ApiKey.DELETE_GROUPS,
    first_version=0,
    last_version=2,
    is_appending=True,
    rights=(on_group(Operation.DELETE, "each group"),),
)
messages = API.messages


async def _delete_group(broker: Broker, group_id: str, context: Context) -> "DeletableGroupResult":
    """Delete a group, and return its part of the response: the id of the group and an error code, `none` if it was
    deleted.

    A group with many committed offsets is deleted in several steps. Other tasks of the event loop run between two
    steps.
    """
    denied = context.denied_code(Operation.DELETE, ResourceType.GROUP, group_id)
    if denied is not None:
        return messages.DeletableGroupResult(group_id=group_id, error_code=denied)
    while True:
        decision = broker.groups.coordinator.delete_groups([group_id], now_ms=broker.now_ms())
        broker.groups.apply_decision(decision)
        if decision.answer:
            return messages.DeletableGroupResult(group_id=group_id, error_code=decision.answer[group_id])
        await asyncio.sleep(0)


async def handle(broker: Broker, request: "DeleteGroupsRequest", context: Context) -> "DeleteGroupsResponse":
    """Delete each group that the request names, and return the error code of each group.

    An error of one group does not affect the others. The response is sent when the deletions are durable.
    """
    # Hold the lock `appending`, so that the groups of one connection change in the order of its requests.
    async with context.appending:
        group_ids = dict.fromkeys(request.groups_names)
        results = [await _delete_group(broker, group_id, context) async for group_id in in_turns(group_ids)]
    await broker.groups.wait_until_durable()
    return messages.DeleteGroupsResponse(throttle_time=NO_THROTTLE, results=tuple(results))
