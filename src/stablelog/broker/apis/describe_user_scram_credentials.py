"""DescribeUserScramCredentials (50): the mechanisms and iteration counts of users' SCRAM credentials.

Behaviour: salts and keys are not returned, as in Kafka. A request that names no user asks for all users.
"""

from collections import Counter
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi, for_each
from stablelog.security.api_rights import on_cluster
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest
    from kio.schema.describe_user_scram_credentials.v0.response import (
        DescribeUserScramCredentialsResponse,
        DescribeUserScramCredentialsResult,
    )

API = ServedApi(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    first_version=0,
    last_version=0,
    is_heavy=True,
    rights=(on_cluster(Operation.DESCRIBE),),
)
messages = API.messages


async def handle(
    broker: Broker, request: "DescribeUserScramCredentialsRequest", context: Context
) -> "DescribeUserScramCredentialsResponse":
    """Return the mechanisms and iteration counts of the users that the request names, or of all users."""
    denied = context.denied_code(Operation.DESCRIBE, ResourceType.CLUSTER)
    if denied is not None:
        return messages.DescribeUserScramCredentialsResponse(
            throttle_time=NO_THROTTLE, error_code=denied, error_message=None, results=()
        )
    users = broker.users.credentials.users
    named = Counter(user.name for user in request.users or ())

    def describe(name: str) -> "DescribeUserScramCredentialsResult":
        error, message = ErrorCode.none, None
        if named[name] > 1:
            error, message = (
                ErrorCode.duplicate_resource,
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}",
            )
        elif name not in users:
            error, message = (
                ErrorCode.resource_not_found,
                f"Attempt to describe a user credential that does not exist: {name}",
            )
        known = {} if error is not ErrorCode.none else users[name]
        return messages.DescribeUserScramCredentialsResult(
            user=name,
            error_code=error,
            error_message=message,
            credential_infos=tuple(
                messages.CredentialInfo(mechanism=mechanism.value, iterations=one.iterations)
                for mechanism, one in sorted(known.items(), key=lambda item: item[0].value)
            ),
        )

    return messages.DescribeUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        results=await for_each(named or sorted(users), describe),
    )
