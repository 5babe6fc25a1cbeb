"""Log messages about appends that the disk refuses, for example because it is full, while the partition stays
usable.
"""

import logging
from typing import Final

from stablelog.broker.runtime import Runtime
from stablelog.broker.topics.open_partitions import OpenPartitions
from stablelog.errors import UnavailableError

log = logging.getLogger(__name__)

LOGGED_EVERY_MS: Final = 10_000


class RefusedAppends:
    """Logs that the disk refuses writes to partitions.

    Producers retry a refused write many times, so this logs at most once in LOGGED_EVERY_MS milliseconds.

    Args:
        partitions: the open partitions of the broker.
    """

    def __init__(self, partitions: OpenPartitions, runtime: Runtime) -> None:
        self._partitions = partitions
        self._reserve = runtime.reserve
        self._now_ms = runtime.clock.now_ms
        self._logged_ms = -LOGGED_EVERY_MS

    def log_refusal(self, name: str, index: int, error: UnavailableError) -> None:
        """Log that the disk refused a write to a partition, unless a refusal was logged a short time ago."""
        partition = self._partitions.get(name, index)
        if partition is not None and partition.failure is not None:
            return  # The failure of this partition was logged already.
        if not self._reserve.record_failure(error) and self._now_ms() - self._logged_ms >= LOGGED_EVERY_MS:
            self._logged_ms = self._now_ms()
            log.error("the disk refuses writes to %s-%d, and producers retry them: %s", name, index, error)
