"""An S3 server for tests. It starts in a fraction of a second, counts requests, and lets chosen requests fail.

    with serve_s3("bucket") as s3:
        store = open_store("s3://bucket/prefix", allow_http=True, options=s3.options)
        s3.fail(Fault("put", "manifest/", status=503, is_applied=True))

The server keeps objects in memory and accepts any credentials. It supports the requests that stablelog sends: objects,
ranges, conditional puts, multipart uploads and listings. It also runs as a program, for measurements:

    python -m stablelog.testing.s3 --bucket bucket --delay-ms 30
"""

import argparse
import asyncio
import contextlib
import hashlib
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

XML = (("Content-Type", "application/xml"),)
KEY = re.compile(r"<Key>(.*?)</Key>")
KEYS_MAX = 1000  # the greatest number of keys in one page of a listing
HEADER_SIZE_MAX = 64 << 10
REASONS = {200: "OK", 204: "No Content", 206: "Partial Content", 404: "Not Found", 409: "Conflict"}


@dataclass(slots=True)
class Fault:
    """A fault that a test sets for the next requests of one kind: what the server answers, and whether it applies the
    requests.

    Attributes:
        kind: `put`, `get`, `head`, `delete`, `list`, `begin`, `part`, `complete` or `abort`. The last four are the
            requests of multipart uploads.
        key: a text that the request's key must contain.
        status: the status of the answer; 0 for no answer: the connection is closed.
        is_applied: whether the server applies the request before it answers with the fault.
        cut_size: bytes of the body after which the answer ends; None for the whole answer, as without a fault.
        count: the number of requests that fail.
    """

    kind: str
    key: str = ""
    status: int = 503
    is_applied: bool = False
    cut_size: int | None = None
    count: int = 1


class Request(NamedTuple):
    """One request. `query` has the first value of each parameter."""

    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        """The kind of request, as a `Fault` names it."""
        if self.method == "GET" and not self.key:
            return "list"
        if self.method == "POST" and "delete" in self.query:
            return "delete"
        if self.method == "POST":
            return "begin" if "uploads" in self.query else "complete"
        if "uploadId" in self.query:
            return {"PUT": "part", "DELETE": "abort"}[self.method]
        return self.method.lower()


class Answer(NamedTuple):
    """One answer. `size` is the object's size in the answer to a HEAD request, whose body is empty."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    size: int | None = None


def _error(status: int, code: str, key: str = "") -> Answer:
    body = f"<Error><Code>{code}</Code><Message>{code}</Message><Key>{escape(key)}</Key></Error>"
    return Answer(status, body.encode(), XML)


def _up_to(key: str, prefix: str, delimiter: str) -> str:
    """Return a key up to the first delimiter after the prefix, as a listing with a delimiter shows it."""
    name, found, _ = key.removeprefix(prefix).partition(delimiter)
    return prefix + name + found


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


@dataclass
class S3:
    """The state of a server: one bucket. Tests may change every attribute while it runs.

    Attributes:
        bucket: the name of the bucket.
        objects: the contents by key.
        written_s: by key, the time at which the object was written, by the machine's clock.
        counts: requests by kind.
        keys: requests by kind and key.
        delay_s: the delay before each request is handled, in seconds.
        ignores_conditions: whether a conditional put replaces an object, as some servers that speak S3 do.
        port: the port on 127.0.0.1; 0 until the server runs.
    """

    bucket: str
    objects: dict[str, bytes] = field(default_factory=dict)
    written_s: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    keys: Counter[tuple[str, str]] = field(default_factory=Counter)
    delay_s: float = 0.0
    ignores_conditions: bool = False
    port: int = 0

    def __post_init__(self) -> None:
        self._faults: list[Fault] = []
        self._etags: dict[str, tuple[bytes, str]] = {}  # By key: the content and its ETag.
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._conversations: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def options(self) -> dict[str, str]:
        """Options of obstore's store that reach this server."""
        return {
            "aws_endpoint": f"http://127.0.0.1:{self.port}",
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
            "aws_region": "us-east-1",
        }

    def fail(self, fault: Fault) -> None:
        """Let the next requests of a kind fail."""
        self._faults.append(fault)

    @property
    def unfinished_uploads(self) -> int:
        """The number of multipart uploads that were begun, and neither completed nor aborted."""
        return len(self._uploads)

    # -- requests ----------------------------------------------------------------------------------------------

    def handle(self, request: Request) -> tuple[Answer | None, int | None]:
        """Handle a request. Return the answer (None for no answer), and the number of bytes after which the answer ends
        early (None for the whole answer).
        """
        kind = request.kind
        self.counts[kind] += 1
        self.keys[kind, request.key] += 1
        fault = self._fault_of(kind, request.key)
        if fault is None:
            return self._apply(request), None
        answer = self._apply(request) if fault.is_applied or fault.cut_size is not None else None
        if fault.cut_size is not None:
            return answer, fault.cut_size
        if not fault.status:
            return None, None
        return _error(fault.status, "ConditionalRequestConflict" if fault.status == 409 else "SlowDown"), None

    def _fault_of(self, kind: str, key: str) -> Fault | None:
        for fault in self._faults:
            if fault.kind == kind and fault.key in key:
                fault.count -= 1
                if not fault.count:
                    self._faults.remove(fault)
                return fault
        return None

    def _apply(self, request: Request) -> Answer:
        if request.bucket != self.bucket:
            return _error(404, "NoSuchBucket")
        handlers: dict[str, Callable[[Request], Answer]] = {
            "put": self._put,
            "get": self._get,
            "head": self._get,
            "delete": self._delete,
            "list": self._list,
            "begin": self._begin,
            "part": self._part,
            "complete": self._complete,
            "abort": self._abort,
        }
        handler = handlers.get(request.kind)
        return handler(request) if handler is not None else _error(405, "MethodNotAllowed")

    def _put(self, request: Request) -> Answer:
        is_conditional = request.headers.get("if-none-match") == "*" and not self.ignores_conditions
        if is_conditional and request.key in self.objects:
            return _error(412, "PreconditionFailed", request.key)
        self._write(request.key, request.body)
        return Answer(200, headers=(("ETag", _etag(request.body)),))

    def _write(self, key: str, content: bytes) -> None:
        self.objects[key] = content
        self.written_s[key] = time.time()

    def _get(self, request: Request) -> Answer:
        content = self.objects.get(request.key)
        if content is None:
            return _error(404, "NoSuchKey", request.key)
        headers = [
            ("ETag", self._etag_of(request.key)),
            ("Last-Modified", formatdate(usegmt=True)),
            ("Accept-Ranges", "bytes"),
        ]
        status, found = 200, content
        wanted = request.headers.get("range", "")
        if wanted.startswith("bytes="):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(len(content) - int(last), 0)
            end = min(int(last) + 1, len(content)) if first and last else len(content)
            if start >= len(content):
                return _error(416, "InvalidRange", request.key)
            status, found = 206, content[start:end]
            headers.append(("Content-Range", f"bytes {start}-{end - 1}/{len(content)}"))
        if request.method == "HEAD":
            return Answer(status, b"", tuple(headers), len(found))
        return Answer(status, found, tuple(headers))

    def _delete(self, request: Request) -> Answer:
        if request.method == "DELETE":
            self._forget(request.key)
            return Answer(204)
        keys = KEY.findall(
            request.body.decode()
        )  # the request is DeleteObjects, which obstore sends also for a single object
        for key in keys:
            self._forget(unescape(key))
        rows = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        return Answer(200, f"<DeleteResult>{rows}</DeleteResult>".encode(), XML)

    def _etag_of(self, key: str) -> str:
        """Return the ETag of an object. It is computed once for each content, because ranges of large objects are read."""
        content = self.objects[key]
        known = self._etags.get(key)
        if known is None or known[0] is not content:
            known = self._etags[key] = content, _etag(content)
        return known[1]

    def _forget(self, key: str) -> None:
        self.objects.pop(key, None)
        self._etags.pop(key, None)

    def _list(self, request: Request) -> Answer:
        prefix = request.query.get("prefix", "")
        after = max(request.query.get("start-after", ""), request.query.get("continuation-token", ""))
        keys = {key for key in self.objects if key.startswith(prefix)}
        delimiter = request.query.get("delimiter", "")
        if delimiter:
            keys = {_up_to(key, prefix, delimiter) for key in keys}
        found = sorted(key for key in keys if key > after)
        page = found[: min(int(request.query.get("max-keys", KEYS_MAX)), KEYS_MAX)]
        rows = "".join(
            self._listed(key, is_directory=bool(delimiter) and key.endswith(delimiter)) for key in page
        )
        is_cut = len(page) < len(found)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if is_cut else ""
        body = (
            f"<ListBucketResult><Name>{escape(self.bucket)}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(is_cut).lower()}</IsTruncated>{token}{rows}"
            "</ListBucketResult>"
        )
        return Answer(200, body.encode(), XML)

    def _listed(self, key: str, *, is_directory: bool) -> str:
        if is_directory:
            return f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>"
        written = datetime.fromtimestamp(self.written_s.get(key, 0.0), UTC).isoformat(timespec="milliseconds")
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>{written.replace('+00:00', 'Z')}</LastModified>"
            f"<ETag>{escape(self._etag_of(key))}</ETag><Size>{len(self.objects[key])}</Size></Contents>"
        )

    def _begin(self, request: Request) -> Answer:
        upload = uuid.uuid4().hex
        self._uploads[upload] = {}
        body = (
            f"<InitiateMultipartUploadResult><Bucket>{escape(self.bucket)}</Bucket><Key>{escape(request.key)}</Key>"
            f"<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        )
        return Answer(200, body.encode(), XML)

    def _part(self, request: Request) -> Answer:
        parts = self._uploads.get(request.query["uploadId"])
        if parts is None:
            return _error(404, "NoSuchUpload", request.key)
        parts[int(request.query["partNumber"])] = request.body
        return Answer(200, headers=(("ETag", _etag(request.body)),))

    def _complete(self, request: Request) -> Answer:
        parts = self._uploads.pop(request.query.get("uploadId", ""), None)
        if parts is None:
            return _error(404, "NoSuchUpload", request.key)
        content = b"".join(part for _, part in sorted(parts.items()))
        self._write(request.key, content)
        body = (
            f"<CompleteMultipartUploadResult><Key>{escape(request.key)}</Key><ETag>{escape(_etag(content))}</ETag>"
            "</CompleteMultipartUploadResult>"
        )
        return Answer(200, body.encode(), XML)

    def _abort(self, request: Request) -> Answer:
        self._uploads.pop(request.query["uploadId"], None)
        return Answer(204)

    # -- connections -------------------------------------------------------------------------------------------

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the requests of one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._conversations[task] = writer
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while (request := await self._next(reader, writer)) is not None:
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                answer, cut_size = self.handle(request)
                if answer is None:
                    break
                size = len(answer.body) if answer.size is None else answer.size
                lines = [
                    f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'Error')}",
                    f"Content-Length: {size}",
                    f"Date: {formatdate(usegmt=True)}",
                    *(f"{name}: {value}" for name, value in answer.headers),
                ]
                writer.write("\r\n".join([*lines, "", ""]).encode())
                writer.write(answer.body if cut_size is None else answer.body[:cut_size])
                await writer.drain()
                if cut_size is not None:
                    break
        writer.close()
        del self._conversations[task]

    async def _next(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
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
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if method == "POST" and "delete" in query:
            key = unescape((KEY.findall(body.decode()) or [""])[0])
        return Request(method, bucket, key, query, headers, body)

    async def serve(self, ready: Callable[[], object], stopped: Awaitable[object], port: int = 0) -> None:
        """Serve the requests of all connections until `stopped` is done. Call `ready` when the port is open."""
        server = await asyncio.start_server(self.converse, "127.0.0.1", port, limit=HEADER_SIZE_MAX)
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            ready()
            await stopped
            for writer in self._conversations.values():
                writer.close()
            await asyncio.gather(*self._conversations)


@contextlib.contextmanager
def serve_s3(bucket: str = "bucket", *, delay_s: float = 0.0) -> Iterator[S3]:
    """Run an S3 server in a thread of this process until the `with` block ends."""
    s3 = S3(bucket, delay_s=delay_s)
    is_up = threading.Event()
    stops: list[Callable[[], object]] = []

    async def work() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        stops.append(lambda: loop.call_soon_threadsafe(stopped.set))
        await s3.serve(is_up.set, stopped.wait())

    thread = threading.Thread(target=asyncio.run, args=(work(),), name="s3", daemon=True)
    thread.start()
    is_up.wait()
    try:
        yield s3
    finally:
        stops[0]()
        thread.join()


def main() -> None:
    """Serve as a program, until it is interrupted."""
    parser = argparse.ArgumentParser(description="An S3 server for tests. It keeps objects in memory.")
    parser.add_argument("--bucket", default="bucket", help="the name of its only bucket")
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1; 0 for any")
    parser.add_argument("--delay-ms", type=float, default=0, help="before each request is handled")
    arguments = parser.parse_args()
    s3 = S3(arguments.bucket, delay_s=arguments.delay_ms / 1000)

    async def work() -> None:
        await s3.serve(
            lambda: print(f"http://127.0.0.1:{s3.port}", flush=True),  # noqa: T201 - for the process that starts this one
            asyncio.get_running_loop().create_future(),
            arguments.port,
        )

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(work())


if __name__ == "__main__":
    main()
