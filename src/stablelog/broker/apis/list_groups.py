"""ListGroups (16): list the consumer groups. Version notes: v4+ filter by state; v5 filter by type."""

from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListedGroup, ListGroupsResponse

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, for_each


async def handle(broker: Broker, request: ListGroupsRequest, _context: Context) -> ListGroupsResponse:
    """Handle the request."""
    listed = await broker.groups.carry_out(
        broker.groups.coordinator.list_groups(request.states_filter, request.types_filter)
    )
    return ListGroupsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        groups=await for_each(
            listed,
            lambda group: ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type,
            ),
        ),
    )
