"""Cache of downloaded byte ranges of objects, in one process of Spark."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from stablelog.env.disk import Buffer
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import ObjectMissingError
from stablelog.spark.objects.parallel_requests import map_parallel
from stablelog.tier.segment_bytes import check_proof
from stablelog.types import ObjectRange

SIZE_MAX: Final = 48 << 20
THREAD_COUNT: Final = 4


class LoadedRanges:
    """Cache of byte ranges that downloads what is missing. Implements `tier.segment_bytes.Cache`. Its method `get`
    waits for the store and always returns the bytes; that of the broker's cache does not wait, and returns None for
    bytes that are not loaded.

    Args:
        store: the object store.
        size_max: the maximum size of the loaded ranges, in bytes. The range that was read last stays in any case.
    """

    def __init__(self, store: ObjectStore, size_max: int = SIZE_MAX) -> None:
        self._store = store
        self._size_max = size_max
        self._size = 0
        self._loaded: OrderedDict[ObjectRange, Buffer] = OrderedDict()
        self._coming: dict[ObjectRange, Future[Buffer]] = {}
        self._threads = ThreadPoolExecutor(THREAD_COUNT, "stablelog-load")  # It begins without threads.

    def get(self, wanted: ObjectRange) -> Buffer:
        """Return the bytes of a range. A whole object that does not exist is empty.

        Raises:
            ObjectMissingError: a range of an object was wanted, and the object does not exist.
            StoreError: the store does not answer, or rejects the request.
            DamageError: the object ends before the range, or has other bytes than the manifest (the list of the
                partition's segments) says.
        """
        if wanted in self._loaded:
            self._loaded.move_to_end(wanted)
        else:
            coming = self._coming.pop(wanted, None)
            self._keep(wanted, self._load(wanted) if coming is None else coming.result())
        return self._loaded[wanted]

    def _keep(self, wanted: ObjectRange, content: Buffer) -> None:
        self._loaded[wanted] = content
        self._size += len(content)
        while self._size > self._size_max and len(self._loaded) > 1:
            self.drop(next(iter(self._loaded)))

    def has(self, wanted: ObjectRange) -> bool:
        """Return whether a range is loaded, or is being loaded."""
        return wanted in self._loaded or wanted in self._coming

    def load_all(self, ranges: Sequence[ObjectRange]) -> None:
        """Load ranges that are not loaded yet, several at a time. Raises ObjectMissingError, StoreError and
        DamageError.
        """
        missing = [wanted for wanted in ranges if not self.has(wanted)]
        for wanted, content in zip(missing, map_parallel(self._load, missing), strict=True):
            self._keep(wanted, content)

    def load_ahead(self, ranges: Iterable[ObjectRange]) -> None:
        """Begin to load ranges that a reader will need soon, and return before they are loaded."""
        for wanted in ranges:
            if not self.has(wanted) and len(self._coming) < THREAD_COUNT:
                self._coming[wanted] = self._threads.submit(self._load, wanted)

    def close(self) -> None:
        """Stop loading."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def mark_consumed(self, wanted: ObjectRange) -> None:
        """Do nothing, and keep the range: the records of several transactions may be in it, and a reader gets
        transaction after transaction. When the cache is full, the range that was used longest ago is dropped.
        """

    def drop(self, wanted: ObjectRange) -> None:
        """Drop a range from the cache, because its bytes are wrong. The next read loads the range again."""
        self._size -= len(self._loaded.pop(wanted, b""))

    def _load(self, wanted: ObjectRange) -> Buffer:
        if wanted.size:
            content = self._store.get_range(wanted.key, wanted.start, wanted.size)
            check_proof(content, wanted, self._store.url)
            return content
        try:
            return self._store.get(wanted.key)
        except ObjectMissingError:
            return b""
