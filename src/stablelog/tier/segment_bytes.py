"""The bytes of remote segments that are in the cache: batches and indexes, found by their positions in the objects.

The log file of a segment is loaded in *chunks*, from one position at which it can be divided to the next
(`tier.cut_points`), and an index as a whole. A call that needs bytes which are not in the cache raises NotLoadedError
with their ranges. Each range says what its bytes have to be compared with when they are loaded (`check_proof`).
"""

import uuid
from collections.abc import Iterable, Iterator
from typing import Protocol

from stablelog.batch.header import (
    CRC,
    CRC_START,
    HEADER,
    BatchHeader,
    crc_holds,
    read_header,
)
from stablelog.crc32c import crc32c
from stablelog.env.disk import Buffer
from stablelog.errors import DamageError, NotLoadedError
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.summary import NOTHING
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.search.batches import seek, walk
from stablelog.log.search.source import FoundBatch
from stablelog.log.segments.proof import CHUNK_SIZE, SKIPPED_SIZE, raw_headers_in
from stablelog.tier.cut_points import chunk_at
from stablelog.tier.index_object import IndexKind, indexes_of
from stablelog.tier.names import RemotePartition
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.types import ObjectRange


class Cache(Protocol):
    """A cache of byte ranges of objects in the store."""

    def get(self, wanted: ObjectRange) -> Buffer | None:
        """Return the bytes of a range of an object; None if they must be loaded first. If the range is a whole object
        that does not exist, the result is empty.
        """

    def has(self, wanted: ObjectRange) -> bool:
        """Whether the bytes of a range of an object are in memory. This loads nothing."""

    def mark_consumed(self, wanted: ObjectRange) -> None:
        """Mark a range of an object that a reader has read to its end, and probably does not need again. The cache
        drops such ranges first.
        """

    def drop(self, wanted: ObjectRange) -> None:
        """Drop a range from the cache, because its bytes do not match the checksums in the manifest, the list of a
        partition's segments. The next read loads the range from the store again.
        """


class SegmentBytes:
    """The loaded bytes of the remote segments of one partition.

    Args:
        partition: the partition.
        cache: keeps the bytes of objects in memory.
        chunk_size: the size in bytes of the parts in which a log file is loaded, if the list of remote segments does
            not say at which positions it can be divided.
        url: the address of the store, for error messages.

    Attributes:
        cache: the argument of this name.
    """

    def __init__(self, partition: RemotePartition, cache: Cache, chunk_size: int, url: str) -> None:
        self._partition = partition
        self.cache = cache
        self._chunk_size = chunk_size
        self._url = url
        # The id of the segment that was used last, and the object key of its log file.
        self._last_key: tuple[uuid.UUID | None, str] = None, ""
        self._last_chunk = ObjectRange("", 0, 0)

    def crc_holds(self, segment: RemoteSegment, position: int, size: int) -> bool:
        """Return whether the CRC of a batch matches its bytes. The batch begins at this position in the log file and
        has `size` bytes. Raises NotLoadedError if some of the bytes are not in the cache.
        """
        chunk = self.chunk_at(segment, position)
        begin = position - chunk.start
        content = self.cache.get(chunk) if begin + size <= chunk.size else None
        if content is None:
            batch = memoryview(b"".join(self.loaded_views(segment, position, size)))
        else:
            batch = memoryview(content)[begin : begin + size]
        return bool(crc32c(batch[CRC_START:]) == CRC.unpack_from(batch, CRC_START - CRC.size)[0])

    def loaded_views(self, segment: RemoteSegment, position: int, size: int) -> list[Buffer]:
        """Return views of `size` bytes of a segment's log file from `position` on, one for each chunk (part in which
        the file was loaded).

        Raises:
            NotLoadedError: some of the bytes are not loaded.
        """
        views: list[Buffer] = []
        missing = []
        needed_size, end = 0, position + size
        for chunk in self.chunks(segment, position, end):
            content = self.cache.get(chunk)
            needed_size += chunk.size
            if content is None:
                missing.append(chunk)
            else:
                views.append(memoryview(content)[max(position - chunk.start, 0) : end - chunk.start])
        if missing:
            raise NotLoadedError(missing, needed_size)
        return views

    def drop_chunks(self, segment: RemoteSegment, position: int, size: int) -> None:
        """Drop from the cache the chunks (parts in which a log file is loaded) that have these bytes, because they are
        damaged. The next read loads them again: the object may have been restored since.
        """
        for chunk in self.chunks(segment, position, position + size):
            self.cache.drop(chunk)

    def mark_consumed(self, segment: RemoteSegment, begin: int, end: int) -> None:
        """Mark the chunks (parts in which a log file is loaded) that end within its bytes [begin, end) as consumed,
        after a reader has read these bytes. The cache drops such chunks first.
        """
        for chunk in self.chunks(segment, begin, end):
            if chunk.start + chunk.size <= end:
                self.cache.mark_consumed(chunk)

    def require_indexes(self, segments: Iterable[RemoteSegment], *kinds: IndexKind) -> None:
        """Check that the indexes of these kinds are loaded for all these segments. Raise NotLoadedError, which names
        the missing ones, if some are not.
        """
        places = (one.index_place(self._partition, kind) for one in segments for kind in kinds)
        missing = {one: one.size for one in places if one is not None and self.cache.get(one) is None}
        if missing:
            raise NotLoadedError(list(missing), sum(missing.values()))

    def index_bytes(self, segment: RemoteSegment, kind: IndexKind) -> Buffer:
        """Return the bytes of an index; empty if the segment has none. Raises NotLoadedError if the index is not in the
        cache.
        """
        wanted = segment.index_place(self._partition, kind)
        if wanted is None:
            return b""
        content = self.cache.get(wanted)
        if content is None:
            raise NotLoadedError([wanted], wanted.size)
        if not wanted.size:
            return indexes_of(content, f"{self._url}/{wanted.key}").get(kind, b"")
        return content

    def log_place(self, segment: RemoteSegment) -> str:
        """Return the URL of a segment's log file, for error messages."""
        return f"{self._url}/{self.log_key(segment)}"

    def log_key(self, segment: RemoteSegment) -> str:
        """Return the key of a segment's log file in the object store."""
        segment_id, key = self._last_key
        if segment_id != segment.segment_id:
            key = segment.log_key(self._partition)
            self._last_key = segment.segment_id, key
        return key

    def chunk_at(self, segment: RemoteSegment, position: int) -> ObjectRange:
        """Return the chunk (part in which a log file is loaded) that contains the byte at a position. Raises
        DamageError.
        """
        key, last = self.log_key(segment), self._last_chunk
        if last.key == key and last.start <= position < last.start + last.size:
            return last
        begin, end, proof = chunk_at(segment, position, self._chunk_size)
        self._last_chunk = ObjectRange(key, begin, end - begin, proof)
        return self._last_chunk

    def chunks(self, segment: RemoteSegment, begin: int, end: int) -> Iterator[ObjectRange]:
        """Yield the chunks (parts in which a log file is loaded) that have some of its bytes [begin, end). Raises
        DamageError.
        """
        while begin < end:
            chunk = self.chunk_at(segment, begin)
            yield chunk
            begin = chunk.start + chunk.size


class LoadedSegment:
    """Reader of one remote segment. Its methods raise NotLoadedError if the bytes that they need are not in the cache.

    Args:
        content: the loaded bytes of the partition's segments.
        segment: the segment.

    Attributes:
        base_offset: the first offset of the segment.
        end_offset: the offset after the last one.
        size: the size of the log file in bytes.
        max_timestamp: the greatest timestamp of its records; -1 if there is none.
        passed: how far earlier searches by time have read the log file (`log.search.times`), so that the next search
            can continue there.
    """

    def __init__(self, content: SegmentBytes, segment: RemoteSegment) -> None:
        self._content = content
        self._segment = segment
        self.base_offset = segment.base_offset
        self.end_offset = segment.end_offset
        self.size = segment.size
        self.max_timestamp = segment.max_timestamp_ms
        self.passed = 0, NOTHING

    @property
    def time_index(self) -> TimeIndex:
        """The time index of the segment. It is loaded together with the offset index, because a lookup by time needs
        both.
        """
        self._content.require_indexes([self._segment], IndexKind.TIMES, IndexKind.OFFSETS)
        return TimeIndex(self.base_offset, self._content.index_bytes(self._segment, IndexKind.TIMES))

    def find(self, offset: int, known: int | None = None) -> FoundBatch | None:
        """Return the first batch whose last offset is at least `offset`; None if there is none. Raises DamageError.

        Args:
            offset: the offset.
            known: the position of a batch at which the search may begin; None to look it up in the offset index.
        """
        position = 0 if known is None else known
        if known is None and offset > self.base_offset:
            content = self._content.index_bytes(self._segment, IndexKind.OFFSETS)
            position = OffsetIndex(self.base_offset, content).position_before(offset)
        found = seek(self, position, offset=offset)
        if found is not None:
            self._check(found)
        return found

    def walk(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch of the segment from a position on. Raises DamageError."""
        for at, header in walk(self, position):
            self._check(FoundBatch(at, header.size, header.base_offset, header.last_offset))
            yield at, header

    def _check(self, batch: FoundBatch) -> None:
        is_inside = self.base_offset <= batch.base_offset <= batch.last_offset < self.end_offset
        if not is_inside or batch.end_position > self.size:
            raise self.no_batch_at(batch.position)

    def batch_at(self, position: int, size: int) -> bytes:
        """Return a copy of the bytes of a batch, which must be loaded."""
        return b"".join(self._content.loaded_views(self._segment, position, size))

    def piece(self, position: int, size: int) -> Buffer:
        """Return loaded bytes of the log file from a position on: up to the end of the chunk (part in which the file is
        loaded), but at least one batch header. If the header is in two chunks, it is copied into one buffer.
        """
        content, segment = self._content, self._segment
        chunk = content.chunk_at(segment, position)
        left = chunk.start + chunk.size - position
        views = content.loaded_views(segment, position, max(left, min(HEADER.size, segment.size - position)))
        return views[0] if len(views) == 1 else b"".join(views)

    def no_batch_at(self, position: int, error: DamageError | None = None) -> DamageError:
        """Return the error for a position in the log file at which no batch of the segment begins.

        The chunk (part in which the log file is loaded) with this position is also dropped from the cache, because its
        bytes are wrong: the next read loads it again, and the object may have been restored since.

        Args:
            position: the position in the log file, in bytes.
            error: what the caller has found wrong with the bytes. It is not used here, because the returned error says
                more: it names the object and the position.
        """
        self._content.drop_chunks(self._segment, position, 1)
        return DamageError(
            f"{self._content.log_place(self._segment)} has no batch of the segment at byte {position}"
        )

    # A batch that does not end within the file is no batch of the segment, either.
    torn_at = no_batch_at


def check_proof(content: Buffer, wanted: ObjectRange, url: str) -> None:
    """Check the bytes of a downloaded range of an object against the CRCs that the manifest, the list of a partition's
    segments, has for it. May run in any thread.

    Args:
        content: the bytes that the store has returned for the range.
        wanted: the range.
        url: the address of the store, for messages.

    Raises:
        DamageError: the bytes do not match these CRCs.
    """
    if wanted.proof is None:
        return
    crc, crc_before = wanted.proof
    if (crc32c(content) if crc_before is None else _headers_crc(content, crc_before)) == crc:
        return
    damage = "" if crc_before is None else f": {_first_damage(content, wanted.start)}"
    raise DamageError(
        f"{url}/{wanted.key} is damaged: the {wanted.size} bytes at byte {wanted.start} do not "
        f"match the CRC in the manifest{damage}. Restore the object"
    )


def _headers_crc(content: Buffer, crc: int) -> int | None:
    """Return the CRC-32C that results if `crc`, the CRC over all batch headers of the log file before the buffer, is
    continued over those in the buffer. Return None if the buffer does not consist of whole batches.
    """
    view, position, count = memoryview(content), 0, 0
    while position < len(view):
        piece: Buffer = view[position:]
        if position < count * SKIPPED_SIZE or not count:
            piece = bytes(
                piece[:CHUNK_SIZE]
            )  # slices of a `bytes` object cost less than slices of a memoryview
        try:
            headers, size = raw_headers_in(piece)
        except DamageError:
            return None
        if not headers:
            return None
        crc = crc32c(b"".join(headers), crc)
        position, count = position + size, count + len(headers)
    return crc if position == len(view) else None


def _first_damage(content: Buffer, start: int) -> str:
    """Return a description of the first damaged batch in loaded bytes of a log file, for an error message. `start` is
    the position in the log file at which the buffer begins.
    """
    position, next_offset = 0, -1
    while position < len(content):
        try:
            header = read_header(content, position)
        except DamageError:
            return f"there is no batch at byte {start + position}"
        if position + header.size > len(content) or not crc_holds(content, position, header):
            return f"the CRC of the batch at byte {start + position} does not match its bytes"
        if header.base_offset < next_offset:
            return f"the offsets of the batch at byte {start + position} do not follow those before it"
        position, next_offset = position + header.size, header.next_offset
    return "the batches are whole, and the headers of some batches are those of others. The object is that of another segment, or was changed"
