"""Retry of a plan after Apache Kafka has deleted a segment that the listing of the store names.

Kafka does not know the pins, objects by which a stablelog reader keeps segments from deletion, so it may delete any
segment between the listing and the plan. A new listing no longer contains the segment, and the new plan reports its
records as lost, unless a broker reports that the log begins later.
"""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from stablelog.spark.objects.kafka_tiers.segment import SegmentDeletedError

TRIES: Final = 10
_Found = TypeVar("_Found")


class StoreLister(Protocol):
    """A log that caches a listing of an object store."""

    def forget_listing(self) -> None:
        """Drop the cached listing, so that the next call lists the store again."""


def retry_with_new_listing(lister: StoreLister | None, attempt: Callable[[], _Found]) -> _Found:
    """Call `attempt`, and return its result. If a listed segment was deleted meanwhile, the listing is dropped and the
    call is repeated.

    Args:
        lister: the log that plans; None if `attempt` itself lists the store.
        attempt: makes the plan. It begins with a listing of the store, unless a listing is cached.

    Raises:
        SegmentDeletedError: segments were deleted during each of TRIES attempts.
    """
    for _ in range(TRIES - 1):
        try:
            return attempt()
        except SegmentDeletedError:
            if lister is not None:
                lister.forget_listing()
    return attempt()
