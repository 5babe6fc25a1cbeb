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

Source: Kafka's log cleaner, KIP-534; docs/formats.md, "Compacted segments".
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from stablelog.batch.filtering import RawRecord, emptied, raw_records, with_records
from stablelog.batch.header import DELETE_HORIZON, BatchHeader
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.env.disk import Buffer
from stablelog.errors import DamageError
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import LogConfig
from stablelog.log.producer_state.producer import LastBatch
from stablelog.log.segments.segment import RELATIVE_OFFSET_MAX

# In memory, a key of more than 15 bytes is replaced by its digest of 16 bytes. A key of at most 15 bytes is kept as it
# is, so it cannot be equal to a digest.
KEY_SIZE_MAX = 15
DIGEST_SIZE = 16
KEY_MEMORY_SIZE = 160  # about how many bytes of memory a collected key takes


def records_in(batch: Buffer, header: BatchHeader) -> list[RawRecord] | None:
    """Return the records of a batch whose CRC matches. Return None if the producer has sent bytes that cannot be
    decoded as records: their keys are then unknown.
    """
    try:
        return raw_records(batch, header)
    except DamageError:
        return None


class LatestOffsets:
    """The latest offset of each key in the records that the first reading of a pass has covered.

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
        """Whether the keys of a further batch with `count` keys can be added. Those of the first batch always can."""
        return self.end_offset == self.start_offset or len(self._offsets) + count <= self._count_max

    def note(self, records: Iterable[RawRecord]) -> None:
        """Add the keys of a batch. Its offsets must be greater than those of all batches that were added before."""
        for record in records:
            if record.key is not None and record.offset >= self.start_offset:
                self._offsets[_short(record.key)] = record.offset

    def is_latest(self, key: bytes, offset: int) -> bool:
        """Whether no later record of this key was added."""
        return offset >= self._offsets.get(_short(key), -1)


def _short(key: bytes) -> bytes:
    return key if len(key) <= KEY_SIZE_MAX else blake2b(key, digest_size=DIGEST_SIZE).digest()


class MarkerFate(NamedTuple):
    """The facts about a transaction marker by which compaction decides whether to keep it.

    Attributes:
        is_bare: whether the reading has met no batch of the marker's transaction, so that no batch needs the marker.
        committed: whether it is a commit marker.
        entry: the entry that the transaction index has for an abort marker; None if it has none.
    """

    is_bare: bool
    committed: bool
    entry: AbortedTxn | None


@dataclass(slots=True)
class _Aborted:
    txn: AbortedTxn
    met: bool = False  # whether the reading has met a batch of the transaction


class TransactionWalk:
    """The transactions that are open at the offset that a reading of the log has reached. The class also knows which of
    them were aborted, because the caller announces aborted transactions with `expect`.
    """

    def __init__(self) -> None:
        # Heap, by first offset: the announced aborted transactions whose first batches have not been read yet.
        self._coming: list[tuple[int, int, AbortedTxn]] = []
        # Marker offsets of the aborted transactions that were announced and whose markers have not come yet.
        self._expected: set[int] = set()
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()

    def expect(self, txns: Iterable[AbortedTxn]) -> None:
        """Announce aborted transactions, before the reading reaches their first batches. Announcing one twice has no
        effect.
        """
        for txn in txns:
            if txn.last_offset not in self._expected:
                self._expected.add(txn.last_offset)
                heapq.heappush(self._coming, (txn.first_offset, txn.last_offset, txn))

    def _come_to(self, last_offset: int) -> None:
        while self._coming and self._coming[0][0] <= last_offset:
            txn = heapq.heappop(self._coming)[2]
            self._aborted.setdefault(txn.producer_id, _Aborted(txn))

    def meet_data(self, header: BatchHeader) -> AbortedTxn | None:
        """Process the next batch, which holds records. Return its transaction if that was aborted."""
        self._come_to(header.last_offset)
        if not header.is_transactional:
            return None
        aborted = self._aborted.get(header.producer_id)
        if aborted is None:
            self._committed.add(header.producer_id)
            return None
        aborted.met = True
        return aborted.txn

    def meet_marker(self, header: BatchHeader, batch: Buffer) -> MarkerFate:
        """Process the next batch, which is a control batch. Return what the reading has found out about it."""
        self._come_to(header.last_offset)
        marker = read_marker(batch)
        if marker is None:
            # Compaction has removed the record of this control batch, or the batch is no transaction marker.
            return MarkerFate(not header.record_count, committed=False, entry=None)
        if marker.type is MarkerType.COMMIT:
            met = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return MarkerFate(not met, committed=True, entry=None)
        aborted = self._aborted.pop(header.producer_id, None)
        if aborted is None:
            return MarkerFate(is_bare=True, committed=False, entry=None)
        self._expected.discard(aborted.txn.last_offset)
        return MarkerFate(not aborted.met, committed=False, entry=aborted.txn)


@dataclass(frozen=True, slots=True)
class Kept:
    """The part of a batch that compaction keeps.

    Attributes:
        batch: the bytes that are kept; None if the batch is removed.
        record_count: the number of records that are kept; 0 for a marker.
        commits: whether the batch is a commit marker.
        entry: the entry of the transaction index, if the batch is an abort marker of a transaction with remaining
            batches.
    """

    batch: Buffer | None
    record_count: int = 0
    commits: bool = False
    entry: AbortedTxn | None = None


@dataclass(slots=True)
class Rules:
    """The rules by which the second reading of a compaction pass decides what stays, and the state of this reading.

    Attributes:
        latest: the latest offset of each key, from the first reading.
        walk: the transactions that the second reading has met.
        last_batch: returns the last batch of a producer, by producer id; None if the partition does not know the
            producer.
        now_ms: the time of the broker's clock.
        delete_retention_ms: a pass sets a new delete horizon to `now_ms` plus this time.
    """

    latest: LatestOffsets
    walk: TransactionWalk
    last_batch: Callable[[int], LastBatch | None]
    now_ms: int
    delete_retention_ms: int

    def keep(self, header: BatchHeader, batch: Buffer) -> Kept:
        """Decide what stays of a batch. The caller passes the batches in the order of the log."""
        return self._keep_marker(header, batch) if header.is_control else self._keep_data(header, batch)

    def _keep_marker(self, header: BatchHeader, batch: Buffer) -> Kept:
        fate = self.walk.meet_marker(header, batch)
        if not fate.is_bare:
            return Kept(batch, commits=fate.committed, entry=fate.entry)
        kept = Kept(batch, commits=fate.committed)
        if not header.record_count:
            return kept if self._is_all_that_is_known(header) else Kept(None)
        if not header.attributes & DELETE_HORIZON:
            records = raw_records(batch, header)
            return Kept(with_records(header, records, self._new_horizon()), commits=fate.committed)
        if self._has_passed(header) and not self._is_all_that_is_known(header):
            return Kept(None, commits=fate.committed)
        return kept

    def _keep_data(self, header: BatchHeader, batch: Buffer) -> Kept:
        aborted = self.walk.meet_data(header)
        if aborted is None and header.record_count:
            records = records_in(batch, header)
            if records is None:
                return Kept(batch, record_count=header.record_count)
            staying = [record for record in records if self._stays(record, header)]
            if staying:
                return self._with(header, batch, staying)
        last = self.last_batch(header.producer_id) if header.has_producer else None
        if last is not None and last.last_offset == header.last_offset:
            return Kept(emptied(header) if header.record_count else batch)
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
        return not record.is_tombstone or not self._has_passed(header)

    def _new_horizon(self) -> int:
        return self.now_ms + self.delete_retention_ms

    def _has_passed(self, header: BatchHeader) -> bool:
        return bool(header.attributes & DELETE_HORIZON) and header.base_timestamp <= self.now_ms

    def _is_all_that_is_known(self, header: BatchHeader) -> bool:
        """Whether this marker is the producer's only batch of its current epoch, and the producer state still contains
        the producer.
        """
        last = self.last_batch(header.producer_id)
        return last is not None and last.last_offset is None and last.producer_epoch == header.producer_epoch


def count_cleanable(summaries: Sequence[Summary], stable_offset: int, config: LogConfig, now_ms: int) -> int:
    """Return how many of the first segments may be compacted: they end before the last stable offset, and all their
    records are at least `min.compaction.lag.ms` old.
    """
    count = 0
    for summary in summaries:
        too_young = config.min_compaction_lag_ms and (
            summary.max_timestamp > now_ms - config.min_compaction_lag_ms
        )
        if summary.end_offset > stable_offset or too_young:
            break
        count += 1
    return count


def is_worth_it(summaries: Sequence[Summary], first_dirty_offset: int, config: LogConfig) -> bool:
    """Whether the segments that were never compacted make up at least `min.cleanable.dirty.ratio` of the bytes that may
    be compacted.
    """
    dirty_size = sum(summary.log_size for summary in summaries if summary.end_offset > first_dirty_offset)
    size = sum(summary.log_size for summary in summaries)
    return dirty_size > 0 and dirty_size >= config.min_cleanable_dirty_ratio * size


def grouped(summaries: Sequence[Summary], config: LogConfig) -> list[list[Summary]]:
    """Divide the segments into groups of neighbours. Each group becomes one segment. A group of several segments has at
    most `segment.bytes`, so the new segment is not too large even if compaction removes nothing.
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
