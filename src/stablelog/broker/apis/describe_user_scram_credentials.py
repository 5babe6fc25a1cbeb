"""DescribeUserScramCredentials (50): no user has credentials, because the broker has no authentication."""

from collections import Counter

from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest
from kio.schema.describe_user_scram_credentials.v0.response import (
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, for_each


async def handle(
    _broker: Broker, request: DescribeUserScramCredentialsRequest, context: Context
) -> DescribeUserScramCredentialsResponse:
    """Return an error for each user that the request names. No user means all users, of which there are none."""
    denied = context.refusal(Operation.DESCRIBE, ResourceType.CLUSTER)
    if denied is not None:
        return DescribeUserScramCredentialsResponse(
            throttle_time=NO_THROTTLE, error_code=denied, error_message=None, results=()
        )
    named = Counter(user.name for user in request.users or ())

    def describe(name: str) -> DescribeUserScramCredentialsResult:
        is_repeated = named[name] > 1
        return DescribeUserScramCredentialsResult(
            user=name,
            error_code=ErrorCode.duplicate_resource if is_repeated else ErrorCode.resource_not_found,
            error_message="the request names the user twice"
            if is_repeated
            else "the user has no credentials",
            credential_infos=(),
        )

    return DescribeUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        results=await for_each(named, describe),
    )
