"""Connection to one broker. Requests have the newest version that the client and the broker support.

The connection works with Apache Kafka, too. `ask` and `call` send a message and return the response. `send` and
`receive` are for requests that the caller has encoded. Several of these requests may be in flight; the broker responds
in their order.
"""

import io
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Self

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from stablelog.client.buffers import Buffers
from stablelog.errors import UnavailableError
from stablelog.wire.api import APIS, ApiKey
from stablelog.wire.guard import Buffer, checked
from stablelog.wire.messages import CLIENT_ID_SIZE, PREFIX, message_class
from stablelog.wire.versions import adapt

TIMEOUT_S = 10.0
RESPONSE_SIZE_MAX = 1 << 30
# Maximum of the entries of all lists in one response, such as topics and partitions.
RESPONSE_ITEMS_MAX = 5_000_000
BUFFERS_SIZE_MAX = 24 << 20  # maximum bytes of receive buffers that are kept for reuse
CLIENT_ID = "stablelog"
LENGTH = struct.Struct(">i")
CORRELATION_ID = struct.Struct(">i")
FEATURES_SINCE = 3  # the first version of ApiVersions with the cluster's features


class Connection:
    """A connection to a broker.

    Args:
        address: "host:port".
        client_id: the name of this client in the broker's log and metrics.
        timeout_s: how long the broker may take to respond.

    Attributes:
        address: as given.

    Raises:
        UnavailableError: no connection to the address can be made.
    """

    def __init__(self, address: str, *, client_id: str = CLIENT_ID, timeout_s: float = TIMEOUT_S) -> None:
        host, _, port = address.strip().rpartition(":")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (ValueError, OverflowError) as error:
            raise UnavailableError(
                f"no broker responds at {address!r}: write an address as host:port"
            ) from error
        except OSError as error:
            raise UnavailableError(f"no broker responds at {address}: {error}") from error
        self.address = address
        self._client_id = client_id.encode()
        self._correlation_id = 0
        self._buffers = Buffers(BUFFERS_SIZE_MAX)
        self._awaited: deque[tuple[int, int]] = deque()  # (correlation id, api key) of each request in flight
        self._versions: dict[int, tuple[int, int]] | None = None
        self._features: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket. Responses that have not arrived are lost."""
        self._socket.close()

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed or broke, so that no request can be sent."""
        return self._socket.fileno() < 0

    @property
    def is_awaiting(self) -> bool:
        """Whether the response to at least one request has not arrived yet."""
        return bool(self._awaited)

    # --- versions and features ---

    @property
    def versions(self) -> dict[int, tuple[int, int]]:
        """The versions that the broker supports: api key -> (first version, last version). They are requested once."""
        if self._versions is None:
            answer = self.call(
                message_class(ApiKey.API_VERSIONS, FEATURES_SINCE, "request")(
                    client_software_name="stablelog", client_software_version="1"
                )
            )
            self._features = {
                feature.name: feature.max_version_level
                for feature in getattr(answer, "finalized_features", ())
            }
            self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        return self._versions

    @property
    def features(self) -> dict[str, int]:
        """The cluster's finalized features and their levels, for example `transaction.version`."""
        assert self.versions is not None
        return self._features

    def speaks(self, api_key: int, version: int = 0) -> bool:
        """Whether the broker supports this API in this version or a later one."""
        return self.versions.get(api_key, (0, -1))[1] >= version

    def version(self, api_key: int, newest: int | None = None) -> int:
        """Return the newest version of an API that the client and the broker support, but at most `newest` if that is
        given.

        Raises:
            UnavailableError: the broker does not support the API, or only in versions that this client does not know.
        """
        if api_key not in self.versions:
            raise UnavailableError(f"{self.address} does not support {_name(api_key)}")
        first, last = self.versions[api_key]
        version = min(last, APIS[api_key].last_version if newest is None else newest)
        if version < first:
            raise UnavailableError(
                f"{self.address} supports {_name(api_key)} only from version {first} on, but this client only up to version {version}"
            )
        oldest = APIS[api_key].served_versions.start
        if version < oldest:
            raise UnavailableError(
                f"{self.address} supports {_name(api_key)} only up to version {last}, but this client only from version {oldest} on"
            )
        return version

    # --- requests ---

    def ask(self, request: Any) -> Any:
        """Send a request in the newest version that the client and the broker support, at most in the version of
        `request`.

        Returns:
            The response, in the version of `request`. A field that the broker does not send has its default.

        Raises:
            UnavailableError: the broker does not support the API, or did not respond. It may have carried out the
                request.
        """
        api_key, newest = request.__api_key__, request.__version__
        version = self.version(api_key, newest)
        response = self.call(adapt(request, message_class(api_key, version, "request")))
        return adapt(response, message_class(api_key, newest, "response"))

    def call(self, request: Any, response_class: Any = None) -> Any:
        """Send a request in its own version, and return the response. `response_class` replaces the class of the kio
        library where that class cannot represent the response.

        Raises:
            UnavailableError: the broker did not respond. It may have carried out the request.
        """
        api_key, version = request.__api_key__, request.__version__
        body = io.BytesIO()
        entity_writer(type(request))(body, request)
        self.send(api_key, version, [body.getbuffer()], flexible=request.__flexible__)
        response_class = response_class or message_class(api_key, version, "response")
        data = self.receive(flexible=response_class.__flexible__)
        if (
            api_key == ApiKey.API_VERSIONS
            and ErrorCode.unsupported_version.value == int.from_bytes(data[:2], "big")
            and version
        ):
            # A broker that does not know this version of ApiVersions responds in version 0.
            return self.call(message_class(api_key, 0, "request")())
        return self.read(response_class, data)

    def read(self, response_class: Any, data: Buffer) -> Any:
        """Decode the body of a response.

        Raises:
            UnavailableError: the bytes are not a response of this class.
        """
        with self.reading(response_class.__api_key__):
            body = checked(response_class, data, 0, count_max=RESPONSE_ITEMS_MAX)
            return entity_reader(response_class)(bytes(body), 0)[0]

    def reading(self, api_key: int) -> AbstractContextManager[None]:
        """Context for decoding a response. After a decoding error, close the connection: its next bytes cannot be
        trusted.

        Raises:
            UnavailableError: decoding failed; the connection is closed.
        """
        errors = (SerialError, struct.error, ValueError, LookupError, OverflowError)
        return self._closing_on_error(errors, f"sent an invalid response to {_name(api_key)}")

    @contextmanager
    def _closing_on_error(self, errors: tuple[type[Exception], ...], what: str) -> Iterator[None]:
        """Close the connection on any error, also on Ctrl-C: a request may be sent only in part, or a response read
        only in part.

        Args:
            errors: the classes of errors that are converted to UnavailableError.
            what: what the broker did, for the message of UnavailableError.
        """
        try:
            yield
        except errors as error:
            self.close()
            raise UnavailableError(f"{self.address} {what}: {error}") from error
        except BaseException:
            self.close()
            raise

    def send(self, api_key: int, version: int, pieces: Sequence[Buffer], *, flexible: bool) -> None:
        """Send a request without waiting for the response. Its body may be in several pieces.

        Raises:
            UnavailableError: the request could not be sent completely. The broker may have carried it out.
        """
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = (
            PREFIX.pack(api_key, version, self._correlation_id)
            + CLIENT_ID_SIZE.pack(len(self._client_id))
            + self._client_id
            + (b"\0" if flexible else b"")
        )
        size = len(header) + sum(len(piece) for piece in pieces)
        with self._closing_on_error((OSError,), f"did not accept {_name(api_key)}"):
            self._send_all([LENGTH.pack(size) + header, *pieces])
        self._awaited.append((self._correlation_id, api_key))

    def _send_all(self, pieces: list[Buffer]) -> None:
        """Send all pieces with as few copies and system calls as possible."""
        left = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        while left:
            sent = self._socket.sendmsg(left[:64])
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]

    def receive(self, *, flexible: bool) -> memoryview:
        """Receive the body of the response to the oldest request in flight.

        Args:
            flexible: whether the response's version is flexible; then its header is a byte longer.

        Raises:
            UnavailableError: the broker did not respond. It may have carried out the request.
        """
        assert self._awaited, "no response is due"
        correlation_id, api_key = self._awaited.popleft()
        with self._closing_on_error((OSError,), f"did not respond to {_name(api_key)}"):
            size = LENGTH.unpack(self._receive_exactly(LENGTH.size))[0]
            if not CORRELATION_ID.size <= size <= RESPONSE_SIZE_MAX:
                raise OSError(f"the broker announced a response of {size} bytes, which is not a valid size")
            frame = self._receive_exactly(size)
            if CORRELATION_ID.unpack_from(frame)[0] != correlation_id:
                raise OSError("the broker sent a response that belongs to another request")
        return frame[CORRELATION_ID.size + (1 if flexible and api_key != ApiKey.API_VERSIONS else 0) :]

    def _receive_exactly(self, size: int) -> memoryview:
        received = memoryview(self._buffers.take(size))
        at = 0
        while at < size:
            count = self._socket.recv_into(received[at:])
            if not count:
                raise OSError("the broker closed the connection")
            at += count
        return received


def _name(api_key: int) -> str:
    try:
        return ApiKey(api_key).snake_name
    except ValueError:
        return f"API {api_key}"
