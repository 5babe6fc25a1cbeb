"""The client's side of one connection: the encoding of requests, the decoding of responses, and the API versions of the
broker.

`client.blocking` and `client.aio` each derive a class from `BrokerConnection` that sends and receives the bytes.
`request_steps` and `request_unchanged_steps` send a message and return the response. `send_steps` and `receive_steps`
are for requests that the caller has encoded: several of them may be in flight, and the broker responds in their order.
"""

import io
import ssl
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from stablelog.client.core.frames import SIZE, ClientFrames
from stablelog.client.core.security import PLAINTEXT, SecuritySettings
from stablelog.client.core.steps import NOW, Pause, Receive, Send, Steps
from stablelog.client.responses import ClosedError, RetriableError
from stablelog.errors import AuthenticationError, UnavailableError
from stablelog.wire.api import ApiKey
from stablelog.wire.guard import Buffer, checked
from stablelog.wire.message_classes import message_class, oldest_version
from stablelog.wire.versions import adapt

CLIENT_ID: Final = "stablelog"
# Maximum of the entries of all lists in one response, such as topics and partitions.
RESPONSE_ITEMS_MAX: Final = 5_000_000
INVALID: Final = (SerialError, struct.error, ValueError, LookupError, OverflowError)  # what decoding raises
FEATURES_SINCE: Final = 3  # the first version of ApiVersions with the cluster's features
TLS_ALERT: Final = b"\x15\x03"  # the beginning of a TLS record with an alert
# The reasons of OpenSSL for which a broker ends a connection because of the client's certificate.
CERTIFICATE_ALERTS: Final = frozenset(
    {
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "SSLV3_ALERT_BAD_CERTIFICATE",  # Java's answer to a client without a certificate, too
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV1_ALERT_UNKNOWN_CA",
        "TLSV1_ALERT_ACCESS_DENIED",
    }
)
# The part of a session after which the client authenticates again; Kafka's Java client chooses 0.85 to 0.95.
RENEW_AFTER: Final = 0.85
# The requests to which a listener responds before the login.
BEFORE_LOGIN: Final = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
# Maximum of the wait for a quota: a false broker could stop the client for weeks.
THROTTLE_MAX_S: Final = 60.0
THROTTLE_EARLY_S: Final = 0.01  # a pause may end a little early
RENEW_MIN_S: Final = 1.05  # brokers refuse to authenticate a connection twice in a second


class BrokerConnection(ABC):
    """A connection to a broker, stablelog or Apache Kafka. Classes derived from this one send and receive the bytes.

    Args:
        address: "host:port".
        client_id: the name of this client in the broker's log and metrics.
        security: the security protocol, and the credentials with which `negotiate` logs in.

    Attributes:
        address: as given.
        client_id: as given.
        security: as given.
        renew_at: the time at which the client has to authenticate again, by the client's monotonic clock (`steps.Now`);
            None if its session has no end.
    """

    def __init__(
        self, address: str, client_id: str = CLIENT_ID, security: SecuritySettings = PLAINTEXT
    ) -> None:
        self.address = address
        self.client_id = client_id
        self.security = security
        self._frames = ClientFrames(client_id)
        self._versions: dict[int, tuple[int, int]] | None = None
        self._features: dict[str, int] = {}
        self.renew_at: float | None = None
        self._throttled_until: float | None = None  # before this time no request is sent
        self._has_answered = (
            False  # whether the broker has responded to a request that needs the right protocol
        )
        self._early: deque[memoryview] = deque()  # responses that were received before their `receive_steps`

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Responses that have not arrived are lost. Never waits."""

    @abstractmethod
    def after_fork(self) -> None:
        """In a forked process, close this process's copy of the socket. The parent process keeps its connection."""

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Whether the connection was closed or broke, so that no request can be sent."""

    @property
    def is_awaiting(self) -> bool:
        """Whether at least one request is in flight, so that its response has not arrived yet."""
        return self._frames.is_awaiting

    # --- versions and features ---

    def negotiate(self) -> Steps[None]:
        """Request the API versions of the broker, unless they are known, and log in.

        Raises:
            UnavailableError: the broker did not respond.
            AuthenticationError: the broker refuses the login, or the client's certificate.
        """
        if self._versions is not None:
            return
        request = message_class(ApiKey.API_VERSIONS, FEATURES_SINCE, "request")(
            client_software_name="stablelog", client_software_version="1"
        )
        answer = yield from self.request_unchanged_steps(request)
        self._features = {
            feature.name: feature.max_version_level for feature in getattr(answer, "finalized_features", ())
        }
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        yield from self.authenticate()

    def authenticate(self) -> Steps[None]:
        """Log in, or authenticate again before the session ends (KIP-368). No request may be in flight."""
        if self.security.credentials is None:
            return
        self.renew_at = None
        try:
            from stablelog.client.core.login import log_in

            lifetime_ms = yield from log_in(self, self.security.credentials)
        except BaseException:
            self.close()
            raise
        if lifetime_ms > 0:
            self.renew_at = (yield NOW) + max(RENEW_AFTER * lifetime_ms / 1000, RENEW_MIN_S)

    def _renew(self) -> Steps[None]:
        """Renew the session: authenticate again if the session is about to end. First receive the responses to the
        requests in flight, because no request may be in flight during the authentication.
        """
        if self.renew_at is None or (yield NOW) < self.renew_at:
            return
        for _ in range(self._frames.awaited_count - len(self._early)):
            self._early.append((yield from self._receive_frame()))
        held = self._frames.remove_in_flight()
        early, self._early = self._early, deque()
        yield from self.authenticate()
        self._frames.restore_in_flight(held)
        self._early = early

    @property
    def versions(self) -> dict[int, tuple[int, int]]:
        """The versions that the broker supports: API key -> (first version, last version). Call `negotiate` before."""
        assert self._versions is not None, (
            "the API versions of the broker are not known: call negotiate first"
        )
        return self._versions

    @property
    def features(self) -> dict[str, int]:
        """The cluster's finalized features and their levels, for example `transaction.version`."""
        assert self.versions is not None
        return self._features

    def supports_api(self, api_key: int, version: int = 0) -> bool:
        """Whether the broker supports this API in this version or a later one."""
        return self.versions.get(api_key, (0, -1))[1] >= version

    def newest_version(self, api_key: int, newest: int) -> int:
        """Return the newest version of an API that the client and the broker support.

        Args:
            api_key: the API.
            newest: the newest version that the client supports.

        Raises:
            UnavailableError: the broker does not support the API, or only in versions that this client does not know.
        """
        if api_key not in self.versions:
            raise UnavailableError(f"{self.address} does not support {_name(api_key)}")
        first, last = self.versions[api_key]
        version = min(last, newest)
        if version < first:
            raise UnavailableError(
                f"{self.address} supports {_name(api_key)} only from version {first} on, but this client only up to version {version}"
            )
        if version < newest and version < (oldest := oldest_version(api_key)):
            raise UnavailableError(
                f"{self.address} supports {_name(api_key)} only up to version {last}, but this client only from version {oldest} on"
            )
        return version

    # --- requests ---

    def request_steps(self, request: Any) -> Steps[Any]:
        """Send a request and return its response. The version is the newest one that the client and the broker support,
        but not above the version of `request`.

        Returns:
            The response, in the version of `request`. A field that the broker does not send has its default.

        Raises:
            UnavailableError: the broker does not support the API, or did not respond. It may have carried out the
                request.
        """
        yield from self.negotiate()
        api_key, newest = request.__api_key__, request.__version__
        version = self.newest_version(api_key, newest)
        response = yield from self.request_unchanged_steps(
            adapt(request, message_class(api_key, version, "request"))
        )
        return adapt(response, message_class(api_key, newest, "response"))

    def request_unchanged_steps(self, request: Any, response_class: Any = None) -> Steps[Any]:
        """Send a request in exactly its own version, and return the response. `response_class` is the class that
        decodes the response, for the few APIs whose class in the kio library cannot represent it; None for the class of
        the library.

        Raises:
            UnavailableError: the broker did not respond. It may have carried out the request.
        """
        api_key, version = request.__api_key__, request.__version__
        yield from self._send_message(request)
        response_class = response_class or message_class(api_key, version, "response")
        data = yield from self.receive_steps(flexible=response_class.__flexible__)
        if (
            api_key == ApiKey.API_VERSIONS
            and ErrorCode.unsupported_version.value == int.from_bytes(data[:2], "big")
            and version
        ):
            # A broker that does not know this version of ApiVersions responds in version 0.
            return (yield from self.request_unchanged_steps(message_class(api_key, 0, "request")()))
        response = self.decode_response(response_class, data)
        throttle_time = getattr(response, "throttle_time", None)
        if throttle_time:
            yield from self.set_throttle(throttle_time.total_seconds())
        return response

    def request_all_steps(self, requests: Sequence[Any]) -> Steps[list[Any]]:
        """Send several requests of one of stablelog's own APIs without waiting between them. Return the responses in
        the order of the requests.

        Raises:
            UnavailableError: not all responses have arrived. The connection is closed.
        """
        yield from self.negotiate()
        is_complete = False
        try:
            for request in requests:
                yield from self._send_message(request)
            responses = []
            for request in requests:
                response_class = message_class(request.__api_key__, request.__version__, "response")
                data = yield from self.receive_steps(flexible=response_class.__flexible__)
                responses.append(self.decode_response(response_class, data))
            is_complete = True
            return responses
        finally:
            if not is_complete:
                self.close()  # no later request must get one of the outstanding responses

    def _send_message(self, request: Any) -> Steps[None]:
        body = io.BytesIO()
        entity_writer(type(request))(body, request)
        yield from self.send_steps(
            request.__api_key__, request.__version__, [body.getbuffer()], flexible=request.__flexible__
        )

    def set_throttle(self, throttle_s: float) -> Steps[None]:
        """Delay the next request by the throttle time of a response, at most by THROTTLE_MAX_S, as Kafka's clients do
        (KIP-219). The broker sends such a time when the client is above a quota, and handles no request before it has
        passed. A client that did not wait would time out, connect again and exceed its quota further.
        """
        if throttle_s > 0:
            until = (yield NOW) + min(throttle_s, THROTTLE_MAX_S)
            self._throttled_until = max(until, self._throttled_until or until)

    def _wait_for_quota(self) -> Steps[None]:
        """Wait until the throttle time of the last response has passed.

        Raises:
            RetriableError: the call was cancelled, or its deadline has passed, before the throttle time is over.
        """
        assert self._throttled_until is not None
        left = self._throttled_until - (yield NOW)
        if left > 0:
            yield Pause(left)
            left = self._throttled_until - (yield NOW)
        if left > THROTTLE_EARLY_S:
            raise RetriableError(
                f"{self.address}: the client is above its quota, and may send its next request in {left:.1f} s"
            )
        self._throttled_until = None

    def decode_response(self, response_class: Any, data: Buffer) -> Any:
        """Decode the body of a response, and return it as an object of `response_class`.

        Raises:
            UnavailableError: the bytes are not a response of this class.
        """
        try:
            body = checked(response_class, data, 0, count_max=RESPONSE_ITEMS_MAX)
            return entity_reader(response_class)(bytes(body), 0)[0]
        except BaseException as error:
            self._break_off(error, INVALID, "sent an invalid response to", response_class.__api_key__)
            raise

    @contextmanager
    def closing_on_decode_error(self, api_key: int) -> Iterator[None]:
        """Context manager for the decoding of a response; its value is None. If the decoding in the `with` block fails,
        the connection is closed, because it is then unknown where the next response begins in the stream.

        Args:
            api_key: the API of the request, for the error message.

        Raises:
            UnavailableError: decoding failed; the connection is closed.
        """
        try:
            yield
        except BaseException as error:
            self._break_off(error, INVALID, "sent an invalid response to", api_key)
            raise

    def _break_off(
        self, error: BaseException, errors: tuple[type[Exception], ...], what: str, api_key: int
    ) -> None:
        """Close the connection after any error, also after Ctrl-C, because a request may be sent only in part, or a
        response read only in part.

        Args:
            error: the error, which the caller raises again.
            errors: the classes of errors that are converted to UnavailableError.
            what: what the broker did, for the message of UnavailableError.
            api_key: the API of the request.

        Raises:
            UnavailableError: `error` is one of `errors`.
        """
        self.close()
        if isinstance(error, ssl.SSLError) and error.reason in CERTIFICATE_ALERTS:
            from stablelog.client.core.login import certificate_message

            raise AuthenticationError(
                ErrorCode.invalid_config, certificate_message(self.address, self.security)
            ) from error
        if isinstance(error, errors):
            message = f"{self.address} {what} {_name(api_key)}: {error}"
            if isinstance(error, OSError) and not isinstance(error, TimeoutError) and not self._has_answered:
                raise ClosedError(self.address, message) from error
            raise UnavailableError(message) from error

    def send_steps(
        self, api_key: int, version: int, pieces: Sequence[Buffer], *, flexible: bool
    ) -> Steps[None]:
        """Send an encoded request without waiting for the response.

        Args:
            api_key: the API of the request.
            version: the version in which the request is encoded.
            pieces: the encoded body of the request, in one or more pieces.
            flexible: whether this version is flexible; then the header of the request has tagged fields.

        Raises:
            UnavailableError: the request could not be sent completely. The broker may have carried it out.
        """
        if self._throttled_until is not None:
            yield from self._wait_for_quota()
        if self.renew_at is not None:
            yield from self._renew()
        frame = self._frames.encode_request(api_key, version, pieces, flexible=flexible)
        try:
            yield Send(self, frame)
        except BaseException as error:
            self._break_off(error, (OSError,), "did not accept", api_key)
            raise
        self._frames.add_in_flight(api_key)

    def receive_steps(self, *, flexible: bool) -> Steps[memoryview]:
        """Receive the body of the response to the oldest request in flight.

        Args:
            flexible: whether the version of the response is flexible: its header then has a byte more, for tagged
                fields.

        Raises:
            UnavailableError: the broker did not respond. It may have carried out the request.
        """
        api_key = self._frames.next_api_key
        frame = self._early.popleft() if self._early else (yield from self._receive_frame())
        self._has_answered = self._has_answered or api_key not in BEFORE_LOGIN
        try:
            return self._frames.match_response(frame, flexible=flexible)
        except BaseException as error:
            self._break_off(error, (OSError, ValueError), "did not respond to", api_key)
            raise

    def _receive_frame(self) -> Steps[memoryview]:
        """Receive the next response, and return it without its length prefix."""
        api_key = self._frames.next_api_key
        try:
            prefix = yield Receive(self, SIZE.size)
            if self._versions is None and bytes(prefix[:2]) == TLS_ALERT:
                raise ConnectionResetError("the broker responds in TLS, and this client does not use TLS")
            return (yield Receive(self, self._frames.read_size(prefix)))  # type: ignore[no-any-return]
        except BaseException as error:
            self._break_off(error, (OSError, ValueError), "did not respond to", api_key)
            raise


def _name(api_key: int) -> str:
    try:
        return ApiKey(api_key).snake_name
    except ValueError:
        return f"API {api_key}"
