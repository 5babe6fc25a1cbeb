"""Object stores of cloud providers, and stores in memory, through the library obstore."""

import contextlib
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import Any, cast

import obstore
from obstore import exceptions
from obstore.store import from_url

from stablelog.env.disk import Buffer
from stablelog.env.objects.attempts import (
    ExistsError,
    MissingError,
    RejectedError,
    SlowError,
    StoredObject,
    TooShortError,
    UnclearError,
    UploadPace,
)
from stablelog.env.objects.window import IDLE_S

PART_RETRIES = 3  # How often a part of an upload is repeated, so that the finished parts are kept.
# The time limit of a whole read. It is never reached: a read fails if no byte comes for IDLE_S.
READ_S_MAX = 3600
CONTENT_RATE = 64 << 10  # A small object is sent with this rate at least, in bytes a second.
REJECTED = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.NotSupportedError,
    exceptions.InvalidPathError,
    exceptions.UnknownConfigurationKeyError,
)
STATUS = re.compile(r" - (?:Server returned non-2xx status code: )?(\d{3}) ")
# Answers that say nothing about the next attempt. All others from 400 to 499 are rejections, and so are these:
# 404 (no bucket or container; a missing object has an exception class of its own) and 501 (not implemented).
UNCLEAR_STATUSES = frozenset([408, 409, 412, 416, 425, 429])
NOT_IMPLEMENTED = 501
# Codes of S3 with status 400 for a request that the network has damaged, or that came too fast.
UNCLEAR_CODES = (
    "<Code>RequestTimeout</Code>",
    "<Code>IncompleteBody</Code>",
    "<Code>BadDigest</Code>",
    "<Code>SlowDown</Code>",
    "<Code>InternalError</Code>",
)
# S3 answers a DeleteObjects request with status 200, and has an error for each key that it did not delete.
KEPT = re.compile(r"DeleteObjects request failed for key .*\(code: (\w+)\)", re.S)
FINAL_CODES = frozenset(["AccessDenied", "InvalidRequest", "MethodNotAllowed", "NotImplemented"])
# obstore has no exception class for some errors with status 404.
NO_PLACE = ("<Code>NoSuchBucket</Code>", "<Code>ContainerNotFound</Code>")
# Words in obstore's errors without a status, and what they mean.
REASONS = {
    "Received redirect without LOCATION": "the bucket is in another region: set AWS_REGION to the region of the bucket",
    "HTTP error: builder error": (
        "the address of the store begins with http://, and requests without TLS are not allowed: set "
        "stablelog.remote.allow.http=true for a broker, or --allow-http for a command"
    ),
}
# The addresses of the machine's metadata service, which obstore asks if the environment has no credentials.
METADATA = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
CREDENTIAL_NAMES = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "s3a": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "azure": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
# The names of options whose values messages may show. All other values are masked.
SHOWN = ("region", "endpoint", "bucket", "container")
# Options of the HTTP client. obstore takes them elsewhere, and panics if they are among the options of a store.
OF_CLIENT = frozenset(
    [
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "default_headers",
        "http1_only",
        "http2_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "timeout",
        "user_agent",
    ]
)
SECRET_SIZE_MIN = 4  # A shorter value is no credential, and masking it would spoil the message.
MASK = "***"
# In a message: the parameters of a URL, and the parts of an answer of S3 that repeat the credentials of the request.
CREDENTIALS = re.compile(
    r"(?<=\?)[^\s)>\"']+"
    r"|(?<=<AWSAccessKeyId>)[^<]*|(?<=<StringToSign>)[^<]*|(?<=<CanonicalRequest>)[^<]*"
    r"|(?<=<SignatureProvided>)[^<]*|(?<=<StringToSignBytes>)[^<]*|(?<=<Token-0>)[^<]*"
)


class CloudRequests:
    """An object store of a cloud provider, or in memory, through the library obstore. Each call makes one attempt of a
    request.

    Args:
        url: `s3://bucket/prefix`, `gs://...`, `az://...` or `memory:///`. Credentials and endpoints come from the
            environment variables that the provider's own tools use.
        allow_http: whether requests may be sent without TLS.
        options: further options of obstore's store, such as `aws_endpoint`.

    Raises:
        ValueError: obstore cannot open this URL.
    """

    def __init__(self, url: str, *, allow_http: bool = False, options: dict[str, str] | None = None) -> None:
        self._url = url.rstrip("/")
        # The longest first: a value may be a part of another one.
        self._secrets = sorted(
            {value for name, value in (options or {}).items() if _is_secret(name, value)},
            key=len,
            reverse=True,
        )
        _check_names(options or {})
        config = dict(options or {})
        names = {"aws_unsigned_payload", "unsigned_payload"} & {name.lower() for name in config}
        is_set = names or os.environ.get("AWS_UNSIGNED_PAYLOAD")
        if url.startswith("s3") and not allow_http and not is_set:
            # The signature of a request would have the SHA-256 of the content. TLS already proves the content, and the
            # hash takes more than half of the processor time of an upload.
            config["aws_unsigned_payload"] = "true"
        self._config = config or None
        self._allow_http = allow_http
        # The stores that write, by the time limit of their requests. obstore sets it for a whole store.
        self._writers: dict[int, tuple[Any, Any]] = {}
        self._lock = threading.Lock()
        idle = timedelta(seconds=IDLE_S)
        self._store = self._open_store({"timeout": timedelta(seconds=READ_S_MAX), "read_timeout": idle})

    def _open_store(self, limits: dict[str, timedelta], retries: dict[str, Any] | None = None) -> Any:
        arguments: dict[str, Any] = {
            "client_options": {**limits, "allow_http": self._allow_http},
            "retry_config": retries or {"max_retries": 0},
            "config": self._config,
        }
        if self._url.startswith("memory:"):
            arguments = {}
        try:
            return from_url(self._url, **arguments)
        except exceptions.BaseError as error:
            message = _in_short(error, self._secrets)
        # Outside of the handler, the new error has no context, which could show a credential.
        raise ValueError(message)

    def _write_stores(self, limit_s: float) -> tuple[Any, Any]:
        """Return a pair of obstore objects for writes, whose requests have at least the time limit `limit_s`.

        The first object makes one attempt of each request. The second one retries a failed part of an upload within the
        time limit, so that finished parts are not sent again.
        """
        if self._url.startswith("memory:"):
            return self._store, self._store
        bucket_s = math.ceil(IDLE_S)
        while bucket_s < limit_s:
            bucket_s *= 2
        limit = timedelta(seconds=bucket_s)
        with self._lock:
            if bucket_s not in self._writers:
                self._writers[bucket_s] = (
                    self._open_store({"timeout": limit}),
                    self._open_store(
                        {"timeout": limit}, {"max_retries": PART_RETRIES, "retry_timeout": limit / 2}
                    ),
                )
            return self._writers[bucket_s]

    @property
    def url(self) -> str:
        """The address of the store, without credentials."""
        return self._url

    def create(self, key: str, content: Buffer) -> None:
        """Create an object by a conditional put."""
        store, _ = self._write_stores(IDLE_S + max(len(content) - CONTENT_RATE, 0) / CONTENT_RATE)
        self._request(lambda: obstore.put(store, key, bytes(content), mode="create", use_multipart=False))

    def upload(self, key: str, pieces: Iterable[Buffer], pace: UploadPace) -> None:
        """Write an object: by one put, or in several parts if it is larger than a part. By itself, obstore would use a
        multipart upload, which takes at least three requests, even for a small object.
        """
        rest, first, size = iter(pieces), deque[Buffer](), 0
        whole, in_parts = self._write_stores(pace.limit_s)
        while size <= pace.part_size and (piece := next(rest, None)) is not None:
            first.append(piece)
            size += len(piece)
        if size <= pace.part_size:
            content = bytearray()
            while first:  # Each piece is freed when it is copied.
                content += first.popleft()
            self._request(lambda: obstore.put(whole, key, content, use_multipart=False), pace.limit_s)
            return
        sent = _Counted(first, rest)
        try:
            self._request(
                lambda: obstore.put(
                    in_parts,
                    key,
                    sent.pieces(),
                    chunk_size=pace.part_size,
                    max_concurrency=pace.parts_at_once,
                ),
                pace.limit_s,
            )
        except (UnclearError, MissingError):
            # obstore takes the answer of the store for an error if the key contains the name of an error, such as
            # InternalError or SlowDown. The key has no other writer, so its object is the one that was sent.
            if not sent.is_all or self._size_of(key) != sent.size:
                raise

    def _size_of(self, key: str) -> int | None:
        """Return the size of an object; None if it does not exist, or if the store does not respond."""
        with contextlib.suppress(UnclearError, MissingError, RejectedError):
            size: int = self._request(lambda: obstore.head(self._store, key))["size"]
            return size
        return None

    def get(self, key: str) -> bytes:
        """Return a whole object."""
        return cast("bytes", self._request(lambda: obstore.get(self._store, key).bytes().to_bytes()))

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """Return `size` bytes of an object, from byte `start` on."""
        begun_s = time.monotonic()
        try:
            found = self._request(
                lambda: memoryview(obstore.get_range(self._store, key, start=start, length=size))
            )
        except UnclearError as unclear:
            if time.monotonic() - begun_s > IDLE_S / 2:
                raise  # A store that does not answer is not asked a second time in this attempt.
            # The error may mean that the range begins after the object's end: each store has another error for that. So
            # ask for the object's size.
            if self._request(lambda: obstore.head(self._store, key))["size"] < start + size:
                raise TooShortError from unclear
            raise
        if len(found) < size:
            raise TooShortError
        return cast("memoryview", found)

    def list_after(self, directory: str, after: str) -> Iterator[StoredObject]:
        """Yield the objects in a directory whose keys are greater than `after`, in the order of keys. obstore requests
        the list in pages.
        """
        pages = self._request(
            lambda: list(
                obstore.list(self._store, prefix=f"{directory}/", offset=after or None, chunk_size=1000)
            )
        )
        listed = [
            StoredObject(one["path"], one["size"], round(one["last_modified"].timestamp() * 1000))
            for page in pages
            for one in page
            if one["path"] > after  # Azure also lists `after` itself, and Azurite all objects.
        ]
        return iter(sorted(listed))  # obstore does not sort the listing of a store in memory.

    def directories(self, directory: str) -> Iterator[str]:
        """Yield the names of the directories (parts of keys that a slash follows) in a directory, in the order of their
        bytes.
        """
        found = self._request(
            lambda: obstore.list_with_delimiter(self._store, prefix=f"{directory}/" if directory else None)
        )
        return (path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])

    def delete(self, key: str) -> None:
        """Delete an object."""
        try:
            self._request(lambda: obstore.delete(self._store, key))
        except MissingError:
            return
        except UnclearError:
            # The same as in `upload`: the answer names the key.
            try:
                self._request(lambda: obstore.head(self._store, key))
            except MissingError:
                return
            except UnclearError:
                pass
            raise

    def _request(self, request: Callable[[], Any], limit_s: float = IDLE_S) -> Any:
        begun_s = time.monotonic()
        try:
            return request()
        except (exceptions.BaseError, OSError) as error:
            failure = self._failure(error)
        if type(failure) is UnclearError and time.monotonic() - begun_s >= limit_s:
            failure = SlowError(*failure.args)
        raise failure

    def _failure(self, error: Exception) -> Exception:
        """Convert an error of obstore to one of the errors of an attempt, such as UnclearError or RejectedError."""
        text, whole = _in_short(error, self._secrets), str(error)
        if isinstance(error, (exceptions.AlreadyExistsError, exceptions.PreconditionError)):
            return ExistsError(text)
        if any(f"//{address}/" in whole for address in METADATA):
            names = CREDENTIAL_NAMES[self._url.partition(":")[0]]
            return RejectedError(
                f"credentials are missing: set {names}. The environment has none, and the metadata service of this "
                f"machine gave none ({text})"
            )
        reason = next((told for words, told in REASONS.items() if words in whole), None)
        if reason is not None:
            return RejectedError(f"{reason} ({text})")
        if isinstance(error, REJECTED) or any(words in whole for words in NO_PLACE) or _is_final(whole):
            return RejectedError(text)
        is_missing = isinstance(error, (FileNotFoundError, exceptions.NotFoundError))
        return (MissingError if is_missing else UnclearError)(text)


def _is_final(text: str) -> bool:
    """Return whether an error message of obstore contains a status or code that is final: the store would return it
    again, so that a retry cannot help.
    """
    kept = KEPT.search(text)
    if kept is not None:
        return kept[1] in FINAL_CODES
    found = STATUS.search(text)
    status = int(found[1]) if found is not None else 0
    if status == HTTPStatus.NOT_FOUND:
        return False  # of a part of an upload: the upload is gone, and not the bucket
    is_clients = 400 <= status < 500 and status not in UNCLEAR_STATUSES
    return status == NOT_IMPLEMENTED or (is_clients and not any(code in text for code in UNCLEAR_CODES))


def _check_names(options: Mapping[str, str]) -> None:
    """Check the names of the options that are passed to obstore: each must be an option of the store itself.

    Raises:
        ValueError: an option is one of the HTTP client, or is given twice under two names.
    """
    plain: dict[str, str] = {}
    for name in options:
        short = (
            name.lower()
            .removeprefix("aws_")
            .removeprefix("google_")
            .removeprefix("azure_")
            .removeprefix("storage_")
        )
        if name.lower() in OF_CLIENT:
            raise ValueError(f"{name} is an option of the HTTP client and cannot be set here: leave it out")
        if plain.setdefault(short, name) != name:
            raise ValueError(f"{plain[short]} and {name} are the same option: give one of them")


def _is_secret(name: str, value: str) -> bool:
    is_word = len(value) < SECRET_SIZE_MIN or value.lower() in ("true", "false")
    return not is_word and not any(word in name for word in SHOWN)


class _Counted:
    """The pieces of an upload, with a count of the bytes that were handed out so far.

    Attributes:
        size: the size in bytes of all pieces that were yielded.
        is_all: whether all pieces were yielded.
    """

    def __init__(self, first: deque[Buffer], rest: Iterator[Buffer]) -> None:
        self._first, self._rest = first, rest
        self.size = 0
        self.is_all = False

    def pieces(self) -> Iterator[Buffer]:
        """Yield all pieces of the content from its beginning: first those that were read in advance, each of which is
        freed after its use, and then the rest.
        """
        while self._first:
            piece = self._first.popleft()
            self.size += len(piece)
            yield piece
        for piece in self._rest:
            self.size += len(piece)
            yield piece
        self.is_all = True


def _in_short(error: Exception, secrets: Iterable[str] = ()) -> str:
    """Return the first line of an error message of obstore, without credentials. The other lines show internals of
    obstore.

    A message may contain the URL of the request with a signature, or the response of the store, which may repeat parts
    of the request. The original error is not kept as the cause, because a traceback would show it.
    """
    text = str(error).partition("\n")[0]
    for secret in secrets:
        text = text.replace(secret, MASK)
    return CREDENTIALS.sub(MASK, text)[:500]
