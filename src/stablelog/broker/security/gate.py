"""The gate of a listener with SASL: which requests of a connection are answered before the login and after its session.

As in Kafka, only ApiVersions, SaslHandshake and SaslAuthenticate are answered before the login. After the end of a
session only a re-authentication is. Any other request closes the connection.
"""

import asyncio
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.broker.network.session import Session
from stablelog.errors import RefusedError
from stablelog.security.login import State
from stablelog.wire.api import APIS, ApiKey

SASL_APIS: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


async def admit(session: Session, appending: asyncio.Lock, api_key: int, version: int, now_ms: int) -> bool:
    """Decide about a request that has arrived, before it is decoded.

    Args:
        session: the session of the connection.
        appending: the lock that a request of the login holds: a client may send the first request after the login
            without waiting for the answer.
        api_key: the API of the request.
        version: the version of the request.
        now_ms: the broker's time.

    Returns:
        Whether the request is answered. False after a failed login: the connection is being closed.

    Raises:
        RefusedError: the request may not come now. The caller closes the connection.
    """
    login = session.login
    if login is None:
        return True
    if not login.is_open and api_key not in SASL_APIS:
        async with appending:
            pass
    if login.state is State.FAILED:
        return False
    if api_key in SASL_APIS:
        return True
    if login.is_open:
        if login.is_expired(now_ms):
            raise RefusedError(
                ErrorCode.illegal_sasl_state,
                f"the session of {login.principal} has ended: the client has to authenticate again in time",
            )
        return True
    if api_key == ApiKey.API_VERSIONS:
        api = APIS[api_key]
        is_known = api.first_version <= version <= api.last_version
        # A client that gets an error for its version of ApiVersions sends another one.
        if login.state is State.INITIAL and not is_known:
            return True
        if login.accept_versions_request():
            return True
    name = ApiKey(api_key).snake_name if api_key in APIS else f"API key {api_key}"
    raise RefusedError(
        ErrorCode.illegal_sasl_state,
        f"an unexpected request ({name}) on listener {session.listener.name} before the login: set security.protocol and "
        "sasl.mechanism in the client",
    )
