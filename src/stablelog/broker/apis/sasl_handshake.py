"""SaslHandshake (17): the client chooses a mechanism, and gets the list of those that its listener has.

Behaviour: on a listener without SASL, error ILLEGAL_SASL_STATE, as in Kafka. A mechanism that the listener does not have
closes the connection after the response.
Version notes: after v0 the client sends the messages of the mechanism without request headers, after v1 in
SaslAuthenticate requests.
"""

import asyncio

from kio.schema.errors import ErrorCode
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

from stablelog.broker.apis import Broker, Context
from stablelog.errors import RefusedError
from stablelog.security.login import LoginError


async def handle(broker: Broker, request: SaslHandshakeRequest, context: Context) -> SaslHandshakeResponse:
    """Handle the request."""
    login, begun_s = context.session.login, asyncio.get_running_loop().time()
    if login is None:
        return SaslHandshakeResponse(error_code=ErrorCode.illegal_sasl_state, mechanisms=())
    assert broker.logins is not None
    code = ErrorCode.none
    try:
        login.handshake(request.mechanism, context.api_version, broker.now_ms())
    except LoginError as failed:
        broker.logins.failed(context.client_host, login, failed)
        await broker.logins.delay_failure(begun_s)
        code = ErrorCode(failed.code)
    except RefusedError as refused:
        code = ErrorCode(refused.code)
    return SaslHandshakeResponse(error_code=code, mechanisms=tuple(login.mechanisms))
