"""LeaveGroup (13): remove members from a classic group, at their own request or that of an operator.

Version notes: v3+ several members at once, static members by their instance id; v5 the reason.
"""

import asyncio
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.coordinators.consumer_groups.answers import LeavingMember
from stablelog.security.api_rights import on_group
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.leave_group.v5.request import LeaveGroupRequest
    from kio.schema.leave_group.v5.response import LeaveGroupResponse

API = ServedApi(
    ApiKey.LEAVE_GROUP,
    first_version=0,
    last_version=5,
    is_appending=True,
    rights=(on_group(Operation.READ),),
)
messages = API.messages

LEAVING_AT_ONCE = 500  # The number of members of a request that leave in one turn of the event loop.


async def handle(broker: Broker, request: "LeaveGroupRequest", context: Context) -> "LeaveGroupResponse":
    """Remove each member that the request names, and return an error code for each member. An error of one member does
    not affect the others.
    """
    denied = context.denied_code(Operation.READ, ResourceType.GROUP, request.group_id)
    if denied is not None:
        return messages.LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=denied, members=())
    code, members = ErrorCode.none, []
    # Hold the lock `appending`, so that the members of one connection leave in the order of its requests.
    async with context.appending:
        for begin in range(0, max(len(request.members), 1), LEAVING_AT_ONCE):
            if begin:
                await asyncio.sleep(0)  # Let other tasks run.
            leaving = [
                LeavingMember(member.member_id, member.group_instance_id)
                for member in request.members[begin : begin + LEAVING_AT_ONCE]
            ]
            decision = broker.groups.coordinator.leave(request.group_id, leaving, now_ms=broker.now_ms())
            broker.groups.apply_decision(decision)
            if decision.answer.code is not ErrorCode.none:
                code = decision.answer.code
                break
            members += [
                messages.MemberResponse(
                    member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=of_member
                )
                for one, of_member in decision.answer.members
            ]
    await broker.groups.wait_until_durable()
    return messages.LeaveGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        members=() if code is not ErrorCode.none else tuple(members),
    )
