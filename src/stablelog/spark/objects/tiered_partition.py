"""A partition in an object store, read without a broker by its last manifest, the list of its segments in the store."""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from operator import attrgetter

from stablelog.batch.header import BatchHeader, Buffer, crc_holds, headers_in
from stablelog.commit_order.stored_view import StoredOrder
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError, UnavailableError
from stablelog.log.files.restored import Restored
from stablelog.log.indexes.transaction_index import AbortedTxn, TransactionIndex
from stablelog.log.search.aborts import find_aborted
from stablelog.log.search.times import run_lookup
from stablelog.spark.objects.loaded_ranges import LoadedRanges
from stablelog.spark.objects.object_spans import CommitSpan, ObjectSpan, log_edges, log_parts
from stablelog.spark.planning import ObjectExtent, Piece, ReadersPins, StoredPiece
from stablelog.spark.table_spans import LogPart
from stablelog.tier.cut_points import cut_points
from stablelog.tier.index_object import IndexKind
from stablelog.tier.manifest import Manifest, ManifestSegments
from stablelog.tier.names import RemotePartition
from stablelog.tier.records import SegmentState
from stablelog.tier.remote_log import RemoteLog
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.tier.segment_bytes import LoadedSegment
from stablelog.types import TopicPartition
from stablelog.wire.extension.transaction_groups import DEFAULT_GROUP

ORDER_SETTING, GROUP_SETTING = "stablelog.order", "stablelog.group"
# The size of the chunks of log files in commit order, and in searches. Up to 16 chunks are needed at a time.
CHUNK_SIZE = 2 << 20


def remote_log(
    store: ObjectStore, partition: RemotePartition, manifest: Manifest, loaded: LoadedRanges
) -> RemoteLog:
    """Return the remote tier of a partition (its part in an object store) for a reader. Reads of the result download
    missing bytes, where those of the broker raise NotLoadedError. `loaded` is the cache of the downloaded bytes.
    """
    return RemoteLog(partition, manifest, loaded, _save_nothing, CHUNK_SIZE, store.url)


def _save_nothing(_log_start: int) -> None:
    raise AssertionError("a reader does not move the log start offset")


def _proven_batch(view: memoryview, position: int, header: BatchHeader, place: str) -> memoryview:
    """Return the bytes of the batch at `position` of the downloaded bytes `view`. Its header was checked before. Raises
    DamageError if the CRC of the batch does not match its bytes. `place` is the URL of the object.
    """
    if not crc_holds(view, position, header):
        raise DamageError(
            f"{place}: the CRC of the batch of offset {header.base_offset} does not match its bytes"
        )
    return view[position : position + header.size]


def missing_between(runs: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of the range [start, end) that the runs (ranges without a missing segment) do not cover. Parts
    and runs are pairs of a first offset and the offset after the last one.
    """
    edges = [start, *itertools.chain.from_iterable(runs), end]
    return [(first, last) for first, last in zip(edges[::2], edges[1::2], strict=True) if first < last]


class TieredPartition:
    """A partition in the object store.

    Args:
        store: the object store.
        partition: the partition.
        manifest: its last manifest, the list of its segments in the store; an empty one if it has none.
        committed: whether the reader is read-committed.
        pins: the pins of the read, objects that keep segments from being deleted; None if there are none.

    Attributes:
        partition: the partition.
        manifest: its last manifest.
        is_in_commit_order: whether the reader gets whole transactions in the order of their commits, at positions that
            the reader sees as offsets.
        group: the transaction group of the topic (topics whose commits have one order); empty for the default group.
        listed_by: words for messages about a missing object, which say what names the object, such as the manifest.
        has_stable_offsets: whether each segment has a summary (in the manifest) that contains its last stable offset,
            by which a search for aborted transactions knows where to end.
    """

    listed_by = "the last manifest names it"
    has_stable_offsets = True

    def __init__(
        self,
        store: ObjectStore,
        partition: RemotePartition,
        manifest: Manifest,
        *,
        committed: bool,
        pins: ReadersPins | None = None,
    ) -> None:
        self._store = store
        self.partition = partition
        self.manifest = manifest
        self._committed = committed
        self._pins = pins
        configs = {} if manifest.published is None else manifest.published.configs
        self.is_in_commit_order = committed and configs.get(ORDER_SETTING) == "commit"
        self.group = configs.get(GROUP_SETTING, DEFAULT_GROUP)

    @property
    def url(self) -> str:
        """The URL of the store."""
        return self._store.url

    @property
    def place(self) -> TopicPartition:
        """The name of the topic, and the number of the partition."""
        return self.partition.topic, self.partition.partition

    @cached_property
    def _loaded(self) -> LoadedRanges:
        return LoadedRanges(self._store)

    @cached_property
    def _remote(self) -> RemoteLog:
        return remote_log(self._store, self.partition, self.manifest, self._loaded)

    @property
    def restored(self) -> Restored | None:
        """The offsets and commits that were lost when the broker was restored from the store; None if that has never
        happened.
        """
        return None if self.manifest.published is None else self.manifest.published.restored

    @cached_property
    def order(self) -> StoredOrder:
        """The partition in commit order: its transactions in the order of their commits. The topic must be
        commit-ordered.
        """
        return StoredOrder(self._remote, self.start_offset, self.restored)

    @property
    def start_offset(self) -> int:
        """The first offset that the reader can read: the log start offset, or in a commit-ordered topic the first
        position in the order of the commits.
        """
        published = self.manifest.published
        if published is None or not self.is_in_commit_order:
            return self.manifest.log_start
        return max(self.manifest.log_start, published.view_start)

    @cached_property
    def end_offset(self) -> int:
        """The end offset for the reader.

        A segment is copied when all its offsets are before the last stable offset. But the abort marker of a transaction
        in the segment may be in a later segment, which is not copied yet. For a read-committed reader in the order of
        the log, the store therefore ends where all transactions have ended within the store.
        """
        end = self.manifest.end_offset
        if not self._committed or self.is_in_commit_order:
            return max(end, self.start_offset)
        known = (one.stable_offset for one in reversed(self.manifest.segments))
        stable = next((one for one in known if one is not None), self.start_offset)
        return max(min(end, stable), self.start_offset)

    @property
    def log_end(self) -> int:
        """The offset after the last one of the last segment in the store; the log start offset if that is greater, or
        if the store has no segment of the partition.
        """
        return self.manifest.end_offset

    def parts_for_brokers(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return those parts of a range that are in the store but that only brokers can read. Here there are none; the
        class for partitions that Apache Kafka has copied overrides this method.
        """
        return []

    def check_without_brokers(self, start: int, end: int) -> None:
        """Check that the range can be read without brokers. Raise UsageError if only brokers can read some of its
        offsets.
        """

    def runs(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the runs in [start, end): the parts of these offsets that the store has. A run is a pair of its first
        offset and the offset after its last one. The range must not end after `end_offset`.
        """
        start = max(start, self.start_offset)
        return [(start, end)] if start < end else []

    def segments_between(self, start: int, end: int) -> list[RemoteSegment]:
        """Return the segments with offsets from `start` to before `end`.

        Raises:
            UnavailableError: the store ends before the range.
            DamageError: the store does not have all segments of the range.
        """
        segments = self.manifest.segments
        begin = bisect_right(segments, start, key=attrgetter("end_offset"))
        after = bisect_right(segments, end - 1, begin, key=attrgetter("base_offset"))
        found = segments[begin:after]
        if end > self.manifest.end_offset:
            raise UnavailableError(
                f"{self.partition.topic}-{self.partition.partition} ends at offset {self.manifest.end_offset} in "
                f"{self._store.url}, but the read was planned up to offset {end}"
            )
        is_whole = found and found[0].base_offset <= start and found[-1].end_offset >= end
        is_whole = is_whole and all(
            one.end_offset == other.base_offset for one, other in itertools.pairwise(found)
        )
        if start < end and not (is_whole and all(one.state is SegmentState.COPY_FINISHED for one in found)):
            raise DamageError(
                f"{self._store.url}/{self.partition.directory} does not have all segments with the offsets {start} to "
                f"{end - 1}, although the log begins at offset {self.start_offset}"
            )
        return list(found)

    def segments_of_commits(self, start: int, end: int) -> Sequence[RemoteSegment]:
        """Return the segments that a read of the positions [start, end) in the order of the commits needs: those whose
        commit indexes list the transactions at these positions, and those that contain the batches of these
        transactions.
        """
        with_indexes = self.segments_between(start, end)
        first = min((one.commit.least_first_offset for one in with_indexes if one.commit), default=start)
        log_start = max(first, self.manifest.log_start)
        return self.segments_between(min(log_start, start), end) if with_indexes else ()

    def first_needed(self, start: int) -> int:
        """Return the first offset in the log that a reader from `start` on may need. For a reader in the order of the
        commits it may be far before `start`, because a transaction that is committed after `start` may have begun long
        before.
        """
        if not self.is_in_commit_order:
            return start
        later = (one for one in self.manifest.segments if one.end_offset > start and one.commit is not None)
        return min((one.commit.least_first_offset for one in later if one.commit), default=start)

    def span(self, start: int, end: int, topic_id: str = "") -> ObjectSpan:
        """Return a range of offsets (in a commit-ordered topic, of positions in the order of the commits) as a span: a
        range that can be divided between tasks. Raises UnavailableError if the store ends before the range, and
        DamageError if it lacks a segment of the range.
        """
        kind = CommitSpan if self.is_in_commit_order else ObjectSpan
        segments = self.segments_between(start, end)
        parts = log_parts(segments, are_divided=not self.is_in_commit_order)
        return kind(self, start, end, topic_id, parts)

    def piece(
        self, start: int, end: int, size: int, topic_id: str, parts: Sequence[LogPart[RemoteSegment]]
    ) -> Piece:
        """Return a range as a piece: with all that one task needs to read it. These are, in log order, the byte ranges
        to download and the aborted transactions; in commit order (the order of the commits), the segments whose commit
        indexes and batches the task needs.
        """
        in_commit_order = self.is_in_commit_order
        stored = StoredPiece(
            self.partition,
            self.manifest.cluster_id,
            self.manifest.log_start,
            () if in_commit_order else tuple(self._extents(parts)),
            tuple(self.segments_of_commits(start, end)) if in_commit_order else (),
            self._pins,
            self.group,
        )
        aborted = tuple(txn[:3] for txn in self.aborted(start, end))
        return Piece(*self.place, start, end, size, aborted=aborted, topic_id=topic_id, stored=stored)

    def _extents(self, parts: Iterable[LogPart[RemoteSegment]]) -> Iterator[ObjectExtent]:
        """Yield an extent for each log file: the byte range that the given parts of the file cover together. The parts
        of a file are adjacent.
        """
        for _, same in itertools.groupby(parts, key=lambda one: one.segment.segment_id):
            joined = list(same)
            segment, begin, end = joined[0].segment, joined[0].position, joined[-1].end_position
            edges = log_edges(segment, cut_points(segment))
            inside = tuple(one for one in edges if begin <= one.position <= end)
            yield ObjectExtent(segment.log_key(self.partition), inside)

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        """Return the aborted transactions with offsets in a range, sorted by first offset. The result is empty if the
        reader is not read-committed, because it reads their records, and if it reads in the order of the commits, in
        which aborted transactions do not occur. Raises StoreError and DamageError.
        """
        if start >= end or not self._committed or self.is_in_commit_order:
            return []
        found, is_complete = find_aborted(self, start, end)
        if not is_complete and self.has_stable_offsets:
            raise UnavailableError(
                f"{self.url} does not have the ends of all transactions of {self.partition.topic}-"
                f"{self.partition.partition} that began before offset {end}: their markers are not copied yet"
            )
        return sorted(found, key=attrgetter("first_offset"))

    # -- the count of records, as in local files (`source.counting`) --------------------------------------------

    @property
    def sealed(self) -> list[RemoteSegment]:
        """The segments that are not being deleted, oldest first."""
        return [one for one in self.manifest.segments if one.state is SegmentState.COPY_FINISHED]

    def check_segment(self, segment: RemoteSegment) -> None:
        """Do nothing. Readers of segment files check here that a file was not replaced; an object of a store never
        is.
        """

    def batches(self, start: int, end: int) -> Iterator[tuple[BatchHeader, Callable[[], Buffer]]]:
        """Yield the header of each batch with some of the offsets [start, end), and a function that returns the batch.

        Raises:
            UnavailableError: the store ends before the range.
            DamageError: the manifest (the list of the partition's segments) does not name all segments of the range, or
                an object is damaged.
            ObjectMissingError: an object does not exist any more.
        """
        # This module imports NumPy, which a count by manifests does not use.
        from stablelog.spark.objects.whole_batches import batches_of

        for part, content in batches_of(self._store, list(self._extents(self.span(start, end).rows))):
            place, view = f"{self.url}/{part.key}", memoryview(content)
            for position, header in headers_in(view):
                yield header, partial(_proven_batch, view, position, header, place)

    @property
    def rows(self) -> ManifestSegments:
        """The rows of the manifest, the list of the partition's segments in the store: one for each segment."""
        return self._remote.segments

    def readers_from(self, offset: int) -> Iterator[LoadedSegment]:
        """Yield the segments that end after an offset, oldest first."""
        return self._remote.readers_from(offset)

    def require_txn_indexes(self, rows: Sequence[RemoteSegment]) -> None:
        """Load the transaction indexes of some segments. Raises StoreError and DamageError."""
        places = (one.index_place(self.partition, IndexKind.TRANSACTIONS) for one in rows)
        self._loaded.load_all([place for place in places if place is not None])

    def txn_index_of(self, row: RemoteSegment) -> TransactionIndex:
        """Return the transaction index of a segment. Raises StoreError and DamageError."""
        return self._remote.txn_index_of(row)

    def count_in_commit_order(self, start: int, end: int) -> int:
        """Count the records at the positions from `start` to before `end`, which are offsets in the order of the
        commits. Raises StoreError and DamageError.
        """
        entries = self.order.entries(start, end)
        return sum(min(one.end, end) - max(one.start, start) for one in entries)

    def offset_after(self, commit_sequence: int) -> int:
        """Return the offset after all commits up to a commit sequence (the number of a commit in its transaction
        group): the position of the first transaction with a greater one, or the end offset if there is none. Raises
        StoreError and DamageError.
        """
        return self.order.offset_after(commit_sequence)

    def at_time(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first record with this timestamp or a later one; None if there is none. The record
        may be after `end_offset`. In a commit-ordered topic, whose readers get transactions in the order of their
        commits, return the position in this order of the first transaction that was committed at such a time.
        """
        # What a lookup loads is not needed again.
        remote = remote_log(self._store, self.partition, self.manifest, LoadedRanges(self._store))
        order = StoredOrder(remote, self.start_offset)
        look_up = order.look_up_time if self.is_in_commit_order else remote.look_up_time
        found = run_lookup(look_up(timestamp_ms))
        return None if found is None else found[0]
