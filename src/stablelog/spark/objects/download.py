"""Download of parts of log files: several ranges at a time, in their order."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from stablelog.env.disk import Buffer
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.types import ObjectRange, RangeProof

RANGE_SIZE: Final = 8 << 20
COUNT_AT_ONCE: Final = 4
PART_SIZE: Final = 10 << 20  # A part of this size or less is loaded as one range.


def downloaded(store: ObjectStore, parts: Sequence[ObjectRange]) -> Iterator[tuple[int, Buffer]]:
    """Download parts of objects, and yield their bytes in order. A part of more than PART_SIZE is downloaded in ranges
    of RANGE_SIZE bytes. At most COUNT_AT_ONCE ranges are in memory: those that are being downloaded, and the one that
    the caller processes.

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
            coming.append((number, threads.submit(store.get_range, piece.key, piece.start, piece.size)))

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


def proven_parts(key: str, edges: Sequence[tuple[int, int]]) -> list[ObjectRange]:
    """Divide a part of a log file at cut points into pieces of about RANGE_SIZE bytes. Each piece has the CRCs that
    prove its batch headers.

    Args:
        key: the key of the log file.
        edges: the begin of the part, its cut points, and its end: the position, and the CRC-32C over the headers of all
            batches before it.
    """
    parts: list[ObjectRange] = []
    begin, rest = edges[0], edges[1:]
    for place, edge in enumerate(rest):
        following = rest[place + 1] if place + 1 < len(rest) else None
        if following is None or following[0] - begin[0] > PART_SIZE:
            parts.append(ObjectRange(key, begin[0], edge[0] - begin[0], RangeProof(edge[1], begin[1])))
            begin = edge
    return parts


def _ranges(parts: Sequence[ObjectRange]) -> Iterator[tuple[int, ObjectRange]]:
    for number, part in enumerate(parts):
        if part.size <= PART_SIZE:
            yield number, part
            continue
        end = part.start + part.size
        for start in range(part.start, end, RANGE_SIZE):
            yield number, ObjectRange(part.key, start, min(RANGE_SIZE, end - start))
