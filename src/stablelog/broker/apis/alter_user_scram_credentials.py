"""AlterUserScramCredentials (51): add, replace and remove users' SCRAM credentials (KIP-554).

Behaviour: the users without an error are changed, even if others have one. The response is sent when the changes are
durable. Clients that are logged in stay logged in: a change applies to the next login.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi, for_each
from stablelog.broker.loop.turns import in_turns
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_cluster
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.alter_user_scram_credentials.v0.request import AlterUserScramCredentialsRequest
    from kio.schema.alter_user_scram_credentials.v0.response import AlterUserScramCredentialsResponse

API = ServedApi(
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    first_version=0,
    last_version=0,
    is_appending=True,
    rights=(on_cluster(Operation.ALTER),),
)
messages = API.messages


async def handle(
    broker: Broker, request: "AlterUserScramCredentialsRequest", context: Context
) -> "AlterUserScramCredentialsResponse":
    """Change the credentials, and return for each user an error code and message; `none` if the change was made."""
    from stablelog.security.credentials import (
        AlterationOutcome,
        CredentialDeletion,
        CredentialUpsertion,
    )  # Imported here, because few brokers have users.

    async with context.appending:
        deletions = await for_each(request.deletions, lambda one: CredentialDeletion(one.name, one.mechanism))
        upsertions = await for_each(
            request.upsertions,
            lambda one: CredentialUpsertion(
                one.name, one.mechanism, one.iterations, one.salt, one.salted_password
            ),
        )
        outcomes: Sequence[AlterationOutcome]
        try:
            context.require(Operation.ALTER, ResourceType.CLUSTER)
            outcomes = await broker.users.alter_credentials(deletions, upsertions)
        except RefusedError as refused:
            code, why = ErrorCode(refused.code), str(refused)
            changes: list[CredentialDeletion | CredentialUpsertion] = [*deletions, *upsertions]
            names = dict.fromkeys([one.user async for one in in_turns(changes)])
            outcomes = await for_each(names, lambda name: AlterationOutcome(name, code, why))
    return messages.AlterUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        results=await for_each(
            outcomes,
            lambda one: messages.AlterUserScramCredentialsResult(
                user=one.user, error_code=one.code, error_message=one.message
            ),
        ),
    )
