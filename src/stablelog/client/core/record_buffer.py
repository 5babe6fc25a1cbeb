"""Buffer for the records of one transaction of the client. It chooses the partition of each record, and encodes the
record into a batch.

This module sends nothing: `core.writing` sends the batches.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.batch.building import BatchBuilder, BatchState
from stablelog.batch.codec import Codec
from stablelog.batch.compression import SIZE_MAX
from stablelog.batch.records import Header
from stablelog.client.core.arguments import (
    TIMESTAMP_MAX,
    Content,
    Headers,
    content,
    contents,
    partition_number,
    record_headers,
    timestamp,
)
from stablelog.client.core.positions import NO_OFFSETS, Position, RecordOffsets, SentBatches
from stablelog.errors import RefusedError, UsageError
from stablelog.types import TopicPartition
from stablelog.wire.partitioning import partition_for

BATCH_SIZE_MAX: Final = 256 << 10  # maximum bytes of the records of a batch of several records
# Maximum bytes of records that are not sent yet, over all partitions.
BUFFERED_SIZE_MAX: Final = 8 << 20
# Maximum bytes of records that are compressed. Readers decompress at most SIZE_MAX bytes.
COMPRESSED_SIZE_MAX: Final = SIZE_MAX - (1 << 20)


class PartitionBuffer:
    """The records of one transaction in one partition, numbered from 0.

    When their batches are sent, the records are dropped. Only the number of each batch and of its first record is kept,
    from which the client computes the offsets after the commit.

    Attributes:
        target: the partition.
        firsts: for each batch that was sent, the number of its first record in this partition.
        batch_numbers: for each batch that was sent, its number among all batches of the producer.
        sent_count: how many records were sent.
        offsets: the offsets of the records by their numbers; known after the commit.
    """

    __slots__ = ("batch_numbers", "firsts", "offsets", "sent_count", "target", "unsent")

    def __init__(self, target: TopicPartition) -> None:
        self.target = target
        self.firsts: list[int] = []
        self.batch_numbers: list[int] = []
        self.sent_count = 0
        self.offsets: RecordOffsets = NO_OFFSETS
        self.unsent = [BatchBuilder()]  # the batches that were not sent; only the last one grows

    @property
    def count(self) -> int:
        """How many records the transaction has in this partition, including those that were sent."""
        return self.sent_count + sum(batch.count for batch in self.unsent)

    def position(self, number: int) -> Position:
        """Return the position (topic, partition and offset) of the record with this number. The transaction must be
        committed.
        """
        return Position(*self.target, self.offsets[number])

    def sent_batches(self, base_offsets: Mapping[int, int]) -> SentBatches:
        """Return the batches that were sent to this partition, with their base offsets. `base_offsets` has the base
        offset of each batch by the number of the batch among all batches of the producer.
        """
        bases = [base_offsets[number] for number in self.batch_numbers]
        return SentBatches(self.target, self.firsts, bases, self.sent_count)

    def add_sent_batch(self, batch_number: int, count: int) -> None:
        """Record that the next `count` records were sent in one batch. `batch_number` is the number of this batch among
        all batches of the producer.
        """
        self.firsts.append(self.sent_count)
        self.batch_numbers.append(batch_number)
        self.sent_count += count


Place = tuple[PartitionBuffer, int]  # a record: its partition, and its number there
AppendedPlace = tuple[TopicPartition, int]  # a batch that was sent: its partition, and its base offset


class UnsentBatch(NamedTuple):
    """A batch that is not sent yet, and the `PartitionBuffer` of its partition (`records`)."""

    records: PartitionBuffer
    batch: BatchBuilder

    def build(self, codec: Codec) -> bytearray:
        """Encode the batch, and return its bytes. It is compressed, unless it would decompress to more bytes than
        readers accept.
        """
        return self.batch.build(codec if self.batch.size <= COMPRESSED_SIZE_MAX else Codec.NONE)


class RecordBuffer:
    """The records of one transaction, in all partitions.

    An exception of a signal handler may interrupt `add_record` at any line. `remove_after` then removes the record.

    Attributes:
        partition_counts: by topic, the number of its partitions. `add_record` accepts only records of these topics.
        partitions: by partition, the records that the transaction has there.
        first: the place of the first record, which is its partition and its number there; None if there is no record.
        last: the place of the last record; None if there is no record.
        base_offsets: the base offset of each acknowledged batch, by the number that `BatchProducer.append` has returned
            for the batch; -1 if it is unknown.
        is_due: whether `take_due_batches` has batches to return. The caller should send them before the next `add_record`.
    """

    def __init__(self) -> None:
        self.partition_counts: dict[str, int] = {}
        self.partitions: dict[TopicPartition, PartitionBuffer] = {}
        self.first: Place | None = None
        self.last: Place | None = None
        self.base_offsets: dict[int, int] = {}
        self.is_due = False
        self._size = 0  # bytes of the unsent records of all partitions
        self._full: set[TopicPartition] = set()  # partitions with a batch that should be sent
        # What the last call of `add` has begun to change: the partition, how many unsent batches it had, the state of
        # the last one of them, and the record that was added before.
        self._begun: tuple[PartitionBuffer, int, BatchState, Place | None] | None = None
        # Partition of the next record without a key: round-robin from a random start.
        self._next_partition = uuid.uuid4().int & 0xFFFF

    def add_record(
        self,
        topic: str,
        value: Content,
        key: Content,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int,
    ) -> Place:
        """Check the arguments and add a record. After an error, nothing was added.

        Returns:
            The place of the record: the `PartitionBuffer` of its partition, and its number among the transaction's
                records in this partition.

        Raises:
            RefusedError: the partition does not exist.
            TypeError: an argument has a wrong type.
            UsageError: the timestamp is out of range, or a text cannot be encoded.
        """
        if type(value) is not bytes:
            value = content("value", value)
        if type(key) is not bytes:
            key = content("key", key)
        named = () if headers == () else record_headers(headers)
        if partition is not None:
            partition = self.check_partition(topic, partition)
        if type(timestamp_ms) is not int or not 0 <= timestamp_ms <= TIMESTAMP_MAX:
            timestamp_ms = timestamp(timestamp_ms)
        return self.add_checked_record(topic, value, key, named, partition, timestamp_ms)

    def add_checked_record(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[Header],
        partition: int | None,
        timestamp_ms: int,
    ) -> Place:
        """Add a record whose arguments were checked already. Result and arguments are those of `add_record`. If
        `partition` is None, the key decides, or without a key the next partition is taken.
        """
        if partition is None:
            partition_count = self.partition_counts[topic]
            if key is not None:
                partition = partition_for(key, partition_count)
            else:
                self._next_partition = following = self._next_partition + 1
                partition = following % partition_count
        target = (topic, partition)
        records = self.partitions.get(target)
        if records is None:
            records = self.partitions[target] = PartitionBuffer(target)
        unsent = records.unsent
        batch = unsent[-1]
        self._begun = (records, len(unsent), batch.state, self.last)
        size = batch.add(key, value, headers, timestamp_ms, BATCH_SIZE_MAX)
        if not size:
            batch = BatchBuilder()
            unsent.append(batch)
            size = batch.add(key, value, headers, timestamp_ms, BATCH_SIZE_MAX)
        self._size += size
        number = records.sent_count + batch.state[1] - 1
        if len(unsent) > 1 or batch.state[0] >= BATCH_SIZE_MAX:
            self._full.add(target)
            self.is_due = True
            number = records.count - 1
        elif self._size >= BUFFERED_SIZE_MAX:
            self.is_due = True
        place = self.last = (records, number)
        if self.first is None:
            self.first = place
        return place

    def remove_after(self, last: Place | None) -> None:
        """Remove the record that an interrupted call of `add_record` has added, wholly or in part: a signal handler has
        raised an exception during the call. `last` is the place of the last record before the call; None if there was
        none. If the call has added nothing, do nothing.
        """
        if self._begun is None or self._begun[3] is not last:
            return  # the call has not begun to change anything
        records, batch_count, state, _ = self._begun
        del records.unsent[batch_count:]
        records.unsent[-1].state = state
        self.last = last
        if last is None:
            self.first = None
        unsent = [one for partition in self.partitions.values() for one in partition.unsent]
        self._size = sum(batch.size for batch in unsent)
        if len(records.unsent) == 1 and records.unsent[0].size < BATCH_SIZE_MAX:
            self._full.discard(records.target)
        self._update_is_due()
        self._begun = None

    def check_partition(self, topic: str, partition: int) -> int:
        """Return the number of an existing partition of a topic.

        Raises:
            TypeError: it is no number.
            RefusedError: the topic has no such partition.
        """
        partition = partition_number(partition)
        partition_count = self.partition_counts[topic]
        if not 0 <= partition < partition_count:
            raise RefusedError(
                ErrorCode.unknown_topic_or_partition,
                f"topic {topic!r} has no partition {partition}, only 0 to {partition_count - 1}",
            )
        return partition

    # --- sending ---

    def _update_is_due(self) -> None:
        self.is_due = bool(self._full) or self._size >= BUFFERED_SIZE_MAX

    def take_due_batches(self) -> list[UnsentBatch]:
        """Remove and return the batches that should be sent now: the full batches, or all batches if all unsent records
        together have too many bytes.
        """
        if self._size >= BUFFERED_SIZE_MAX:
            return self.take_all_batches()
        return [
            batch for target in list(self._full) for batch in self._take_batches(self.partitions[target], 1)
        ]

    def take_all_batches(self) -> list[UnsentBatch]:
        """Remove and return all unsent batches."""
        return [batch for records in self.partitions.values() for batch in self._take_batches(records, 0)]

    def end_positions(self) -> tuple[Position | None, Position | None]:
        """Return a pair: the positions of the first and of the last record of a committed transaction; None in place of
        both if the transaction has no record.
        """
        first, last = (
            None if place is None else place[0].position(place[1]) for place in (self.first, self.last)
        )
        return first, last

    def appended_place(self) -> AppendedPlace | None:
        """Return the partition and the offset of one batch of the transaction in the log; None if no offset is known.
        There the client can look up how the transaction has ended.
        """
        for records in self.partitions.values():
            for number in records.batch_numbers:
                if self.base_offsets.get(number, -1) >= 0:
                    return records.target, self.base_offsets[number]
        return None

    def drop_unsent(self) -> None:
        """Free the bytes of unsent records when the transaction has ended. Futures keep references to this buffer."""
        for records in self.partitions.values():
            records.unsent = [BatchBuilder()]

    def _take_batches(self, records: PartitionBuffer, kept_count: int) -> list[UnsentBatch]:
        """Remove and return the unsent batches of a partition. With `kept_count` 1, the last batch stays in the buffer
        if it has space for more records; with 0, no batch stays.
        """
        unsent = records.unsent
        end = len(unsent) - (kept_count if unsent[-1].size < BATCH_SIZE_MAX else 0)
        taken = [UnsentBatch(records, batch) for batch in unsent[:end] if batch.count]
        records.unsent = unsent[end:] or [BatchBuilder()]
        self._size -= sum(one.batch.size for one in taken)
        self._full.discard(records.target)
        self._update_is_due()
        return taken


class ManyRecords:
    """The records of one call of `write_many`. They are added in several steps, between which full batches are sent.

    Args:
        values: the values of the records.
        keys: the key of each record; None for records without keys.
        headers: the headers of each record.
        partition: the partition of all records; None to choose one for each record.
        timestamp_ms: the timestamp of all records.

    Attributes:
        order: the partition of each record that was added, in the order of the records.
        firsts: for each of these partitions, the number of the call's first record among the transaction's records
            there.

    Raises:
        TypeError: an argument has a wrong type; the message says which value or key.
        UsageError: a text cannot be encoded, the timestamp is out of range, or there are not as many keys as values.
    """

    def __init__(
        self,
        values: Iterable[Content],
        keys: Iterable[Content] | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int,
    ) -> None:
        self._values = contents("values", values)
        self._keys = None if keys is None else contents("keys", keys)
        if self._keys is not None and len(self._keys) != len(self._values):
            raise UsageError(
                f"there are {len(self._values)} values and {len(self._keys)} keys: give a key for each value, or none"
            )
        self._headers = record_headers(headers)
        self._timestamp_ms = timestamp(timestamp_ms)
        self._partition = partition
        self.order: list[PartitionBuffer] = []
        self.firsts: dict[PartitionBuffer, int] = {}

    def check(self, buffer: RecordBuffer, topic: str) -> None:
        """Check the argument `partition`: raise TypeError if it is not a number, and RefusedError if the partition does
        not exist.
        """
        if self._partition is not None:
            self._partition = buffer.check_partition(topic, self._partition)

    def add_to(self, buffer: RecordBuffer, topic: str) -> bool:
        """Add records to the buffer until it has batches to send, or until all records are added. Return True if all
        records are added, and False if the caller has to send batches and then call again.
        """
        values, keys, order = self._values, self._keys, self.order
        for number in range(len(order), len(values)):
            if buffer.is_due:
                return False
            key = None if keys is None else keys[number]
            records, place = buffer.add_checked_record(
                topic, values[number], key, self._headers, self._partition, self._timestamp_ms
            )
            order.append(records)
            if records not in self.firsts:
                self.firsts[records] = place
        self._values, self._keys = [], None
        return True

    def positions(self) -> list[Position]:
        """Return the positions of all records of the call, in their order. The transaction must be committed."""
        following = {records: count(first) for records, first in self.firsts.items()}
        return [records.position(next(following[records])) for records in self.order]
