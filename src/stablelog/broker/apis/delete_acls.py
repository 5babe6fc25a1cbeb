"""DeleteAcls (31): SECURITY_DISABLED for each filter, as Apache Kafka without an authorizer responds.

Version notes: v2 flexible.
"""

from kio.schema.delete_acls.v3.request import DeleteAclsRequest
from kio.schema.delete_acls.v3.response import DeleteAclsFilterResult, DeleteAclsResponse
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context
from stablelog.broker.apis.authorization import NO_AUTHORIZER


async def handle(_broker: Broker, request: DeleteAclsRequest, _context: Context) -> DeleteAclsResponse:
    """Handle the request."""
    refused = DeleteAclsFilterResult(
        error_code=ErrorCode.security_disabled, error_message=NO_AUTHORIZER, matching_acls=()
    )
    return DeleteAclsResponse(throttle_time=NO_THROTTLE, filter_results=(refused,) * len(request.filters))
