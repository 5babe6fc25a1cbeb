"""The state of one producer in a partition, and the batches that it remembers."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stablelog.batch.header import NO_SEQUENCE, SEQUENCE_MAX

BATCHES_KEPT: Final = 5
NO_TXN: Final = -1


class KeptBatch(NamedTuple):
    """A batch that the producer state remembers, so that it recognizes a retry of the batch.

    Attributes:
        last_sequence: the sequence number of its last record.
        last_offset: the offset of its last record.
        offset_delta: the last offset minus the first one.
        timestamp_ms: its greatest timestamp.
    """

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        """The sequence number of the batch's first record."""
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX

    @property
    def first_offset(self) -> int:
        """The offset of the batch's first record."""
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class ProducerEntry:
    """The state of one producer in one partition.

    Attributes:
        batches: the last five batches of the current producer epoch, oldest first. After the end of a transaction, only
            the last batch of the transaction.
        used_ms: the time of the producer's last write, in broker time (a clock that never goes back, even if the
            machine's clock is set back).
        last_timestamp_ms: the timestamp of the producer's last batch or marker; -1 if unknown.
        txn_first_offset: the first offset of its open transaction; -1 if none is open.
        txn_started_ms: the time when the open transaction began, in broker time.
        txn_record_count: the number of records in the open transaction.
        is_packed: whether the packed producer table (all producers of the partition as bytes, in less memory) has
            exactly this state.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int = -1
    batches: list[KeptBatch] = field(default_factory=list)
    used_ms: int = -1
    last_timestamp_ms: int = -1
    txn_first_offset: int = NO_TXN
    txn_started_ms: int = -1
    txn_record_count: int = 0
    is_packed: bool = field(default=False, compare=False, repr=False)

    @property
    def last_sequence(self) -> int:
        """The last sequence number of the producer; -1 if it has written no batch in this producer epoch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int | None:
        """The last offset of the producer's last data batch; None if it has written no batch in this producer epoch."""
        return self.batches[-1].last_offset if self.batches else None
