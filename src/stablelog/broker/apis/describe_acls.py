"""DescribeAcls (29): SECURITY_DISABLED, as Apache Kafka without an authorizer responds.

Version notes: v2 flexible.
"""

from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.describe_acls.v3.response import DescribeAclsResponse
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context
from stablelog.broker.apis.authorization import NO_AUTHORIZER


async def handle(_broker: Broker, _request: DescribeAclsRequest, _context: Context) -> DescribeAclsResponse:
    """Handle the request."""
    return DescribeAclsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.security_disabled,
        error_message=NO_AUTHORIZER,
        resources=(),
    )
