"""ListGroups (16): list the consumer groups.

Version notes: v4+ filter by state; v5 filter by type.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi, for_each
from stablelog.broker.loop.turns import in_turns
from stablelog.security.api_rights import LEFT_OUT, on_cluster, on_group
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.list_groups.v5.request import ListGroupsRequest
    from kio.schema.list_groups.v5.response import ListGroupsResponse

API = ServedApi(
    ApiKey.LIST_GROUPS,
    first_version=0,
    last_version=5,
    is_heavy=True,
    has_long_response=True,
    rights=(
        on_cluster(Operation.DESCRIBE, without="the next right is needed"),
        on_group(Operation.DESCRIBE, "each group", LEFT_OUT),
    ),
)
messages = API.messages


async def handle(broker: Broker, request: "ListGroupsRequest", context: Context) -> "ListGroupsResponse":
    """Return the groups that are in a state and of a type which the request names, and that the client may describe."""
    listed = await broker.groups.carry_out_decision(
        broker.groups.coordinator.list_groups(request.states_filter, request.types_filter)
    )
    if not context.allows(Operation.DESCRIBE, ResourceType.CLUSTER, is_logged=False):
        listed = [
            group
            async for group in in_turns(listed)
            if context.allows(Operation.DESCRIBE, ResourceType.GROUP, group.group_id, is_logged=False)
        ]
    return messages.ListGroupsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        groups=await for_each(
            listed,
            lambda group: messages.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type,
            ),
        ),
    )
