"""Creation and closing of many partitions in several threads, so that the disk syncs many files at the same time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from itertools import chain, repeat
from typing import Final

from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.log.partition import Partition

IN_TURN_MAX: Final = 16  # Up to this many partitions are processed one after the other, without threads.
# The number of threads that create partitions: few enough that the event loop can serve clients meanwhile.
MAKING_THREADS: Final = 16
CLOSING_THREADS: Final = 8


def make_each(make: Callable[[int], Partition], indexes: Sequence[int], made: dict[int, Partition]) -> None:
    """Create partitions in several threads.

    Args:
        make: creates and opens the partition with an index. May run in several threads.
        indexes: the indexes of the partitions.
        made: receives the created partitions, by index. After an error it has the partitions that were created before.

    Raises:
        StablelogError: `make` has raised this error. No thread is still running.
    """
    if len(indexes) <= IN_TURN_MAX:
        for index in indexes:
            made[index] = make(index)
        return
    with ThreadPoolExecutor(MAKING_THREADS, thread_name_prefix="making") as threads:
        makings = {index: threads.submit(make, index) for index in indexes}
        wait(makings.values(), return_when=FIRST_EXCEPTION)
        for making in makings.values():
            making.cancel()
    ended = {index: making for index, making in makings.items() if not making.cancelled()}
    made.update({index: making.result() for index, making in ended.items() if making.exception() is None})
    for making in ended.values():
        making.result()


def close_new(made: Iterable[Partition]) -> None:
    """Close the new partitions of a failed creation, so that their file descriptors are free again."""
    for partition in made:
        partition.close(clean=False)


def close_each(
    partitions: Iterable[Partition], reserve: DiskReserve
) -> Iterator[tuple[Partition, Callable[[], None]]]:
    """Close partitions in several threads.

    Args:
        partitions: the partitions; each is closed as at a clean stop.
        reserve: the disk reserve, which frees disk space for files of the partitions if the disk is full; used only in
            the caller's thread.

    Yields:
        (partition, function) for each partition. The function waits until the partition is closed, and raises the error
        if `Partition.close` has failed.
    """
    partitions = list(partitions)
    if len(partitions) <= IN_TURN_MAX:
        for partition in partitions:
            yield partition, partial(reserve.attempt, partition.close, frees=True)
        return
    with ThreadPoolExecutor(CLOSING_THREADS, thread_name_prefix="closing") as threads:
        closings = [threads.submit(partition.close) for partition in partitions]
        for partition, closing in zip(partitions, closings, strict=True):
            # A close writes files. If it fails because the disk is full, the caller's thread closes the partition again
            # with space from the disk reserve: only the caller's thread may use the reserve.
            first: list[Callable[[], None]] = [closing.result]
            tries = chain(first, repeat(partition.close))
            yield partition, partial(reserve.attempt, partial(_next_try, tries), frees=True)


def _next_try(tries: Iterator[Callable[[], None]]) -> None:
    next(tries)()
