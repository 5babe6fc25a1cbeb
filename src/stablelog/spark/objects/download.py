"""Download of parts of log files: several ranges at a time, in their order."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from operator import attrgetter
from typing import Final, NamedTuple

from stablelog.env.disk import Buffer
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.spark.planning import ObjectExtent
from stablelog.types import ObjectRange, RangeProof

RANGE_SIZE: Final = 8 << 20
COUNT_AT_ONCE: Final = 4
PART_SIZE: Final = 10 << 20  # A part of this size or less is loaded as one range.


def downloaded(store: ObjectStore, parts: Sequence[ObjectRange]) -> Iterator[tuple[int, Buffer]]:
    """Download parts of objects, and yield their bytes, part after part, each from its first byte to its last. A part
    of more than PART_SIZE is downloaded in ranges of RANGE_SIZE bytes. At most COUNT_AT_ONCE ranges are in memory:
    those that are being downloaded, and the one that the caller processes.

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


class LogRange(NamedTuple):
    """A byte range of a log file that is downloaded in one request, with the offsets at which it begins and ends. Its
    batch headers are proven (checked against a CRC) without the rest of the file.
    """

    place: ObjectRange
    start: int
    end: int


def ranges_of(extent: ObjectExtent) -> list[LogRange]:
    """Divide a part of a log file at its cut points (positions between two batches) into ranges of about RANGE_SIZE
    bytes. Each range has the CRCs by which its batch headers are checked, if they are known.
    """
    found: list[LogRange] = []
    place, edges = 0, extent.edges
    while place < len(edges) - 1:
        begin = edges[place]
        after = bisect_right(edges, begin.position + PART_SIZE, key=attrgetter("position"))
        place = max(after - 1, place + 1)
        end = edges[place]
        # The begin of a range has a CRC if its end has one.
        proof = None if end.header_crc is None else RangeProof(end.header_crc, begin.header_crc)
        part = ObjectRange(extent.key, begin.position, end.position - begin.position, proof)
        found.append(LogRange(part, begin.offset, end.offset))
    return found


def _ranges(parts: Sequence[ObjectRange]) -> Iterator[tuple[int, ObjectRange]]:
    for number, part in enumerate(parts):
        if part.size <= PART_SIZE:
            yield number, part
            continue
        end = part.start + part.size
        for start in range(part.start, end, RANGE_SIZE):
            yield number, ObjectRange(part.key, start, min(RANGE_SIZE, end - start))
