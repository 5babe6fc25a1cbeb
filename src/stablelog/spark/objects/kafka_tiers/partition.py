"""A partition whose segments Apache Kafka's storage plugin has copied, read without a broker."""

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property

from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError, UsageError, adding_path
from stablelog.log.indexes.transaction_index import ENTRY, VERSION, TransactionIndex
from stablelog.log.producer_state.snapshots import decode_snapshot
from stablelog.spark.objects.kafka_tiers.segment import (
    KafkaSegment,
    deleted_if_missing,
    load_index,
    with_cut_points,
)
from stablelog.spark.objects.object_spans import STRETCH_SIZE
from stablelog.spark.objects.parallel_requests import map_parallel
from stablelog.spark.objects.tiered_partition import TieredPartition, missing_between
from stablelog.tier.index_object import IndexKind
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.remote_segment import RemoteSegment


class KafkaPartition(TieredPartition):
    """A partition in a store that Apache Kafka's plugin has written. Unlike a store of stablelog, it has no manifests
    (lists of a partition's segments) and no pins (objects by which a reader keeps segments from being deleted).

    The attribute `manifest` is made from the listed segments. A segment with a `refusal` (a text with the reason) is
    compressed or encrypted, so that only a broker can read it; all other ranges of offsets can be read.

    Args:
        store: the object store.
        partition: the partition.
        segments: its segments in the order of offsets, without overlaps.
        committed: whether the reader is read-committed.
        divided: a cache of segments with their cut points (positions at which the log file can be divided), by the key
            of the log file and the end offset. All reads of one stream share it.
    """

    listed_by = "the store has listed it"
    has_stable_offsets = False

    def __init__(
        self,
        store: ObjectStore,
        partition: RemotePartition,
        segments: Sequence[KafkaSegment],
        *,
        committed: bool,
        divided: dict[tuple[str, int], KafkaSegment],
    ) -> None:
        readable = [one for one in segments if not one.refusal]
        manifest = Manifest("", segments[0].base_offset if segments else 0, tuple(readable))
        super().__init__(store, partition, manifest, committed=committed)
        self.segments = segments
        self._segments = readable
        self._refused = [one for one in segments if one.refusal]
        self._divided = divided
        self._aborts: dict[str, TransactionIndex] = {}

    @property
    def log_end(self) -> int:
        """The offset after the last one of the last segment; 0 if the store has no segment of the partition."""
        return self.segments[-1].end_offset if self.segments else 0

    @cached_property
    def end_offset(self) -> int:
        """The end offset for the reader. A read-committed reader ends at the first offset of the oldest transaction
        that is open at the end of the last segment. If only a broker can read the last segment (it is compressed or
        encrypted), the end offset is that of this segment nevertheless, so that a read of all offsets is refused
        instead of ending early. Raises UnavailableError and DamageError.
        """
        if not self.segments or self.segments[-1].refusal:
            return self.log_end
        return max(self._last_stable_end, self.start_offset)

    @cached_property
    def _last_stable_end(self) -> int:
        return self._stable_end(len(self._segments) - 1)

    @cached_property
    def _runs(self) -> list[tuple[int, int]]:
        """The runs: the ranges of offsets in which no segment is missing. Each is a pair of its first offset and the
        offset after its last one. A missing segment may contain the marker of a transaction that is open before the
        segment. For a read-committed reader, the run before the segment therefore ends at the first offset of that
        transaction.
        """
        if not self._segments:
            return []
        found: list[tuple[int, int]] = []
        start = self._segments[0].base_offset
        for place, (one, other) in enumerate(itertools.pairwise(self._segments)):
            if one.end_offset != other.base_offset:
                found.append((start, self._stable_end(place)))
                start = other.base_offset
        return [*found, (start, self._last_stable_end)]

    def runs(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the runs in [start, end), the parts of these offsets that the reader can read without a broker: for
        each part its first offset and the offset after its last one. Raises UnavailableError and DamageError.
        """
        clipped = ((max(first, start), min(last, end)) for first, last in self._runs)
        return [(first, last) for first, last in clipped if first < last]

    @cached_property
    def _for_brokers(self) -> list[tuple[int, int, KafkaSegment]]:
        """The ranges of offsets that only brokers can read, because the plugin has compressed or encrypted their
        segments. Each is a tuple: its first offset, the offset after its last one, and its first segment that has a
        refusal. A transaction that is open before this segment may end in it, so the range begins with the first offset
        of the transaction.
        """
        holes = missing_between(self._runs, self.start_offset, self.log_end)
        rows = (
            (
                start,
                end,
                next(
                    (one for one in self._refused if start < one.end_offset and one.base_offset < end), None
                ),
            )
            for start, end in holes
        )
        return [(start, end, segment) for start, end, segment in rows if segment is not None]

    def parts_for_brokers(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return those parts of the offsets [start, end) that only brokers can read: for each part its first offset
        and the offset after its last one. Raises UnavailableError and DamageError.
        """
        clipped = ((max(first, start), min(last, end)) for first, last, _ in self._for_brokers)
        return [(first, last) for first, last in clipped if first < last]

    def check_without_brokers(self, start: int, end: int) -> None:
        """Raise UsageError if only brokers can read some offsets of a range. Raises UnavailableError and DamageError."""
        for first, last, segment in self._for_brokers:
            if max(first, start) < min(last, end):
                raise UsageError(
                    f"{segment.refusal}. Only brokers can read the offsets {first} to {last - 1} of "
                    f"{self.partition.topic}-{self.partition.partition}: set kafka.bootstrap.servers beside the URL of the "
                    "store, or read without these offsets, by startingOffsets and endingOffsets"
                )

    def at_time(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first record with this timestamp or a later one; None if there is none.

        Raises:
            UsageError: the record may be in a segment that the plugin has compressed or encrypted, so that only brokers
                can read it.
            StoreError: the store does not answer, or rejects a request.
            DamageError: an index or a log file is damaged.
        """
        with deleted_if_missing():
            found = super().at_time(timestamp_ms)
        for one in self._refused:
            if one.max_timestamp_ms >= timestamp_ms and (found is None or one.base_offset < found):
                raise UsageError(
                    f"{one.refusal}. That object may contain the first record of {self.partition.topic}-"
                    f"{self.partition.partition} of time {timestamp_ms} or later, and only brokers can tell: set kafka.bootstrap.servers beside "
                    "the URL of the store, or give the bounds as offsets, by startingOffsets and endingOffsets"
                )
        return found

    def _stable_end(self, place: int) -> int:
        """Return the end offset that the partition would have for the reader if the segment at index `place` were the
        last one in the store.

        For a read-committed reader, that is the first offset of the oldest transaction that is open at the end of the
        segment, because it may be aborted in the next one. The producer snapshot of the segment has these transactions.
        """
        segment = self._segments[place]
        if not self._committed:
            return segment.end_offset
        if segment.is_cut:  # Its snapshot describes the end of the whole segment.
            return self._stable_end(place - 1) if place else segment.base_offset
        key = dict(segment.indexes)[IndexKind.SNAPSHOT].key
        url = f"{self._store.url}/{key}"
        try:
            with adding_path(url):
                table = decode_snapshot(bytes(load_index(self._store, segment, IndexKind.SNAPSHOT)), 0)
        except DamageError as error:
            raise DamageError(
                f"{url}: {error}. This producer snapshot says which transactions are open at offset "
                f"{segment.end_offset}: restore it, or read with isolation=read_uncommitted"
            ) from error
        known = max((batch.last_offset for one in table for batch in one.batches), default=-1)
        if known >= segment.end_offset:
            raise DamageError(
                f"{self._store.url}/{segment.log_object} ends at offset {segment.end_offset}, and its producer snapshot "
                f"{key} has a batch with offset {known}: restore the log file"
            )
        return min([segment.end_offset, *(one.txn_first_offset for one in table.open_producers())])

    def segments_between(self, start: int, end: int) -> list[RemoteSegment]:
        """Return the segments with offsets in a range, with cut points: positions at which their log files can be
        divided. Raises UnavailableError if the store does not answer or ends before the range, and DamageError if
        segments of the range are missing or a file is damaged.
        """
        found = [one for one in super().segments_between(start, end) if isinstance(one, KafkaSegment)]
        large = [
            one
            for one in found
            if one.size >= 2 * STRETCH_SIZE and (one.log_object, one.end_offset) not in self._divided
        ]
        for one in map_parallel(lambda segment: with_cut_points(self._store, segment), large):
            self._divided[one.log_object, one.end_offset] = one
        return [self._divided.get((one.log_object, one.end_offset), one) for one in found]

    def require_txn_indexes(self, rows: Sequence[RemoteSegment]) -> None:
        """Load the transaction indexes of some segments. Raises StoreError and DamageError."""
        missing = [
            one for one in rows if isinstance(one, KafkaSegment) and one.log_object not in self._aborts
        ]
        for segment, index in zip(missing, map_parallel(self._load_aborts, missing), strict=True):
            self._aborts[segment.log_object] = index

    def txn_index_of(self, row: RemoteSegment) -> TransactionIndex:
        """Return the loaded transaction index of a segment."""
        return self._aborts[row.log_key(self.partition)]

    def _load_aborts(self, segment: KafkaSegment) -> TransactionIndex:
        """Load the transaction index of a segment, and return the entries whose markers are in the segment. If the last
        batches of the segment are left out, its index has further entries; they belong to the next segment, or not to
        the log.
        """
        content = bytes(load_index(self._store, segment, IndexKind.TRANSACTIONS))
        url = f"{self._store.url}/{dict(segment.indexes)[IndexKind.TRANSACTIONS].key}"
        try:
            entries = TransactionIndex(content)
        except DamageError as error:
            raise DamageError(f"{url}: {error}") from error
        rows = list(ENTRY.iter_unpack(content))
        markers = [row[3] for row in rows]
        if any(row[0] != VERSION or row[2] >= row[3] for row in rows) or any(
            one >= other for one, other in itertools.pairwise([segment.base_offset - 1, *markers])
        ):
            raise DamageError(
                f"{url} is not the transaction index of the segment with base offset {segment.base_offset}: restore "
                "the object"
            )
        count = bisect_left(markers, segment.end_offset)
        return entries if count == len(markers) else TransactionIndex(content[: count * ENTRY.size])
