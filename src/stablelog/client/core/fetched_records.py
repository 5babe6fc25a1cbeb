"""The records that a reader of a consumer group has fetched, and that its program has not got yet."""

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from stablelog.client.core.record_reader import ReadBatch, records_of
from stablelog.client.core.transaction_stream import ReadRecord
from stablelog.types import TopicPartition


class FetchedRecords:
    """Queue of fetched records that the program has not got. The records stay in encoded batches until they are needed.

    Attributes:
        ready: the decoded records, in the order in which the program gets them.
    """

    def __init__(self) -> None:
        self.ready: deque[ReadRecord] = deque()
        self._batches: deque[ReadBatch] = deque()  # they come after the records in `ready`

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left for the program: the queue has neither a decoded record nor a batch."""
        return not self.ready and not self._batches

    def add_batches(self, batches: Iterable[ReadBatch]) -> None:
        """Add fetched batches at the end."""
        self._batches.extend(batches)

    def decode_batches(self, count: int) -> None:
        """Decode batches until `count` records are ready, or no batch is left. A batch that cannot be decoded stays in
        the queue, so that the next call raises the same error.

        Raises:
            DamageError: the records of a batch cannot be decoded.
        """
        while self._batches and len(self.ready) < count:
            self.ready.extend(records_of(self._batches[0]))
            self._batches.popleft()

    def take_records(self, count_max: int) -> list[ReadRecord]:
        """Remove and return the first ready records, at most `count_max`."""
        ready = self.ready
        return [ready.popleft() for _ in range(min(count_max, len(ready)))]

    def put_back(self, records: Sequence[ReadRecord]) -> None:
        """Put the records that `take_records` has returned last back to the beginning of the queue."""
        self.ready.extendleft(reversed(records))

    def first_offset(self, target: TopicPartition) -> int | None:
        """Return the offset of the first record of a partition in the queue; None if the queue has no record of the
        partition.
        """
        for record in self.ready:
            if (record.topic, record.partition) == target:
                return record.offset
        for batch in self._batches:
            if batch.target == target:
                return max(batch.first_offset, batch.header.base_offset)
        return None

    def drop_records(self, targets: Collection[TopicPartition]) -> None:
        """Drop all records of these partitions."""
        self._batches = deque(one for one in self._batches if one.target not in targets)
        self.ready = deque(one for one in self.ready if (one.topic, one.partition) not in targets)

    def clear(self) -> None:
        """Drop all records."""
        self._batches.clear()
        self.ready.clear()
