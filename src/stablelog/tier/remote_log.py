"""The remote tier of one partition: searches in the list of its remote segments, and reads from cached bytes of
objects.

This module sends no request. A read that needs bytes which are not in the cache raises NotLoadedError with the byte
ranges. The caller loads these ranges and reads again (`segment_bytes`).

A reader that begins at the first offset of a segment and reads on needs no index: the remote log remembers at which
position each read has ended. Only a reader that begins in the middle of a segment needs its offset index, and only a
reader of a range in which transactions were aborted needs transaction indexes (KIP-1058).
"""

import contextlib
import itertools
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from stablelog.batch.header import HEADER, BatchHeader, read_header
from stablelog.batch.records import find_by_time, is_decoded_quickly
from stablelog.errors import DamageError, NotLoadedError, UnavailableError
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import AbortedTxn, TransactionIndex
from stablelog.log.model import LogConfig, Slice
from stablelog.log.read import Lookup
from stablelog.log.retention import NO_LIMIT
from stablelog.log.segments.batch_search import Found
from stablelog.tier.index_object import IndexKind
from stablelog.tier.manifest import Manifest, Segments
from stablelog.tier.names import RemotePartition
from stablelog.tier.records import SegmentState
from stablelog.tier.remote_commit_order import AHEAD, ENDS_MAX, STEP_COUNT_MAX, RemoteCommitOrder
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.tier.segment_bytes import Cache, SegmentBytes, size_of
from stablelog.types import ObjectRange

CHUNK_SIZE = 4 << 20
# A read returns at most this many batches: it looks at the header of each, which takes at most some milliseconds.
BATCH_COUNT_MAX = 2_000


class _End(NamedTuple):
    """The end of a read.

    Attributes:
        segment_id: the id of the segment that the read has returned batches of.
        begin: the position in its log file at which the read has begun.
        position: the position at which it has ended.
        streak: the number of earlier reads without a gap between them.
    """

    segment_id: uuid.UUID
    begin: int
    position: int
    streak: int


class RemoteLog:
    """The remote tier of one partition.

    Args:
        partition: the partition.
        manifest: the list of remote segments; None if it is not known yet.
        cache: the bytes of objects that are in memory.
        save_start: records a log start offset on the local disk, durably. Raises DiskError.
        chunk_size: the size of the chunks of a segment that the manifest does not prove, in bytes.
        url: the address of the store, for error messages.
        log_start: the log start offset that is recorded on the local disk.

    Attributes:
        partition: the partition.
        segments: the searches in the list of its remote segments.
        bytes: the loaded bytes of these segments.
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
        self.partition = partition
        self._cache = cache
        self.bytes = SegmentBytes(partition, cache, chunk_size, url)
        self._save_start = save_start
        self.place = f"{url}/{partition.directory}"
        self.view = RemoteCommitOrder(self)
        self._ends: OrderedDict[int, _End] = OrderedDict()  # the ends of the last reads, by offset
        self._manifest = manifest
        self._log_start = log_start
        self.segments = Segments(manifest.segments if manifest is not None else ())

    # -- the list ----------------------------------------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        """Whether the list of remote segments is known."""
        return self._manifest is not None

    @property
    def manifest(self) -> Manifest:
        """The list of remote segments, as it was published.

        Raises:
            UnavailableError: the list is not known yet.
        """
        if self._manifest is None:
            raise UnavailableError(
                f"the remote segments of {self.partition.topic}-{self.partition.partition} are not known until the "
                "object store answers"
            )
        return self._manifest

    @property
    def start_offset(self) -> int:
        """The log start offset."""
        return max(self.manifest.log_start, self._log_start)

    @property
    def end_offset(self) -> int:
        """The first offset that is not in the store."""
        return max(self.manifest.end_offset, self._log_start)

    @property
    def size(self) -> int:
        """The size in bytes of the log files in the store, without segments that are being deleted."""
        return self.segments.size

    @property
    def has_new_start(self) -> bool:
        """Whether the log start offset has passed records that the published manifest has not deleted."""
        published = self.manifest.log_start
        return self.start_offset > published and next(self.segments.live_from(published), None) is not None

    def published(self, manifest: Manifest, segments: Segments) -> None:
        """Use a list from now on that was published and recorded on the local disk.

        Args:
            manifest: the list.
            segments: the object for searches in this list. The caller makes it, because that takes long if the list is
                long.
        """
        self._manifest = manifest
        self.segments = segments

    def note_start(self, start_offset: int) -> None:
        """Note a log start offset that is recorded on the local disk."""
        self._log_start = max(self._log_start, start_offset)

    def begin_at(self, start_offset: int) -> None:
        """Move the log start offset forward; durable on return. Raises DiskError; nothing changed."""
        if start_offset > self.start_offset:
            self._save_start(start_offset)
            self._log_start = start_offset

    def expired_before(self, config: LogConfig, local_size: int, now_ms: int) -> int:
        """Return the log start offset that retention demands, as far as it deletes remote segments."""
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
        """Read whole batches from `start`, as far as they are loaded, and at least one batch if `at_least_one`.

        Raises:
            NotLoadedError: the first batch is not loaded.
            DamageError: the objects in the store are not those of the segment.
        """
        offset = start
        while True:
            if offset >= min(self.end_offset, limit):
                return Slice([], start, offset, None)
            segment = self.at(offset)
            found = self._find(segment, offset)
            if found is not None:
                break
            # Compaction has removed all batches up to the end of the segment.
            offset = segment.end_offset
        begin, size = found.position, found.size
        if found.base_offset >= limit or (size > size_max and not at_least_one):
            return Slice([], start, start, None)
        self.bytes.views(segment, begin, size)  # the whole batch must be loaded
        end, end_offset = self._whole_batches(segment, begin, min(limit, segment.end_offset), size_max)
        if end == segment.size:
            end_offset = segment.end_offset
        self._remember(start, segment, end_offset, (begin, end))
        return Slice(self.bytes.views(segment, begin, end - begin), start, end_offset, None)

    def _whole_batches(
        self, segment: RemoteSegment, begin: int, limit: int, size_max: int
    ) -> tuple[int, int]:
        """Return the end (position, offset) of the loaded batches from `begin` on, within `size_max` bytes. The result
        includes at least the first batch, which must be loaded.
        """
        end, end_offset = begin, -1
        # A batch that is not loaded ends the read: the reader gets the batches before it.
        with contextlib.suppress(NotLoadedError):
            for count, batch in enumerate(self.bytes.batches(segment, begin)):
                batch_end = batch.position + batch.size
                is_over = count == BATCH_COUNT_MAX or batch.base_offset >= limit
                if is_over or (count and batch_end - begin > size_max):
                    break
                if not self.bytes.crc_holds(segment, batch.position, batch.size):
                    if count:
                        break  # The reader gets the batches before the damaged one.
                    self.bytes.drop(segment, batch.position, batch.size)
                    raise DamageError(
                        f"{self.bytes.log_place(segment)}: the CRC of the batch at byte {batch.position} does not match its bytes"
                    )
                end, end_offset = batch_end, batch.last_offset + 1
        assert end > begin
        return end, end_offset

    def finished(self, start: int, end: int) -> None:
        """Note that a reader got its response to a read of the offsets [start, end). The reader does not need the
        chunks again that end before the end of this read.
        """
        last, segment = self._ends.get(end), self.segments.at(max(end - 1, start))
        if last is None or segment is None or last.segment_id != segment.segment_id:
            return
        self.bytes.consumed(segment, last.begin, last.position)

    def ahead(self, offset: int) -> list[ObjectRange]:
        """Return the chunks that a reader needs next and that are not loaded. The last read of this reader ended at
        `offset`. The result is one chunk after the first read, and more chunks if the reader continues.
        """
        last = self._ends.get(offset)
        wanted = 1 + (AHEAD[0] if last is None else AHEAD[min(last.streak, len(AHEAD) - 1)])
        segment = self.segments.at(offset)
        position = None if segment is None else self._known_position(segment, offset)
        return self.chunks_from(offset, position or 0, wanted)

    def chunks_from(self, offset: int, position: int, count: int) -> list[ObjectRange]:
        """Return those of the next `count` chunks that are not loaded. The first chunk is that of a byte in the log
        file of the segment with this offset.
        """
        found: list[ObjectRange] = []
        while len(found) < count:
            segment = self.segments.at(offset)
            if segment is None:
                break
            chunks = self.bytes.chunks(segment, position, segment.size)
            found += itertools.islice(chunks, count - len(found))
            offset, position = segment.end_offset, 0
        return [chunk for chunk in found if not self._cache.has(chunk)]

    def aborted(self, start: int, end: int) -> tuple[list[AbortedTxn], bool]:
        """Return the aborted transactions with offsets in [start, end) whose markers are in the store, and whether the
        search is complete.

        Raises:
            NotLoadedError: a transaction index is not loaded. No index is needed if no transaction was aborted.
            DamageError: a transaction index is damaged, or missing although the segment has aborted transactions.
        """
        if start >= end:
            return [], True
        segments, is_complete = self.segments.with_aborts(start, end)
        missing = [one for segment in segments for one in self.bytes.missing(segment, IndexKind.TRANSACTIONS)]
        if missing:
            raise NotLoadedError(missing, size_of(missing))
        found: list[AbortedTxn] = []
        for segment in segments:
            entries = self.bytes.index(segment, IndexKind.TRANSACTIONS)
            found += TransactionIndex(entries).collect(start, end)[0]
        return found, is_complete

    def look_up_time(self, timestamp_ms: int) -> Lookup:
        """Find the first record with this timestamp or a later one, in steps; None if there is none.

        Raises the same errors as `read`.
        """
        start = self.start_offset
        for segment in self.segments.live_from(start):
            if segment.max_timestamp_ms < timestamp_ms:
                continue
            for count, (position, header) in enumerate(self.from_time(segment, timestamp_ms), 1):
                if count % STEP_COUNT_MAX == 0:
                    yield None
                is_data = header.record_count and not header.is_control
                if not is_data or header.max_timestamp < timestamp_ms or header.last_offset < start:
                    continue
                batch = b"".join(self.bytes.views(segment, position, header.size))
                work = partial(find_by_time, batch, timestamp_ms, start)
                record = work() if is_decoded_quickly(header) else (yield work)
                if record is not None:
                    return (*record, header.leader_epoch)
        return None

    # -- batches -----------------------------------------------------------------------------------------------

    def at(self, offset: int) -> RemoteSegment:
        """Return the segment with this offset. Raises DamageError if the manifest names none, or one that is being
        deleted.
        """
        segment = self.segments.at(offset)
        if segment is None or segment.state is not SegmentState.COPY_FINISHED:
            raise DamageError(
                f"no manifest of {self.place} names a segment with offset {offset}, and the log begins at "
                f"offset {self.start_offset}"
            )
        return segment

    def _find(self, segment: RemoteSegment, offset: int) -> Found | None:
        """Return the first batch whose last offset is at least `offset`; None if there is none."""
        begin = 0
        if offset > segment.base_offset:
            known = self._known_position(segment, offset)
            begin = self._position_before(segment, offset) if known is None else known
        return next((one for one in self.bytes.batches(segment, begin) if one.last_offset >= offset), None)

    def from_time(
        self, segment: RemoteSegment, timestamp_ms: int, start: int = 0
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of the batches of a segment that may have a record of this time or a later one."""
        needed = self.bytes.missing(segment, IndexKind.TIMES) + self.bytes.missing(segment, IndexKind.OFFSETS)
        if needed:
            raise NotLoadedError(needed, size_of(needed))
        times = TimeIndex(segment.base_offset, self.bytes.index(segment, IndexKind.TIMES))
        offset = max(times.offset_before(timestamp_ms) or segment.base_offset, start)
        for batch in self.bytes.batches(segment, self._position_before(segment, offset)):
            if batch.last_offset >= offset:
                head = b"".join(self.bytes.views(segment, batch.position, HEADER.size))
                yield batch.position, read_header(head)

    def _position_before(self, segment: RemoteSegment, offset: int) -> int:
        missing = self.bytes.missing(segment, IndexKind.OFFSETS)
        if missing:
            raise NotLoadedError(missing, size_of(missing))
        offsets = OffsetIndex(segment.base_offset, self.bytes.index(segment, IndexKind.OFFSETS))
        return offsets.position_before(offset)

    def _known_position(self, segment: RemoteSegment, offset: int) -> int | None:
        """Return the position of the batch that begins at `offset` if an earlier read has ended there; None if no such
        read is remembered.
        """
        last = self._ends.get(offset)
        return last.position if last is not None and last.segment_id == segment.segment_id else None

    def _remember(
        self, start: int, segment: RemoteSegment, end_offset: int, positions: tuple[int, int]
    ) -> None:
        before = self._ends.get(start)
        streak = 0 if before is None else before.streak + 1
        self._ends[end_offset] = _End(segment.segment_id, *positions, streak)
        self._ends.move_to_end(end_offset)
        if len(self._ends) > ENDS_MAX:
            self._ends.popitem(last=False)
