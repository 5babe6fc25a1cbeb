"""Making and closing many partitions: several threads wait for the disk at a time, which syncs many files together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from itertools import chain, repeat
from typing import Final

from stablelog.broker.disk_reserve import DiskReserve
from stablelog.log.partition import Partition

IN_TURN_MAX: Final = 16  # partitions that are worked on in turn, without threads
MAKING_THREADS: Final = 16  # beside which the event loop serves clients
CLOSING_THREADS: Final = 8


def make_each(make: Callable[[int], Partition], indexes: Sequence[int], made: dict[int, Partition]) -> None:
    """Make partitions.

    Args:
        make: makes and opens the partition with an index. May run in several threads.
        indexes: of the partitions.
        made: gets the partitions; after an error, those that were made until then.

    Raises:
        StablelogError: one that `make` has raised. No thread goes on.
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


def close_each(
    partitions: Iterable[Partition], reserve: DiskReserve
) -> Iterator[tuple[Partition, Callable[[], None]]]:
    """Close partitions.

    Args:
        partitions: are closed as after a clean stop.
        reserve: gives room on a full disk; it is used in the caller's thread alone.

    Yields:
        Each partition with a function that returns when it is closed, or raises as `Partition.close` does.
    """
    partitions = list(partitions)
    if len(partitions) <= IN_TURN_MAX:
        for partition in partitions:
            yield partition, partial(reserve.attempt, partition.close, frees=True)
        return
    with ThreadPoolExecutor(CLOSING_THREADS, thread_name_prefix="closing") as threads:
        closings = [threads.submit(partition.close) for partition in partitions]
        for partition, closing in zip(partitions, closings, strict=True):
            # Where there is no room, this thread tries again: the reserve belongs to it.
            first: list[Callable[[], None]] = [closing.result]
            tries = chain(first, repeat(partition.close))
            yield partition, partial(reserve.attempt, partial(_next_try, tries), frees=True)


def _next_try(tries: Iterator[Callable[[], None]]) -> None:
    next(tries)()
