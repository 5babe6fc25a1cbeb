"""Decides what compaction keeps of a log: the latest record of each key, and what readers and producers still need.

A pass has two walks. The first walk reads the records since the last pass and notes the latest offset of each key.
Aborted records do not count, so that they never hide committed ones. The second walk reads the log from its beginning
and leaves out

- the records of aborted transactions, and every record whose key has a later one;
- a tombstone that is the latest of its key, once its delete horizon has passed;
- a marker in whose transaction the walk met no batch, once its delete horizon has passed. The first walk that finds such
  a marker sets the horizon, so that current readers have the time to read it.

A producer's last batch stays, if without records, because it has the last sequence. A marker stays, too, if only it has
the epoch of a producer. Offsets never change.

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
from stablelog.errors import Corrupt
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import LogConfig
from stablelog.log.producer_state.producer import LastBatch
from stablelog.log.segments.segment import RELATIVE_OFFSET_MAX

KEY_SIZE_MAX = 15  # longer keys are noted by a digest of 16 bytes, which is no key by itself then
DIGEST_SIZE = 16
KEY_MEMORY_SIZE = 160  # bytes that a noted key takes, about


def records_in(batch: Buffer, header: BatchHeader) -> list[RawRecord] | None:
    """The records of a batch whose CRC holds; None if its producer has put something else there: nobody can tell the keys."""
    try:
        return raw_records(batch, header)
    except Corrupt:
        return None


class LatestOffsets:
    """The latest offset of each key, as far as the first walk came.

    Args:
        start_offset: where it begins: nothing before it is noted.
        count_max: how many keys there is room for. At least one batch is taken.

    Attributes:
        end_offset: what lies from here on was not looked at.
    """

    def __init__(self, start_offset: int, count_max: int) -> None:
        self.start_offset = start_offset
        self.end_offset = start_offset
        self._count_max = count_max
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room(self, count: int) -> bool:
        """Whether that many more keys can be noted."""
        return self.end_offset == self.start_offset or len(self._offsets) + count <= self._count_max

    def note(self, records: Iterable[RawRecord]) -> None:
        """Note the keys of a batch."""
        for record in records:
            if record.key is not None and record.offset >= self.start_offset:
                self._offsets[_short(record.key)] = record.offset

    def is_latest(self, key: bytes, offset: int) -> bool:
        """Whether no later record of this key was noted."""
        return offset >= self._offsets.get(_short(key), -1)


def _short(key: bytes) -> bytes:
    return key if len(key) <= KEY_SIZE_MAX else blake2b(key, digest_size=DIGEST_SIZE).digest()


class MarkerFate(NamedTuple):
    """What a walk says of a marker: nothing that it met needs it; how it ended what; the entry that it has to keep."""

    is_bare: bool
    committed: bool
    entry: AbortedTxn | None


@dataclass(slots=True)
class _Aborted:
    txn: AbortedTxn
    met: bool = False  # a batch of it


class TransactionWalk:
    """Which transactions a walk is in, and how each of them ended."""

    def __init__(self) -> None:
        self._coming: list[tuple[int, int, AbortedTxn]] = []  # a heap, by first offset
        self._expected: set[int] = set()  # marker offsets of those that are coming or under way
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()

    def expect(self, txns: Iterable[AbortedTxn]) -> None:
        """Be told of aborted transactions before the walk comes to their first batch. To be told twice does no harm."""
        for txn in txns:
            if txn.last_offset not in self._expected:
                self._expected.add(txn.last_offset)
                heapq.heappush(self._coming, (txn.first_offset, txn.last_offset, txn))

    def _come_to(self, last_offset: int) -> None:
        while self._coming and self._coming[0][0] <= last_offset:
            txn = heapq.heappop(self._coming)[2]
            self._aborted.setdefault(txn.producer_id, _Aborted(txn))

    def meet_data(self, header: BatchHeader) -> bool:
        """Take a batch of records into account. Returns whether its transaction was aborted."""
        self._come_to(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = self._aborted.get(header.producer_id)
        if aborted is None:
            self._committed.add(header.producer_id)
            return False
        aborted.met = True
        return True

    def meet_marker(self, header: BatchHeader, batch: Buffer) -> MarkerFate:
        """A control batch."""
        self._come_to(header.last_offset)
        marker = read_marker(batch)
        if marker is None:  # emptied by Kafka, and of no use any more; or of a kind that is not ours to judge
            return MarkerFate(not header.record_count, committed=False, entry=None)
        if marker.type is MarkerType.COMMIT:
            met = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return MarkerFate(not met, committed=True, entry=None)
        aborted = self._aborted.pop(header.producer_id, None)
        if aborted is None:
            return MarkerFate(is_bare=True, committed=False, entry=None)
        self._expected.discard(aborted.txn.last_offset)
        return MarkerFate(not aborted.met, committed=False, entry=aborted.txn if aborted.met else None)


@dataclass(frozen=True, slots=True)
class Kept:
    """What the second walk makes of a batch.

    Attributes:
        batch: its bytes; None if it goes.
        record_count: of records that stay, 0 for a marker.
        commits: it is the marker of a commit.
        entry: of the transaction index, for an abort whose batches are still there.
    """

    batch: Buffer | None
    record_count: int = 0
    commits: bool = False
    entry: AbortedTxn | None = None


@dataclass(slots=True)
class Rules:
    """What the second walk goes by.

    Attributes:
        latest: what the first one noted.
        walk: the transactions of this one.
        last_batch: of a producer, by its id; None if it is not known.
        now_ms: the broker's clock.
        delete_retention_ms: how long tombstones and markers stay.
    """

    latest: LatestOffsets
    walk: TransactionWalk
    last_batch: Callable[[int], LastBatch | None]
    now_ms: int
    delete_retention_ms: int

    def keep(self, header: BatchHeader, batch: Buffer) -> Kept:
        """What stays of a batch. Batches come in the order of the log."""
        return self._keep_marker(header, batch) if header.is_control else self._keep_data(header, batch)

    def _keep_marker(self, header: BatchHeader, batch: Buffer) -> Kept:
        fate = self.walk.meet_marker(header, batch)
        kept = Kept(batch, commits=fate.committed, entry=fate.entry)
        if not fate.is_bare:
            return kept
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
        if not aborted and header.record_count:
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
        """Whether only this marker tells the epoch of a producer that is remembered."""
        last = self.last_batch(header.producer_id)
        return last is not None and last.last_offset is None and last.producer_epoch == header.producer_epoch


def count_cleanable(summaries: Sequence[Summary], stable_offset: int, config: LogConfig, now_ms: int) -> int:
    """How many of the first segments may be cleaned: all in them is decided, and as old as `min.compaction.lag.ms`."""
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
    """Whether enough of the cleanable segments has not been cleaned yet."""
    dirty_size = sum(summary.log_size for summary in summaries if summary.end_offset > first_dirty_offset)
    size = sum(summary.log_size for summary in summaries)
    return dirty_size > 0 and dirty_size >= config.min_cleanable_dirty_ratio * size


def grouped(summaries: Sequence[Summary], config: LogConfig) -> list[list[Summary]]:
    """The segments that become one, group by group: as many as the largest segment has room for as they are now."""
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
