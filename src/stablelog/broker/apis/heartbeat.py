"""Heartbeat (12): renew a member's session, and tell the member whether to join again.

Version notes: v3+ static members.
"""

from typing import TYPE_CHECKING

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.security.api_rights import on_group
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.heartbeat.v4.request import HeartbeatRequest
    from kio.schema.heartbeat.v4.response import HeartbeatResponse

API = ServedApi(
    ApiKey.HEARTBEAT,
    first_version=0,
    last_version=4,
    repeats_request=True,
    repeats_response=True,
    rights=(on_group(Operation.READ),),
)
messages = API.messages


async def handle(broker: Broker, request: "HeartbeatRequest", context: Context) -> "HeartbeatResponse":
    """Renew the session of the member, and return an error code, which tells it whether to join again."""
    code = context.denied_code(
        Operation.READ, ResourceType.GROUP, request.group_id
    ) or await broker.groups.carry_out_decision(
        broker.groups.coordinator.heartbeat(
            request.group_id,
            request.member_id,
            request.generation_id,
            group_instance_id=request.group_instance_id,
            now_ms=broker.now_ms(),
        )
    )
    return messages.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=code)
