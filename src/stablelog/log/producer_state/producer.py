"""What a partition knows of one producer."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stablelog.batch.header import NO_SEQUENCE, SEQUENCE_MAX

BATCHES_KEPT: Final = 5
NO_TXN: Final = -1


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
        batches: the last five, oldest first, of the current epoch; only the last one after a transaction has ended.
        used_ms: when it last wrote, by the broker's clock.
        last_timestamp_ms: of its last batch or marker, as the log says; -1 if none is known.
        txn_first_offset: of its open transaction; -1 none.
        txn_started_ms: when that began, by the broker's clock.
        txn_record_count: how many records it has written in it.
        is_packed: whether the table holds it as it is.
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
        """Of its last batch; -1 if it has written none in this epoch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class LastBatch(NamedTuple):
    """Where a producer stands. `last_offset` is of its last batch of records; None if only a marker tells its epoch."""

    producer_epoch: int
    last_offset: int | None
