"""DescribeAcls (29): list the ACLs that a filter selects.

Behaviour: without an authorizer the response is SECURITY_DISABLED, as in Apache Kafka.
Version notes: v2 flexible.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.apis.acl_messages import NO_AUTHORIZER, parse_filter
from stablelog.broker.loop.turns import in_turns
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_cluster
from stablelog.wire.acls import Pattern
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_acls.v3.request import DescribeAclsRequest
    from kio.schema.describe_acls.v3.response import (
        AclDescription,
        DescribeAclsResource,
        DescribeAclsResponse,
    )

API = ServedApi(
    ApiKey.DESCRIBE_ACLS,
    first_version=1,
    last_version=3,
    rights=(on_cluster(Operation.DESCRIBE),),
)
messages = API.messages


async def _find_resources(
    broker: Broker, request: "DescribeAclsRequest", context: Context
) -> "tuple[DescribeAclsResource, ...]":
    context.require(Operation.DESCRIBE, ResourceType.CLUSTER)
    if broker.acls is None:
        raise RefusedError(ErrorCode.security_disabled, NO_AUTHORIZER)
    resources: dict[Pattern, list[AclDescription]] = {}
    async for binding in in_turns(await broker.acls.find_bindings(parse_filter(request))):
        resources.setdefault(binding.pattern, []).append(
            messages.AclDescription(
                principal=binding.principal,
                host=binding.host,
                operation=i8(binding.operation),
                permission_type=i8(binding.permission),
            )
        )
    return tuple(
        [
            messages.DescribeAclsResource(
                resource_type=i8(pattern.resource_type),
                resource_name=pattern.name,
                pattern_type=i8(pattern.pattern_type),
                acls=tuple(found),
            )
            async for pattern, found in in_turns(resources.items())
        ]
    )


async def handle(broker: Broker, request: "DescribeAclsRequest", context: Context) -> "DescribeAclsResponse":
    """Return the ACLs that the filter selects, by resource."""
    try:
        resources = await _find_resources(broker, request, context)
    except RefusedError as refused:
        return messages.DescribeAclsResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode(refused.code),
            error_message=str(refused),
            resources=(),
        )
    return messages.DescribeAclsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, resources=resources
    )
