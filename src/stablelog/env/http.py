"""HTTP requests to authorization servers, with limits of size and time. The calls block. A response that redirects to
another address is not followed, because that could be any address.
"""

import io
import socket
import ssl
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final, NamedTuple, cast
from urllib.parse import SplitResult

from stablelog.errors import in_words

SIZE_MAX: Final = 1 << 20
TIMEOUT_S: Final = 10.0
OK: Final = 200


class HttpResponse(NamedTuple):
    """A response to an HTTP request.

    Attributes:
        status: the status code.
        content: the body, of at most SIZE_MAX bytes.
    """

    status: int
    content: bytes


class _Received(io.RawIOBase):
    """The bytes of a response as they are received from a socket, which can be read only until a deadline. The timeout
    of a socket alone would not limit the whole time, because it begins again with each byte.
    """

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._connected = connected
        self._deadline = deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a buffered reader of the bytes. http.client, which uses this object in place of a socket, calls this
        method.
        """
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._deadline - time.monotonic()
        try:
            if left_s <= 0:
                raise TimeoutError
            self._connected.settimeout(left_s)
            return self._connected.recv_into(buffer)
        except TimeoutError:
            raise OSError(f"the server has not sent all of its response within {TIMEOUT_S:g} s") from None


def send_request(url: SplitResult, headers: Mapping[str, str], form: bytes | None = None) -> HttpResponse:
    """Send an HTTP request and return the response. The wait for the response is limited to `TIMEOUT_S` seconds. The
    time for the connection and for sending the request is not part of this limit.

    Args:
        url: `https:` or `http:`. A certificate must be of an authority that the operating system trusts.
        headers: the header fields.
        form: the body of a POST request; None for a GET request.

    Raises:
        OSError, HTTPException: there is no response within the limits.
    """
    assert url.hostname is not None
    connection: HTTPConnection
    if url.scheme == "https":
        context = ssl.create_default_context()
        connection = HTTPSConnection(url.hostname, url.port, timeout=TIMEOUT_S, context=context)
    else:
        connection = HTTPConnection(url.hostname, url.port, timeout=TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    try:
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        method = "GET" if form is None else "POST"
        connection.request(method, target, form, dict(headers))
        assert connection.sock is not None
        received = cast("socket.socket", _Received(connection.sock, deadline))
        with HTTPResponse(received, method=method) as response:
            response.begin()
            content = b""
            while part := response.read1(1 << 16):
                content += part
                check_size(content)
    finally:
        connection.close()
    return HttpResponse(response.status, content)


def check_size(content: bytes) -> None:
    """Raise OSError if a document is too long."""
    if len(content) > SIZE_MAX:
        raise OSError(f"the document has more than {SIZE_MAX} bytes")


def shown_url(url: SplitResult) -> str:
    """Return a URL for messages: without user information and query, which may contain a secret."""
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


def failure_in_words(error: OSError | HTTPException) -> str:
    """Return the reason why there is no response, as text for the user."""
    return in_words(error) if isinstance(error, OSError) else type(error).__name__
