"""SaslHandshake (17): the client chooses a SASL mechanism, and gets the list of the mechanisms of its listener.

Behaviour: a listener without SASL answers with ILLEGAL_SASL_STATE, as in Kafka. If the client chooses a mechanism that
the listener does not have, the connection is closed after the response. Version notes: after v0 the client sends SASL
messages without request headers, after v1 in SaslAuthenticate requests.
"""

import asyncio
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import Broker, Context, ServedApi
from stablelog.errors import RefusedError
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
    from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

API = ServedApi(ApiKey.SASL_HANDSHAKE, first_version=0, last_version=1, is_login=True)
messages = API.messages


async def handle(
    broker: Broker, request: "SaslHandshakeRequest", context: Context
) -> "SaslHandshakeResponse":
    """Begin the login with the SASL mechanism that the client has chosen, and return all mechanisms of the listener."""
    login, begun_s = context.session.login, asyncio.get_running_loop().time()
    if login is None:
        return messages.SaslHandshakeResponse(error_code=ErrorCode.illegal_sasl_state, mechanisms=())
    assert broker.logins is not None
    from stablelog.security.login import LoginError  # imported already if there is a login

    code = ErrorCode.none
    try:
        login.handshake(request.mechanism, context.api_version, broker.now_ms())
    except LoginError as failed:
        broker.logins.count_failure(context.client_host, login, failed)
        await broker.logins.delay_failure(begun_s)
        code = ErrorCode(failed.code)
    except RefusedError as refused:
        code = ErrorCode(refused.code)
    return messages.SaslHandshakeResponse(error_code=code, mechanisms=tuple(login.mechanisms))
