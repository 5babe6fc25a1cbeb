"""Download of parts of log files: several ranges at a time, in their order."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from stablelog.env.disk import Buffer
from stablelog.env.objects.store import ObjectStore
from stablelog.types import ObjectRange

RANGE_SIZE: Final = 8 << 20
COUNT_AT_ONCE: Final = 4


def downloaded(store: ObjectStore, parts: Sequence[ObjectRange]) -> Iterator[tuple[int, Buffer]]:
    """Download parts of objects in ranges of RANGE_SIZE bytes. COUNT_AT_ONCE ranges are in memory at most: those that
    are loaded, and the one that the caller works on.

    Yields:
        The number of a part, and its next bytes.

    Raises:
        ObjectMissingError: an object does not exist any more.
        StoreError: the store does not answer, or rejects a request.
        DamageError: an object ends before the end of a part.
    """
    ranges = _ranges(parts)
    coming: deque[tuple[int, Future[Buffer]]] = deque()
    threads = ThreadPoolExecutor(COUNT_AT_ONCE, "stablelog-download")

    def begin_next() -> None:
        wanted = next(ranges, None)
        if wanted is not None:
            number, piece = wanted
            coming.append((number, threads.submit(store.get_range, *piece)))

    try:
        for _ in range(COUNT_AT_ONCE):
            begin_next()
        while coming:
            number, loading = coming.popleft()
            content = loading.result()
            del loading  # The future would keep the bytes in memory.
            yield number, content
            del content
            begin_next()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _ranges(parts: Sequence[ObjectRange]) -> Iterator[tuple[int, ObjectRange]]:
    for number, part in enumerate(parts):
        end = part.start + part.size
        for start in range(part.start, end, RANGE_SIZE):
            yield number, ObjectRange(part.key, start, min(RANGE_SIZE, end - start))
