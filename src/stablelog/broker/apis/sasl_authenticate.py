"""SaslAuthenticate (36): one message of a SASL mechanism, and the broker's answer.

Behaviour: a failed login is answered after `connection.failed.authentication.delay.ms`, and the connection is closed.
Version notes: v1 the lifetime of the session, after which the client must authenticate again; v2 flexible.
"""

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import Broker, Context, ServedApi
from stablelog.broker.network.session import Session
from stablelog.errors import RefusedError
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
    from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse

    from stablelog.security.login import LoginAnswer

API = ServedApi(ApiKey.SASL_AUTHENTICATE, first_version=0, last_version=2, is_login=True)
messages = API.messages


async def handle(
    broker: Broker, request: "SaslAuthenticateRequest", context: Context
) -> "SaslAuthenticateResponse":
    """Process the SASL message of the request, and return the answer and the lifetime of the session."""
    try:
        answer = await authenticate(broker, context.session, request.auth_bytes)
    except RefusedError as refused:
        return messages.SaslAuthenticateResponse(
            error_code=ErrorCode(refused.code), error_message=str(refused), auth_bytes=b""
        )
    return messages.SaslAuthenticateResponse(
        error_code=ErrorCode.none,
        error_message="",  # as in Kafka, where it is not null
        auth_bytes=answer.token,
        session_lifetime=timedelta(milliseconds=answer.lifetime_ms),
    )


async def authenticate(broker: Broker, session: Session, token: bytes) -> "LoginAnswer":
    """Process a SASL message, and return the answer to the client. If the login succeeds, the session gets its
    principal.

    Raises:
        RefusedError: the login does not expect a SASL message now, or the listener has no SASL.
        LoginError: the login has failed. The error is raised only after a delay, which slows the guessing of passwords
            down.
    """
    login, begun_s = session.login, asyncio.get_running_loop().time()
    if login is None:
        raise RefusedError(
            ErrorCode.illegal_sasl_state, "SaslAuthenticate request received after successful authentication"
        )
    assert broker.logins is not None
    from stablelog.security.login import LoginError  # imported already if there is a login

    try:
        answer = await broker.logins.authenticate(session.listener.name, session.host, login, token)
    except LoginError as failed:
        broker.logins.count_failure(session.host, login, failed)
        await broker.logins.delay_failure(begun_s)
        raise
    if login.is_open:
        assert login.principal is not None
        session.principal = login.principal
    return answer
