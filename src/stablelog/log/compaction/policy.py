"""The rules of compaction: it keeps the latest record of each key, and the batches and markers that readers and
producers need.

A pass reads the log twice. The first reading covers the records since the last pass and collects the latest offset of
each key. Records of aborted transactions do not count, so that they never hide committed ones. The second reading
begins at the log's start and removes

- the records of aborted transactions, and each record whose key has a later record;
- a tombstone that is the latest record of its key, when its delete horizon has passed;
- a marker of a transaction without any remaining batch, when its delete horizon has passed. The first pass that finds
  such a marker or tombstone sets the horizon, so that current readers have time to read it.

The last batch of each producer stays, possibly without records, because it holds the producer's last sequence number. A
marker also stays if no other batch holds the current epoch of its producer. Offsets never change.

Source: Kafka's log cleaner, KIP-534; docs/reference/formats.md, "Compacted segments".
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import takewhile
from typing import NamedTuple

from stablelog.batch.filtering import RawRecord, raw_records, with_records, without_records
from stablelog.batch.header import DELETE_HORIZON, BatchHeader
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.env.disk import Buffer
from stablelog.errors import DamageError
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import LogConfig
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.segments.segment import RELATIVE_OFFSET_MAX

# In memory, a key of more than 15 bytes is replaced by its digest of 16 bytes. A key of at most 15 bytes is kept as it
# is, so it cannot be equal to a digest.
KEY_SIZE_MAX = 15
DIGEST_SIZE = 16
KEY_MEMORY_SIZE = 160  # about how many bytes of memory a collected key takes
# The entries of the transaction index are read for this many offsets at a time, to bound the memory.
WINDOW = 10_000


def records_in(batch: Buffer, header: BatchHeader) -> list[RawRecord] | None:
    """Return the records of a batch. Return None if its bytes cannot be decoded as records, so that the keys are
    unknown: a producer may have sent such bytes. The CRC must have been checked.
    """
    try:
        return raw_records(batch, header)
    except DamageError:
        return None


class LatestOffsets:
    """The latest offset of each key, as found by the first reading of a compaction pass.

    Args:
        start_offset: records before this offset are ignored.
        count_max: how many keys are kept in memory. At least one batch is accepted, even if it has more keys.

    Attributes:
        end_offset: the end of the records that were read, exclusive. Compaction keeps all records from here on.
    """

    def __init__(self, start_offset: int, count_max: int) -> None:
        self.start_offset = start_offset
        self.end_offset = start_offset
        self._count_max = count_max
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room(self, count: int) -> bool:
        """Whether the keys of another batch, which has `count` keys, fit into the memory limit. The first batch always
        fits.
        """
        return self.end_offset == self.start_offset or len(self._offsets) + count <= self._count_max

    def add_keys(self, records: Iterable[RawRecord]) -> None:
        """Record the offsets of the keys in a batch. The caller passes the batches in the order of the log."""
        for record in records:
            if record.key is not None and record.offset >= self.start_offset:
                self._offsets[_short(record.key)] = record.offset

    def is_latest(self, key: bytes, offset: int) -> bool:
        """Whether the record at this offset is the latest one of its key."""
        return offset >= self._offsets.get(_short(key), -1)


def _short(key: bytes) -> bytes:
    return key if len(key) <= KEY_SIZE_MAX else blake2b(key, digest_size=DIGEST_SIZE).digest()


class MarkerFate(NamedTuple):
    """What a compaction pass knows of a transaction marker when it decides on the marker's fate: whether the marker
    stays.

    Attributes:
        is_bare: whether no batch of the marker's transaction is left, so that no batch needs the marker.
        committed: whether it is a commit marker.
        entry: the entry of an abort marker in the transaction index; None if there is no entry.
    """

    is_bare: bool
    committed: bool
    entry: AbortedTxn | None


class TransactionWalk:
    """The state of transactions while the batches of a log are read one after another: which transactions are open, and
    which of these will be aborted.

    Args:
        start_offset: the offset where the reading begins.
        spanning: further aborted transactions: those that begin before the end of the batches that will be read, and
            whose markers are after this end, where `find_aborted` does not look.
        find_aborted: called as `find_aborted(start, end)`; returns the aborted transactions with offsets in
            [start, end).
    """

    def __init__(
        self,
        start_offset: int,
        spanning: Sequence[AbortedTxn],
        find_aborted: Callable[[int, int], Iterable[AbortedTxn]],
    ) -> None:
        self._find_aborted = find_aborted
        self._found_to = start_offset  # the end of the offsets for which `find_aborted` was called
        # Heap, by first offset: the known aborted transactions whose first batches have not been read yet.
        self._coming: list[tuple[int, int, AbortedTxn]] = []
        # Marker offsets of the known aborted transactions whose markers have not come yet.
        self._expected: set[int] = set()
        # By producer id: the aborted transaction that is open, as far as the log was read.
        self._aborted: dict[int, AbortedTxn] = {}
        self._with_batches: set[int] = set()  # ids of the producers whose open transaction has batches
        self._expect(spanning)

    def _expect(self, txns: Iterable[AbortedTxn]) -> None:
        for txn in txns:
            if txn.last_offset not in self._expected:
                self._expected.add(txn.last_offset)
                heapq.heappush(self._coming, (txn.first_offset, txn.last_offset, txn))

    def _activate_up_to(self, header: BatchHeader) -> None:
        if header.next_offset > self._found_to:
            end = header.next_offset + WINDOW
            # Not from an earlier offset: the pass may have replaced the segment that ended there.
            self._expect(self._find_aborted(max(self._found_to, header.base_offset), end))
            self._found_to = end
        while self._coming and self._coming[0][0] <= header.last_offset:
            txn = heapq.heappop(self._coming)[2]
            known = self._aborted.get(txn.producer_id)
            # The marker of the known one may be missing, so that nothing has ended it.
            if known is None or known.last_offset < txn.first_offset:
                self._aborted[txn.producer_id] = txn

    def process_data(self, header: BatchHeader) -> AbortedTxn | None:
        """Process the next batch, a data batch. Return its transaction if the transaction was aborted; otherwise None."""
        self._activate_up_to(header)
        if not header.is_transactional:
            return None
        self._with_batches.add(header.producer_id)
        txn = self._aborted.get(header.producer_id)
        # If Kafka's compaction has removed the marker, the walk does not see the end of the transaction.
        return None if txn is None or txn.last_offset < header.base_offset else txn

    def process_marker(self, header: BatchHeader, batch: Buffer) -> MarkerFate:
        """Process the next batch, a control batch, which ends a transaction. Return what decides whether the marker
        stays.
        """
        self._activate_up_to(header)
        marker = read_marker(batch)
        if marker is None:
            # Compaction has removed the record of this control batch, or the batch is no transaction marker.
            return MarkerFate(not header.record_count, committed=False, entry=None)
        is_bare = header.producer_id not in self._with_batches
        self._with_batches.discard(header.producer_id)
        if marker.type is MarkerType.COMMIT:
            return MarkerFate(is_bare, committed=True, entry=None)
        entry = self._aborted.pop(header.producer_id, None)
        if entry is not None:
            self._expected.discard(entry.last_offset)
        return MarkerFate(is_bare or entry is None, committed=False, entry=entry)


@dataclass(frozen=True, slots=True)
class Kept:
    """The part of a batch that stays after compaction or after the removal of aborted data.

    Attributes:
        batch: the bytes that stay; None if the whole batch is removed.
        record_count: the number of records that stay; 0 for a marker.
        committed_count: if the batch is a commit marker, the number of records of its transaction that stay.
        entry: if the batch is the abort marker of a transaction of which batches are left, the entry of the transaction
            for the transaction index; otherwise None.
    """

    batch: Buffer | None
    record_count: int = 0
    committed_count: int = 0
    entry: AbortedTxn | None = None


@dataclass(slots=True)
class Rules:
    """The rules of compaction: they decide what stays of each batch. A pass first reads the log to find the latest
    offset of each key, and then reads it a second time with these rules.

    Attributes:
        latest: the latest offset of each key, from the first reading.
        walk: tells, in the second reading, which batches belong to aborted transactions.
        producers: the producer state of the log, with the last batch of each producer.
        now_ms: the time of the wall clock.
        delete_retention_ms: how long tombstones stay. A new delete horizon is `now_ms` plus this time.
    """

    latest: LatestOffsets
    walk: TransactionWalk
    producers: ProducerTable
    now_ms: int
    delete_retention_ms: int
    # By producer id: how many records of its open transaction stay. They count where the commit marker is.
    _uncommitted: Counter[int] = field(default_factory=Counter)

    def keep_batch(self, header: BatchHeader, batch: Buffer) -> Kept:
        """Decide which part of a batch is kept. The caller passes the batches in the order of the log."""
        if header.is_control:
            return self._keep_marker(header, batch)
        kept = self._keep_data(header, batch)
        if header.is_transactional:
            self._uncommitted[header.producer_id] += kept.record_count
        return kept

    def _keep_marker(self, header: BatchHeader, batch: Buffer) -> Kept:
        fate = self.walk.process_marker(header, batch)
        count = self._uncommitted.pop(header.producer_id, 0)
        if not fate.is_bare:
            return Kept(batch, committed_count=count if fate.committed else 0, entry=fate.entry)
        if header.record_count and not header.attributes & DELETE_HORIZON:
            return Kept(with_records(header, raw_records(batch, header), self._new_horizon()))
        is_unneeded = not header.record_count or self._has_horizon_passed(header)
        return Kept(None if is_unneeded and not self._is_last_of_epoch(header) else batch)

    def _keep_data(self, header: BatchHeader, batch: Buffer) -> Kept:
        aborted = self.walk.process_data(header)
        if aborted is None and header.record_count:
            records = records_in(batch, header)
            if records is None:
                return Kept(batch, record_count=header.record_count)
            staying = [record for record in records if self._stays(record, header)]
            if staying:
                return self._with(header, batch, staying)
        last = self.producers.get(header.producer_id) if header.has_producer else None
        if last is not None and last.last_offset == header.last_offset:
            return Kept(without_records(header) if header.record_count else batch)
        return Kept(None)

    def _with(self, header: BatchHeader, batch: Buffer, staying: Sequence[RawRecord]) -> Kept:
        needs_horizon = not header.attributes & DELETE_HORIZON and any(
            record.is_tombstone for record in staying
        )
        if len(staying) == header.record_count and not needs_horizon:
            return Kept(batch, record_count=len(staying))
        horizon_ms = self._new_horizon() if needs_horizon else None
        return Kept(with_records(header, staying, horizon_ms), record_count=len(staying))

    def _stays(self, record: RawRecord, header: BatchHeader) -> bool:
        if record.offset >= self.latest.end_offset:
            return True
        if record.key is None or not self.latest.is_latest(record.key, record.offset):
            return False
        return not record.is_tombstone or not self._has_horizon_passed(header)

    def _new_horizon(self) -> int:
        return self.now_ms + self.delete_retention_ms

    def _has_horizon_passed(self, header: BatchHeader) -> bool:
        return bool(header.attributes & DELETE_HORIZON) and header.base_timestamp <= self.now_ms

    def _is_last_of_epoch(self, header: BatchHeader) -> bool:
        """Whether this marker is the last thing that the log has of its producer's current epoch: there is no data
        batch of this epoch. If so, the marker stays, because without it the epoch would be lost.
        """
        last = self.producers.get(header.producer_id)
        return last is not None and last.last_offset is None and last.producer_epoch == header.producer_epoch


def count_cleanable(summaries: Sequence[Summary], stable_offset: int, config: LogConfig, now_ms: int) -> int:
    """Count how many segments, from the first one on, may be compacted: those that end at or before the last stable
    offset, `stable_offset`, and whose records are all older than `min.compaction.lag.ms`.
    """
    lag_ms = config.min_compaction_lag_ms
    cleanable = takewhile(
        lambda summary: (
            summary.end_offset <= stable_offset and (not lag_ms or summary.max_timestamp <= now_ms - lag_ms)
        ),
        summaries,
    )
    return sum(1 for _ in cleanable)


def is_dirty_enough(summaries: Sequence[Summary], first_dirty_offset: int, config: LogConfig) -> bool:
    """Whether the log is dirty enough for a compaction pass: whether at least the share `min.cleanable.dirty.ratio` of
    its bytes is in segments that were never compacted.
    """
    dirty_size = sum(summary.log_size for summary in summaries if summary.end_offset > first_dirty_offset)
    size = sum(summary.log_size for summary in summaries)
    return dirty_size > 0 and dirty_size >= config.min_cleanable_dirty_ratio * size


def group_segments(summaries: Sequence[Summary], config: LogConfig) -> list[list[Summary]]:
    """Divide the segments into groups of neighbours. Compaction writes one new segment for each group.

    A group of several segments has at most `segment.bytes`. So the new segment is not too large, even if no record is
    removed.
    """
    groups: list[list[Summary]] = []
    for summary in summaries:
        if groups and _has_room(groups[-1], summary, config):
            groups[-1].append(summary)
        else:
            groups.append([summary])
    return groups


def _has_room(group: Sequence[Summary], summary: Summary, config: LogConfig) -> bool:
    together = [*group, summary]
    return (
        sum(one.log_size for one in together) <= config.segment_bytes
        and sum(one.index_size for one in together) <= config.segment_index_bytes
        and sum(one.timeindex_size for one in together) <= config.segment_index_bytes
        and summary.end_offset - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX
    )
