"""JoinGroup (11): add a member to a group's next generation, and wait until that generation begins.

Behaviour: the response is sent once the generation is known, which may take as long as the group's rebalance timeout.
Version notes: v0 the session timeout is also the rebalance timeout; v4+ a new member first gets an error with its
member id, and joins again with that id; v5+ static members; v7 protocol type, and null for no protocol; v8 the reason;
v9+ the response may tell the leader that there is nothing to assign.
"""

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi, for_each
from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.coordinators.consumer_groups.answers import JoinAnswer, JoinRequest
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_group
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.join_group.v9.request import JoinGroupRequest
    from kio.schema.join_group.v9.response import JoinGroupResponse

WHILE_FULL = WhileFull(ErrorCode.coordinator_load_in_progress, is_served_from_half=True)
API = ServedApi(
    ApiKey.JOIN_GROUP,
    first_version=0,
    last_version=9,
    is_long_poll=True,
    has_long_response=True,
    rights=(on_group(Operation.READ),),
    while_full=WHILE_FULL,
)
messages = API.messages

MEMBER_ID_REQUIRED_VERSION = 4
SKIP_ASSIGNMENT_VERSION = 9
ONE_MS = timedelta(milliseconds=1)


async def handle(broker: Broker, request: "JoinGroupRequest", context: Context) -> "JoinGroupResponse":
    """Add the member to its group, wait until the next generation begins, and return the number of the generation, its
    leader and its protocol. The leader also gets the list of the members.
    """
    session_timeout_ms = request.session_timeout // ONE_MS
    rebalance_timeout_ms = request.rebalance_timeout // ONE_MS
    join = JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        fresh_id=str(uuid.uuid4()),
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        group_instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=context.client_host,
        knows_member_id_required=context.api_version >= MEMBER_ID_REQUIRED_VERSION,
        knows_skip_assignment=context.api_version >= SKIP_ASSIGNMENT_VERSION,
    )
    try:
        context.require(Operation.READ, ResourceType.GROUP, request.group_id)
        broker.reserve.check(WHILE_FULL)
        token = broker.groups.new_token()
        broker.groups.apply_decision(broker.groups.coordinator.join(join, token, now_ms=broker.now_ms()))
        answer = await broker.groups.wait_for_response(token)
    except RefusedError as refused:
        answer = JoinAnswer(ErrorCode(refused.code), member_id=request.member_id)
    return messages.JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=answer.code,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        leader=answer.leader_id,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=await for_each(
            answer.members,
            lambda member: messages.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            ),
        ),
    )
