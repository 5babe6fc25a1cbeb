"""Runs several requests to an object store at a time, in threads."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

REQUESTS_AT_ONCE: Final = 16
_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


def map_parallel(call: Callable[[_Given], _Found], given: Iterable[_Given]) -> list[_Found]:
    """Call a function with each of the given values, in threads: up to REQUESTS_AT_ONCE calls at a time. Return the
    results in the order of the values. Raises the error of the first call that has failed.
    """
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, "stablelog-plan") as threads:
        return list(threads.map(call, given))
