"""The interface between a log and its remote tier: the segments of the log that are in an object store.

A log with a remote tier has two starts. The log start offset is that of the first record that can be read, in the
store. The local log start offset, `Partition.start_offset`, is that of the first record on the local disk. The log
knows neither the object store nor the remote tier's files. `stablelog.tier.remote_log` implements the interface.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from stablelog.env.disk import Buffer
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import LogConfig, Slice
from stablelog.log.search.times import Batch, Lookup
from stablelog.types import ObjectRange


class RemoteCommits(NamedTuple):
    """What the manifest (the list of a partition's segments in the store) says about the commit index of a remote
    segment. This index lists the transactions whose commit marker is in the segment.

    Attributes:
        base_offset: the base offset of the segment.
        end_offset: the end of the segment's offsets, exclusive.
        least_first_offset: the least first offset of the transactions whose commit marker is in the segment.
        latest_sequence: the greatest commit sequence (the number of a commit, counted over all topics of its
            transaction group) up to the end of the segment; -1 if there is none.
        latest_ms: the latest commit time in the segment, in ms since 1970; -1 if there is none.
    """

    base_offset: int
    end_offset: int
    least_first_offset: int
    latest_sequence: int
    latest_ms: int


class RemoteView(Protocol):
    """The remote segments of a commit-ordered topic, for readers in commit order.

    A reader in commit order sees the position of a record as its offset. It is an offset in the segment that has the
    commit marker. Every call raises UnavailableError while the list of remote segments is not loaded, and
    NotLoadedError if the bytes that it needs are not in the broker's cache.
    """

    def commits(self, offset: int) -> Iterator[RemoteCommits]:
        """Yield the descriptions of the commit indexes (which list the commits of a segment), from the segment with
        this offset on. Segments before the log start offset are left out.

        Raises:
            DamageError: the manifest, the list of the segments in the store, describes no commit index, although the
                topic is commit-ordered.
        """

    @property
    def latest_sequence(self) -> int:
        """The greatest commit sequence (the number of a commit, counted over all topics of its transaction group) in
        the store; -1 if there is none.
        """

    def commits_after(self, commit_sequence: int) -> RemoteCommits | None:
        """Return the description of the first segment with a commit after `commit_sequence`, the number of a commit,
        counted over all topics of its transaction group; None if there is none.
        """

    def commit_rows(self, base_offset: int) -> tuple[Buffer, Buffer]:
        """Return the commit index of a segment as two buffers: its entries, one for each transaction; and its extents,
        the ranges of bytes in the log file in which the batches of these transactions are.

        Raises:
            DamageError: the bytes in the store do not have the checksum that the manifest (the list of the segments)
                has.
        """

    def copy_ranges(
        self, base_offset: int, begins: Sequence[int], ends: Sequence[int], size_max: int
    ) -> tuple[int, Buffer]:
        """Copy ranges of bytes of a segment's log file, each from one of `begins` to the one of `ends` at the same
        index: at most `size_max` bytes, but the first range in any case. The copy ends before the first range that is
        not loaded into the broker's cache.

        Returns:
            How many ranges were copied, and their bytes, one range after another.

        Raises:
            NotLoadedError: the first range is not loaded.
        """

    def drop_ranges(self, base_offset: int, begins: Sequence[int], ends: Sequence[int]) -> None:
        """Drop the cached bytes of ranges of a segment's log file that are damaged, so that the next read loads them
        again from the store.
        """

    def batch_at_time(self, base_offset: int, timestamp_ms: int, start: int, end: int) -> Batch | int | None:
        """Find the first batch of a segment with offsets in [start, end) and with a record of this time or later.

        Returns:
            The batch; None if there is none; or the offset from which the next call continues, because a call reads
            only a bounded number of headers.
        """

    def finish_read(self, start: int, end: int) -> None:
        """End a read of the positions [start, end) in commit order, which the reader sees as offsets. The cache may
        drop these bytes, because the reader does not need them again.
        """

    def ranges_ahead(self, position: int) -> list[ObjectRange]:
        """Return the ranges of objects that a reader needs next, after a read that ended at this position in commit
        order. The caller loads them ahead of the next read.
        """


class RemoteTier(Protocol):
    """The remote tier of one partition: its segments in the object store.

    Every call raises UnavailableError while the list of remote segments is not loaded. A read of bytes that are not in
    the broker's cache raises NotLoadedError.
    """

    @property
    def view(self) -> RemoteView:
        """The remote segments for readers in commit order. The topic must be commit-ordered."""

    @property
    def start_offset(self) -> int:
        """The log start offset, that of the first record that can be read. Records before it count as deleted, even if
        their segment is still in the store.
        """

    @property
    def end_offset(self) -> int:
        """The first offset that is not in the store. Local segments before it may be deleted."""

    @property
    def size(self) -> int:
        """The size in bytes of the log files in the store, without segments that are being deleted."""

    def read(self, start: int, limit: int, size_max: int, *, at_least_one: bool) -> Slice:
        """Read whole batches from `start`, which is before `end_offset`. The result lists no aborted transactions:
        `aborted_in` finds them.

        Args:
            start: the offset to read from.
            limit: no record at or after this offset is returned.
            size_max: the greatest size of the result in bytes.
            at_least_one: whether a first batch of more than `size_max` bytes is returned.

        Raises:
            DamageError: the bytes in the store do not match the segment.
        """

    def finish_read(self, start: int, end: int) -> None:
        """End a read of the offsets [start, end). The cache may drop these bytes: the reader has its response, and does
        not need them again.
        """

    def ranges_ahead(self, offset: int) -> list[ObjectRange]:
        """Return the ranges of objects that a reader needs next, after a read that ended at this offset. The caller
        loads them ahead of the next read.
        """

    def aborted_in(self, start: int, end: int) -> tuple[list[AbortedTxn], bool]:
        """Return the aborted transactions with offsets in [start, end) whose markers are in the store, and whether the
        search is complete. If it is not, further such transactions may have their markers in segments that are only on
        the local disk.
        """

    def look_up_time(self, timestamp_ms: int) -> Lookup:
        """Find the first record in the store with this timestamp or a later one. Return a lookup, a generator that the
        caller runs in steps; its result is None if there is no such record.
        """

    def expired_before(self, config: LogConfig, local_size: int, now_ms: int) -> int:
        """Return the log start offset that `retention.ms` and `retention.bytes` demand: all segments before it have
        expired. It is at most the end of the remote segments.

        Args:
            config: the settings of the log.
            local_size: the size in bytes of the segments that are only on the local disk.
            now_ms: the time of the wall clock.
        """

    def move_start(self, start_offset: int) -> None:
        """Move the log start offset forward. A smaller offset has no effect. The new offset is durable on return.

        Raises:
            DiskError: the disk refuses the write. The log start offset has not moved.
        """
