"""The producer state of a partition: the last batches, the epoch and the open transaction of each producer.

By the last five batches of a producer, the broker recognizes a retry, also after a restart. By the producer's epoch, it
refuses batches of an older epoch. From the open transactions follows the last stable offset. After the end of a
transaction, only its last batch is remembered, because clients do not retry the earlier ones. Producers expire by
broker time (a clock that never goes back, even if the machine's clock is set back), not by the timestamps of their
records, which may be old.

Producers that were used recently are Python objects; all others are packed into bytes (`producer_table`).

Source: KIP-98, KIP-360, KIP-890.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.batch.header import NO_SEQUENCE, BatchHeader
from stablelog.batch.markers import Marker, MarkerType, read_marker
from stablelog.env.disk import Buffer
from stablelog.errors import RefusedError
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.producer_state.producer import BATCHES_KEPT, NO_TXN, KeptBatch, ProducerEntry
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.producer_state.sequence_checks import (
    check_epoch,
    check_sequence,
    find_repeated,
    out_of_order,
)

RECENT_MAX = 500  # how many producers are kept as objects, of 1 KB each
# How many producers with a refused batch are remembered; beyond that, the oldest ones are dropped.
REFUSED_KEPT = 1000
EXPIRED_BLOCKS_MAX = 100  # how many blocks, of up to 32 producers each, one step of the expiration examines
NEVER_MS: Final = 2**63 - 1  # later than any time
SECOND_DIALECT = 2  # transaction.version 2: each transaction has its own producer epoch


class EndedTxn(NamedTuple):
    """A transaction that a marker ends. `aborted` is its entry for the transaction index of the segment; None if the
    transaction is committed.
    """

    producer_id: int
    first_offset: int
    marker_offset: int
    record_count: int
    aborted: AbortedTxn | None


class Producers:
    """The state of all producers of one partition, with their open transactions."""

    def __init__(self) -> None:
        # All producers. For a recent producer, the table has the state at the time when it was packed last.
        self._table = ProducerTable()
        # The recent producers, which are kept as Python objects, in the order of their last use.
        self._recent: OrderedDict[int, ProducerEntry] = OrderedDict()
        # By producer id: the first offset of the producer's open transaction, in ascending order.
        self._open: OrderedDict[int, int] = OrderedDict()
        # (marker offset, first offset) of transactions whose marker is not durable yet, in the order of the markers. A
        # transaction is left out if a later one has a lesser first offset. So the first entry has the least first offset
        # of all these transactions.
        self._ended: deque[tuple[int, int]] = deque()
        # By producer id, for producers without state in this partition: the epoch and the least sequence number of the
        # batches that transaction verification refused.
        self._refused: OrderedDict[int, tuple[int, int]] = OrderedDict()

    @classmethod
    def from_table(cls, table: ProducerTable, now_ms: int) -> "Producers":
        """Make the producer state from the table of a snapshot. The new state changes this table, so the caller must
        not use it any more.

        Times after `now_ms` are replaced by `now_ms`: they occur if the machine's clock was set back since the
        snapshot, and such producers would expire too late.
        """
        self = cls()
        table.limit_times(now_ms)
        self._table = table
        for producer in sorted(table.open_producers(), key=lambda producer: producer.txn_first_offset):
            self._open[producer.producer_id] = producer.txn_first_offset
        return self

    # -- recent producers --------------------------------------------------------------------------------------

    def _recent_producer(self, producer_id: int) -> ProducerEntry | None:
        """Return the state of the producer `producer_id`, for reads and changes, and count the producer as recently
        used: its state is now a Python object. None if the producer has no state in this partition.
        """
        producer = self._recent.get(producer_id)
        if producer is None and (producer := self._table.get(producer_id)) is not None:
            producer.is_packed = True
            self._add_recent(producer)
        return producer

    def _add_recent(self, producer: ProducerEntry) -> None:
        self._recent[producer.producer_id] = producer
        if len(self._recent) > RECENT_MAX:
            self._pack(self._recent.popitem(last=False)[1])

    def _pack(self, producer: ProducerEntry) -> None:
        if not producer.is_packed:
            self._table.put(producer)
            producer.is_packed = True

    def pack_recent(self, used_before_ms: int) -> None:
        """Write the state of all recently used producers into the packed table. Then drop the objects of those that
        were last used before `used_before_ms`, because the table has their state, and takes less memory.
        """
        for producer in list(self._recent.values()):
            self._pack(producer)
            if producer.used_ms < used_before_ms:
                del self._recent[producer.producer_id]

    def _producer_to_read(self, producer_id: int) -> ProducerEntry | None:
        """Return the state of the producer `producer_id`, which the caller reads and must not change; None if the
        producer has no state in this partition. The producer does not count as recently used.
        """
        return self._recent.get(producer_id) or self._table.get(producer_id)

    def _producer_with_open(self, producer_id: int) -> ProducerEntry:
        """Return the state of the producer `producer_id`, which must have an open transaction. The caller must not
        change the state.
        """
        producer = self._producer_to_read(producer_id)
        assert producer is not None, "a producer with an open transaction is known"
        return producer

    # -- all producers -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._table)

    def packed_copy(self) -> ProducerTable:
        """Return a copy of the state of all producers in packed form (as bytes), which any thread may read."""
        self.pack_recent(-1)
        return self._table.copy()

    def __iter__(self) -> Iterator[ProducerEntry]:
        """Yield a copy of the state of each producer, in the order of the producer ids."""
        return iter(self.packed_copy())

    def greatest_id(self, at_most: int) -> int:
        """Return the greatest producer id, not greater than `at_most`, of a producer with state in this partition; -1
        if there is none.
        """
        return self._table.greatest_id(at_most)

    # -- open transactions -------------------------------------------------------------------------------------

    def first_open_offset(self, otherwise: int) -> int:
        """Return the first offset of the oldest open transaction; `otherwise` if none is open."""
        return next(iter(self._open.values()), otherwise)

    def open_transaction(self, producer_id: int) -> ProducerEntry | None:
        """Return the state of the producer `producer_id`, for the caller to read; None if this producer has no open
        transaction.
        """
        return self._producer_with_open(producer_id) if producer_id in self._open else None

    def first_unstable_offset(self, otherwise: int) -> int:
        """Return the first offset of the oldest transaction that is open or whose marker is not durable, if it is less
        than `otherwise`; `otherwise` if there is none.
        """
        first_open = min(self.first_open_offset(otherwise), otherwise)
        return min(self._ended[0][1], first_open) if self._ended else first_open

    def move_high_watermark(self, high_watermark: int) -> None:
        """Record a new high watermark, the offset up to which the log is durable. Transactions whose markers are before
        it no longer limit the last stable offset.
        """
        while self._ended and self._ended[0][0] < high_watermark:
            self._ended.popleft()

    def set_open_record_counts(self, counts: Mapping[int, int]) -> None:
        """Set the numbers of records in open transactions, by producer id. After a start, the view of a commit-ordered
        partition (its committed batches in the order of their commits) knows these numbers; a snapshot in Kafka's
        format does not have them.
        """
        for producer_id, count in counts.items():
            producer = self._recent_producer(producer_id)
            assert producer is not None, "a producer with an open transaction is known"
            producer.txn_record_count = count
            producer.is_packed = False

    def open_producers(self) -> Iterator[ProducerEntry]:
        """Yield the state of each producer with an open transaction, in the order in which the transactions began."""
        return map(self._producer_with_open, self._open)

    @property
    def oldest_open_started_ms(self) -> int | None:
        """Return the time when the oldest open transaction began; None if none is open. It is a broker time, by a clock
        that never goes back, even if the machine's clock is set back.
        """
        return next((producer.txn_started_ms for producer in self.open_producers()), None)

    # -- checks: nothing changes -------------------------------------------------------------------------------

    def check_batch(
        self,
        header: BatchHeader,
        *,
        require_first_sequence_zero: bool = False,
        open_record_count_max: int | None = None,
    ) -> KeptBatch | None:
        """Check a client's batch against the state of its producer. Nothing changes.

        Args:
            header: the header of the batch.
            require_first_sequence_zero: whether the first batch of a producer without state in this partition must
                begin at sequence number 0.
            open_record_count_max: how many records a transaction may have in this partition; None for no limit.

        Returns:
            None if the batch may be appended. If it is a duplicate, the earlier batch that it repeats.

        Raises:
            RefusedError: the producer epoch is old (invalid_producer_epoch); the sequence number does not follow the
                last one (out_of_order_sequence_number); the batch is outside the open transaction of its producer
                (invalid_txn_state); or the transaction would have too many records (invalid_record).
        """
        producer = self._recent_producer(header.producer_id)
        if producer is None:
            if require_first_sequence_zero and header.base_sequence != 0:
                raise out_of_order(
                    f"producer {header.producer_id} has no state in this partition, so its sequence must begin with 0, not {header.base_sequence}"
                )
            epoch, least = self._refused.get(header.producer_id, (-1, -1))
            if epoch == header.producer_epoch and header.base_sequence > least:
                raise out_of_order(
                    f"producer {header.producer_id} sends sequence {header.base_sequence}, but sequence {least} was refused before and must be retried first"
                )
            return None
        kept = find_repeated(producer, header)
        if kept is None:
            check_epoch(producer, header)
            check_sequence(producer, header)
            record_count = producer.txn_record_count + header.record_count
            if (
                open_record_count_max is not None
                and header.is_transactional
                and record_count > open_record_count_max
            ):
                raise RefusedError(
                    ErrorCode.invalid_record,
                    f"a transaction would have {record_count} records in a commit-ordered partition; at most {open_record_count_max} are possible",
                )
        return kept

    def check_epoch(self, header: BatchHeader) -> None:
        """Refuse a batch with an older producer epoch than that in the producer state.

        Raises:
            RefusedError: the producer epoch is old (invalid_producer_epoch).
        """
        producer = self._recent_producer(header.producer_id)
        if producer is not None:
            check_epoch(producer, header)

    def check_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, transaction_version: int
    ) -> bool:
        """Refuse a marker with an older producer epoch or coordinator epoch than those in the producer state.

        Args:
            producer_id: the producer whose transaction ends.
            producer_epoch: the producer epoch of the marker.
            marker: the content of the marker.
            transaction_version: the version of Kafka's transaction protocol. From version 2 on (KIP-890), the epoch of
                a marker is later than that of the transaction that it ends.

        Returns:
            True if the marker must be written; False if it repeats a marker that the log already has.

        Raises:
            RefusedError: the producer epoch (invalid_producer_epoch) or the coordinator epoch
                (transaction_coordinator_fenced) is old.
        """
        producer = self._recent_producer(producer_id)
        if producer is None:
            return True
        if producer_epoch < producer.producer_epoch:
            raise RefusedError(
                ErrorCode.invalid_producer_epoch,
                f"a marker for producer {producer_id} has the old producer epoch {producer_epoch}; the current one is {producer.producer_epoch}",
            )
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise RefusedError(
                ErrorCode.transaction_coordinator_fenced,
                f"a marker has the old coordinator epoch {marker.coordinator_epoch}; a marker of epoch {producer.coordinator_epoch} is in the log already",
            )
        if transaction_version >= SECOND_DIALECT and producer_epoch == producer.producer_epoch:
            if producer.txn_first_offset == NO_TXN:
                return False
            raise RefusedError(
                ErrorCode.invalid_producer_epoch,
                f"a marker for producer {producer_id} has epoch {producer_epoch}, which is the epoch of the open transaction itself; a marker of transaction version 2 must have a later epoch",
            )
        return True

    # -- changes -----------------------------------------------------------------------------------------------

    def remember_refused(self, header: BatchHeader) -> None:
        """Remember a batch that transaction verification has refused. Later sequence numbers of this producer are
        refused until this batch is retried and accepted (KIP-890).

        Of the refused batches of one producer epoch, only the one with the lowest sequence number is remembered. A
        batch of a newer epoch takes the place of the remembered one; a batch of an older epoch changes nothing.
        """
        if self._producer_to_read(header.producer_id) is not None:
            return  # the sequence check already rejects the batches that follow the refused one
        epoch, least = self._refused.get(header.producer_id, (-1, -1))
        if header.producer_epoch > epoch or (header.producer_epoch == epoch and header.base_sequence < least):
            self._refused[header.producer_id] = (header.producer_epoch, header.base_sequence)
        while len(self._refused) > REFUSED_KEPT:
            self._refused.popitem(last=False)

    def apply_read_batch(self, header: BatchHeader, batch: Buffer, now_ms: int) -> EndedTxn | None:
        """Update the state for a batch that was read from the log, such as by recovery. Of the records, only those of
        markers are decoded.

        Returns:
            The transaction that a marker ends; None if the batch ends none. It counts as open until the caller passes
            it to `end_transaction`.
        """
        return self.apply_batch(header, read_marker(batch) if header.is_control else None, now_ms)

    def apply_batch(self, header: BatchHeader, marker: Marker | None, now_ms: int) -> EndedTxn | None:
        """Update the state for a batch that was written to the log.

        Args:
            header: the header of the batch, with its offset in the log.
            marker: the decoded marker of a control batch; None if the batch is no transaction marker.
            now_ms: broker time (a clock that never goes back, even if the machine's clock is set back).

        Returns:
            The transaction that a marker ends. It counts as open until the caller passes it to `end_transaction`. None
            if the batch is no marker, or if the producer has no open transaction here.
        """
        if marker is not None:
            return self._apply_marker(header, marker, now_ms)
        if header.has_producer and not header.is_control:
            self._apply_data_batch(header, now_ms)
        return None

    def _apply_data_batch(self, header: BatchHeader, now_ms: int) -> None:
        producer = self._producer_at_epoch(header.producer_id, header.producer_epoch, now_ms)
        self._refused.pop(header.producer_id, None)
        if header.base_sequence != NO_SEQUENCE:
            batches = producer.batches
            batches.append(
                KeptBatch(
                    header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp
                )
            )
            if len(batches) > BATCHES_KEPT:
                del batches[0]
        producer.last_timestamp_ms = header.max_timestamp
        if header.is_transactional:
            if producer.txn_first_offset == NO_TXN:
                producer.txn_first_offset = self._open[header.producer_id] = header.base_offset
                producer.txn_started_ms = now_ms
            producer.txn_record_count += header.record_count

    def _apply_marker(self, header: BatchHeader, marker: Marker, now_ms: int) -> EndedTxn | None:
        producer = self._producer_at_epoch(header.producer_id, header.producer_epoch, now_ms)
        producer.coordinator_epoch = max(producer.coordinator_epoch, marker.coordinator_epoch)
        producer.last_timestamp_ms = header.max_timestamp
        first_offset, marker_offset = producer.txn_first_offset, header.base_offset
        if first_offset == NO_TXN:
            return None
        aborted = None
        if marker.type is MarkerType.ABORT:
            stable_offset = next(
                (first for first in self._open.values() if first != first_offset), header.next_offset
            )
            aborted = AbortedTxn(producer.producer_id, first_offset, marker_offset, stable_offset)
        return EndedTxn(producer.producer_id, first_offset, marker_offset, producer.txn_record_count, aborted)

    def end_transaction(self, txn: EndedTxn) -> None:
        """End a transaction, so that it no longer counts as open. Its marker must be in the log and, for an abort, its
        entry must be in the transaction index.
        """
        del self._open[txn.producer_id]
        producer = self._recent_producer(txn.producer_id)
        assert producer is not None, "a producer with an open transaction is known"
        assert producer.txn_first_offset == txn.first_offset
        producer.is_packed = False
        del producer.batches[:-1]
        producer.txn_first_offset = NO_TXN
        producer.txn_started_ms = -1
        producer.txn_record_count = 0
        assert not self._ended or self._ended[-1][0] < txn.marker_offset
        while self._ended and self._ended[-1][1] >= txn.first_offset:
            self._ended.pop()
        self._ended.append((txn.marker_offset, txn.first_offset))

    def _producer_at_epoch(self, producer_id: int, producer_epoch: int, now_ms: int) -> ProducerEntry:
        """Return the state of a producer that writes with this epoch, for the caller to change. A missing state is
        created. A new epoch drops the remembered batches of the old epoch.
        """
        producer = self._recent_producer(producer_id)
        if producer is not None:
            self._recent.move_to_end(producer_id)
        else:
            producer = ProducerEntry(producer_id, producer_epoch, used_ms=now_ms)
            self._table.put(producer)
            self._add_recent(producer)
        if producer_epoch != producer.producer_epoch:
            producer.producer_epoch = producer_epoch
            producer.batches.clear()
        producer.used_ms = now_ms
        producer.is_packed = False
        return producer

    def remove_unused(self, used_before_ms: int, recent_after_ms: int) -> Iterator[int]:
        """Remove the state of producers that were last used before a time and have no open transaction.

        Args:
            used_before_ms: the time, in broker time (a clock that never goes back, even if the machine's clock is set
                back).
            recent_after_ms: producers that were last used before this time are kept only in packed form (as bytes), and
                not as Python objects any more.

        Yields:
            How many producers a step of a few milliseconds has removed. Between two steps, the caller may change
            producers.
        """
        unused_before_ms = max(used_before_ms, recent_after_ms)
        self.pack_recent(unused_before_ms)
        yield 0
        at = 0
        while at < len(self._table.blocks()):
            self.pack_recent(unused_before_ms)  # packs the producers that were used since the last step
            forgotten, at = self._table.remove_unused(used_before_ms, at, EXPIRED_BLOCKS_MAX)
            yield forgotten
