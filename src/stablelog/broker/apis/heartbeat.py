"""Heartbeat (12): renew a member's session, and tell the member whether to join again. Version notes: v3+ static
members.
"""

from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.heartbeat.v4.response import HeartbeatResponse

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType


async def handle(broker: Broker, request: HeartbeatRequest, context: Context) -> HeartbeatResponse:
    """Handle the request."""
    code = context.refusal(
        Operation.READ, ResourceType.GROUP, request.group_id
    ) or await broker.groups.carry_out(
        broker.groups.coordinator.heartbeat(
            request.group_id,
            request.member_id,
            request.generation_id,
            group_instance_id=request.group_instance_id,
            now_ms=broker.now_ms(),
        )
    )
    return HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=code)
