"""The gate of listeners with SASL: it refuses requests of a client that has not logged in, or whose session has ended.

As in Kafka, only ApiVersions, SaslHandshake and SaslAuthenticate are answered before the login. After the end of a
session only a new authentication is answered. A connection with any other request is closed.
"""

import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import Broker, ServedApi
from stablelog.broker.apis.sasl_authenticate import authenticate
from stablelog.broker.network.connection import Connection
from stablelog.broker.network.request_head import REQUEST_SIZE_MIN
from stablelog.broker.network.session import Session
from stablelog.env.disk import Buffer
from stablelog.errors import RefusedError
from stablelog.security.login import LoginError, LoginState
from stablelog.wire.api import ApiKey

API_AND_VERSION: Final = struct.Struct(">hh")

Respond = Callable[[Connection, Buffer], Awaitable[Sequence[Buffer] | None]]


class LoginGate:
    """The gate of all listeners with SASL: it passes on the requests of clients that have logged in, and refuses
    others.

    Args:
        broker: the broker, which verifies logins.
        apis: the APIs that the broker serves, by API key.
        respond: handles a request that the gate allows.
    """

    def __init__(self, broker: Broker, apis: Mapping[int, ServedApi], respond: Respond) -> None:
        self._broker = broker
        self._apis = apis
        self._respond = respond

    async def respond(self, connection: Connection, frame: Buffer) -> Sequence[Buffer] | None:
        """Handle one request of a client, or one SASL message without a request header: pass it on if it is allowed
        now.

        Returns:
            The response; None if there is none, because the login has failed.

        Raises:
            StablelogError: the request is not allowed before the login or after the session, or it is not valid. The
                caller has to close the connection.
        """
        session, login = connection.session, connection.session.login
        assert login is not None
        async with session.authenticating:
            if login.takes_bare_messages:
                return await self._bare_answer(connection, frame)
            if login.has_failed:
                return None
            if len(frame) < REQUEST_SIZE_MIN:
                raise RefusedError(
                    ErrorCode.illegal_sasl_state,
                    f"the frame has {len(frame)} bytes, too few for the header of a request",
                )
            api_key, version = API_AND_VERSION.unpack_from(frame)
            api = self._apis.get(api_key)
            check_allowed_now(session, api, api_key, version, self._broker.now_ms())
            if not login.is_open or (api is not None and api.is_login):
                buffers = await self._respond(connection, frame)
                if login.has_failed:
                    connection.close_when_sent()
                return buffers
        return await self._respond(connection, frame)

    async def _bare_answer(self, connection: Connection, frame: Buffer) -> Sequence[Buffer] | None:
        """Answer a bare SASL message: one without a request header, as old clients send it.

        Returns:
            The mechanism's answer. None if the login has failed: as in Kafka, the connection is closed and no answer is
            sent.
        """
        try:
            return [(await authenticate(self._broker, connection.session, bytes(frame))).token]
        except LoginError:
            connection.close()
            return None


def check_allowed_now(
    session: Session, api: ServedApi | None, api_key: int, version: int, now_ms: int
) -> None:
    """Check that a request is allowed now, before it is decoded.

    Args:
        session: the session of a client that has to log in.
        api: the API of the request; None if the broker does not serve it.
        api_key: the key of the API.
        version: the version of the request.
        now_ms: the broker's time.

    Raises:
        RefusedError: the client has not logged in, or its session has ended. The caller closes the connection.
    """
    login = session.login
    assert login is not None
    if api is not None and api.is_login:
        return
    if login.is_open:
        if login.is_expired(now_ms):
            raise RefusedError(
                ErrorCode.illegal_sasl_state,
                f"the session of {login.principal} has expired: the client must authenticate again before its session ends",
            )
        return
    if api is not None and api_key == ApiKey.API_VERSIONS:
        is_known = api.first_version <= version <= api.last_version
        # A client that gets an error for its version of ApiVersions sends another one.
        if login.state is LoginState.INITIAL and not is_known:
            return
        if login.accept_versions_request():
            return
    name = f"API key {api_key}" if api is None else ApiKey(api_key).snake_name
    raise RefusedError(
        ErrorCode.illegal_sasl_state,
        f"the client has sent {name} on listener {session.listener.name} before the login: set security.protocol and "
        "sasl.mechanism in the client",
    )
