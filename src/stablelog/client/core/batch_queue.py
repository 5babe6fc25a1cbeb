"""Queue of the batches that a producer has still to send, by partition."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from stablelog.types import TopicPartition
from stablelog.wire.guard import Buffer

_index = attrgetter("index")


@dataclass(eq=False, slots=True)
class PendingBatch:
    """A batch of a producer that the broker has not acknowledged.

    Attributes:
        index: the number of the batch in the order of the calls of `Producer.append`.
        batch: the encoded bytes, which contain the producer's id, epoch and sequence number.
        base_sequence: the sequence number of the batch's first record.
        record_count: how many records the batch has.
    """

    index: int
    topic: str
    partition: int
    batch: Buffer
    base_sequence: int
    record_count: int


class BatchQueue:
    """The batches of a producer that have to be sent, by partition: new ones, and those that have to be sent again. The
    time to remove a batch does not grow with the length of the queue.
    """

    def __init__(self) -> None:
        self.size = 0  # bytes
        # The waiting batches of each partition, oldest first; no deque is empty.
        self._waiting: dict[TopicPartition, deque[PendingBatch]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def targets(self) -> set[TopicPartition]:
        """The partitions that have a batch in the queue."""
        return set(self._waiting)

    def oldest_batches(self) -> list[PendingBatch]:
        """Return the oldest batch of each partition. The list is sorted by age, oldest first."""
        return sorted((batches[0] for batches in self._waiting.values()), key=_index)

    def has_older(self, pending: PendingBatch) -> bool:
        """Whether the queue has an older batch of the same partition, which must be sent first."""
        batches = self._waiting.get((pending.topic, pending.partition))
        return batches is not None and batches[0].index < pending.index

    def add_batch(self, pending: PendingBatch) -> None:
        """Add a batch that is newer than all batches of the queue."""
        self._waiting.setdefault((pending.topic, pending.partition), deque()).append(pending)
        self.size += len(pending.batch)

    def requeue_batches(self, batches: Iterable[PendingBatch]) -> None:
        """Put batches that `remove_oldest` has removed into the queue again, because they have to be sent again. Each
        gets its old place in the order of `index`.
        """
        for pending in batches:
            target = (pending.topic, pending.partition)
            self._waiting[target] = deque(sorted([pending, *self._waiting.get(target, ())], key=_index))
            self.size += len(pending.batch)

    def remove_oldest(self, pending: PendingBatch) -> None:
        """Remove a batch from the queue to send it. It must be the oldest batch of its partition."""
        target = (pending.topic, pending.partition)
        batches = self._waiting[target]
        assert batches[0] is pending
        batches.popleft()
        if not batches:
            del self._waiting[target]
        self.size -= len(pending.batch)
