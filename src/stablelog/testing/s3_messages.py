"""The messages of the S3 server for tests: requests read from a connection, and responses."""

import asyncio
import re
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from stablelog.testing.s3_link import S3Link

XML = (("Content-Type", "application/xml"),)
KEY = re.compile(r"<Key>(.*?)</Key>")
REASONS = {
    200: "OK",
    204: "No Content",
    206: "Partial Content",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
}


class S3Request(NamedTuple):
    """One request to the S3 server. `query` has the first value of each parameter of the URL's query."""

    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        """The kind of the request, such as `put` or `list`, by which tests choose requests (`S3Fault.kind` has the
        list).
        """
        if self.method == "GET" and not self.key:
            return "list"
        if self.method == "POST" and "delete" in self.query:
            return "delete"
        if self.method == "POST":
            return "begin" if "uploads" in self.query else "complete"
        if "uploadId" in self.query:
            return {"PUT": "part", "DELETE": "abort"}[self.method]
        return self.method.lower()


class S3Response(NamedTuple):
    """One response of the S3 server. `size` is the size of the object in the response to a HEAD request, which has no
    body; None in all other responses.
    """

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    size: int | None = None

    def head(self) -> bytes:
        """Return the status and the headers as they are sent."""
        size = len(self.body) if self.size is None else self.size
        lines = [
            f"HTTP/1.1 {self.status} {REASONS.get(self.status, 'Error')}",
            f"Content-Length: {size}",
            f"Date: {formatdate(usegmt=True)}",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        return "\r\n".join([*lines, "", ""]).encode()


def error_answer(status: int, code: str, key: str = "") -> S3Response:
    """Return an error response to a request."""
    body = f"<Error><Code>{code}</Code><Message>{code}</Message><Key>{escape(key)}</Key></Error>"
    return S3Response(status, body.encode(), XML)


async def read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: S3Link
) -> S3Request | None:
    """Read the next request of a connection, its body no faster than `link` allows (a simulated network link with a
    limited rate), and return it; None at the end of the connection.
    """
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *rest = head.split("\r\n")
    method, target, _ = first.split(" ")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in rest if line)
    }
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await link.receive(reader, int(headers.get("content-length", 0)))
    parts = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
    if method == "POST" and "delete" in query:
        key = unescape((KEY.findall(body.decode()) or [""])[0])
    return S3Request(method, bucket, key, query, headers, body)
