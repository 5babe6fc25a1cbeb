"""The segments of a partition in an object store, for the count of records (`source.counting`)."""

from collections.abc import Iterator
from typing import NamedTuple

from stablelog.batch.header import BatchHeader, crc_holds, headers_in, read_header
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.spark.objects.download import proven_parts
from stablelog.spark.objects.tiered_partition import TieredPartition
from stablelog.tier.cut_points import CutPoint, cut_points
from stablelog.tier.records import SegmentState
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.types import ObjectRange


class StoredSegment:
    """A segment in an object store whose batch headers can be read, for `source.counting`.

    Args:
        store: the object store.
        key: the key of its log file.
        segment: the segment.
    """

    def __init__(self, store: ObjectStore, key: str, segment: RemoteSegment) -> None:
        self._store = store
        self._key = key
        self._segment = segment

    @property
    def base_offset(self) -> int:
        """The base offset of the segment."""
        return self._segment.base_offset

    @property
    def summary(self) -> Summary | None:
        """The summary of the segment; None if Apache Kafka has copied it."""
        return self._segment.summary

    def check(self, next_base: int | None) -> None:
        """Do nothing, because an object is never replaced. `next_base`, the base offset of the next segment, is not
        used.
        """

    def walk(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch from the one at `position` on. Raises StoreError, DamageError and
        ObjectMissingError.
        """
        # This module imports NumPy, which a count by manifests does not use.
        from stablelog.spark.objects.whole_batches import batches_of

        segment = self._segment
        parts = self._parts_from(position)
        for _, batches in batches_of(
            self._store, parts, [(segment.base_offset, segment.end_offset)] * len(parts)
        ):
            for at, header in headers_in(memoryview(batches)):
                yield position + at, header
            position += batches.size

    def _parts_from(self, position: int) -> list[ObjectRange]:
        """Return the byte ranges to download for a read from a cut point on: the parts of the log file after it, in
        order.
        """
        points = (CutPoint(self.base_offset, 0, 0), *cut_points(self._segment))
        edges = [
            (one.position, one.header_crc)
            for one in points
            if one.position >= position and one.header_crc is not None
        ]
        if self.summary is None or not edges or edges[0][0] != position:
            return [ObjectRange(self._key, position, self._segment.size - position)]
        return proven_parts(self._key, [*edges, (self._segment.size, self.summary.log_crc)])

    def batch_at(self, position: int, size: int) -> bytes:
        """Read a batch of the log file. Raises StoreError, DamageError and ObjectMissingError."""
        found = bytes(self._store.get_range(self._key, position, size))
        if not crc_holds(found, 0, read_header(found)):
            raise DamageError(
                f"{self._store.url}/{self._key}: the CRC of the batch at byte {position} does not match its bytes"
            )
        return found


class StoredPart(NamedTuple):
    """The byte range of a segment's log file that covers some of the requested offsets."""

    segment: StoredSegment
    position: int
    end_position: int


class StoredFiles:
    """The segments of a partition in an object store. `source.counting` counts records in them as it does in local
    files.

    Args:
        store: the object store.
        stored: the partition.
    """

    def __init__(self, store: ObjectStore, stored: TieredPartition) -> None:
        self._store = store
        self.stored = stored

    def _segment(self, row: RemoteSegment) -> StoredSegment:
        return StoredSegment(self._store, row.log_key(self.stored.partition), row)

    @property
    def sealed(self) -> list[tuple[StoredSegment, int]]:
        """The segments that are not being deleted, oldest first. Each is in a pair with its end offset."""
        rows = self.stored.manifest.segments
        return [
            (self._segment(row), row.end_offset) for row in rows if row.state is SegmentState.COPY_FINISHED
        ]

    def parts(self, start: int, end: int) -> list[StoredPart]:
        """Return the bytes of the log files that contain a range of offsets. Raises UnavailableError and DamageError."""
        return [
            StoredPart(self._segment(row), first, last)
            for row, first, last in self.stored.stretches(start, end)
        ]

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        """Return the aborted transactions with offsets from `start` to before `end`, sorted by first offset."""
        return self.stored.aborted_txns(start, end)
