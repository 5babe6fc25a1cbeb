"""A reader that knows everything: what a partition's log must answer, worked out from all that was ever appended."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Batch:
    """What stands in the log, from `first` to `last`. `kind` is "plain", "data", "commit" or "abort"."""

    first: int
    last: int
    producer: int | None
    kind: str
    size: int
    times: tuple[int, ...]


@dataclass(frozen=True)
class Txn:
    """A transaction with the offsets of its first record and its marker; `marker` is None while it is open."""

    producer: int
    first: int
    marker: int | None
    committed: bool


@dataclass
class Known:
    """All that was ever appended and neither cut off nor lost, and what follows from it."""

    batches: list[Batch] = field(default_factory=list)

    @property
    def end(self):
        return self.batches[-1].last + 1 if self.batches else 0

    def cut(self, end):
        """The log ends at `end`, or at the beginning of the batch in which that lies."""
        self.batches = [batch for batch in self.batches if batch.last < end]

    def transactions(self):
        open_at, found = {}, []
        for batch in self.batches:
            if batch.kind == "data":
                open_at.setdefault(batch.producer, batch.first)
            elif batch.kind in ("commit", "abort") and batch.producer in open_at:
                found.append(
                    Txn(batch.producer, open_at.pop(batch.producer), batch.first, batch.kind == "commit")
                )
        return found + [Txn(producer, first, None, False) for producer, first in open_at.items()]

    def open_transactions(self):
        """Producer and first offset of each, the oldest first."""
        return [(txn.producer, txn.first) for txn in self.transactions() if txn.marker is None]

    def stable_offset(self, high_watermark, start):
        undecided = [
            txn.first for txn in self.transactions() if txn.marker is None or txn.marker >= high_watermark
        ]
        return max(min([high_watermark, *undecided]), start)

    def aborted(self, start, end):
        """Exactly the aborted transactions that touch [start, end), as (producer, first, marker), in the order of their markers."""
        return [
            (txn.producer, txn.first, txn.marker)
            for txn in self.transactions()
            if txn.marker is not None and not txn.committed and txn.first < end and txn.marker >= start
        ]

    def read(self, start, limit):
        return [batch for batch in self.batches if batch.last >= start and batch.first < limit]

    def records(self, start):
        """Offset and time of every record from `start` on; a marker is none."""
        return [
            (batch.first + at, time)
            for batch in self.batches
            if batch.kind not in ("commit", "abort")
            for at, time in enumerate(batch.times)
            if batch.first + at >= start
        ]

    def first_at_or_after(self, time, start, limit):
        found = next((record for record in self.records(start) if record[1] >= time), None)
        return found if found is not None and found[0] < limit else None

    def greatest_time(self, start, limit):
        records = self.records(start)
        if not records:
            return None
        return self.first_at_or_after(max(time for _, time in records), start, limit)
