"""LeaveGroup (13): remove members that leave, or that an operator removes.

Version notes: v3+ several members at once, static members by their instance id; v5 the reason.
"""

from kio.schema.leave_group.v5.request import LeaveGroupRequest
from kio.schema.leave_group.v5.response import LeaveGroupResponse, MemberResponse

from stablelog.broker.apis import NO_THROTTLE, Broker, Context
from stablelog.coordinators.consumer_groups.answers import LeaveAnswer, LeavingMember


async def handle(broker: Broker, request: LeaveGroupRequest, _context: Context) -> LeaveGroupResponse:
    """Remove each member that the request names. An error of one member does not affect the others."""
    leaving = [LeavingMember(member.member_id, member.group_instance_id) for member in request.members]
    answer: LeaveAnswer = await broker.groups.carry_out(
        broker.groups.coordinator.leave(request.group_id, leaving, now_ms=broker.now_ms())
    )
    return LeaveGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=answer.code,
        members=tuple(
            MemberResponse(member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=code)
            for one, code in answer.members
        ),
    )
