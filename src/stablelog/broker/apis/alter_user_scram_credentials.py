"""AlterUserScramCredentials (51): add, replace and remove users' SCRAM credentials (KIP-554).

Behaviour: the users without an error are changed, even if others have one. The response is sent when the changes are
durable. Clients that are logged in stay logged in: a change applies to the next login.
"""

from kio.schema.alter_user_scram_credentials.v0.request import AlterUserScramCredentialsRequest
from kio.schema.alter_user_scram_credentials.v0.response import (
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType
from stablelog.errors import RefusedError
from stablelog.security.credentials import Deletion, Outcome, Upsertion


async def handle(
    broker: Broker, request: AlterUserScramCredentialsRequest, context: Context
) -> AlterUserScramCredentialsResponse:
    """Handle the request."""
    deletions = [Deletion(one.name, one.mechanism) for one in request.deletions]
    upsertions = [
        Upsertion(one.name, one.mechanism, one.iterations, one.salt, one.salted_password)
        for one in request.upsertions
    ]
    async with context.appending:
        try:
            context.require(Operation.ALTER, ResourceType.CLUSTER)
            outcomes = await broker.users.alter(deletions, upsertions)
        except RefusedError as refused:
            names = dict.fromkeys([one.user for one in deletions] + [one.user for one in upsertions])
            outcomes = [Outcome(name, ErrorCode(refused.code), str(refused)) for name in names]
    return AlterUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            AlterUserScramCredentialsResult(user=one.user, error_code=one.code, error_message=one.message)
            for one in outcomes
        ),
    )
