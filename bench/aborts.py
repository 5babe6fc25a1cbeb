"""Does the lookup of aborted transactions stay as fast when their number, and that of segments, grows?

A partition is filled with transactions of one record, each aborted, and asked which of them touch a fetch of 20
offsets, at a thousand places. Kafka has no such question to ask from outside: its lookup visits every later segment.
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from stablelog.batch.markers import Marker, MarkerType
from stablelog.batch.records import Record, encode_batch
from stablelog.env.local_disk import LocalDisk
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.opening import open_partition
from stablelog.log.partition import LogConfig, MarkerWrite, Partition
from stablelog.log.search.aborts import find_aborted

ABORT = Marker(MarkerType.ABORT, 0)
PLACE_COUNT = 1000
FETCH_SIZE = 20  # offsets


@contextlib.contextmanager
def filled(segment_counts: Sequence[int], abort_count: int) -> Iterator[Mapping[int, Path]]:
    """A partition's directory with so many aborts, for each number of segments; both cores fill them."""
    with tempfile.TemporaryDirectory(prefix="aborts-") as directory:
        logs = {count: Path(directory) / f"t-{count}" for count in segment_counts}
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
            filling = [processes.submit(fill, path, count, abort_count) for count, path in logs.items()]
            for one in filling:
                one.result()
        yield logs


def opened(directory: Path) -> Partition:
    """The partition in a directory, which is made if it is missing."""
    return open_partition(LocalDisk(), directory, LogConfig(), topic="t", partition=0, clean=True, now_ms=1)


def fill(directory: Path, segment_count: int, abort_count: int) -> None:
    """Write so many aborted transactions of one record each, in so many sealed segments of equal length."""
    partition = opened(directory)
    aborts_per_segment = abort_count // segment_count
    for number in range(abort_count):
        record = Record(0, 1, None, b"")
        batch = encode_batch(
            [record], producer_id=1, producer_epoch=0, base_sequence=number, transactional=True
        )
        partition.append(batch, now_ms=1)
        partition.append_markers([MarkerWrite(1, 0, ABORT)], now_ms=1)
        if number % aborts_per_segment == aborts_per_segment - 1:
            partition.roll(1)
    partition.assume_synced()
    partition.close()


@dataclass(frozen=True, slots=True)
class Lookups:
    """Medians, in microseconds."""

    us: float
    opening_us: float  # of the first in a segment, whose index is opened and checked for it


def look_up(directory: Path, segment_count: int) -> Lookups:
    """Look up the aborts of fetches all over a partition that is opened anew, each twice."""
    partition = opened(directory)
    try:
        seen_segment = -1
        opening, again = [], []
        for place in _places(partition):
            taken_us = _timed_us(partition, place)
            segment = place * segment_count // partition.end_offset
            if segment != seen_segment:
                seen_segment = segment
                opening.append(taken_us)
            again.append(_timed_us(partition, place))
        return Lookups(statistics.median(again), statistics.median(opening))
    finally:
        partition.close()


def _search(partition: Partition) -> Callable[[int, int], Sequence[AbortedTxn]]:
    """The search for aborted transactions. Earlier commits, which `--against` can name, have it in the partition or in
    its list of segments.
    """
    segments = partition.log.segments
    for owner, name in ((partition, "aborted_in"), (segments, "aborted")):
        if hasattr(owner, name):
            found: Callable[[int, int], Sequence[AbortedTxn]] = getattr(owner, name)
            return found
    return lambda start, end: find_aborted(segments, start, end)[0]


def look_up_everywhere(partition: Partition) -> None:
    """Look up the aborts of fetches all over a partition, once each."""
    for place in _places(partition):
        found = _search(partition)(place, place + FETCH_SIZE)
        assert found


def _places(partition: Partition) -> Iterator[int]:
    step = (partition.end_offset - FETCH_SIZE) / PLACE_COUNT
    return (int(step * number) for number in range(PLACE_COUNT))


def _timed_us(partition: Partition, place: int) -> float:
    search = _search(partition)
    began = time.perf_counter()
    found = search(place, place + FETCH_SIZE)
    taken = time.perf_counter() - began
    assert found
    return taken * 1e6
