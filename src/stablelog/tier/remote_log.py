"""The remote tier of one partition, the part of its log in the object store: searches in the list of its remote
segments, and reads from cached bytes of objects.

This module sends no request. A read that needs bytes which are not in the cache raises NotLoadedError with the byte
ranges. The caller loads these ranges and reads again (`segment_bytes`).

A reader that begins at the first offset of a segment and reads on needs no index: the remote log remembers at which
position each read has ended. Only a reader that begins in the middle of a segment needs its offset index, and only a
reader of a range in which transactions were aborted needs transaction indexes (KIP-1058).
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence

from stablelog.batch.header import HEADER
from stablelog.errors import DamageError, NotLoadedError
from stablelog.log.indexes.transaction_index import AbortedTxn, TransactionIndex
from stablelog.log.model import LogConfig, Slice
from stablelog.log.retention import NO_LIMIT
from stablelog.log.search.aborts import find_aborted
from stablelog.log.search.source import OFFSET_MAX
from stablelog.log.search.times import Lookup, first_at_or_after
from stablelog.tier.index_object import IndexKind
from stablelog.tier.manifest import Manifest, ManifestSegments
from stablelog.tier.names import RemotePartition
from stablelog.tier.read_ends import AHEAD, ReadEnds
from stablelog.tier.remote_commits import RemoteCommitOrder, RemoteSegments
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.tier.segment_bytes import Cache, LoadedSegment, SegmentBytes
from stablelog.types import ObjectRange

CHUNK_SIZE = 4 << 20
# A read returns at most this many batches: it looks at the header of each, which takes at most some milliseconds.
BATCH_COUNT_MAX = 2_000


class RemoteLog(RemoteSegments):
    """The remote tier of one partition: the list of its segments in the object store, and reads from their loaded
    bytes.

    Args:
        partition: the partition.
        manifest: the list of remote segments; None if it is not known yet.
        cache: keeps bytes of objects in memory.
        save_start: records a log start offset on the local disk, durably. Raises DiskError.
        chunk_size: the size in bytes of the chunks in which a log file is loaded if the manifest says nowhere at which
            positions it can be divided.
        url: the address of the store, for error messages.
        log_start: the log start offset that is recorded on the local disk.

    Attributes:
        partition: the partition.
        segments: the list of its remote segments, as an object for searches in it.
        bytes: finds the loaded bytes of these segments.
        place: the URL of the partition's directory in the store, for error messages.
        view: the remote segments for readers in commit order.
    """

    def __init__(
        self,
        partition: RemotePartition,
        manifest: Manifest | None,
        cache: Cache,
        save_start: Callable[[int], None],
        chunk_size: int = CHUNK_SIZE,
        url: str = "",
        log_start: int = 0,
    ) -> None:
        assert chunk_size >= HEADER.size
        super().__init__(partition, manifest, SegmentBytes(partition, cache, chunk_size, url), url, log_start)
        self._save_start = save_start
        self.view = RemoteCommitOrder(self)
        self._ends = ReadEnds()  # by offset

    # -- the list ----------------------------------------------------------------------------------------------

    @property
    def rows(self) -> ManifestSegments:
        """The list of the segments in the store, as the searches in `log.search` need it."""
        return self.segments

    @property
    def is_known(self) -> bool:
        """Whether the list of remote segments is known. It is not known after a start on a disk that does not have it,
        until the store has answered.
        """
        return self._manifest is not None

    @property
    def end_offset(self) -> int:
        """The first offset of the partition that is not in the store, or the log start offset if that is greater."""
        return max(self.manifest.end_offset, self._log_start)

    @property
    def size(self) -> int:
        """The size in bytes of the log files in the store, without segments that are being deleted."""
        return self.segments.size

    @property
    def has_new_start(self) -> bool:
        """Whether the log start offset has passed segments that the published manifest (list of the segments in the
        store) does not mark for deletion yet.
        """
        published = self.manifest.log_start
        return self.start_offset > published and next(self.segments.live_from(published), None) is not None

    def set_manifest(self, manifest: Manifest, segments: ManifestSegments) -> None:
        """Replace the list of remote segments by a newly published one, a manifest, which the caller has recorded on
        the local disk.

        Args:
            manifest: the new list.
            segments: the object for searches in this list. The caller makes it, because that takes long if the list is
                long.
        """
        self._manifest = manifest
        self.segments = segments

    def raise_log_start(self, start_offset: int) -> None:
        """Raise the log start offset in memory to one that the caller has already recorded on the local disk."""
        self._log_start = max(self._log_start, start_offset)

    def move_start(self, start_offset: int) -> None:
        """Move the log start offset forward, and record it on the local disk. It is durable when this method returns.
        If DiskError is raised, nothing has changed.
        """
        if start_offset > self.start_offset:
            self._save_start(start_offset)
            self._log_start = start_offset

    def expired_before(self, config: LogConfig, local_size: int, now_ms: int) -> int:
        """Return the log start offset that `retention.ms` and `retention.bytes` demand. The result is at most the end
        of the last remote segment, because retention deletes only remote segments up to this offset. For
        `retention.bytes`, the size of the log includes `local_size`: the bytes of the segments that are only on the
        local disk.
        """
        start = self.start_offset
        # The size includes segments before the log start offset whose deletion is not published yet: subtract them.
        unmarked = itertools.takewhile(lambda one: one.end_offset <= start, self.segments.live_from(0))
        excess = local_size + self.size - sum(one.size for one in unmarked) - config.retention_bytes
        for segment in self.segments.live_from(start):
            newest_ms = segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else segment.event_ms
            is_too_old = config.retention_ms != NO_LIMIT and newest_ms < now_ms - config.retention_ms
            excess -= segment.size
            is_too_much = config.retention_bytes != NO_LIMIT and excess >= 0
            if not is_too_old and not is_too_much:
                break
            start = segment.end_offset
        return start

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, start: int, limit: int, size_max: int, *, at_least_one: bool) -> Slice:
        """Read whole batches from the offset `start` on, as far as they are loaded.

        Args:
            start: the first offset to read. The first batch may begin before it.
            limit: batches that begin at this offset or later are not read.
            size_max: the greatest size of the result, in bytes.
            at_least_one: whether the first batch is returned even if it is larger than `size_max`.

        Raises:
            NotLoadedError: the first batch is not loaded.
            DamageError: the objects in the store are not those of the segment.
        """
        offset = start
        while True:
            if offset >= min(self.end_offset, limit):
                return Slice([], start, offset, None)
            segment = self.segment_at(offset)
            known = self._ends.end_at(offset, segment) if offset > segment.base_offset else None
            found = self.loaded_segment(segment).find(offset, None if known is None else known.position)
            if found is not None:
                break
            # Compaction has removed all batches up to the end of the segment.
            offset = segment.end_offset
        begin, size = found.position, found.size
        if found.base_offset >= limit or (size > size_max and not at_least_one):
            return Slice([], start, start, None)
        self.bytes.loaded_views(segment, begin, size)  # the whole batch must be loaded
        end, end_offset = self._whole_batches(segment, begin, min(limit, segment.end_offset), size_max)
        if end == segment.size:
            end_offset = segment.end_offset
        self._ends.add_read(start, end_offset, segment, begin, end)
        return Slice(self.bytes.loaded_views(segment, begin, end - begin), start, end_offset, None)

    def _whole_batches(
        self, segment: RemoteSegment, begin: int, limit: int, size_max: int
    ) -> tuple[int, int]:
        """Find out where the loaded batches end that a read returns of a segment: those from the byte `begin` of the
        log file on that begin before the offset `limit` and have at most `size_max` bytes together. The first batch,
        which must be loaded, is returned in any case.

        Returns:
            A pair: the position in the log file and the offset at which these batches end.
        """
        end, end_offset = begin, -1
        # A batch that is not loaded ends the read: the reader gets the batches before it.
        with contextlib.suppress(NotLoadedError):
            for count, (position, header) in enumerate(self.loaded_segment(segment).walk(begin)):
                batch_end = position + header.size
                is_over = count == BATCH_COUNT_MAX or header.base_offset >= limit
                if is_over or (count and batch_end - begin > size_max):
                    break
                if not self.bytes.crc_holds(segment, position, header.size):
                    if count:
                        break  # The reader gets the batches before the damaged one.
                    self.bytes.drop_chunks(segment, position, header.size)
                    raise DamageError(
                        f"{self.bytes.log_place(segment)}: the CRC of the batch at byte {position} does not match its bytes"
                    )
                end, end_offset = batch_end, header.next_offset
        assert end > begin
        return end, end_offset

    def finish_read(self, start: int, end: int) -> None:
        """Mark the chunks that a read has used (parts in which a log file is loaded) as consumed, after the response
        with the offsets [start, end) was sent. The reader does not need them again, so the cache drops them first.
        """
        segment = self.segments.segment_at(max(end - 1, start))
        last = None if segment is None else self._ends.end_at(end, segment)
        if last is not None and segment is not None:
            self.bytes.mark_consumed(segment, last.begin, last.position)

    def ranges_ahead(self, offset: int) -> list[ObjectRange]:
        """Return the chunks (parts in which log files are loaded) to load ahead for a reader whose last read ended at
        `offset`: one chunk after its first read, and more after each further read that continues the one before.
        """
        last, here = self._ends.end_at(offset), self._ends.end_at(offset, self.segments.segment_at(offset))
        wanted = 1 + AHEAD[0] if last is None else last.ahead_count
        return self.chunks_from(offset, 0 if here is None else here.position, wanted)

    def aborted_in(self, start: int, end: int) -> tuple[list[AbortedTxn], bool]:
        """Find the aborted transactions that have records at the offsets [start, end).

        Returns:
            A pair: the aborted transactions whose abort markers are in the store; and whether these are all. The
            second value is False if later segments, which are not in the store, may have further abort markers.

        Raises:
            NotLoadedError: a transaction index is not loaded. No index is needed if no transaction was aborted.
            DamageError: a transaction index is damaged, or missing although the segment has aborted transactions.
        """
        return find_aborted(self, start, end) if start < end else ([], True)

    def require_txn_indexes(self, rows: Sequence[RemoteSegment]) -> None:
        """Check that the transaction indexes of these segments are in the cache. Raise NotLoadedError, which names the
        missing ones, if some are not.
        """
        self.bytes.require_indexes(rows, IndexKind.TRANSACTIONS)

    def txn_index_of(self, row: RemoteSegment) -> TransactionIndex:
        """Return the loaded transaction index of a segment. Raises DamageError."""
        return TransactionIndex(self.bytes.index_bytes(row, IndexKind.TRANSACTIONS))

    def look_up_time(self, timestamp_ms: int) -> Lookup:
        """Return a generator that finds the first record with this timestamp or a later one. The caller iterates over
        it, so that a long search can be interrupted. The result of the generator is None if there is no such record.
        Each step may raise NotLoadedError, which names bytes that must be loaded first, or DamageError.
        """
        return first_at_or_after(lambda: self, timestamp_ms, lambda: self.start_offset, OFFSET_MAX)

    def readers_from(self, offset: int) -> Iterator[LoadedSegment]:
        """Yield an object that reads the loaded bytes of a segment, for each segment that ends after an offset and is
        not being deleted, oldest first.
        """
        return map(self.loaded_segment, self.segments.live_from(offset))
