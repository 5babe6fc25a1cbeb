"""The interface between a log and its remote tier: the segments of the log that are in an object store.

A log with a remote tier has two starts. The log start offset is that of the remote tier: the first record that can be
read. The local log start offset is `ReadableLog.start_offset`: the first record on the local disk. The log knows neither
the object store nor the files of the remote tier. `stablelog.tier.remote_log` implements the interface.
"""

from typing import Protocol

from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import LogConfig, Slice
from stablelog.log.read import Lookup
from stablelog.types import ObjectRange


class RemoteTier(Protocol):
    """The remote tier of one partition.

    Every call raises Unavailable while the list of the remote segments is not known. A read of bytes that are not in the
    broker's cache raises NotLoaded.
    """

    @property
    def start_offset(self) -> int:
        """The log start offset. Records before it are deleted, even if their segment is still in the store."""

    @property
    def end_offset(self) -> int:
        """The first offset that is not in the store. The segments before it may be deleted from the local disk."""

    @property
    def size(self) -> int:
        """The size in bytes of the log files in the store, without segments that are being deleted."""

    def read(self, start: int, limit: int, size_max: int, *, at_least_one: bool) -> Slice:
        """Read whole batches from `start`, which is before `end_offset`. The result lists no aborted transactions.

        Raises:
            Corrupt: the bytes in the store do not match the segment.
        """

    def finished(self, start: int, end: int) -> None:
        """Note that a reader got its response to a read of the offsets [start, end), and does not need these bytes
        again.
        """

    def ahead(self, offset: int) -> list[ObjectRange]:
        """Return the ranges of objects that a reader will need next. The last read of this reader ended at `offset`."""

    def aborted(self, start: int, end: int) -> tuple[list[AbortedTxn], bool]:
        """Return the aborted transactions with offsets in [start, end) whose markers are in the store.

        The second value tells whether the search is complete. If it is not, segments that are not in the store may have
        further aborted transactions of this range.
        """

    def look_up_time(self, timestamp_ms: int) -> Lookup:
        """Find the first record with this timestamp or a later one in the store, in steps; None if there is none."""

    def expired_before(self, config: LogConfig, local_size: int, now_ms: int) -> int:
        """Return the log start offset that `retention.ms` and `retention.bytes` demand, as far as they delete remote
        segments.

        Args:
            config: the settings of the log.
            local_size: the size in bytes of the segments that are only on the local disk.
            now_ms: the time of the broker's clock.
        """

    def begin_at(self, start_offset: int) -> None:
        """Move the log start offset forward; a smaller offset has no effect. The new offset is durable on return.

        Raises:
            DiskError: the disk refuses the write. The log start offset has not moved.
        """
