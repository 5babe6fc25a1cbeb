"""Opening of the object store that a read's options name, once in each process."""

from functools import cache

from stablelog.env.objects.opening import open_store
from stablelog.env.objects.store import ObjectStore
from stablelog.spark.options import StoreSettings


@cache
def opened_store(url: str, settings: StoreSettings) -> ObjectStore:
    """Return the object store at a URL.

    Raises:
        UsageError: the URL or an option of the store is not valid, or the directory of the URL does not exist.
    """
    return open_store(
        url, allow_http=settings.allow_http, options=dict(settings.options) or None, creates=False
    )
