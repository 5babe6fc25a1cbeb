"""DescribeGroups (15): state, members and assignments of classic groups.

Behaviour: a group of the consumer group protocol (KIP-848) is answered like a group that does not exist.
Version notes: v3+ authorized operations; v4+ instance ids; before v6 a group that does not exist is described as "Dead"
without an error.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import (
    NO_THROTTLE,
    NOT_ASKED,
    Broker,
    Context,
    Operation,
    ResourceType,
    ServedApi,
    for_each,
    for_each_part,
)
from stablelog.coordinators.consumer_groups.answers import DescribedGroup as Description
from stablelog.coordinators.consumer_groups.answers import DescribedMember
from stablelog.security.api_rights import on_group
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
    from kio.schema.describe_groups.v6.response import (
        DescribedGroup,
        DescribedGroupMember,
        DescribeGroupsResponse,
    )

API = ServedApi(
    ApiKey.DESCRIBE_GROUPS,
    first_version=0,
    last_version=6,
    is_heavy=True,
    has_long_response=True,
    rights=(on_group(Operation.DESCRIBE, "each group"),),
)
messages = API.messages

NOT_FOUND_VERSION = 6


def _group_response(
    described: Description, members: "tuple[DescribedGroupMember, ...]", operations: int, api_version: int
) -> "DescribedGroup":
    if described.code is ErrorCode.group_authorization_failed:
        return messages.DescribedGroup(
            error_code=described.code,
            error_message=None,
            group_id=described.group_id,
            group_state="",
            protocol_type="",
            protocol_data="",
            members=(),
            authorized_operations=NOT_ASKED,
        )
    is_missing = described.code is not ErrorCode.none and api_version >= NOT_FOUND_VERSION
    return messages.DescribedGroup(
        error_code=described.code if is_missing else ErrorCode.none,
        error_message=f"There is no classic group {described.group_id}." if is_missing else None,
        group_id=described.group_id,
        group_state=described.state,
        protocol_type=described.protocol_type,
        protocol_data=described.protocol_name,
        members=members,
        authorized_operations=operations,
    )


def _member_response(_group: Description, member: DescribedMember) -> "DescribedGroupMember":
    return messages.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata,
        member_assignment=member.assignment,
    )


async def handle(
    broker: Broker, request: "DescribeGroupsRequest", context: Context
) -> "DescribeGroupsResponse":
    """Describe each group that the request names.

    The description contains the present state of the coordinator. The response is sent when the records of this state
    are durable, so that it reports nothing that a crash could undo.
    """
    coordinator = broker.groups.coordinator

    def describe(group_id: str) -> Description:
        denied = context.denied_code(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        return (
            coordinator.describe([group_id]).answer[0]
            if denied is None
            else Description(denied, group_id, "")
        )

    def operations(group_id: str) -> int:
        is_asked = request.include_authorized_operations
        return context.allowed_operations(ResourceType.GROUP, group_id) if is_asked else NOT_ASKED

    described = await for_each(dict.fromkeys(request.groups), describe)
    await broker.groups.wait_until_durable()
    return messages.DescribeGroupsResponse(
        throttle_time=NO_THROTTLE,
        groups=await for_each_part(
            described,
            lambda group: group.members,
            _member_response,
            lambda group, members: _group_response(
                group, members, operations(group.group_id), context.api_version
            ),
        ),
    )
