"""Log of appends that the disk refuses, while the partition itself stays usable."""

import logging
from collections.abc import Callable
from typing import Final

from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.topics.topics import Topics
from stablelog.errors import UnavailableError

log = logging.getLogger(__name__)

LOGGED_EVERY_MS: Final = 10_000


class RefusedAppends:
    """Logs that the disk refuses writes to partitions: at most once in LOGGED_EVERY_MS milliseconds, because producers
    retry.

    Args:
        topics: the topics of the broker.
        reserve: logs that the disk is full.
    """

    def __init__(self, topics: Topics, reserve: DiskReserve, now_ms: Callable[[], int]) -> None:
        self._topics = topics
        self._reserve = reserve
        self._now_ms = now_ms
        self._logged_ms = -LOGGED_EVERY_MS

    def note(self, name: str, index: int, error: UnavailableError) -> None:
        """Log that the disk refuses writes to a partition."""
        topic = self._topics.get(name)
        partition = topic.partitions.get(index) if topic is not None else None
        if partition is not None and partition.failure is not None:
            return  # The failure of this partition was logged already.
        if not self._reserve.note(error) and self._now_ms() - self._logged_ms >= LOGGED_EVERY_MS:
            self._logged_ms = self._now_ms()
            log.error("the disk refuses writes to %s-%d, and producers retry them: %s", name, index, error)
