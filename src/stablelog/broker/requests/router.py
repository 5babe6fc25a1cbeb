"""Router: decodes request frames, calls the handler of the API of each request, and encodes the response.

A frame of any version is decoded into the newest version of its request. The handler returns a response of the newest
version, and the router encodes it in the version of the request. This module imports the declarations and handlers of
all APIs. The message classes of an API (those of the library kio) are imported at its first request, because the import
takes long.
"""

import logging
import struct
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import Broker, Context
from stablelog.broker.apis.api_versions import versions_response as versions_answer
from stablelog.broker.apis.served import handlers, served_apis
from stablelog.broker.network.connection import Connection
from stablelog.broker.network.long_messages import encode_without_blocking
from stablelog.broker.security.request_throttle import StepTimer
from stablelog.env.disk import Buffer
from stablelog.errors import RefusedError
from stablelog.wire.api import Api, ApiKey
from stablelog.wire.messages import decode_request, encode_response, import_messages

if TYPE_CHECKING:
    from stablelog.broker.requests.login_gate import LoginGate

log = logging.getLogger(__name__)

API_AND_VERSION = struct.Struct(">hhi")
APIS = served_apis()
HANDLERS = handlers()


class Router:
    """The router of one broker: it passes each request to the handler of its API and returns the encoded response.

    Attributes:
        apis: the declaration of each API, by API key: its versions, and the rights and error codes that it uses.
        handlers: the handler of each API, by API key.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._gate: LoginGate | None = None  # made for the first client that has to log in
        self.apis = APIS
        self.handlers = dict(HANDLERS)
        # The (API key, version) pairs whose message classes are imported.
        self._prepared: set[tuple[int, int]] = set()

    def prepare_api(self, api: Api, version: int) -> None:
        """Import the message classes of a version of an API, if they are not imported yet. May be called in any thread."""
        if (api.key, version) not in self._prepared:
            import_messages(api, version)
            self._prepared.add((api.key, version))

    def respond(self, connection: Connection, frame: Buffer) -> Awaitable[Sequence[Buffer] | None]:
        """Handle one request. The result is None if the client expects no response.

        On a listener with SASL, the request passes the login gate first, which refuses requests of a client that has
        not logged in. This method is not a coroutine itself, because that would cost time for each request.

        Raises:
            StablelogError: the broker does not support the API or its version, or the frame is not a valid request. The
                caller has to close the connection.
        """
        if connection.session.login is None:
            return self._respond(connection, frame)
        if self._gate is None:
            from stablelog.broker.requests.login_gate import LoginGate

            self._gate = LoginGate(self._broker, self.apis, self._respond)
        return self._gate.respond(connection, frame)

    async def _respond(
        self, connection: Connection, frame: Buffer, timer: StepTimer | None = None
    ) -> Sequence[Buffer] | None:
        """Handle one request of a client that has logged in, or of a client on a listener that requires no login.

        Args:
            connection: the connection of the client.
            frame: the request.
            timer: measures the processor time of this call, which is charged to the client's quota. None at the first
                call: if the client has a quota of processor time, the method then calls itself with a new timer.

        Returns:
            The encoded response; None if the client expects none.

        Raises:
            StablelogError: the broker does not support the API or its version, or the frame is not a valid request. The
                caller has to close the connection.
        """
        quotas = self._broker.quotas
        if timer is None and quotas.limits_time:
            timer = StepTimer()
            return await timer.run_timed(self._respond(connection, frame, timer))
        api_key, api_version, correlation_id = API_AND_VERSION.unpack_from(frame)
        api = self.apis.get(api_key)
        if api is None:
            raise RefusedError(
                ErrorCode.unsupported_version,
                f"the broker does not support the API with key {api_key}: use a client that does not "
                "need this API",
            )
        is_known = api.first_version <= api_version <= api.last_version
        if api_key == ApiKey.API_VERSIONS and not is_known:
            # An ApiVersions request of an unknown version gets a response of version 0 with error 35, so that a newer
            # client can find out the versions to use.
            refusal = versions_answer(ErrorCode.unsupported_version)
            self._broker.metrics.requests[api_key] += 1
            return encode_response(api, 0, correlation_id, refusal)
        if not is_known:
            raise RefusedError(
                ErrorCode.unsupported_version,
                f"API key {api_key} is supported in versions {api.first_version} to {api.last_version}, not {api_version}",
            )
        is_prepared = (api_key, api_version) in self._prepared
        if is_prepared and connection.decoding.is_brief(api_key, api_version, frame):
            client_id, request = decode_request(api, api_version, frame)
        else:
            client_id, request = await connection.decoding.decode_in_order(
                self._broker.message_threads, api, api_version, frame, self.prepare_api
            )
        context = self._make_context(
            connection, api_key, api_version, correlation_id, client_id, len(frame), timer
        )
        if api.is_alone:
            async with connection.appending:
                answer = await self._call_handler(api_key, request, context)
        else:
            if not api.is_appending:
                # Acquire the lock `appending`, so that this request begins after the changes of earlier requests.
                # Acquire it even if it is free: earlier requests may be waiting for it, and the lock lets them go first.
                async with connection.appending:
                    pass
            answer = await self._call_handler(api_key, request, context)
        self._broker.metrics.requests[api_key] += 1
        throttle = context.throttle
        if throttle is not None:
            answer = throttle.with_throttle_time(answer)
        if answer is None or isinstance(answer, list):
            return answer
        buffers = await encode_without_blocking(
            self._broker.message_threads,
            api,
            api_version,
            correlation_id,
            answer,
            request_size=len(frame),
        )
        if throttle is not None:
            throttle.charge_time()
        return buffers

    async def _call_handler(self, api_key: int, request: Any, context: Context) -> Any:
        """Call the handler of a request, and return its response. After an unexpected exception, take the partition
        offline whose append the handler has left incomplete, or stop the broker if the decision of a coordinator is
        incomplete.
        """
        try:
            return await self.handlers[api_key](self._broker, request, context)
        except Exception:
            self._broker.check_after_fault()
            raise

    def _make_context(
        self,
        connection: Connection,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        request_size: int,
        timer: StepTimer | None,
    ) -> Context:
        """Make the context of a request: its client, the client's rights, and the throttle of its quotas."""
        acls, quotas = self._broker.acls, self._broker.quotas
        session, access, throttle = connection.session, None, None
        if acls is not None:
            access = acls.access_of_client(str(session.principal), session.host, ApiKey(api_key).message_name)
        if quotas.limits_clients:
            throttle = quotas.begin_request(
                session.principal.name, client_id, request_size, timer, connection.mute
            )
        return Context(
            api_version,
            correlation_id,
            client_id,
            connection.appending,
            session,
            access,
            throttle,
        )
