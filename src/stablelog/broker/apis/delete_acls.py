"""DeleteAcls (31): delete the ACLs that filters select.

Behaviour: a filter that is not valid gets INVALID_REQUEST, and the others are applied. The deletion is durable before
the response. Without an authorizer each filter gets SECURITY_DISABLED.
Version notes: v2 flexible.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.apis.acl_messages import NO_AUTHORIZER, parse_filter, request_author
from stablelog.broker.loop.turns import in_turns
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_cluster
from stablelog.wire.acls import AclBinding, AclFilter
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.delete_acls.v3.request import DeleteAclsRequest
    from kio.schema.delete_acls.v3.response import (
        DeleteAclsFilterResult,
        DeleteAclsMatchingAcl,
        DeleteAclsResponse,
    )

API = ServedApi(
    ApiKey.DELETE_ACLS,
    first_version=1,
    last_version=3,
    is_alone=True,
    rights=(on_cluster(Operation.ALTER),),
)
messages = API.messages


def _binding_response(binding: AclBinding) -> "DeleteAclsMatchingAcl":
    return messages.DeleteAclsMatchingAcl(
        error_code=ErrorCode.none,
        error_message=None,
        resource_type=i8(binding.pattern.resource_type),
        resource_name=binding.pattern.name,
        pattern_type=i8(binding.pattern.pattern_type),
        principal=binding.principal,
        host=binding.host,
        operation=i8(binding.operation),
        permission_type=i8(binding.permission),
    )


def _refused_filter(error: RefusedError) -> "DeleteAclsFilterResult":
    return messages.DeleteAclsFilterResult(
        error_code=ErrorCode(error.code), error_message=str(error), matching_acls=()
    )


async def _delete_bindings(
    broker: Broker, request: "DeleteAclsRequest", context: Context
) -> "list[DeleteAclsFilterResult]":
    """Delete the ACLs that the valid filters select.

    Returns:
        For each filter, the ACLs that were deleted because of it, or the error for which the filter was refused.

    Raises:
        RefusedError: no ACL was deleted, because the broker has no authorizer or the disk refused the write.
    """
    context.require(Operation.ALTER, ResourceType.CLUSTER)
    if broker.acls is None:
        raise RefusedError(ErrorCode.security_disabled, NO_AUTHORIZER)
    asked: list[AclFilter | RefusedError] = []
    async for one in in_turns(request.filters):
        try:
            asked.append(parse_filter(one))
        except RefusedError as refused:
            asked.append(refused)
    valid = [one for one in asked if isinstance(one, AclFilter)]
    deleted = iter(await broker.acls.delete_bindings(valid, request_author(context)))
    return [
        _refused_filter(one)
        if isinstance(one, RefusedError)
        else messages.DeleteAclsFilterResult(
            error_code=ErrorCode.none,
            error_message=None,
            matching_acls=tuple([_binding_response(binding) async for binding in in_turns(next(deleted))]),
        )
        async for one in in_turns(asked)
    ]


async def handle(broker: Broker, request: "DeleteAclsRequest", context: Context) -> "DeleteAclsResponse":
    """Delete the ACLs that each valid filter selects, and return them."""
    try:
        results = await _delete_bindings(broker, request, context)
    except RefusedError as refused:
        results = [_refused_filter(refused)] * len(request.filters)
    return messages.DeleteAclsResponse(throttle_time=NO_THROTTLE, filter_results=tuple(results))
