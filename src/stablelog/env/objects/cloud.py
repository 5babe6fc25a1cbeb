"""Object stores of cloud providers, and stores in memory, through the library obstore."""

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, cast

import obstore
from obstore import exceptions
from obstore.store import from_url

from stablelog.env.disk import Buffer
from stablelog.env.objects.requests import (
    ExistsError,
    MissingError,
    RejectedError,
    StoredObject,
    TooShortError,
    UnclearError,
)

# The time limit of one attempt. obstore's own retries, which last up to 180 s, are off, because `ObjectStore` retries.
ATTEMPT_S_MAX = 20
PART_SIZE = 16 << 20  # The size of one part of a multipart upload, in bytes. Stores allow 10,000 parts.
PARTS_AT_ONCE = 4
REJECTED = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.NotSupportedError,
    exceptions.InvalidPathError,
    exceptions.UnknownConfigurationKeyError,
)
# obstore has no exception class for some errors. If the error's message contains one of these texts, the access rights,
# the bucket or the container are wrong.
REJECTIONS = (
    "<Code>NoSuchBucket</Code>",
    "<Code>ContainerNotFound</Code>",
    "<Code>AccessDenied</Code>",
    "code: AccessDenied",
    " 403 Forbidden",
    " 401 Unauthorized",
)
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
    """A store that the library obstore supports. Each call makes one attempt of a request.

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
        client: dict[str, Any] = {"timeout": timedelta(seconds=ATTEMPT_S_MAX), "allow_http": allow_http}
        retries = {"max_retries": 0}
        config = dict(options or {})
        names = {"aws_unsigned_payload", "unsigned_payload"} & {name.lower() for name in config}
        is_set = names or os.environ.get("AWS_UNSIGNED_PAYLOAD")
        if url.startswith("s3") and not allow_http and not is_set:
            # The signature of a request would have the SHA-256 of the content. TLS already proves the content, and the
            # hash takes more than half of the processor time of an upload.
            config["aws_unsigned_payload"] = "true"
        arguments: dict[str, Any] = {
            "client_options": client,
            "retry_config": retries,
            "config": config or None,
        }
        if url.startswith("memory:"):
            arguments = {}
        try:
            self._store: Any = from_url(url, **arguments)
            return
        except exceptions.BaseError as error:
            message = _in_short(error, self._secrets)
        # Outside of the handler, the new error has no context, which could show a credential.
        raise ValueError(message)

    @property
    def url(self) -> str:
        """The address of the store, without credentials."""
        return self._url

    def create(self, key: str, content: Buffer) -> None:
        """Create an object by a conditional put."""
        self._ask(lambda: obstore.put(self._store, key, bytes(content), mode="create", use_multipart=False))

    def upload(self, key: str, pieces: Iterable[Buffer]) -> None:
        """Write an object: by one put, or in several parts if it has more than PART_SIZE bytes. obstore itself begins a
        multipart upload also for a small object, and that is three requests.
        """
        rest, first, size = iter(pieces), deque[Buffer](), 0
        while size <= PART_SIZE and (piece := next(rest, None)) is not None:
            first.append(piece)
            size += len(piece)
        if size <= PART_SIZE:
            content = bytearray()
            while first:  # Each piece is freed when it is copied.
                content += first.popleft()
            self._ask(lambda: obstore.put(self._store, key, content, use_multipart=False))
            return
        self._ask(
            lambda: obstore.put(
                self._store, key, _chained(first, rest), chunk_size=PART_SIZE, max_concurrency=PARTS_AT_ONCE
            )
        )

    def get(self, key: str) -> bytes:
        """Return a whole object."""
        return cast("bytes", self._ask(lambda: obstore.get(self._store, key).bytes().to_bytes()))

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """Return `size` bytes of an object, from byte `start` on."""
        begun_s = time.monotonic()
        try:
            found = self._ask(
                lambda: memoryview(obstore.get_range(self._store, key, start=start, length=size))
            )
        except UnclearError as unclear:
            if time.monotonic() - begun_s > ATTEMPT_S_MAX / 2:
                raise  # A store that does not answer is not asked a second time in this attempt.
            # The error may mean that the range begins after the object's end: each store has another error for that. So
            # ask for the object's size.
            if self._ask(lambda: obstore.head(self._store, key))["size"] < start + size:
                raise TooShortError from unclear
            raise
        if len(found) < size:
            raise TooShortError
        return cast("memoryview", found)

    def list_after(self, directory: str, after: str) -> Iterator[StoredObject]:
        """Return the objects in a directory whose keys are greater than `after`. obstore requests the list in pages."""
        pages = self._ask(
            lambda: list(
                obstore.list(self._store, prefix=f"{directory}/", offset=after or None, chunk_size=1000)
            )
        )
        listed = [
            StoredObject(one["path"], one["size"], round(one["last_modified"].timestamp() * 1000))
            for page in pages
            for one in page
        ]
        return iter(sorted(listed))  # obstore does not sort the listing of a store in memory.

    def directories(self, directory: str) -> Iterator[str]:
        """Return the names of the directories in a directory."""
        found = self._ask(
            lambda: obstore.list_with_delimiter(self._store, prefix=f"{directory}/" if directory else None)
        )
        return (path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])

    def delete(self, key: str) -> None:
        """Delete an object."""
        with contextlib.suppress(MissingError):
            self._ask(lambda: obstore.delete(self._store, key))

    def _ask(self, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except (exceptions.BaseError, OSError) as error:
            failure = self._failure(error)
        raise failure

    def _failure(self, error: Exception) -> Exception:
        """Return the error of an attempt for an error of obstore."""
        text = _in_short(error, self._secrets)
        if isinstance(error, (exceptions.AlreadyExistsError, exceptions.PreconditionError)):
            return ExistsError(text)
        if isinstance(error, REJECTED) or any(words in str(error) for words in REJECTIONS):
            return RejectedError(text)
        is_missing = isinstance(error, (FileNotFoundError, exceptions.NotFoundError))
        return (MissingError if is_missing else UnclearError)(text)


def _check_names(options: Mapping[str, str]) -> None:
    """Check that obstore can take the options as those of a store.

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
            raise ValueError(f"{name} is an option of the HTTP client, which cannot be set here")
        if plain.setdefault(short, name) != name:
            raise ValueError(f"{plain[short]} and {name} are the same option: give one of them")


def _is_secret(name: str, value: str) -> bool:
    is_word = len(value) < SECRET_SIZE_MIN or value.lower() in ("true", "false")
    return not is_word and not any(word in name for word in SHOWN)


def _chained(first: deque[Buffer], rest: Iterator[Buffer]) -> Iterator[Buffer]:
    """Yield the pieces in `first`, which are freed one after another, and then the others."""
    while first:
        yield first.popleft()
    yield from rest


def _in_short(error: Exception, secrets: Iterable[str] = ()) -> str:
    """Return the first line of obstore's error message, without credentials. The other lines show internal objects of
    obstore.

    Some messages contain the URL of the request, whose parameters may be a signature, or the answer of the store, which
    may repeat parts of the request. The errors of obstore are not kept as causes, because a traceback would show them.
    """
    text = str(error).partition("\n")[0]
    for secret in secrets:
        text = text.replace(secret, MASK)
    return CREDENTIALS.sub(MASK, text)[:500]
