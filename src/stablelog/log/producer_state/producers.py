"""The producer state of a partition: sequence numbers, producer epochs and open transactions, from which the last
stable offset follows.

The state has the last five batches of each producer, so that the broker recognizes a retry, also after a restart. It
has the producer's epoch, so that the broker refuses batches of an older epoch, and the producer's open transaction.
After a transaction has ended, only its last batch is kept, because a client does not retry the earlier batches. All
times are by the broker's clock, so that a producer of records with old timestamps does not expire too early.

Producers that were used recently are Python objects; the state of all others is packed into bytes (`producer_table`).

Source: KIP-98, KIP-360, KIP-890.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.batch.header import NO_SEQUENCE, SEQUENCE_MAX, BatchHeader
from stablelog.batch.markers import Marker, MarkerType, read_marker
from stablelog.env.disk import Buffer
from stablelog.errors import RefusedError
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.producer_state.producer import BATCHES_KEPT, NO_TXN, KeptBatch, LastBatch, Producer
from stablelog.log.producer_state.producer_table import ProducerTable

RECENT_MAX = 500  # how many producers are kept as objects, of 1 KB each
# How many producers with a refused batch are remembered; beyond that, the oldest ones are dropped.
REFUSED_KEPT = 1000
EXPIRED_BLOCKS_MAX = 100  # how many blocks, of up to 32 producers each, one step of the expiration examines
SECOND_DIALECT = 2  # transaction.version 2: each transaction has its own producer epoch


class EndedTxn(NamedTuple):
    """A transaction that a marker has ended."""

    producer_id: int
    first_offset: int
    marker_offset: int
    record_count: int
    aborted: AbortedTxn | None


class Producers:
    """The producers of one partition, and the transactions that are open or whose markers are not durable."""

    def __init__(self) -> None:
        # All producers. For a recent producer, the table has the state at the time when it was packed last.
        self._table = ProducerTable()
        # The recent producers, which are kept as Python objects, in the order of their last use.
        self._recent: OrderedDict[int, Producer] = OrderedDict()
        # By producer id: the first offset of the producer's open transaction, in ascending order.
        self._open: OrderedDict[int, int] = OrderedDict()
        # (marker offset, first offset) of each transaction whose marker is not durable yet.
        self._ended: deque[tuple[int, int]] = deque()
        # Those entries of `_ended` whose first offset is less than that of every later entry. So the first entry here
        # has the least first offset of all entries.
        self._ended_least: deque[tuple[int, int]] = deque()
        # By producer id, for producers without state in this partition: the epoch and the least sequence number of the
        # batches that transaction verification refused.
        self._refused: OrderedDict[int, tuple[int, int]] = OrderedDict()

    @classmethod
    def restored(cls, table: ProducerTable, now_ms: int) -> "Producers":
        """Make the producer state from the table of a snapshot. The new state owns this table.

        Times after `now_ms` are replaced by `now_ms`. They occur if the machine's clock was set back since the
        snapshot; without the replacement, such a producer would expire too late.
        """
        self = cls()
        table.limit_times(now_ms)
        self._table = table
        for producer in sorted(table.open_producers(), key=lambda producer: producer.txn_first_offset):
            self._open[producer.producer_id] = producer.txn_first_offset
        return self

    # -- recent producers --------------------------------------------------------------------------------------

    def _known(self, producer_id: int) -> Producer | None:
        """Return a producer as an object, which counts as recent from now on; None if the producer has no state here."""
        producer = self._recent.get(producer_id)
        if producer is None and (producer := self._table.get(producer_id)) is not None:
            producer.is_packed = True
            self._add_recent(producer)
        return producer

    def _add_recent(self, producer: Producer) -> None:
        self._recent[producer.producer_id] = producer
        if len(self._recent) > RECENT_MAX:
            _, last = self._recent.popitem(last=False)
            self._pack(last)

    def _pack(self, producer: Producer) -> None:
        if not producer.is_packed:
            self._table.put(producer)
            producer.is_packed = True

    def pack_unused(self, used_before_ms: int) -> None:
        """Write the state of all recent producers into the packed table. Drop the Python objects of producers that were
        last used before this time.
        """
        for producer in list(self._recent.values()):
            self._pack(producer)
            if producer.used_ms < used_before_ms:
                del self._recent[producer.producer_id]

    def _look_up(self, producer_id: int) -> Producer | None:
        """Return a producer, which the caller must not change; None if the producer has no state here."""
        return self._recent.get(producer_id) or self._table.get(producer_id)

    def _with_open(self, producer_id: int) -> Producer:
        """Return a producer with an open transaction. The caller must not change it."""
        producer = self._look_up(producer_id)
        assert producer is not None, "a producer with an open transaction is known"
        return producer

    # -- all producers -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._table)

    def frozen(self) -> ProducerTable:
        """Return a copy of the state of all producers, which any thread may read."""
        self.pack_unused(-1)
        return self._table.copy()

    def __iter__(self) -> Iterator[Producer]:
        """Yield copies of all producers, in the order of the producer ids."""
        return iter(self.frozen())

    def greatest_id(self, at_most: int) -> int:
        """Return the greatest producer id that is not above `at_most`; -1 if there is none."""
        return self._table.greatest_id(at_most)

    # -- open transactions -------------------------------------------------------------------------------------

    def first_open_offset(self) -> int | None:
        """Return the first offset of the oldest open transaction; None if none is open."""
        return next(iter(self._open.values()), None)

    def open_epoch(self, producer_id: int) -> int | None:
        """Return the producer epoch of a producer's open transaction; None if none is open."""
        return self._with_open(producer_id).producer_epoch if producer_id in self._open else None

    def first_unstable_offset(self) -> int | None:
        """Return the least first offset of the transactions that are open or whose markers are not durable; None if
        there are none.
        """
        first_open = self.first_open_offset()
        if not self._ended_least:
            return first_open
        ended = self._ended_least[0][1]
        return ended if first_open is None else min(first_open, ended)

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Note that the high watermark has moved. Transactions whose markers are before the high watermark no longer
        limit the last stable offset.
        """
        while self._ended and self._ended[0][0] < high_watermark:
            marker_offset, _ = self._ended.popleft()
            if self._ended_least and self._ended_least[0][0] == marker_offset:
                self._ended_least.popleft()

    def open_record_count(self, producer_id: int) -> int:
        """Return how many records a producer has written in its open transaction; 0 if none is open."""
        return self._with_open(producer_id).txn_record_count if producer_id in self._open else 0

    def set_open_record_counts(self, counts: Mapping[int, int]) -> None:
        """Set how many records the open transactions of these producers have, by producer id."""
        for producer_id, count in counts.items():
            producer = self._known(producer_id)
            assert producer is not None, "a producer with an open transaction is known"
            producer.txn_record_count = count
            producer.is_packed = False

    def open_producers(self) -> Iterator[Producer]:
        """Yield the producers with an open transaction, the oldest transaction first."""
        return map(self._with_open, self._open)

    @property
    def oldest_open_started_ms(self) -> int | None:
        """Return the time when the oldest open transaction began, by the broker's clock; None if none is open."""
        oldest = next(self.open_producers(), None)
        return None if oldest is None else oldest.txn_started_ms

    def last_batches(self) -> Callable[[int], LastBatch | None]:
        """Return a function from a producer id to the epoch and the last batch that compaction must keep for this
        producer. Any thread may call the function.
        """
        table = self.frozen()

        def last_batch(producer_id: int) -> LastBatch | None:
            producer = table.get(producer_id)
            if producer is None:
                return None
            last_offset = producer.batches[-1].last_offset if producer.batches else None
            return LastBatch(producer.producer_epoch, last_offset)

        return last_batch

    # -- checks: nothing changes -------------------------------------------------------------------------------

    def check_batch(
        self,
        header: BatchHeader,
        *,
        require_first_sequence_zero: bool = False,
        open_record_count_max: int | None = None,
    ) -> KeptBatch | None:
        """Check a client's batch against the state of its producer.

        Args:
            header: the header of the batch.
            require_first_sequence_zero: whether the first batch of a producer without state in this partition must have
                sequence 0.
            open_record_count_max: how many records a transaction may have in this partition; None for no limit.

        Returns:
            If the batch is a duplicate, the earlier batch that it repeats. None if the batch must be appended.

        Raises:
            RefusedError: invalid_producer_epoch, out_of_order_sequence_number, invalid_txn_state if the batch is
                outside the open transaction of its producer, or invalid_record if the transaction would have too many
                records.
        """
        producer = self._known(header.producer_id)
        if producer is None:
            self._check_first(header, require_first_sequence_zero=require_first_sequence_zero)
            return None
        kept = _repeated(producer, header)
        if kept is None:
            _check_epoch(producer, header)
            _check_follows(producer, header)
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

    def _check_first(self, header: BatchHeader, *, require_first_sequence_zero: bool) -> None:
        if require_first_sequence_zero and header.base_sequence != 0:
            raise _out_of_order(
                f"producer {header.producer_id} has no state in this partition, so its sequence must begin with 0, not {header.base_sequence}"
            )
        epoch, least = self._refused.get(header.producer_id, (-1, -1))
        if epoch == header.producer_epoch and header.base_sequence > least:
            raise _out_of_order(
                f"producer {header.producer_id} sends sequence {header.base_sequence}, but sequence {least} was refused before and must be retried first"
            )

    def check_epoch(self, header: BatchHeader) -> None:
        """Refuse a batch with an older producer epoch than the one in the producer state.

        Raises:
            RefusedError: invalid_producer_epoch.
        """
        producer = self._known(header.producer_id)
        if producer is not None:
            _check_epoch(producer, header)

    def check_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, transaction_version: int
    ) -> bool:
        """Refuse a marker whose producer epoch or coordinator epoch is older than the one in the producer state.

        Returns:
            Whether the marker must be written; False if it repeats a marker that is in the log already.

        Raises:
            RefusedError: invalid_producer_epoch or transaction_coordinator_fenced.
        """
        producer = self._known(producer_id)
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

    def batch_refused(self, header: BatchHeader) -> None:
        """Remember the lowest sequence number of a producer's batches that transaction verification refused. Batches
        with later sequence numbers are refused until the batch with the remembered number is retried (KIP-890).

        Sequence numbers are compared within one producer epoch. A batch of a newer epoch replaces the remembered epoch
        and sequence number; a batch of an older epoch changes nothing.
        """
        if self._look_up(header.producer_id) is not None:
            return  # the sequence check already rejects the batches that follow the refused one
        epoch, least = self._refused.get(header.producer_id, (-1, -1))
        if header.producer_epoch > epoch or (header.producer_epoch == epoch and header.base_sequence < least):
            self._refused[header.producer_id] = (header.producer_epoch, header.base_sequence)
        while len(self._refused) > REFUSED_KEPT:
            self._refused.popitem(last=False)

    def take(self, header: BatchHeader, batch: Buffer, now_ms: int) -> EndedTxn | None:
        """Update the state for a batch that recovery has read from the log. The bytes of the batch are decoded only if
        it is a marker.
        """
        return self.note(header, read_marker(batch) if header.is_control else None, now_ms)

    def note(self, header: BatchHeader, marker: Marker | None, now_ms: int) -> EndedTxn | None:
        """Update the state for a batch that was written.

        Args:
            header: the header of the batch, with its offset in the log.
            marker: the decoded marker of a control batch; None if the batch is no transaction marker.
            now_ms: the time of the broker's clock.

        Returns:
            If the batch is a marker, the transaction that it ends. This transaction counts as open until the caller
            passes it to `ended`. None if the batch is no marker, or if the producer has no open transaction in this
            partition.
        """
        if marker is not None:
            return self._note_marker(header, marker, now_ms)
        if header.has_producer and not header.is_control:
            self._note_batch(header, now_ms)
        return None

    def _note_batch(self, header: BatchHeader, now_ms: int) -> None:
        producer = self._at_epoch(header.producer_id, header.producer_epoch, now_ms)
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

    def _note_marker(self, header: BatchHeader, marker: Marker, now_ms: int) -> EndedTxn | None:
        producer = self._at_epoch(header.producer_id, header.producer_epoch, now_ms)
        producer.coordinator_epoch = max(producer.coordinator_epoch, marker.coordinator_epoch)
        producer.last_timestamp_ms = header.max_timestamp
        first_offset, marker_offset = producer.txn_first_offset, header.base_offset
        if first_offset == NO_TXN:
            return None
        aborted = None
        if marker.type is MarkerType.ABORT:
            others = (first for first in self._open.values() if first != first_offset)
            stable_offset = next(others, header.next_offset)
            aborted = AbortedTxn(producer.producer_id, first_offset, marker_offset, stable_offset)
        return EndedTxn(producer.producer_id, first_offset, marker_offset, producer.txn_record_count, aborted)

    def ended(self, txn: EndedTxn) -> None:
        """Note that the marker of this transaction is in the log and, if it is an abort marker, in the transaction
        index. The transaction is not open any more.
        """
        del self._open[txn.producer_id]
        producer = self._known(txn.producer_id)
        assert producer is not None, "a producer with an open transaction is known"
        assert producer.txn_first_offset == txn.first_offset
        producer.is_packed = False
        del producer.batches[:-1]
        producer.txn_first_offset = NO_TXN
        producer.txn_started_ms = -1
        producer.txn_record_count = 0
        assert not self._ended or self._ended[-1][0] < txn.marker_offset
        self._ended.append((txn.marker_offset, txn.first_offset))
        while self._ended_least and self._ended_least[-1][1] >= txn.first_offset:
            self._ended_least.pop()
        self._ended_least.append((txn.marker_offset, txn.first_offset))

    def _at_epoch(self, producer_id: int, producer_epoch: int, now_ms: int) -> Producer:
        """Return the state of a producer that writes with this epoch, for the caller to update. If there is no state,
        it is made. If the epoch is new, the batches of the earlier epoch are dropped from the state.
        """
        producer = self._known(producer_id)
        if producer is not None:
            self._recent.move_to_end(producer_id)
        else:
            producer = Producer(producer_id, producer_epoch, used_ms=now_ms)
            self._table.put(producer)
            self._add_recent(producer)
        if producer_epoch != producer.producer_epoch:
            producer.producer_epoch = producer_epoch
            producer.batches.clear()
        producer.used_ms = now_ms
        producer.is_packed = False
        return producer

    def expire(self, used_before_ms: int, recent_after_ms: int) -> Iterator[int]:
        """Remove the state of producers that were last used before a time and have no open transaction.

        Args:
            used_before_ms: the time, by the broker's clock.
            recent_after_ms: producers that were last used before this time are kept only in packed form.

        Yields:
            After each step of a few milliseconds, how many producers this step has removed. The caller may change
            producers between two steps.
        """
        unused_before_ms = max(used_before_ms, recent_after_ms)
        self.pack_unused(unused_before_ms)
        yield 0
        more = True
        while more:
            self.pack_unused(unused_before_ms)  # packs the producers that were used since the last step
            forgotten, more = self._table.remove_unused(used_before_ms, EXPIRED_BLOCKS_MAX)
            yield forgotten


def _repeated(producer: Producer, header: BatchHeader) -> KeptBatch | None:
    """Return the kept batch of which the batch with this header is a duplicate; None if there is no such batch.

    A transactional batch can be a duplicate only of a batch in the open transaction, because a client waits for the
    responses to its batches before it ends a transaction. A batch with a sequence number from an ended transaction is
    therefore either late or new: after an abort, librdkafka reuses the sequence number of a batch whose response was
    lost for its next record. If this record were treated as a duplicate, as Kafka does, it would be missing from a
    transaction whose commit succeeds. A late batch of an ended transaction is refused by `_check_follows` because of
    its sequence number.
    """
    if producer.producer_epoch != header.producer_epoch:
        return None
    is_open = producer.txn_first_offset != NO_TXN
    if header.is_transactional != is_open:
        return None
    last_sequence = header.last_sequence
    for kept in producer.batches:
        if (
            kept.last_sequence == last_sequence
            and kept.first_sequence == header.base_sequence
            and (not is_open or kept.first_offset >= producer.txn_first_offset)
        ):
            return kept
    return None


def _check_epoch(producer: Producer, header: BatchHeader) -> None:
    if header.producer_epoch < producer.producer_epoch:
        raise RefusedError(
            ErrorCode.invalid_producer_epoch,
            f"producer {header.producer_id} writes with the old producer epoch {header.producer_epoch}; the current one is {producer.producer_epoch}",
        )


def _check_follows(producer: Producer, header: BatchHeader) -> None:
    """Refuse a batch whose sequence number does not follow the producer's last one, or which is outside the producer's
    open transaction.
    """
    if header.producer_epoch > producer.producer_epoch:
        if header.base_sequence != 0:
            raise _out_of_order(
                f"producer {header.producer_id} begins epoch {header.producer_epoch} with sequence {header.base_sequence}; it must be 0"
            )
    elif header.base_sequence != (producer.last_sequence + 1) & SEQUENCE_MAX:
        # The last sequence is -1 if the log has only a marker of the producer's epoch. The next sequence must then be
        # 0.
        raise _out_of_order(
            f"producer {header.producer_id} sends sequence {header.base_sequence}, which does not follow its last sequence {producer.last_sequence}"
        )
    if producer.txn_first_offset != NO_TXN and not header.is_transactional:
        raise RefusedError(
            ErrorCode.invalid_txn_state,
            f"producer {header.producer_id} sends a batch that is not transactional, but has an open transaction in this partition",
        )


def _out_of_order(message: str) -> RefusedError:
    return RefusedError(ErrorCode.out_of_order_sequence_number, message)
