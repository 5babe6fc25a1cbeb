"""Log lines about the progress of a long pass, one copy of all partitions that have new segments."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from stablelog.log.segments.segment import Segment

log = logging.getLogger(__name__)

PROGRESS_S: Final = 30.0  # The time between two log lines about the progress of a pass over all partitions.


class Progress:
    """Counts copied segments and bytes, and logs the progress of a pass (one copy of all partitions that have new
    segments) that takes longer than PROGRESS_S.
    """

    def __init__(self) -> None:
        self._begun_s = self._told_s = asyncio.get_running_loop().time()
        self._is_told = False
        self._count = self._size = 0
        self._done_count = self._done_size = 0

    def add_planned(self, segments: Sequence[Segment]) -> None:
        """Add segments to the total that this pass, one copy of all partitions that have new segments, will copy."""
        self._count += len(segments)
        self._size += sum(segment.size for segment in segments)

    def add_copied(self, size: int) -> None:
        """Count a copied segment of this size in bytes. Log the progress if the last such line was logged at least
        PROGRESS_S seconds ago.
        """
        self._done_count += 1
        self._done_size += size
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told_s >= PROGRESS_S:
            self._told_s = now_s
            self._log_progress("goes on", now_s)

    def log_end(self) -> None:
        """Log that the pass, one copy of all partitions that have new segments, has ended, if its progress was logged
        before.
        """
        if self._is_told:
            self._log_progress("has ended", asyncio.get_running_loop().time())

    def _log_progress(self, state: str, now_s: float) -> None:
        self._is_told = True
        rate = self._done_size / max(now_s - self._begun_s, 0.001)
        log.info(
            "the copy to the object store %s: %d of %d segments are copied, %d of %d MB, at %d MB/s",
            state,
            self._done_count,
            self._count,
            self._done_size // 1_000_000,
            self._size // 1_000_000,
            rate // 1_000_000,
        )
