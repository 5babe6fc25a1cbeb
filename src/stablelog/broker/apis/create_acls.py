"""CreateAcls (30): create ACLs.

Behaviour: an entry that is not valid gets INVALID_REQUEST, and the others are created. An ACL that exists already is a
success. The ACLs are durable before the response. Without an authorizer each entry gets SECURITY_DISABLED.
Version notes: v2 flexible.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi, for_each
from stablelog.broker.apis.acl_messages import NO_AUTHORIZER, request_author
from stablelog.broker.loop.turns import in_turns
from stablelog.errors import RefusedError
from stablelog.security import acls
from stablelog.security.api_rights import on_cluster
from stablelog.wire.acls import AclBinding, Pattern, PatternType, Permission, known
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest
    from kio.schema.create_acls.v3.response import CreateAclsResponse

API = ServedApi(
    ApiKey.CREATE_ACLS,
    first_version=1,
    last_version=3,
    is_alone=True,
    rights=(on_cluster(Operation.ALTER),),
)
messages = API.messages


def _parse_entry(asked: "AclCreation") -> AclBinding:
    """Return the ACL that an entry of the request describes.

    Raises:
        RefusedError: the entry is not valid.
    """
    binding = AclBinding(
        Pattern(
            ResourceType(known(ResourceType, asked.resource_type)),
            asked.resource_name,
            PatternType(known(PatternType, asked.resource_pattern_type)),
        ),
        asked.principal,
        acls.normal_host(asked.host),
        Operation(known(Operation, asked.operation)),
        Permission(known(Permission, asked.permission_type)),
    )
    try:
        acls.check_binding(binding)
    except ValueError as invalid:
        raise RefusedError(ErrorCode.invalid_request, str(invalid)) from invalid
    return binding


async def _create_bindings(
    broker: Broker, request: "CreateAclsRequest", context: Context
) -> list[RefusedError | None]:
    """Create the ACLs of the valid entries of the request.

    Returns:
        For each entry, the error for which it was refused; None if its ACL exists now.

    Raises:
        RefusedError: no ACL was created, because the broker has no authorizer, the client may not create ACLs, or the
            disk refused the write.
    """
    context.require(Operation.ALTER, ResourceType.CLUSTER)
    if broker.acls is None:
        raise RefusedError(ErrorCode.security_disabled, NO_AUTHORIZER)
    errors: list[RefusedError | None] = []
    bindings = []
    async for asked in in_turns(request.creations):
        try:
            bindings.append(_parse_entry(asked))
            errors.append(None)
        except RefusedError as refused:
            errors.append(refused)
    await broker.acls.create_bindings(bindings, request_author(context))
    return errors


async def handle(broker: Broker, request: "CreateAclsRequest", context: Context) -> "CreateAclsResponse":
    """Create the ACL of each valid entry, and return the error code of each entry, `none` if its ACL exists now."""
    try:
        errors = await _create_bindings(broker, request, context)
    except RefusedError as refused:
        errors = [refused] * len(request.creations)
    return messages.CreateAclsResponse(
        throttle_time=NO_THROTTLE,
        results=await for_each(
            errors,
            lambda error: messages.AclCreationResult(
                error_code=ErrorCode.none if error is None else ErrorCode(error.code),
                error_message=None if error is None else str(error),
            ),
        ),
    )
