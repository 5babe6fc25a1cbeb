"""The remote tier of one partition: searches in the list of its remote segments, and reads from cached bytes of objects.

No request is sent from here. A read that needs bytes which are not in the cache raises NotLoaded with the byte ranges;
the caller loads them and reads again. The log file of a segment is read in *chunks* of one size, and an index as a whole.

A reader that begins at the first offset of a segment and reads on needs no index: the remote log remembers at which
position each read has ended. Only a reader that begins in the middle of a segment needs its offset index, and only a
reader of a range in which transactions were aborted needs transaction indexes (KIP-1058).
"""

import contextlib
import itertools
import struct
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from crc32c import crc32c

from stablelog.batch.header import HEADER, LENGTH_AND_OFFSET_SIZE, MAGIC, BatchHeader, read_header
from stablelog.batch.records import find_by_time, is_decoded_quickly
from stablelog.env.disk import Buffer
from stablelog.errors import Corrupt, NotLoaded, Unavailable
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import AbortedTxn, TransactionIndex
from stablelog.log.model import LogConfig, Slice
from stablelog.log.read import Lookup
from stablelog.tier.index_object import IndexKind, index_range, indexes_of
from stablelog.tier.manifest import Manifest, RemoteSegment, Segments
from stablelog.tier.names import INDEXES, LOG, RemotePartition
from stablelog.tier.records import SegmentState
from stablelog.types import ObjectRange

CHUNK_SIZE = 4 << 20
ENDS_MAX = 64  # The number of reads of a partition whose ends are remembered.
AHEAD = (
    1,
    2,
    4,
)  # The number of chunks that are loaded ahead of a reader: after its first read, the second, and later.
# A read returns at most this many batches, because it looks at each of their headers: at most some milliseconds.
BATCH_COUNT_MAX = 2_000
STEP_COUNT_MAX = 1_000  # how many batch headers one step of a lookup reads
NO_LIMIT = -1
CRC = struct.Struct(">I")
CRC_END = 21  # The end of the CRC field in a batch. The CRC is that of all bytes after it.
FIELDS = struct.Struct(
    ">"  # the fields of a batch's header that a read needs
    "q"  # base_offset
    "i"  # batch_length
    "i"  # leader_epoch
    "b"  # magic
    "I"  # crc
    "h"  # attributes
    "i"  # last_offset_delta
)


class Cache(Protocol):
    """The bytes of objects that are in memory."""

    def get(self, wanted: ObjectRange) -> Buffer | None:
        """Return the bytes of a range; None if they must be loaded first. A whole object that does not exist is empty."""

    def consumed(self, wanted: ObjectRange) -> None:
        """Note that a reader has read a range to its end, and probably does not need it again."""

    def drop(self, wanted: ObjectRange) -> None:
        """Drop a range whose bytes are not those that a manifest describes, so that it is loaded again."""


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
        chunk_size: the size of the chunks in which log files are read, in bytes.

    Attributes:
        partition: the partition.
    """

    def __init__(
        self,
        partition: RemotePartition,
        manifest: Manifest | None,
        cache: Cache,
        save_start: Callable[[int], None],
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        assert chunk_size >= HEADER.size
        self.partition = partition
        self._cache = cache
        self._save_start = save_start
        self._chunk_size = chunk_size
        self._ends: OrderedDict[int, _End] = OrderedDict()  # the ends of the last reads, by offset
        self._last_key: tuple[uuid.UUID | None, str] = None, ""  # that of the segment that was used last
        self._manifest = manifest
        self._log_start = manifest.log_start if manifest is not None else 0
        self._segments = Segments(manifest.segments if manifest is not None else ())

    # -- the list ----------------------------------------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        """Whether the list of remote segments is known."""
        return self._manifest is not None

    @property
    def manifest(self) -> Manifest:
        """The list of remote segments, as it was published.

        Raises:
            Unavailable: the list is not known yet.
        """
        if self._manifest is None:
            raise Unavailable(
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
        return self._segments.size

    @property
    def has_unmarked(self) -> bool:
        """Whether the manifest lacks the mark of a segment that is to be deleted: the log start offset is behind it."""
        first = next(self._segments.live_from(0), None)
        return first is not None and first.end_offset <= self.start_offset

    def published(self, manifest: Manifest, segments: Segments) -> None:
        """Take over a list that was published and recorded on the local disk.

        Args:
            manifest: the list.
            segments: the searches in its segments. To make them takes long if there are many.
        """
        self._manifest = manifest
        self._segments = segments

    def begin_at(self, start_offset: int) -> None:
        """Move the log start offset forward; durable on return. Raises DiskError; nothing changed."""
        if start_offset > self.start_offset:
            self._save_start(start_offset)
            self._log_start = start_offset

    def expired_before(self, config: LogConfig, local_size: int, now_ms: int) -> int:
        """Return the log start offset that retention demands, as far as remote segments expire."""
        start = self.start_offset
        # The size includes segments before the log start offset whose deletion is not published yet: subtract them.
        unmarked = itertools.takewhile(lambda one: one.end_offset <= start, self._segments.live_from(0))
        excess = local_size + self.size - sum(one.size for one in unmarked) - config.retention_bytes
        for segment in self._segments.live_from(start):
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
            NotLoaded: the first batch is not loaded.
            Corrupt: the objects in the store are not those of the segment.
        """
        offset, found = start, None
        while found is None:
            if offset >= min(self.end_offset, limit):
                return Slice([], start, offset, None)
            segment = self._at(offset)
            found = self._find(segment, offset)
            # Compaction may have removed all batches up to the end of the segment.
            offset = segment.end_offset
        segment = self._at(offset - 1)
        begin, size, base_offset, _ = found
        if base_offset >= limit or (size > size_max and not at_least_one):
            return Slice([], start, start, None)
        self._views(segment, begin, size)  # the whole batch must be loaded
        end, end_offset = self._whole_batches(segment, begin, min(limit, segment.end_offset), size_max)
        if end == segment.size:
            end_offset = segment.end_offset
        self._remember(start, segment, end_offset, (begin, end))
        return Slice(self._views(segment, begin, end - begin), start, end_offset, None)

    def _whole_batches(
        self, segment: RemoteSegment, begin: int, limit: int, size_max: int
    ) -> tuple[int, int]:
        """Return the end (position, offset) of the loaded batches from `begin` on, within `size_max` bytes but at least
        one batch, which is loaded.
        """
        end, end_offset, loaded_end = begin, -1, begin
        with contextlib.suppress(
            NotLoaded
        ):  # The reader gets the batches before the bytes that are not loaded.
            for count, (position, size, base_offset, last_offset) in enumerate(self._batches(segment, begin)):
                batch_end = position + size
                is_over = count == BATCH_COUNT_MAX or base_offset >= limit
                if is_over or (count and batch_end - begin > size_max):
                    break
                while (
                    loaded_end < batch_end
                    and self._cache.get(self._chunk_at(segment, loaded_end)) is not None
                ):
                    loaded_end = (loaded_end // self._chunk_size + 1) * self._chunk_size
                if loaded_end < batch_end:
                    break
                if not self._crc_holds(segment, position, size):
                    if count:
                        break  # The reader gets the batches before the damaged one.
                    self._drop(segment, position, size)
                    raise Corrupt(
                        f"{self._log_key(segment)}: the CRC of the batch at byte {position} does not match its bytes"
                    )
                end, end_offset = batch_end, last_offset + 1
        assert end > begin
        return end, end_offset

    def finished(self, start: int, end: int) -> None:
        """Note that a reader got its response to a read of the offsets [start, end): it does not need the chunks again that
        end before the end of the read.
        """
        last, segment = self._ends.get(end), self._segments.at(max(end - 1, start))
        if last is None or segment is None or last.segment_id != segment.segment_id:
            return
        for position in range(
            last.begin // self._chunk_size * self._chunk_size, last.position, self._chunk_size
        ):
            if min(position + self._chunk_size, segment.size) <= last.position:
                self._cache.consumed(self._chunk_at(segment, position))

    def ahead(self, offset: int) -> list[ObjectRange]:
        """Return the chunks that are not loaded and that the reader whose last read ended at `offset` needs next: one
        after the first read, and more if the reader goes on.
        """
        last = self._ends.get(offset)
        wanted = 1 + (AHEAD[0] if last is None else AHEAD[min(last.streak, len(AHEAD) - 1)])
        found: list[ObjectRange] = []  # first the chunk in which the last read has ended
        while len(found) < wanted:
            segment = self._segments.at(offset)
            if segment is None:
                break
            first = (self._known_position(segment, offset) or 0) // self._chunk_size * self._chunk_size
            positions = range(first, segment.size, self._chunk_size)[: wanted - len(found)]
            found += [self._chunk_at(segment, position) for position in positions]
            offset = segment.end_offset
        return [chunk for chunk in found if self._cache.get(chunk) is None]

    def aborted(self, start: int, end: int) -> tuple[list[AbortedTxn], bool]:
        """Return the aborted transactions with offsets in [start, end) whose markers are in the store, and whether the
        search is complete.

        Raises:
            NotLoaded: a transaction index is not loaded. No index is needed if no transaction was aborted.
            Corrupt: a transaction index is damaged, or missing although the segment has aborted transactions.
        """
        if start >= end:
            return [], True
        segments, is_complete = self._segments.with_aborts(start, end)
        missing = [one for segment in segments for one in self._missing(segment, IndexKind.TRANSACTIONS)]
        if missing:
            raise NotLoaded(missing, _size_of(missing))
        found: list[AbortedTxn] = []
        for segment in segments:
            entries = self._index(segment, IndexKind.TRANSACTIONS)
            found += TransactionIndex(entries).collect(start, end)[0]
        return found, is_complete

    def look_up_time(self, timestamp_ms: int) -> Lookup:
        """Find the first record with this timestamp or a later one, in steps; None if there is none.

        Raises the same errors as `read`.
        """
        start = self.start_offset
        for segment in self._segments.live_from(start):
            if segment.max_timestamp_ms < timestamp_ms:
                continue
            for count, (position, header) in enumerate(self._from_time(segment, timestamp_ms), 1):
                if count % STEP_COUNT_MAX == 0:
                    yield None
                is_data = header.record_count and not header.is_control
                if not is_data or header.max_timestamp < timestamp_ms or header.last_offset < start:
                    continue
                batch = b"".join(self._views(segment, position, header.size))
                work = partial(find_by_time, batch, timestamp_ms, start)
                record = work() if is_decoded_quickly(header) else (yield work)
                if record is not None:
                    return (*record, header.leader_epoch)
        return None

    # -- batches -----------------------------------------------------------------------------------------------

    def _at(self, offset: int) -> RemoteSegment:
        segment = self._segments.at(offset)
        if segment is None or segment.state is not SegmentState.COPY_FINISHED:
            raise Corrupt(
                f"no manifest of {self.partition.directory} names a segment with offset {offset}, and the log begins at "
                f"offset {self.start_offset}"
            )
        return segment

    def _find(self, segment: RemoteSegment, offset: int) -> tuple[int, int, int, int] | None:
        """Return the first batch whose last offset is at least `offset`, as `_batches` does; None if there is none."""
        begin = 0
        if offset > segment.base_offset:
            known = self._known_position(segment, offset)
            begin = self._position_before(segment, offset) if known is None else known
        return next((batch for batch in self._batches(segment, begin) if batch[3] >= offset), None)

    def _batches(self, segment: RemoteSegment, position: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (position, size, base offset, last offset) of each batch from a position on."""
        chunk_start, chunk = 0, memoryview(b"")
        while position < segment.size:
            at = position - chunk_start
            head: Buffer = chunk
            if at < 0 or at + HEADER.size > len(chunk):
                if position + HEADER.size > segment.size:
                    raise self._damaged(segment, position)
                # A header that is in two chunks is copied.
                views = self._views(segment, position, HEADER.size)
                if len(views) == 1:
                    chunk_start = position // self._chunk_size * self._chunk_size
                    size = min(self._chunk_size, segment.size - chunk_start)
                    chunk = memoryview(self._views(segment, chunk_start, size)[0])
                    at, head = position - chunk_start, chunk
                else:
                    at, head = 0, b"".join(views)
            base_offset, length, _, magic, _, _, delta = FIELDS.unpack_from(head, at)
            size, last_offset = length + LENGTH_AND_OFFSET_SIZE, base_offset + delta
            if (
                magic != MAGIC
                or size < HEADER.size
                or position + size > segment.size
                or not segment.base_offset <= base_offset <= last_offset < segment.end_offset
            ):
                raise self._damaged(segment, position)
            yield position, size, base_offset, last_offset
            position += size

    def _crc_holds(self, segment: RemoteSegment, position: int, size: int) -> bool:
        """Whether the CRC of a loaded batch matches its bytes."""
        number, begin = divmod(position, self._chunk_size)
        if begin + size <= self._chunk_size:
            chunk = self._cache.get(self._chunk(segment, number))
            assert chunk is not None
            batch = memoryview(chunk)[begin : begin + size]
            return bool(crc32c(batch[CRC_END:]) == CRC.unpack_from(batch, CRC_END - CRC.size)[0])
        views = self._views(segment, position, size)
        head = views[0] if len(views[0]) >= CRC_END else b"".join(views)
        crc, before = 0, 0
        for view in views:
            crc = crc32c(memoryview(view)[max(CRC_END - before, 0) :], crc)
            before += len(view)
        return crc == int.from_bytes(head[CRC_END - 4 : CRC_END], "big")

    def _from_time(self, segment: RemoteSegment, timestamp_ms: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of the batches of a segment that may have a record of this time or a later one."""
        needed = self._missing(segment, IndexKind.TIMES) + self._missing(segment, IndexKind.OFFSETS)
        if needed:
            raise NotLoaded(needed, _size_of(needed))
        times = TimeIndex(segment.base_offset, self._index(segment, IndexKind.TIMES))
        offset = times.offset_before(timestamp_ms) or segment.base_offset
        for position, _, _, last_offset in self._batches(segment, self._position_before(segment, offset)):
            if last_offset >= offset:
                yield position, read_header(b"".join(self._views(segment, position, HEADER.size)))

    def _position_before(self, segment: RemoteSegment, offset: int) -> int:
        missing = self._missing(segment, IndexKind.OFFSETS)
        if missing:
            raise NotLoaded(missing, _size_of(missing))
        offsets = OffsetIndex(segment.base_offset, self._index(segment, IndexKind.OFFSETS))
        return offsets.position_before(offset)

    def _known_position(self, segment: RemoteSegment, offset: int) -> int | None:
        """Return the position of a batch if an earlier read has ended before it; None if no read is remembered."""
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

    def _damaged(self, segment: RemoteSegment, position: int) -> Corrupt:
        self._drop(segment, position, 1)
        return Corrupt(f"{self._log_key(segment)} has no batch of the segment at byte {position}")

    def _drop(self, segment: RemoteSegment, position: int, size: int) -> None:
        """Drop the chunks with damaged bytes from the cache: the object may be restored."""
        for chunk, _, _ in self._pieces(segment, position, size):
            self._cache.drop(chunk)

    # -- indexes -----------------------------------------------------------------------------------------------

    def _missing(self, segment: RemoteSegment, kind: IndexKind) -> list[ObjectRange]:
        """Return the range of an index, unless it is loaded or empty."""
        wanted = self._index_range(segment, kind)
        return [] if wanted is None or self._cache.get(wanted) is not None else [wanted]

    def _index_range(self, segment: RemoteSegment, kind: IndexKind) -> ObjectRange | None:
        key = self.partition.segment_key(segment.base_offset, segment.segment_id, INDEXES)
        if segment.summary is None:
            return ObjectRange(key, 0, 0)  # The sizes of the indexes are not known.
        start, size, _ = index_range(segment.summary, kind)
        return ObjectRange(key, start, size) if size else None

    def _index(self, segment: RemoteSegment, kind: IndexKind) -> Buffer:
        """Return the bytes of a loaded index; empty if the segment has none."""
        wanted = self._index_range(segment, kind)
        if wanted is None:
            return b""
        content = self._cache.get(wanted)
        if content is None:
            raise NotLoaded([wanted], wanted.size)
        if segment.summary is None:
            return indexes_of(content, wanted.key).get(kind, b"")
        if crc32c(content) != index_range(segment.summary, kind).crc:
            self._cache.drop(wanted)
            raise Corrupt(
                f"{wanted.key}: the {wanted.size} bytes at byte {wanted.start} do not match the summary"
            )
        return content

    # -- chunks ------------------------------------------------------------------------------------------------

    def _log_key(self, segment: RemoteSegment) -> str:
        segment_id, key = self._last_key
        if segment_id != segment.segment_id:
            key = self.partition.segment_key(segment.base_offset, segment.segment_id, LOG)
            self._last_key = segment.segment_id, key
        return key

    def _chunk(self, segment: RemoteSegment, number: int) -> ObjectRange:
        start = number * self._chunk_size
        return ObjectRange(self._log_key(segment), start, min(self._chunk_size, segment.size - start))

    def _pieces(
        self, segment: RemoteSegment, position: int, size: int
    ) -> Iterator[tuple[ObjectRange, int, int]]:
        """Yield, for each chunk that has some of these bytes: the chunk, and the begin and end of the bytes in it."""
        end = position + size
        while position < end:
            number, begin = divmod(position, self._chunk_size)
            piece_size = min(self._chunk_size - begin, end - position)
            yield self._chunk(segment, number), begin, begin + piece_size
            position += piece_size

    def _chunk_at(self, segment: RemoteSegment, position: int) -> ObjectRange:
        return self._chunk(segment, position // self._chunk_size)

    def _views(self, segment: RemoteSegment, position: int, size: int) -> list[Buffer]:
        """Return views of bytes of a log file that are loaded.

        Raises:
            NotLoaded: some of the bytes are not loaded.
        """
        views: list[Buffer] = []
        missing = []
        needed_size = 0
        for chunk, begin, end in self._pieces(segment, position, size):
            content = self._cache.get(chunk)
            needed_size += chunk.size
            if content is None:
                missing.append(chunk)
            else:
                views.append(memoryview(content)[begin:end])
        if missing:
            raise NotLoaded(missing, needed_size)
        return views


def _size_of(ranges: Iterable[ObjectRange]) -> int:
    return sum(one.size for one in ranges)
