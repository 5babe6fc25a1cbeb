"""SyncGroup (14): the leader of a classic group sends all assignments, and each member gets its own.

Behaviour: the request of a member waits until the request of the leader has arrived.
Version notes: v3+ static members; v5 the request names a protocol, which must be the protocol of the group.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.coordinators.consumer_groups.answers import SyncAnswer, SyncRequest
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_group
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.sync_group.v5.request import SyncGroupRequest
    from kio.schema.sync_group.v5.response import SyncGroupResponse

# After this code the member sends JoinGroup. The broker refuses this JoinGroup, and the member waits before it retries.
WHILE_FULL = WhileFull(
    ErrorCode.rebalance_in_progress, is_served_from_half=True, exception="The member then joins again."
)
API = ServedApi(
    ApiKey.SYNC_GROUP,
    first_version=0,
    last_version=5,
    is_long_poll=True,
    rights=(on_group(Operation.READ),),
    while_full=WHILE_FULL,
)
messages = API.messages


async def handle(broker: Broker, request: "SyncGroupRequest", context: Context) -> "SyncGroupResponse":
    """Wait until the leader has sent the member's assignment, and return the assignment."""
    sync = SyncRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        generation=request.generation_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={given.member_id: given.assignment for given in request.assignments},
    )
    answer: SyncAnswer
    try:
        context.require(Operation.READ, ResourceType.GROUP, request.group_id)
        broker.reserve.check(WHILE_FULL)
        token = broker.groups.new_token()
        broker.groups.apply_decision(broker.groups.coordinator.sync(sync, token, now_ms=broker.now_ms()))
        answer = await broker.groups.wait_for_response(token)
    except RefusedError as refused:
        answer = SyncAnswer(ErrorCode(refused.code))
    return messages.SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=answer.code,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )
