"""Opens the object store that a read's options name. Each process opens a store once, and then uses it for all its
reads.
"""

from functools import cache
from typing import Final

from stablelog.env.malloc import keep_freed, use_arenas
from stablelog.env.objects.opening import open_store
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.spark.options import StoreSettings

KEPT_SIZE: Final = 16 << 20  # The bytes of freed ranges that a process keeps at most, for its next ranges.


@cache
def opened_store(url: str, settings: StoreSettings) -> ObjectStore:
    """Return the object store at a URL.

    Raises:
        UsageError: the URL or an option of the store is not valid.
        NothingStoredError: the directory of the URL does not exist.
    """
    # The store's threads must not have begun. With an arena for each of them, freed ranges would leave holes in all.
    use_arenas(1)
    keep_freed(KEPT_SIZE)
    return open_store(
        url, allow_http=settings.allow_http, options=dict(settings.options) or None, creates=False
    )
