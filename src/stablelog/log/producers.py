"""Who wrote to this partition: sequences, epochs, open transactions, and how far the log is decided.

Keeps for every producer its last five batches, so that a retry is recognised, also after a restart; its epoch,
so that a predecessor is refused; and its open transaction. All times are the broker's: a client that replays old
data does not make itself be forgotten.

Source: KIP-98, KIP-360, KIP-890.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.batch.header import NO_SEQUENCE, SEQUENCE_MAX, BatchHeader
from stablelog.batch.markers import Marker, MarkerType, read_marker
from stablelog.env.disk import Buffer
from stablelog.errors import Refused
from stablelog.log.compaction import LastBatch
from stablelog.log.model import ProducerDescription
from stablelog.log.transaction_index import AbortedTxn

BATCHES_KEPT = 5
REFUSED_KEPT = 1000  # producers; of those that never come again the oldest are forgotten
NO_TXN = -1
SECOND_DIALECT = 2  # transaction.version 2: every transaction has an epoch of its own


class KeptBatch(NamedTuple):
    """What is remembered of a producer's batch. Sequences and offset are of its last record, inclusive."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        """The sequence of its first record."""
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX

    @property
    def first_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class Producer:
    """One producer in one partition.

    Attributes:
        batches: the last five, oldest first, of the current epoch.
        used_ms: when it last wrote, by the broker's clock.
        last_timestamp_ms: of its last batch or marker, as the log says; -1 if none is known.
        txn_first_offset: of its open transaction; -1 none.
        txn_started_ms: when that began, by the broker's clock.
        txn_record_count: how many records it has written in it.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int = -1
    batches: deque[KeptBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    used_ms: int = -1
    last_timestamp_ms: int = -1
    txn_first_offset: int = NO_TXN
    txn_started_ms: int = -1
    txn_record_count: int = 0

    @property
    def last_sequence(self) -> int:
        """Of its last batch; -1 if it has written none in this epoch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


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
        self.by_id: OrderedDict[int, Producer] = OrderedDict()  # in the order of their last use
        self._open: OrderedDict[int, Producer] = OrderedDict()  # in the order of their first offsets
        # (marker offset, first offset) of transactions whose marker is not yet durable
        self._ended: deque[tuple[int, int]] = deque()
        self._ended_least: deque[tuple[int, int]] = deque()  # those of them that are the least from there on
        # Epoch and least sequence of batches that the coordinator refused, of producers that are not known here.
        self._refused: OrderedDict[int, tuple[int, int]] = OrderedDict()

    @classmethod
    def restored(cls, found: Iterable[Producer], now_ms: int) -> "Producers":
        """Make producer state of the producers that a snapshot holds, in any order.

        Times after `now_ms` become `now_ms`: the machine's clock may have been set back since, and a producer would
        else expire only once the clock has caught up.
        """
        self = cls()
        found = list(found)
        for producer in found:
            producer.used_ms = min(producer.used_ms, now_ms)
            producer.txn_started_ms = min(producer.txn_started_ms, now_ms)
        for producer in sorted(found, key=lambda producer: producer.used_ms):
            self.by_id[producer.producer_id] = producer
        open_producers = [one for one in self.by_id.values() if one.txn_first_offset != NO_TXN]
        for producer in sorted(open_producers, key=lambda producer: producer.txn_first_offset):
            self._open[producer.producer_id] = producer
        return self

    # -- what is undecided -------------------------------------------------------------------------------------

    def first_open_offset(self) -> int | None:
        """The first offset of the oldest open transaction."""
        for producer in self._open.values():
            return producer.txn_first_offset
        return None

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
        producer = self._open.get(producer_id)
        return 0 if producer is None else producer.txn_record_count

    def set_open_record_counts(self, counts: Mapping[int, int]) -> None:
        """Say how many records the open transactions of these producers hold, where that was counted anew."""
        for producer_id, count in counts.items():
            self._open[producer_id].txn_record_count = count

    def open_producers(self) -> Iterator[Producer]:
        """Producers with an open transaction, the oldest first."""
        yield from self._open.values()

    def last_batches(self) -> dict[int, LastBatch]:
        """What compaction has to leave of each producer."""
        return {
            producer_id: LastBatch(
                producer.producer_epoch, producer.batches[-1].last_offset if producer.batches else None
            )
            for producer_id, producer in self.by_id.items()
        }

    def descriptions(self) -> list[ProducerDescription]:
        """All of them, the least recently used first."""
        return [
            ProducerDescription(
                producer.producer_id,
                producer.producer_epoch,
                producer.last_sequence,
                producer.used_ms,
                producer.coordinator_epoch,
                producer.txn_first_offset,
            )
            for producer in self.by_id.values()
        ]

    # -- checks: nothing changes -------------------------------------------------------------------------------

    def find_duplicate(self, header: BatchHeader) -> KeptBatch | None:
        """Find the kept batch that this one repeats.

        A transactional batch repeats only a batch of the transaction that is open here. A client resolves its batches
        before it ends a transaction, so what carries a sequence of an ended one is either late, or another record:
        after an abort librdkafka gives the sequence of a batch whose answer was lost to its next record. Answered as a
        repetition, that record would be missing from a transaction whose commit succeeds. (Kafka answers it so.)

        Returns:
            None if it repeats none. `check_batch` then refuses a repetition of an ended transaction by its sequence.
        """
        producer = self.by_id.get(header.producer_id)
        if producer is None or producer.producer_epoch != header.producer_epoch:
            return None
        is_open = producer.txn_first_offset != NO_TXN
        if header.is_transactional != is_open:
            return None
        for kept in producer.batches:
            if (
                kept.last_sequence == header.last_sequence
                and kept.first_sequence == header.base_sequence
                and (not is_open or kept.first_offset >= producer.txn_first_offset)
            ):
                return kept
        return None

    def check_batch(self, header: BatchHeader, *, require_first_sequence_zero: bool) -> None:
        """Refuse a client's batch that is out of order, from an old epoch, or out of its transaction.

        Raises:
            Refused: invalid_producer_epoch, out_of_order_sequence_number or invalid_txn_state.
        """
        producer = self.by_id.get(header.producer_id)
        who = f"producer {header.producer_id}"
        if producer is None:
            if require_first_sequence_zero and header.base_sequence != 0:
                raise _out_of_order(
                    f"{who} is not known here and begins with sequence {header.base_sequence}, not 0"
                )
            epoch, least = self._refused.get(header.producer_id, (-1, -1))
            if epoch == header.producer_epoch and header.base_sequence > least:
                raise _out_of_order(
                    f"{who} sends sequence {header.base_sequence}, and {least} that was refused comes again"
                )
            return
        self.check_epoch(header)
        if header.producer_epoch > producer.producer_epoch:
            if header.base_sequence != 0:
                raise _out_of_order(
                    f"{who} begins epoch {header.producer_epoch} with sequence {header.base_sequence}, not 0"
                )
        elif header.base_sequence != (producer.last_sequence + 1) & SEQUENCE_MAX:
            # After -1, of an epoch that only a marker is known of, comes 0.
            raise _out_of_order(f"{who} sends sequence {header.base_sequence} after {producer.last_sequence}")
        if producer.txn_first_offset != NO_TXN and not header.is_transactional:
            raise Refused(
                ErrorCode.invalid_txn_state,
                f"{who} has a transaction open here and sends a batch outside of it",
            )

    def check_epoch(self, header: BatchHeader) -> None:
        """Refuse a batch of a predecessor.

        Raises:
            Refused: invalid_producer_epoch.
        """
        producer = self.by_id.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.producer_epoch:
            raise Refused(
                ErrorCode.invalid_producer_epoch,
                f"producer {header.producer_id} writes with epoch {header.producer_epoch}; {producer.producer_epoch} has begun",
            )

    def check_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, transaction_version: int
    ) -> bool:
        """Refuse a marker that is older than what is known.

        Returns:
            False if the marker repeats one that has been written, so that there is nothing to do.

        Raises:
            Refused: invalid_producer_epoch or transaction_coordinator_fenced.
        """
        producer = self.by_id.get(producer_id)
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
        if header.producer_id in self.by_id:
            return  # the sequence check rejects what was sent after the refused batch
        epoch, least = self._refused.get(header.producer_id, (-1, -1))
        if header.producer_epoch > epoch or (header.producer_epoch == epoch and header.base_sequence < least):
            self._refused[header.producer_id] = (header.producer_epoch, header.base_sequence)
        while len(self._refused) > REFUSED_KEPT:
            self._refused.popitem(last=False)

    def batch_appended(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """A batch of this producer was written at `base_offset`."""
        producer = self._at_epoch(header.producer_id, header.producer_epoch)
        self._refused.pop(header.producer_id, None)
        last_offset = base_offset + header.last_offset_delta
        if header.base_sequence != NO_SEQUENCE:
            producer.batches.append(
                KeptBatch(header.last_sequence, last_offset, header.last_offset_delta, header.max_timestamp)
            )
        producer.used_ms = now_ms
        producer.last_timestamp_ms = header.max_timestamp
        if header.is_transactional:
            if producer.txn_first_offset == NO_TXN:
                producer.txn_first_offset = base_offset
                producer.txn_started_ms = now_ms
                producer.txn_record_count = 0
                self._open[producer.producer_id] = producer
            producer.txn_record_count += header.record_count

    def marker_appended(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: Marker,
        marker_offset: int,
        next_offset: int,
        timestamp_ms: int,
        now_ms: int,
    ) -> EndedTxn | None:
        """Take a marker that was written: the producer's transaction has ended.

        Args:
            producer_id: of the marker.
            producer_epoch: of the marker.
            marker: what it says.
            marker_offset: its own.
            next_offset: of the batch that follows it.
            timestamp_ms: of the marker.
            now_ms: the broker's clock.

        Returns:
            The transaction, which counts as undecided until `ended` is called with it; None if the producer had
            written nothing here.
        """
        producer = self._at_epoch(producer_id, producer_epoch)
        producer.coordinator_epoch = max(producer.coordinator_epoch, marker.coordinator_epoch)
        producer.used_ms = now_ms
        producer.last_timestamp_ms = timestamp_ms
        if producer.txn_first_offset == NO_TXN:
            return None
        aborted = None
        if marker.type is MarkerType.ABORT:
            others = (other.txn_first_offset for other in self._open.values() if other is not producer)
            stable_offset = next(others, next_offset)
            aborted = AbortedTxn(producer_id, producer.txn_first_offset, marker_offset, stable_offset)
        return EndedTxn(
            producer_id, producer.txn_first_offset, marker_offset, producer.txn_record_count, aborted
        )

    def take(self, header: BatchHeader, batch: Buffer, now_ms: int) -> EndedTxn | None:
        """A batch stands in the log: take it as it is.

        Args:
            header: of the batch.
            batch: its bytes; they are read only if it is a marker.
            now_ms: the broker's clock.

        Returns:
            The transaction that it ends, if it is a marker and there is one: see `marker_appended`.
        """
        if header.is_control:
            marker = read_marker(batch)
            if marker is None:
                return None
            return self.marker_appended(
                header.producer_id,
                header.producer_epoch,
                marker,
                header.base_offset,
                header.next_offset,
                header.max_timestamp,
                now_ms,
            )
        if header.has_producer:
            self.batch_appended(header, header.base_offset, now_ms)
        return None

    def ended(self, txn: EndedTxn) -> None:
        """The transaction's end is in the log and, if it was aborted, in the index: it is open no longer."""
        producer = self._open.pop(txn.producer_id)
        assert producer.txn_first_offset == txn.first_offset
        producer.txn_first_offset = NO_TXN
        producer.txn_started_ms = -1
        producer.txn_record_count = 0
        assert not self._ended or self._ended[-1][0] < txn.marker_offset
        self._ended.append((txn.marker_offset, txn.first_offset))
        while self._ended_least and self._ended_least[-1][1] >= txn.first_offset:
            self._ended_least.pop()
        self._ended_least.append((txn.marker_offset, txn.first_offset))

    def _at_epoch(self, producer_id: int, producer_epoch: int) -> Producer:
        producer = self.by_id.get(producer_id)
        if producer is None:
            producer = self.by_id[producer_id] = Producer(producer_id, producer_epoch)
        elif producer_epoch != producer.producer_epoch:
            producer.producer_epoch = producer_epoch
            producer.batches.clear()
        self.by_id.move_to_end(producer_id)
        return producer

    def expire(self, used_before_ms: int) -> int:
        """Forget producers that have not written since, but for those with an open transaction. Returns how many."""
        gone = []
        for producer_id, producer in self.by_id.items():
            if producer.used_ms >= used_before_ms:
                break  # all that follow were used later
            if producer.txn_first_offset == NO_TXN:
                gone.append(producer_id)
        for producer_id in gone:
            del self.by_id[producer_id]
        return len(gone)


def _out_of_order(message: str) -> Refused:
    return Refused(ErrorCode.out_of_order_sequence_number, message)
