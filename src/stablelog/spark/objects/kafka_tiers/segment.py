"""A segment that Apache Kafka has copied, and reads of the batch headers in its log file.

A log file can only be divided between two batches. The offset index has the position and the last offset of
some batches. The first offset is in the header of the batch, so that each position costs one request for a header.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stablelog.batch.header import HEADER, BatchHeader, read_header
from stablelog.env.disk import Buffer
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError, ObjectMissingError, UnavailableError
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.search.batches import WALK_READ_SIZE, seek, walk
from stablelog.spark.objects.object_spans import STRETCH_COUNT_MAX, STRETCH_SIZE
from stablelog.tier.cut_points import CUT_POINT
from stablelog.tier.index_object import IndexKind
from stablelog.tier.names import RemotePartition
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.types import ObjectRange


@dataclass(frozen=True, slots=True)
class KafkaSegment(RemoteSegment):
    """A segment that Apache Kafka copied. Unlike a segment of stablelog, it has no summary: no counts and checksums of
    its content.

    Attributes:
        log_object: the key of its log file.
        is_cut: whether the last batches of the log file are left out, because another segment has their offsets.
        indexes: for each of its indexes, the object and the byte range in which it is stored. A segment without aborted
            transactions has no transaction index.
        refusal: why only a broker can read the log file, in words; empty if it can be read here.
    """

    log_object: str = ""
    is_cut: bool = False
    indexes: tuple[tuple[IndexKind, ObjectRange], ...] = ()
    refusal: str = ""

    def log_key(self, partition: RemotePartition) -> str:
        """Return the key of the log file."""
        return self.log_object

    def index_place(self, partition: RemotePartition, kind: IndexKind) -> ObjectRange | None:
        """Return where an index of this segment is stored: the object, and the byte range in it. Return None if the
        segment has no such index, or an empty one. `kind` says which index, such as the offset index; `partition` is
        the partition of the segment.
        """
        place = dict(self.indexes).get(kind)
        return place if place is not None and place.size else None


class SegmentDeletedError(UnavailableError):
    """Kafka has deleted a segment since the store was listed. The caller lists the store again."""


def load_index(store: ObjectStore, segment: KafkaSegment, kind: IndexKind) -> Buffer:
    """Load an index of a segment, and return its bytes; empty bytes if the segment has no such index.

    Raises:
        SegmentDeletedError: the object was deleted since the store was listed.
        StoreError: the store does not answer, or rejects a request.
        DamageError: the object ends before the end of the index.
    """
    place = dict(segment.indexes).get(kind)
    with deleted_if_missing():
        return (
            store.get_range(place.key, place.start, place.size) if place is not None and place.size else b""
        )


@contextlib.contextmanager
def deleted_if_missing() -> Iterator[None]:
    """Return a context manager. In its block, an ObjectMissingError becomes a SegmentDeletedError, because Kafka has
    deleted the object since the store was listed. The context has no value.
    """
    try:
        yield
    except ObjectMissingError as missing:
        raise SegmentDeletedError(
            f"Kafka has deleted a segment since the read began: {missing} any more. Start the read again"
        ) from missing


class KafkaLogFile:
    """The log file of a segment in an object store.

    Args:
        store: the object store.
        key: the key of the log file.
        size: the size of the file.
    """

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store = store
        self._key = key
        self.size = size

    def piece(self, position: int, size: int) -> Buffer:
        """Load bytes of the log file. Raises ObjectMissingError and StoreError."""
        return self._store.get_range(self._key, position, min(WALK_READ_SIZE, self.size - position))

    def walk(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch from a position on. Raises ObjectMissingError, StoreError and
        DamageError.
        """
        for at, header in walk(self, position):
            if at + header.size > self.size:
                raise self.torn_at(at)
            yield at, header

    def no_batch_at(self, position: int, error: DamageError | None) -> DamageError:
        """Return the error to raise if the bytes at a position of the log file are no batch. `error` says what is wrong
        with them; None if that is not known.
        """
        return DamageError(f"{self._store.url}/{self._key} has no batch at byte {position}: {error}")

    def torn_at(self, position: int) -> DamageError:
        """Return the error to raise for a torn batch: one that begins at this position and does not end within the
        file.
        """
        return DamageError(
            f"{self._store.url}/{self._key} ends in the middle of a batch, at byte {self.size}: restore the file"
        )


def cut_short(store: ObjectStore, segment: KafkaSegment, end_offset: int) -> KafkaSegment:
    """Return a segment without the batches from an offset on. If only a broker can read the segment (it has a
    `refusal`), its log file is not read, and only the end offset changes.

    Raises:
        UnavailableError: the store does not answer, or an object was deleted.
        DamageError: a batch has offsets before and after `end_offset`, or the file is damaged.
    """
    if segment.refusal:
        return replace(segment, end_offset=end_offset, is_cut=True)
    index = OffsetIndex(segment.base_offset, load_index(store, segment, IndexKind.OFFSETS))
    with deleted_if_missing():
        log = KafkaLogFile(store, segment.log_object, segment.size)
        found = seek(log, index.position_before(end_offset), offset=end_offset)
    if found is not None and found.base_offset < end_offset:
        raise DamageError(
            f"{store.url}/{segment.log_object}: the batch at byte {found.position} has the offsets {found.base_offset} to "
            f"{found.last_offset}, and another segment or leader epoch begins at offset {end_offset}"
        )
    size = segment.size if found is None else found.position
    return replace(segment, end_offset=end_offset, size=size, is_cut=True)


def _cut_positions(index: OffsetIndex, log_size: int) -> list[int]:
    """Return positions in a log file at which it can be cut into parts, because a batch begins there. The positions are
    about equally far from each other.
    """
    count = min(log_size // STRETCH_SIZE, STRETCH_COUNT_MAX)
    wanted = (log_size * number // count for number in range(1, count))
    return sorted({index.position_at_or_before(position) for position in wanted} - {0})


def with_cut_points(store: ObjectStore, segment: KafkaSegment) -> KafkaSegment:
    """Return a copy of a segment to which cut points are added: positions at which its log file can be divided between
    tasks. Raises UnavailableError and DamageError.
    """
    index = OffsetIndex(segment.base_offset, load_index(store, segment, IndexKind.OFFSETS))

    log = KafkaLogFile(store, segment.log_object, segment.size)

    def base_offset_at(position: int) -> int:
        if position + HEADER.size > segment.size:
            raise log.torn_at(position)
        with deleted_if_missing():
            content = store.get_range(segment.log_object, position, HEADER.size)
        try:
            return read_header(content).base_offset
        except DamageError as error:
            raise log.no_batch_at(position, error) from error

    points = [
        CUT_POINT.pack(base_offset_at(position) - segment.base_offset, position)
        for position in _cut_positions(index, segment.size)
    ]
    return replace(segment, cut_points=b"".join(points))
