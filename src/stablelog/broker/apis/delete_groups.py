"""DeleteGroups (42): delete consumer groups without members, with all their offsets."""

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeletableGroupResult, DeleteGroupsResponse

from stablelog.broker.apis import NO_THROTTLE, Broker, Context


async def handle(broker: Broker, request: DeleteGroupsRequest, _context: Context) -> DeleteGroupsResponse:
    """Delete each group that the request names. An error of one group does not affect the others."""
    codes = await broker.groups.carry_out(
        broker.groups.coordinator.delete_groups(request.groups_names, now_ms=broker.now_ms())
    )
    return DeleteGroupsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            DeletableGroupResult(group_id=group_id, error_code=code) for group_id, code in codes.items()
        ),
    )
