"""The producer state of a partition: sequences, epochs, open transactions, and how far the log is decided.

The state keeps the last five batches of each producer, so that a retry is recognized, also after a restart. It keeps
the producer's epoch, so that batches of an older epoch are refused, and its open transaction. After a transaction has
ended, only its last batch is kept: a client does not retry the others. All times are the broker's, so that a client
that writes records with old timestamps does not expire.

Producers that were used recently are objects; all others are packed (`producer_table`).

Source: KIP-98, KIP-360, KIP-890.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.batch.header import NO_SEQUENCE, SEQUENCE_MAX, BatchHeader
from stablelog.batch.markers import Marker, MarkerType, read_marker
from stablelog.env.disk import Buffer
from stablelog.errors import Refused
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.producer_state.producer import BATCHES_KEPT, NO_TXN, KeptBatch, LastBatch, Producer
from stablelog.log.producer_state.producer_table import ProducerTable

RECENT_MAX = 500  # producers that are objects: 1 KB each
REFUSED_KEPT = 1000  # producers; of those that never come again the oldest are forgotten
EXPIRED_BLOCKS_MAX = 100  # that are looked into at once: of up to 32 producers each
SECOND_DIALECT = 2  # transaction.version 2: every transaction has an epoch of its own


class EndedTxn(NamedTuple):
    """A transaction that a marker has ended."""

    producer_id: int
    first_offset: int
    marker_offset: int
    record_count: int
    aborted: AbortedTxn | None


class Producers:
    """The producers of one partition, and what of the log is undecided."""

    def __init__(self) -> None:
        # All producers. The state of a recent one is as it was when it was packed.
        self._table = ProducerTable()
        self._recent: OrderedDict[int, Producer] = OrderedDict()  # in the order of their last use
        self._open: OrderedDict[int, int] = OrderedDict()  # first offsets of open transactions, rising
        # (marker offset, first offset) of transactions whose marker is not yet durable
        self._ended: deque[tuple[int, int]] = deque()
        self._ended_least: deque[tuple[int, int]] = deque()  # those of them that are the least from there on
        # Epoch and least sequence of batches that the coordinator refused, of producers that are not known here.
        self._refused: OrderedDict[int, tuple[int, int]] = OrderedDict()

    @classmethod
    def restored(cls, table: ProducerTable, now_ms: int) -> "Producers":
        """Make producer state of the producers that a snapshot holds. The table belongs to it from now on.

        Times after `now_ms` become `now_ms`. The machine's clock may have been set back since; without this, a producer
        would expire only once the clock has caught up.
        """
        self = cls()
        table.limit_times(now_ms)
        self._table = table
        for producer in sorted(table.open_producers(), key=lambda producer: producer.txn_first_offset):
            self._open[producer.producer_id] = producer.txn_first_offset
        return self

    # -- recent producers --------------------------------------------------------------------------------------

    def _known(self, producer_id: int) -> Producer | None:
        """A producer, as an object among the recent ones; None if it is not known."""
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
        """Pack all recent producers. Those that were last used before a time are no objects any more."""
        for producer in list(self._recent.values()):
            self._pack(producer)
            if producer.used_ms < used_before_ms:
                del self._recent[producer.producer_id]

    def _look_up(self, producer_id: int) -> Producer | None:
        """A producer to be read; None if it is not known."""
        return self._recent.get(producer_id) or self._table.get(producer_id)

    def _with_open(self, producer_id: int) -> Producer:
        """A producer with an open transaction, to be read."""
        producer = self._look_up(producer_id)
        assert producer is not None, "a producer with an open transaction is known"
        return producer

    # -- all of them -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._table)

    def frozen(self) -> ProducerTable:
        """A copy of the state of all producers as it is now, which any thread may read."""
        self.pack_unused(-1)
        return self._table.copy()

    def __iter__(self) -> Iterator[Producer]:
        """Copies of all producers, in the order of their ids."""
        return iter(self.frozen())

    def greatest_id(self, at_most: int) -> int:
        """The greatest producer id that is not above `at_most`; -1 if there is none."""
        return self._table.greatest_id(at_most)

    # -- what is undecided -------------------------------------------------------------------------------------

    def first_open_offset(self) -> int | None:
        """The first offset of the oldest open transaction."""
        return next(iter(self._open.values()), None)

    def first_unstable_offset(self) -> int | None:
        """The least first offset over open transactions and over those whose marker is not durable; None: none."""
        first_open = self.first_open_offset()
        if not self._ended_least:
            return first_open
        ended = self._ended_least[0][1]
        return ended if first_open is None else min(first_open, ended)

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Markers below the high watermark are durable: their transactions are decided for good."""
        while self._ended and self._ended[0][0] < high_watermark:
            marker_offset, _ = self._ended.popleft()
            if self._ended_least and self._ended_least[0][0] == marker_offset:
                self._ended_least.popleft()

    def open_record_count(self, producer_id: int) -> int:
        """How many records a producer has written in its open transaction; 0 without one."""
        return self._with_open(producer_id).txn_record_count if producer_id in self._open else 0

    def set_open_record_counts(self, counts: Mapping[int, int]) -> None:
        """Set how many records the open transactions of these producers hold, where that was counted again."""
        for producer_id, count in counts.items():
            producer = self._known(producer_id)
            assert producer is not None, "a producer with an open transaction is known"
            producer.txn_record_count = count
            producer.is_packed = False

    def open_producers(self) -> Iterator[Producer]:
        """Producers with an open transaction, the oldest transaction first."""
        return map(self._with_open, self._open)

    @property
    def oldest_open_started_ms(self) -> int | None:
        """When the oldest open transaction began, by the broker's clock; None without one."""
        oldest = next(self.open_producers(), None)
        return None if oldest is None else oldest.txn_started_ms

    def last_batches(self) -> Callable[[int], LastBatch | None]:
        """What compaction has to leave of each producer, by producer id; any thread may ask."""
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
        """Decide whether a client's batch is appended.

        Args:
            header: of the batch.
            require_first_sequence_zero: whether a producer that is not known here has to begin with sequence 0.
            open_record_count_max: how many records a transaction may have here; None: as many as the client writes.

        Returns:
            The kept batch that this one repeats; None if it is to be appended.

        Raises:
            Refused: the batch is out of order, from an old epoch, out of its transaction, or makes that too long:
                invalid_producer_epoch, out_of_order_sequence_number, invalid_txn_state or invalid_record.
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
                raise Refused(
                    ErrorCode.invalid_record,
                    f"a transaction of {record_count} records; in a commit-ordered partition it holds up to {open_record_count_max}",
                )
        return kept

    def _check_first(self, header: BatchHeader, *, require_first_sequence_zero: bool) -> None:
        if require_first_sequence_zero and header.base_sequence != 0:
            raise _out_of_order(
                f"producer {header.producer_id} is not known here and begins with sequence {header.base_sequence}, not 0"
            )
        epoch, least = self._refused.get(header.producer_id, (-1, -1))
        if epoch == header.producer_epoch and header.base_sequence > least:
            raise _out_of_order(
                f"producer {header.producer_id} sends sequence {header.base_sequence}, and {least} that was refused comes again"
            )

    def check_epoch(self, header: BatchHeader) -> None:
        """Refuse a batch with an older epoch than the producer's.

        Raises:
            Refused: invalid_producer_epoch.
        """
        producer = self._known(header.producer_id)
        if producer is not None:
            _check_epoch(producer, header)

    def check_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, transaction_version: int
    ) -> bool:
        """Refuse a marker that is older than what is known.

        Returns:
            False if the marker repeats one that has been written, so that there is nothing to do.

        Raises:
            Refused: invalid_producer_epoch or transaction_coordinator_fenced.
        """
        producer = self._known(producer_id)
        if producer is None:
            return True
        if producer_epoch < producer.producer_epoch:
            raise Refused(
                ErrorCode.invalid_producer_epoch,
                f"a marker of epoch {producer_epoch} for producer {producer_id}, which is at {producer.producer_epoch}",
            )
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise Refused(
                ErrorCode.transaction_coordinator_fenced,
                f"a marker of coordinator epoch {marker.coordinator_epoch}; {producer.coordinator_epoch} has written here",
            )
        if transaction_version >= SECOND_DIALECT and producer_epoch == producer.producer_epoch:
            if producer.txn_first_offset == NO_TXN:
                return False
            raise Refused(
                ErrorCode.invalid_producer_epoch,
                f"a marker of epoch {producer_epoch} for producer {producer_id}, whose transaction has that epoch itself",
            )
        return True

    # -- changes -----------------------------------------------------------------------------------------------

    def batch_refused(self, header: BatchHeader) -> None:
        """Remember the lowest sequence that verification refused, and reject later ones until it is retried (KIP-890).

        Sequences are compared within an epoch; a newer epoch replaces an older one, and an older one changes nothing.
        """
        if self._look_up(header.producer_id) is not None:
            return  # the sequence check rejects what was sent after the refused batch
        epoch, least = self._refused.get(header.producer_id, (-1, -1))
        if header.producer_epoch > epoch or (header.producer_epoch == epoch and header.base_sequence < least):
            self._refused[header.producer_id] = (header.producer_epoch, header.base_sequence)
        while len(self._refused) > REFUSED_KEPT:
            self._refused.popitem(last=False)

    def take(self, header: BatchHeader, batch: Buffer, now_ms: int) -> EndedTxn | None:
        """Note a batch that stands in the log. Its bytes are read only if it is a marker. See `note`."""
        return self.note(header, read_marker(batch) if header.is_control else None, now_ms)

    def note(self, header: BatchHeader, marker: Marker | None, now_ms: int) -> EndedTxn | None:
        """Note a batch that was written.

        Args:
            header: of the batch, with its own base offset.
            marker: what a control batch says; None if it is no marker of a transaction.
            now_ms: the broker's clock.

        Returns:
            The transaction that a marker ends. It counts as undecided until `ended` is called with it. None if the
            producer had written nothing here.
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
        """The transaction's end is in the log and, if it was aborted, in the index: it is open no longer."""
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
        """A producer that has written, to be changed by the caller."""
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
        """Forget producers that have not written since, but for those with an open transaction.

        Args:
            used_before_ms: since when, by the broker's clock.
            recent_after_ms: producers that were last used before are packed.

        Yields:
            How many were forgotten, after a few milliseconds of work each. Producers may be changed in between.
        """
        unused_before_ms = max(used_before_ms, recent_after_ms)
        self.pack_unused(unused_before_ms)
        yield 0
        more = True
        while more:
            self.pack_unused(unused_before_ms)  # those that were used since
            forgotten, more = self._table.remove_unused(used_before_ms, EXPIRED_BLOCKS_MAX)
            yield forgotten


def _repeated(producer: Producer, header: BatchHeader) -> KeptBatch | None:
    """The kept batch that this one repeats; None if it repeats none.

    A transactional batch repeats only a batch of the transaction that is open here. A client resolves its batches
    before it ends a transaction. A batch with a sequence of an ended transaction is therefore either late, or another
    record: after an abort librdkafka gives the sequence of a batch whose response was lost to its next record. If that
    record were taken for a repetition, it would be missing from a transaction whose commit succeeds. (Kafka takes it
    for one.) `_check_follows` refuses a repetition of an ended transaction by its sequence.
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
        raise Refused(
            ErrorCode.invalid_producer_epoch,
            f"producer {header.producer_id} writes with epoch {header.producer_epoch}; {producer.producer_epoch} has begun",
        )


def _check_follows(producer: Producer, header: BatchHeader) -> None:
    """Refuse a batch that does not follow the producer's last one, or lies outside its open transaction."""
    if header.producer_epoch > producer.producer_epoch:
        if header.base_sequence != 0:
            raise _out_of_order(
                f"producer {header.producer_id} begins epoch {header.producer_epoch} with sequence {header.base_sequence}, not 0"
            )
    elif header.base_sequence != (producer.last_sequence + 1) & SEQUENCE_MAX:
        # After -1, of an epoch that only a marker is known of, comes 0.
        raise _out_of_order(
            f"producer {header.producer_id} sends sequence {header.base_sequence} after {producer.last_sequence}"
        )
    if producer.txn_first_offset != NO_TXN and not header.is_transactional:
        raise Refused(
            ErrorCode.invalid_txn_state,
            f"producer {header.producer_id} has a transaction open here and sends a batch outside of it",
        )


def _out_of_order(message: str) -> Refused:
    return Refused(ErrorCode.out_of_order_sequence_number, message)
