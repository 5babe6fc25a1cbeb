"""Opens the object store at a URL."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from stablelog.env.objects.attempts import StoreRequests
from stablelog.env.objects.retrying_store import ObjectStore, Patience
from stablelog.errors import UsageError, did_you_mean

CLOUD_SCHEMES = ("s3", "s3a", "gs", "az", "azure")
SCHEMES = (*CLOUD_SCHEMES, "file", "memory")


def open_store(
    url: str,
    patience: Patience | None = None,
    *,
    allow_http: bool = False,
    options: dict[str, str] | None = None,
    creates: bool = True,
) -> ObjectStore:
    """Open the object store at a URL.

    Args:
        url: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, `file:///directory` or `memory:///`,
            which is a new, empty store in the memory of this process.
        patience: how long each call of the store repeats its request, and how long it pauses between two attempts; None
            for the default times.
        allow_http: whether requests to a cloud's store may be sent without TLS.
        options: options of obstore's store, such as `aws_endpoint`; credentials come from the environment unless they
            are given here.
        creates: whether a store in a directory creates its directory if it is missing.

    Raises:
        UsageError: the URL has an unknown scheme, or the store cannot be opened.
        NothingStoredError: the directory of a `file:` store does not exist, and `creates` is False.
    """
    return ObjectStore(_requests(url, allow_http=allow_http, options=options, creates=creates), patience)


def _requests(url: str, *, allow_http: bool, options: dict[str, str] | None, creates: bool) -> StoreRequests:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"the given text is no URL of an object store: {error}") from error
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            f"the URL of the store in {parts.hostname} contains credentials or parameters; give only bucket and "
            "prefix, and credentials in the environment"
        )
    if any(urlsplit(value).username for name, value in (options or {}).items() if "endpoint" in name.lower()):
        raise UsageError("the endpoint of the store contains credentials; give them in the environment")
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise UsageError(
            f"{url!r} is no URL of an object store{did_you_mean(parts.scheme, SCHEMES)}; known are {known}"
        )
    try:
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
                raise UsageError(f"{url!r} names no local directory; write file:///directory")
            from stablelog.env.objects.directory import DirectoryRequests

            return DirectoryRequests(Path(unquote(parts.path)), creates=creates)
        if parts.scheme != "memory" and not parts.netloc:
            raise UsageError(f"{url!r} names no bucket; write {parts.scheme}://bucket/prefix")
        try:
            from stablelog.env.objects.cloud import (
                CloudRequests,  # imported here, because the import takes 17 ms
            )
        except ModuleNotFoundError as missing:
            if missing.name != "obstore":
                raise
            raise UsageError(
                f"an object store at {parts.scheme}:// needs the library obstore: pip install 'stablelog[store]'"
            ) from missing
        return CloudRequests(url, allow_http=allow_http, options=options)
    except ValueError as error:
        raise UsageError(f"the object store {url} cannot be opened: {error}") from error
