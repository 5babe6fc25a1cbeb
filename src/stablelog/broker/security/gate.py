"""The gate of a listener with SASL: which requests of a connection are answered before the login and after its session.

As in Kafka, only ApiVersions, SaslHandshake and SaslAuthenticate are answered before the login. After the end of a
session only a re-authentication is. Any other request closes the connection.
"""

from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.broker.network.session import Session
from stablelog.errors import RefusedError
from stablelog.security.login import State
from stablelog.wire.api import APIS, ApiKey

SASL_APIS: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


def admit(session: Session, api_key: int, version: int, now_ms: int) -> None:
    """Decide about a request that has arrived, before it is decoded.

    Args:
        session: the session of the connection.
        api_key: the API of the request.
        version: the version of the request.
        now_ms: the broker's time.

    Raises:
        RefusedError: the request may not come now. The caller closes the connection.
    """
    login = session.login
    if login is None or api_key in SASL_APIS:
        return
    if login.is_open:
        if login.is_expired(now_ms):
            raise RefusedError(
                ErrorCode.illegal_sasl_state,
                f"the session of {login.principal} has ended: the client has to authenticate again in time",
            )
        return
    if api_key == ApiKey.API_VERSIONS:
        api = APIS[api_key]
        is_known = api.first_version <= version <= api.last_version
        # A client that gets an error for its version of ApiVersions sends another one.
        if login.state is State.INITIAL and not is_known:
            return
        if login.accept_versions_request():
            return
    name = ApiKey(api_key).snake_name if api_key in APIS else f"API key {api_key}"
    raise RefusedError(
        ErrorCode.illegal_sasl_state,
        f"an unexpected request ({name}) on listener {session.listener.name} before the login: set security.protocol and "
        "sasl.mechanism in the client",
    )
