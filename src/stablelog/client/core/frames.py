"""Frames of Kafka's protocol on the client's side: a size, a header, and the body of a message. The broker responds in
the order of the requests.
"""

import struct
from collections import deque
from collections.abc import Sequence
from typing import Final

from stablelog.wire.api import ApiKey
from stablelog.wire.guard import Buffer
from stablelog.wire.message_classes import CLIENT_ID_SIZE, PREFIX

RESPONSE_SIZE_MAX: Final = 1 << 30
SIZE: Final = struct.Struct(">i")
CORRELATION_ID: Final = struct.Struct(">i")
CORRELATION_ID_MAX: Final = 0x7FFFFFFF


class ClientFrames:
    """Encodes the requests of one connection into frames, and matches each response to the oldest request in flight.

    Args:
        client_id: the name of this client in the broker's log and metrics.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id.encode()
        self._correlation_id = 0
        self._awaited: deque[tuple[int, int]] = deque()  # (correlation id, api key) of each request in flight

    @property
    def is_awaiting(self) -> bool:
        """Whether the response to at least one request has not arrived yet."""
        return bool(self._awaited)

    @property
    def next_api_key(self) -> int:
        """The API of the oldest request in flight. The next response belongs to this request."""
        assert self._awaited, "no response is due"
        return self._awaited[0][1]

    def encode_request(
        self, api_key: int, version: int, pieces: Sequence[Buffer], *, flexible: bool
    ) -> list[Buffer]:
        """Return the frame of a request, in pieces. Call `add_in_flight` when the frame is sent.

        Args:
            api_key: the request's API.
            version: the request's version.
            pieces: the encoded body of the request, in one or more pieces.
            flexible: whether the version is flexible; then the header has tagged fields.
        """
        self._correlation_id = (self._correlation_id + 1) & CORRELATION_ID_MAX
        header = (
            PREFIX.pack(api_key, version, self._correlation_id)
            + CLIENT_ID_SIZE.pack(len(self._client_id))
            + self._client_id
            + (b"\0" if flexible else b"")
        )
        size = len(header) + sum(len(piece) for piece in pieces)
        return [SIZE.pack(size) + header, *pieces]

    def add_in_flight(self, api_key: int) -> None:
        """Record that the last encoded request was sent, so that a response is due."""
        self._awaited.append((self._correlation_id, api_key))

    @property
    def awaited_count(self) -> int:
        """The number of requests in flight."""
        return len(self._awaited)

    def remove_in_flight(self) -> deque[tuple[int, int]]:
        """Forget the requests in flight, and return them, so that `restore_in_flight` can add them again. A login does
        this before it sends its own requests, because their responses must not be matched to earlier requests.
        """
        held, self._awaited = self._awaited, deque()
        return held

    def restore_in_flight(self, held: deque[tuple[int, int]]) -> None:
        """Add the requests again that `remove_in_flight` has removed."""
        assert not self._awaited, "a response is due"
        self._awaited = held

    def read_size(self, prefix: Buffer) -> int:
        """Decode the length prefix of a response. Return how many bytes of the response follow the prefix.

        Raises:
            ValueError: no response has this size.
        """
        (size,) = SIZE.unpack(prefix)
        if not CORRELATION_ID.size <= size <= RESPONSE_SIZE_MAX:
            raise ValueError(f"the broker announced a response of {size} bytes, which is not a valid size")
        return int(size)

    def match_response(self, frame: memoryview, *, flexible: bool) -> memoryview:
        """Match a response to the oldest request in flight, which is then no longer in flight. Return the body of the
        response.

        Args:
            frame: the response without its size.
            flexible: whether the version of the response is flexible: its header then has a byte more, for tagged
                fields.

        Raises:
            ValueError: the response belongs to another request.
        """
        correlation_id, api_key = self._awaited.popleft()
        if CORRELATION_ID.unpack_from(frame)[0] != correlation_id:
            raise ValueError("the broker sent a response that belongs to another request")
        return frame[CORRELATION_ID.size + (1 if flexible and api_key != ApiKey.API_VERSIONS else 0) :]
