"""What a partition has to know of producers: every producer an object in a dict, nothing packed.

The rules are those of docs/how-it-works/architecture.md, written for this test alone: a model that `stablelog.log.producer_state.producers` is held to.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

SEQUENCE_END = 2**31


class Batch(NamedTuple):
    """A batch of a producer: sequences and offsets of its first and its last record."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass
class Known:
    """One producer. `batches`: those that a retry may repeat, and the last one."""

    epoch: int
    coordinator_epoch: int = -1
    batches: list = field(default_factory=list)
    used_ms: int = -1
    timestamp_ms: int = -1
    txn_first: int = -1
    txn_started_ms: int = -1
    txn_records: int = 0


class KnownProducers:
    """All of them."""

    def __init__(self):
        self.all = {}
        self.refused = {}  # by producer that is not known: epoch, and the least sequence that was refused in it

    def copy(self):
        """The state as it is now."""
        copied = KnownProducers()
        copied.all = {one: replace(known, batches=list(known.batches)) for one, known in self.all.items()}
        return copied

    def _producer_at_epoch(self, producer_id, epoch, now_ms):
        known = self.all.setdefault(producer_id, Known(epoch))
        if known.epoch != epoch:
            known.epoch, known.batches = epoch, []
        known.used_ms = now_ms
        return known

    def batch(self, producer_id, epoch, sequence, count, offset, *, transactional, timestamp_ms, now_ms):
        """A batch was appended."""
        known = self._producer_at_epoch(producer_id, epoch, now_ms)
        self.refused.pop(producer_id, None)
        last = (sequence + count - 1) % SEQUENCE_END
        known.batches = [
            *known.batches[-4:],
            Batch(sequence, last, offset, offset + count - 1, timestamp_ms),
        ]
        known.timestamp_ms = timestamp_ms
        if transactional:
            if known.txn_first < 0:
                known.txn_first, known.txn_started_ms, known.txn_records = offset, now_ms, 0
            known.txn_records += count

    def remember_refused(self, producer_id, epoch, sequence):
        """Verification has refused a batch."""
        if producer_id not in self.all:
            known_epoch, least = self.refused.get(producer_id, (epoch, sequence))
            if epoch >= known_epoch:
                least = min(least, sequence) if epoch == known_epoch else sequence
                self.refused[producer_id] = epoch, least

    def waits_for(self, producer_id, epoch):
        """The sequence that has to come first, because verification refused it; None if there is none."""
        known_epoch, least = self.refused.get(producer_id, (None, None))
        return least if known_epoch == epoch and producer_id not in self.all else None

    def marker(self, producer_id, epoch, coordinator_epoch, *, timestamp_ms, now_ms):
        """A marker was appended. Returns first offset and record count of the transaction; None without one."""
        known = self._producer_at_epoch(producer_id, epoch, now_ms)
        known.coordinator_epoch = max(known.coordinator_epoch, coordinator_epoch)
        known.timestamp_ms = timestamp_ms
        if known.txn_first < 0:
            return None
        ended = known.txn_first, known.txn_records
        known.txn_first, known.txn_started_ms, known.txn_records = -1, -1, 0
        known.batches = known.batches[-1:]
        return ended

    def repeated(self, producer_id, epoch, sequence, count, *, transactional):
        """The first offset of the batch that this one repeats; None if it repeats none."""
        known = self.all.get(producer_id)
        if known is None or known.epoch != epoch or transactional != (known.txn_first >= 0):
            return None
        last = (sequence + count - 1) % SEQUENCE_END
        for batch in known.batches:
            if (batch.first_sequence, batch.last_sequence) == (sequence, last) and (
                not transactional or batch.first_offset >= known.txn_first
            ):
                return batch.first_offset
        return None

    def next_sequence(self, producer_id, epoch):
        """The sequence that comes next; None if any may."""
        known = self.all.get(producer_id)
        if known is None:
            return None
        if epoch > known.epoch or not known.batches:
            return 0
        return (known.batches[-1].last_sequence + 1) % SEQUENCE_END

    def expire(self, used_before_ms):
        """Forget those that were not used since and have no open transaction. Returns how many."""
        gone = [
            one for one, known in self.all.items() if known.used_ms < used_before_ms and known.txn_first < 0
        ]
        for one in gone:
            del self.all[one]
        return len(gone)

    def limit_times(self, now_ms):
        """A restart: no time is after `now_ms`."""
        for known in self.all.values():
            known.used_ms = min(known.used_ms, now_ms)
            known.txn_started_ms = min(known.txn_started_ms, now_ms)

    def rows(self):
        """All that is known, to be compared."""
        return [
            (
                one,
                known.epoch,
                known.coordinator_epoch,
                known.used_ms,
                known.timestamp_ms,
                [
                    (b.first_sequence, b.last_sequence, b.first_offset, b.last_offset, b.timestamp_ms)
                    for b in known.batches
                ],
                (known.txn_first, known.txn_started_ms, known.txn_records),
            )
            for one, known in sorted(self.all.items())
        ]
