"""A direct request to a broker, for the APIs that confluent-kafka has no call for.

One connection, one request at a time, in the newest version that both sides speak.
"""

import io
import socket
import struct
from types import TracebackType
from typing import Any, Self

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from stablelog.errors import Refused, Unavailable
from stablelog.wire.messages import API_VERSIONS, PREFIX, api_name, message_class

TIMEOUT_S = 10.0
CLIENT_ID = b"stablelog-cli"
LENGTH = struct.Struct(">i")
API_VERSIONS_KEY = 18


class Client:
    """A connection to a broker."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S)
        except (OSError, ValueError) as error:
            raise Unavailable(f"no broker answers at {bootstrap}: {error}") from error
        self._bootstrap = bootstrap
        self._correlation_id = 0
        self._versions: dict[int, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def request_class(self, api_key: int) -> Any:
        """The class of a request in the version that is spoken; its module holds the nested ones."""
        return message_class(api_key, self._version(api_key), "request")

    def call(self, request: Any, response_class: Any = None) -> Any:
        """Send a request, and return the response; in a class of the caller's own where kio's cannot hold it.

        Raises:
            Unavailable: the broker did not answer.
        """
        api_key, version = request.__api_key__, request.__version__
        self._correlation_id += 1
        body = io.BytesIO()
        body.write(PREFIX.pack(api_key, version, self._correlation_id))
        body.write(struct.pack(">h", len(CLIENT_ID)) + CLIENT_ID)
        if request.__flexible__:
            body.write(b"\0")
        entity_writer(type(request))(body, request)
        response_class = response_class or message_class(api_key, version, "response")
        try:
            self._socket.sendall(LENGTH.pack(body.tell()) + body.getvalue())
            frame = self._receive(LENGTH.unpack(self._receive(LENGTH.size))[0])
        except OSError as error:
            raise Unavailable(f"{self._bootstrap} did not answer {api_name(api_key)}: {error}") from error
        header_size = LENGTH.size + (1 if response_class.__flexible__ and api_key != API_VERSIONS_KEY else 0)
        return entity_reader(response_class)(frame, header_size)[0]

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            chunk = self._socket.recv(size - len(received))
            if not chunk:
                raise OSError("the broker closed the connection")
            received += chunk
        return bytes(received)

    def _version(self, api_key: int) -> int:
        if self._versions is None:
            request = message_class(API_VERSIONS_KEY, 0, "request")()
            self._versions = {api.api_key: api.max_version for api in self.call(request).api_keys}
        if api_key not in self._versions:
            raise Unavailable(f"{self._bootstrap} does not speak {api_name(api_key)}")
        return min(self._versions[api_key], API_VERSIONS[api_key][1])


def check(error: ErrorCode, what: str) -> None:
    """Raise for an answer that is an error.

    Raises:
        Refused: with the error's name.
    """
    if error is not ErrorCode.none:
        raise Refused(error, f"{what}: {error.name.replace('_', ' ')}")
