"""A bucket of the S3 server for tests: the objects in memory, and the answer to each request."""

import hashlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from xml.sax.saxutils import escape, unescape

from stablelog.testing.s3_messages import KEY, XML, S3Request, S3Response, error_answer

KEYS_MAX = 1000  # the greatest number of keys in one page of a listing


def _up_to(key: str, prefix: str, delimiter: str) -> str:
    """Return the part of a key that a listing with a delimiter shows: up to the first delimiter after the prefix, and
    with this delimiter. For example, the key "a/b/c" with the prefix "a/" and the delimiter "/" is shown as "a/b/".
    """
    name, found, _ = key.removeprefix(prefix).partition(delimiter)
    return prefix + name + found


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


@dataclass
class S3Bucket:
    """A bucket of the simulated S3 server. Tests may change every attribute.

    Attributes:
        bucket: the name of the bucket.
        objects: the contents by key.
        written_s: by key, the time at which the object was written, by the machine's clock.
        ignores_conditions: whether a put with the condition that the object does not exist replaces an existing object,
            as on some servers that speak S3.
        lists_from: how a listing treats the key after which it should begin: `after` leaves it out, `at` lists it, and
            `all` ignores it and lists all keys, as stores of other protocols do.
    """

    bucket: str
    objects: dict[str, bytes] = field(default_factory=dict)
    written_s: dict[str, float] = field(default_factory=dict)
    ignores_conditions: bool = False
    lists_from: str = "after"

    def __post_init__(self) -> None:
        self._etags: dict[str, tuple[bytes, str]] = {}  # By key: the content and its ETag.
        self._uploads: dict[str, dict[int, bytes]] = {}

    @property
    def unfinished_uploads(self) -> int:
        """The number of multipart uploads that were begun, and neither completed nor aborted."""
        return len(self._uploads)

    def apply(self, request: S3Request) -> S3Response:
        """Carry out a request, and return the answer."""
        if request.bucket != self.bucket:
            return error_answer(404, "NoSuchBucket")
        handlers: dict[str, Callable[[S3Request], S3Response]] = {
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
        return handler(request) if handler is not None else error_answer(405, "MethodNotAllowed")

    def _put(self, request: S3Request) -> S3Response:
        is_conditional = request.headers.get("if-none-match") == "*" and not self.ignores_conditions
        if is_conditional and request.key in self.objects:
            return error_answer(412, "PreconditionFailed", request.key)
        self._write(request.key, request.body)
        return S3Response(200, headers=(("ETag", _etag(request.body)),))

    def _write(self, key: str, content: bytes) -> None:
        self.objects[key] = content
        self.written_s[key] = time.time()

    def _get(self, request: S3Request) -> S3Response:
        content = self.objects.get(request.key)
        if content is None:
            return error_answer(404, "NoSuchKey", request.key)
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
                return error_answer(416, "InvalidRange", request.key)
            status, found = 206, content[start:end]
            headers.append(("Content-Range", f"bytes {start}-{end - 1}/{len(content)}"))
        if request.method == "HEAD":
            return S3Response(status, b"", tuple(headers), len(found))
        return S3Response(status, found, tuple(headers))

    def _delete(self, request: S3Request) -> S3Response:
        if request.method == "DELETE":
            self._forget(request.key)
            return S3Response(204)
        keys = KEY.findall(
            request.body.decode()
        )  # the request is DeleteObjects, which obstore sends also for a single object
        for key in keys:
            self._forget(unescape(key))
        rows = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        return S3Response(200, f"<DeleteResult>{rows}</DeleteResult>".encode(), XML)

    def _etag_of(self, key: str) -> str:
        """Return the ETag of an object. It is computed once for each content, because the client reads many ranges of a
        large object, and each response has the ETag.
        """
        content = self.objects[key]
        known = self._etags.get(key)
        if known is None or known[0] is not content:
            known = self._etags[key] = content, _etag(content)
        return known[1]

    def _forget(self, key: str) -> None:
        self.objects.pop(key, None)
        self._etags.pop(key, None)

    def _list(self, request: S3Request) -> S3Response:
        prefix = request.query.get("prefix", "")
        begin, token = request.query.get("start-after", ""), request.query.get("continuation-token", "")
        if self.lists_from != "after":
            begin = begin[:-1] if self.lists_from == "at" else ""
        after = max(begin, token)
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
        return S3Response(200, body.encode(), XML)

    def _listed(self, key: str, *, is_directory: bool) -> str:
        if is_directory:
            return f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>"
        written = datetime.fromtimestamp(self.written_s.get(key, 0.0), UTC).isoformat(timespec="milliseconds")
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>{written.replace('+00:00', 'Z')}</LastModified>"
            f"<ETag>{escape(self._etag_of(key))}</ETag><Size>{len(self.objects[key])}</Size></Contents>"
        )

    def _begin(self, request: S3Request) -> S3Response:
        upload = uuid.uuid4().hex
        self._uploads[upload] = {}
        body = (
            f"<InitiateMultipartUploadResult><Bucket>{escape(self.bucket)}</Bucket><Key>{escape(request.key)}</Key>"
            f"<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        )
        return S3Response(200, body.encode(), XML)

    def _part(self, request: S3Request) -> S3Response:
        parts = self._uploads.get(request.query["uploadId"])
        if parts is None:
            return error_answer(404, "NoSuchUpload", request.key)
        parts[int(request.query["partNumber"])] = request.body
        return S3Response(200, headers=(("ETag", _etag(request.body)),))

    def _complete(self, request: S3Request) -> S3Response:
        parts = self._uploads.pop(request.query.get("uploadId", ""), None)
        if parts is None:
            return error_answer(404, "NoSuchUpload", request.key)
        content = b"".join(part for _, part in sorted(parts.items()))
        self._write(request.key, content)
        body = (
            f"<CompleteMultipartUploadResult><Key>{escape(request.key)}</Key><ETag>{escape(_etag(content))}</ETag>"
            "</CompleteMultipartUploadResult>"
        )
        return S3Response(200, body.encode(), XML)

    def _abort(self, request: S3Request) -> S3Response:
        self._uploads.pop(request.query["uploadId"], None)
        return S3Response(204)
