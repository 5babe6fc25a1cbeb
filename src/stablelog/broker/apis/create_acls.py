"""CreateAcls (30): SECURITY_DISABLED for each ACL, as Apache Kafka without an authorizer responds.

Version notes: v2 flexible.
"""

from kio.schema.create_acls.v3.request import CreateAclsRequest
from kio.schema.create_acls.v3.response import AclCreationResult, CreateAclsResponse
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context
from stablelog.broker.apis.authorization import NO_AUTHORIZER


async def handle(_broker: Broker, request: CreateAclsRequest, _context: Context) -> CreateAclsResponse:
    """Handle the request."""
    refused = AclCreationResult(error_code=ErrorCode.security_disabled, error_message=NO_AUTHORIZER)
    return CreateAclsResponse(throttle_time=NO_THROTTLE, results=(refused,) * len(request.creations))
