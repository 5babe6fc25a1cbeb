"""Buffer for the records of one transaction in the client. It chooses each record's partition, and holds records that
are not in a batch yet.

This module sends nothing. `core.writing` sends the batches.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.batch.compression import SIZE_MAX
from stablelog.batch.records import Record
from stablelog.errors import RefusedError
from stablelog.types import TopicPartition
from stablelog.wire.partitioning import partition_for

BATCH_SIZE_MAX: Final = 256 << 10  # maximum bytes of keys, values and headers in a batch of several records
# Maximum bytes of records that are not in a batch yet, over all partitions.
BUFFERED_SIZE_MAX: Final = 8 << 20
# Maximum bytes of records that are compressed. Readers decompress at most SIZE_MAX bytes; the sizes here are approximate.
COMPRESSED_SIZE_MAX: Final = SIZE_MAX - (1 << 20)
# A batch stores differences of two timestamps, which must fit into 64 bits.
TIMESTAMP_MAX: Final = (1 << 62) - 1

Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


@dataclass(slots=True)
class _Unsent:
    """The records of one partition that are not in a batch yet."""

    records: list[Record] = field(default_factory=list)
    size: int = 0  # bytes


class RecordBuffer:
    """The records of one transaction, in the order of the `add` calls.

    Attributes:
        partition_counts: the number of partitions of each topic that `add` accepts.
        order: the partition of each record, in the order of the `add` calls.
    """

    def __init__(self) -> None:
        self.partition_counts: dict[str, int] = {}
        self.order: list[TopicPartition] = []
        self._unsent: dict[TopicPartition, _Unsent] = defaultdict(_Unsent)
        self._size = 0  # bytes of the unsent records of all partitions
        self._full: set[TopicPartition] = set()  # partitions with enough unsent records for a batch
        # What the last call of `add` has begun to change: the number of records before it, the partition, and there the
        # number and the size of the unsent records. The record is added when `order` has it.
        self._begun: tuple[int, TopicPartition, int, int] | None = None
        # Partition of the next record without a key: round-robin from a random start.
        self._next_partition = uuid.uuid4().int

    def add(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int,
    ) -> None:
        """Add a record. After an error, nothing was added, also if an exception of a signal handler has interrupted the
        call.

        Raises:
            RefusedError: the partition does not exist.
            TypeError: a key, value or header is neither bytes nor text.
            ValueError: the timestamp is out of range.
        """
        named = headers.items() if isinstance(headers, Mapping) else headers
        record = Record(
            0,
            _as_timestamp(timestamp_ms),
            _as_bytes(key),
            _as_bytes(value),
            tuple((_as_name(name), _as_bytes(content)) for name, content in named),
        )
        target = (topic, self._partition(topic, record.key, partition))
        self._roll_back()
        unsent = self._unsent[target]
        self._begun = (len(self.order), target, len(unsent.records), unsent.size)
        unsent.records.append(record)
        unsent.size += _size(record)
        if unsent.size >= BATCH_SIZE_MAX:
            self._full.add(target)
        self._size += unsent.size - self._begun[3]
        self.order.append(target)

    def take_back(self, index: int) -> None:
        """Remove the record with this number, if the last call of `add` has added it."""
        if self._begun is not None and self._begun[0] == index:
            del self.order[index:]
            self._roll_back()

    def _roll_back(self) -> None:
        """Remove the record of a call of `add` that an exception of a signal handler has interrupted."""
        if self._begun is None or len(self.order) > self._begun[0]:
            return
        _, target, count, size = self._begun
        unsent = self._unsent[target]
        del unsent.records[count:]
        unsent.size = size
        if not count:
            del self._unsent[target]
        if size < BATCH_SIZE_MAX:
            self._full.discard(target)
        self._size = sum(one.size for one in self._unsent.values())
        self._begun = None

    def _partition(self, topic: str, key: bytes | None, partition: int | None) -> int:
        count = self.partition_counts[topic]
        if partition is not None:
            if not 0 <= partition < count:
                raise RefusedError(
                    ErrorCode.unknown_topic_or_partition,
                    f"topic {topic!r} has no partition {partition}, only 0 to {count - 1}",
                )
            return partition
        if key is not None:
            return partition_for(key, count)
        self._next_partition += 1
        return self._next_partition % count

    @property
    def is_due(self) -> bool:
        """Whether the records of some partitions should be sent before the next `add`."""
        return bool(self._full) or self._size >= BUFFERED_SIZE_MAX

    def due(self) -> list[TopicPartition]:
        """Return the partitions whose records should be sent: the full ones, or all if there are too many records."""
        unsent = self.unsent()
        return unsent if self._size >= BUFFERED_SIZE_MAX else list(self._full)

    def unsent(self) -> list[TopicPartition]:
        """Return the partitions that have unsent records."""
        self._roll_back()
        return [target for target, unsent in self._unsent.items() if unsent.records]

    def may_compress(self, target: TopicPartition) -> bool:
        """Whether readers decompress a batch of the unsent records of a partition."""
        return self._unsent[target].size <= COMPRESSED_SIZE_MAX

    def take(self, target: TopicPartition) -> list[Record]:
        """Remove the unsent records of a partition, and return them for one batch."""
        unsent = self._unsent.pop(target)
        self._size -= unsent.size
        self._full.discard(target)
        return unsent.records


def _as_bytes(content: bytes | str | None) -> bytes | None:
    if content is None or isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    raise TypeError(f"keys and values must be bytes or text, not {type(content).__name__}")


def _as_name(name: str) -> str:
    if isinstance(name, str):
        name.encode()  # raises for text that UTF-8 cannot encode, such as an unpaired surrogate
        return name
    raise TypeError(f"names of headers must be text, not {type(name).__name__}")


def _as_timestamp(timestamp_ms: int) -> int:
    if 0 <= timestamp_ms <= TIMESTAMP_MAX:
        return int(timestamp_ms)
    raise ValueError(f"the timestamp {timestamp_ms} ms is out of range: 0 to {TIMESTAMP_MAX}")


def _size(record: Record) -> int:
    """Return the approximate size of the record in a batch, in bytes."""
    named = sum(len(name) + len(value or b"") + 4 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + named + 16
