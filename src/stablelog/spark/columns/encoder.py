"""Encoder: converts rows of Arrow columns into record batches of about one megabyte, each for one partition.

The encoder makes no Python object for a row: compiled code (`kernels.encode`) writes each row into the buffer of its
partition's batch. This module works on whole batches: compression and header. The batches have base offset 0 and no
producer yet: the sender writes the producer into the header (`batch.stamping`) and computes the CRC. The encoder
chooses partitions as Kafka's Java producer does: by the column `partition`, else by the key's murmur2 hash, else
round-robin with a whole batch for each partition. Format: docs/reference/formats.md, "Record batch".
"""

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stablelog.batch.compression import compress
from stablelog.batch.header import (
    HEADER,
    LENGTH_AND_OFFSET_SIZE,
    MAGIC,
    NO_PRODUCER,
    NO_SEQUENCE,
    Codec,
)
from stablelog.client.buffers import BufferPool
from stablelog.errors import UsageError
from stablelog.spark.kernels import encode as k
from stablelog.spark.option_table import BATCH_SIZE_MAX
from stablelog.types import TopicPartition

BATCH_BYTES_MAX = 1_000_000
ENVELOPE_SIZE = 64 << 10  # Maximum bytes of a request without its record batch.
MESSAGE_BYTES_MAX = BATCH_SIZE_MAX - ENVELOPE_SIZE
STAGED_BYTES_MAX = 64 << 20  # maximum bytes of incomplete batches between two calls of `encode`
FIRST_CAPACITY = 32 << 10
GROWTH = 4
POOL_BYTES_MAX = 32 << 20  # Maximum bytes of buffers that are kept for reuse after their batch was sent.

TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "topic": pa.string(),
    "partition": pa.int32(),
}


class EncodedBatch(NamedTuple):
    """A record batch that is complete except for producer id, epoch, sequence number and CRC, which the sender adds."""

    topic: str
    partition: int
    batch: bytearray
    record_count: int


class Encoder:
    """Converts Arrow batches into record batches.

    Args:
        codec: "none", "gzip", "snappy", "lz4" or "zstd".
        batch_bytes_max: bytes of a full batch before compression.
        message_bytes_max: maximum bytes of a batch after compression, so that it fits into a request. The broker also
            refuses batches above the topic's max.message.bytes.
        lingers: whether batches that are not full wait for the rows of the next call of `encode`. After the last call,
            `flush` yields them.
        first_partition: the partition of the first rows without key and partition. It should differ from task to task.

    Raises:
        UsageError: `batch_bytes_max` is out of range.
    """

    def __init__(
        self,
        codec: str = "none",
        batch_bytes_max: int = BATCH_BYTES_MAX,
        *,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        lingers: bool = False,
        first_partition: int = 0,
    ) -> None:
        if not k.HEADER_SIZE < batch_bytes_max <= 1 << 30:
            raise UsageError(
                f"batches of {batch_bytes_max} bytes are not possible: give a size from 62 to {1 << 30}"
            )
        self._codec = Codec[codec.upper()]
        self._batch_bytes_max = min(batch_bytes_max, message_bytes_max)
        self._message_bytes_max = message_bytes_max
        self._lingers = lingers
        self._first_partition = first_partition
        # (topic, partition count) -> the slot (number of the batch buffer) of partition 0. The slots of the topic's
        # other partitions follow.
        self._places: dict[tuple[str, int], int] = {}
        self._owners: list[TopicPartition] = []  # the partition of each slot
        self._sticky: dict[str, int] = {}
        self._pool = BufferPool(POOL_BYTES_MAX)
        self._buffers: dict[int, bytearray] = {}  # slot -> the buffer of its incomplete batch
        # The size of the last batch of each slot, in bytes: an estimate for the slot's next batch.
        self._last_sizes: dict[int, int] = {}
        self._slots: npt.NDArray[np.int64] = np.zeros((0, k.SLOT_WIDTH), np.int64)

    def encode(
        self,
        batch: pa.RecordBatch,
        *,
        partition_counts: Mapping[str, int],
        topic: str | None = None,
        timestamp_ms: int | None = None,
    ) -> Iterator[EncodedBatch]:
        """Encode rows, and yield the batches that are full. Batches that are not full wait for the next call if the
        encoder lingers (its argument `lingers`); otherwise they are yielded at the end.

        Args:
            batch: the rows. The column value (binary or string) is required; key (binary or string), headers, topic and
                partition are optional. Other columns are ignored.
            partition_counts: how many partitions each topic has.
            topic: the topic of all rows, instead of the column topic.
            timestamp_ms: the timestamp of these records; by default the current time.

        Raises:
            UsageError: a column is missing or has a wrong type, or a row cannot be written; the message names the
                column. Batches with earlier rows may have been yielded already.
        """
        state = np.zeros(k.STATE_WIDTH, np.int64)
        state[k.ROW_COUNT] = batch.num_rows
        state[k.NOW] = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        state[k.RECORD_SIZE_MAX] = self._message_bytes_max - k.HEADER_SIZE
        columns = _columns_of(batch)
        _point_to(state, columns)
        names, numbers = _topics_of(columns, topic)
        if numbers is not None and len(numbers):
            state[k.TOPICS] = numbers.buffers()[1].address
        topics = self._topics(names, partition_counts)
        while (status := k.encode_rows(state, topics, self._slots)) != k.DONE:
            if status != k.FULL:
                raise _refusal(status, state, columns, topic, partition_counts)
            yield from self._make_room(state, names, topics)
        for number, name in enumerate(names):
            self._sticky[name] = int(topics[number, k.TOPIC_STICKY])
        if not self._lingers or int(self._slots[:, k.SLOT_CAPACITY].sum()) > STAGED_BYTES_MAX:
            yield from self.flush()

    def flush(self) -> Iterator[EncodedBatch]:
        """Yield all incomplete batches. The next rows without key and partition then go to another partition."""
        for number in sorted(self._buffers):
            owner, partition = self._owners[number]
            if self._sticky.get(owner) == partition:
                self._sticky[owner] = partition + 1
            yield self._sealed(number)

    def _topics(self, names: list[str], partition_counts: Mapping[str, int]) -> npt.NDArray[np.int64]:
        """Return the table by which the kernel, the compiled code, finds the partitions of these topics. For each
        partition of a new topic, a slot (the buffer of its batch) is added, because the kernel cannot add one.
        """
        topics = np.zeros((max(len(names), 1), k.TOPIC_WIDTH), np.int64)
        for number, name in enumerate(names):
            count = partition_counts.get(name, 0)
            if count < 1:
                raise UsageError(
                    f"the topic {name!r}, which a row names in the column `topic`, does not exist"
                )
            if (name, count) not in self._places:
                self._places[name, count] = len(self._owners)
                self._owners += [(name, partition) for partition in range(count)]
                more = np.zeros((count, k.SLOT_WIDTH), np.int64)
                self._slots = np.concatenate([self._slots, more])
            sticky = self._sticky.setdefault(name, self._first_partition) % count
            topics[number] = self._places[name, count], count, sticky
        return topics

    def _make_room(
        self, state: npt.NDArray[np.int64], names: list[str], topics: npt.NDArray[np.int64]
    ) -> Iterator[EncodedBatch]:
        """Make room in the slot (the buffer of a partition's batch) that the kernel, the compiled code, has found full:
        enlarge the buffer, or complete its batch.

        Yields:
            The completed batch; nothing if the buffer was enlarged.
        """
        number, needed = int(state[k.SLOT]), int(state[k.NEEDED])
        slot = self._slots[number]
        if not slot[k.SLOT_COUNT]:
            likely = min(max(FIRST_CAPACITY, self._last_sizes.get(number, 0) * 9 // 8), self._batch_bytes_max)
            # A record that is larger than `batch_bytes_max` gets its own batch.
            self._grow(number, max(likely, k.HEADER_SIZE + needed))
        elif slot[k.SLOT_SIZE] + needed <= self._batch_bytes_max:
            wished = max(int(slot[k.SLOT_CAPACITY]) * GROWTH, int(slot[k.SLOT_SIZE]) + needed)
            self._grow(number, min(wished, self._batch_bytes_max))
        else:
            yield self._sealed(number)
            if state[k.IS_STICKY]:
                topic = topics[names.index(self._owners[number][0])]
                topic[k.TOPIC_STICKY] = (topic[k.TOPIC_STICKY] + 1) % topic[k.TOPIC_PARTITION_COUNT]

    def _grow(self, number: int, capacity: int) -> None:
        slot = self._slots[number]
        before = self._buffers.get(number)
        grown = self._pool.take_buffer(capacity)
        if before is not None:
            size = int(slot[k.SLOT_SIZE])
            memoryview(grown)[:size] = memoryview(before)[:size]
        else:
            slot[k.SLOT_SIZE] = k.HEADER_SIZE
        self._buffers[number] = grown
        slot[k.SLOT_ADDRESS] = pa.py_buffer(grown).address
        slot[k.SLOT_CAPACITY] = capacity

    def _sealed(self, number: int) -> EncodedBatch:
        """Seal the batch in the slot `number`, the buffer of a partition: add the header, and return the batch. The
        slot is empty afterwards.
        """
        slot = self._slots[number]
        topic, partition = self._owners[number]
        batch, size, count = self._buffers.pop(number), int(slot[k.SLOT_SIZE]), int(slot[k.SLOT_COUNT])
        base_timestamp, max_timestamp = int(slot[k.SLOT_BASE_TIMESTAMP]), int(slot[k.SLOT_MAX_TIMESTAMP])
        slot[:] = 0
        self._last_sizes[number] = size
        del batch[size:]
        if self._codec is not Codec.NONE:
            batch = bytearray(HEADER.size) + compress(self._codec, memoryview(batch)[HEADER.size :])
        if len(batch) > self._message_bytes_max:
            raise UsageError(
                f"{topic}-{partition}: {count} records are {len(batch)} bytes with codec {self._codec.name.lower()}, "
                f"but a request holds at most {self._message_bytes_max}: make batchBytes or the row smaller"
            )
        HEADER.pack_into(
            batch,
            0,
            0,
            len(batch) - LENGTH_AND_OFFSET_SIZE,
            -1,
            MAGIC,
            0,
            self._codec,
            count - 1,
            base_timestamp,
            max_timestamp,
            NO_PRODUCER,
            -1,
            NO_SEQUENCE,
            count,
        )
        return EncodedBatch(topic, partition, batch, count)


def _columns_of(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return those columns of an Arrow batch that are written, converted to the types that the compiled code (the
    kernel) reads.
    """
    columns = {}
    for name, kind in TYPES.items():
        if name not in batch.schema.names:
            continue
        column = batch.column(name)
        try:
            columns[name] = column.cast(kind)
        except pa.ArrowException as error:
            raise UsageError(f"the column {name} is {column.type}, not {kind}: {error}") from error
    if "value" not in columns:
        raise UsageError(
            "the rows cannot be written: they have no column `value`, only the columns "
            f"{', '.join(batch.schema.names)}"
        )
    return columns


def _point_to(state: npt.NDArray[np.int64], columns: Mapping[str, pa.Array]) -> None:
    """Write the addresses of the columns into the kernel's state, the array of numbers that the compiled code gets. The
    caller must keep the columns in memory.
    """
    for name, place in (("key", k.KEY), ("value", k.VALUE), ("partition", k.PARTITIONS)):
        if name in columns:
            _point(state, place, columns[name])
    if "headers" in columns:
        entries = columns["headers"].values
        if entries.null_count:
            raise UsageError("the column headers contains a null header: remove it from the list")
        _point(state, k.LISTS, columns["headers"])
        _point(state, k.NAME, entries.field(0))
        _point(state, k.CONTENT, entries.field(1))


def _point(state: npt.NDArray[np.int64], place: int, array: pa.Array) -> None:
    """Write the addresses of the buffers of an Arrow array into the kernel's state (the array of numbers that the
    compiled code gets), from index `place` on: its 32-bit numbers or offsets, its validity bits, and its bytes if it
    has any.
    """
    validity, numbers, *data = array.buffers()
    state[place + k.NUMBERS] = numbers.address + 4 * array.offset if numbers is not None else 0
    state[place + k.VALIDITY] = validity.address if validity is not None and array.null_count else 0
    state[place + k.BIT] = array.offset
    if pa.types.is_binary(array.type) or pa.types.is_string(array.type):
        state[place + k.DATA] = data[0].address if data[0] is not None else 0


def _topics_of(columns: Mapping[str, pa.Array], topic: str | None) -> tuple[list[str], pa.Array | None]:
    """Return the topics of some rows.

    Args:
        columns: the columns of the rows.
        topic: the topic of all rows; None if the column `topic` has the topic of each row.

    Returns:
        A pair: the list of the topics, and the index of each row's topic in this list; None instead of the indexes if
        all rows have one topic.
    """
    if topic is not None:
        return [topic], None
    column = columns.get("topic")
    if column is None:
        raise UsageError("the rows have no topic: give the option topic or a column topic")
    if column.null_count:
        raise UsageError("the column topic is null in a row, and the option topic is not given")
    found = column.dictionary_encode()
    return found.dictionary.to_pylist(), found.indices


def _refusal(
    status: int,
    state: npt.NDArray[np.int64],
    columns: Mapping[str, pa.Array],
    topic: str | None,
    partition_counts: Mapping[str, int],
) -> UsageError:
    """Return the error for the invalid row at which the kernel, the compiled code, has stopped.

    Args:
        status: the kernel's status, which says what is wrong.
        state: the kernel's state, which has the number of the row.
        columns: the columns of the rows.
        topic: the topic of all rows; None if the column `topic` has the topic of each row.
        partition_counts: how many partitions each topic has.
    """
    row = int(state[k.ROW])
    if status == k.BAD_HEADER:
        return UsageError(f"the column headers has a header without a key in row {row} of its batch")
    if status == k.TOO_LARGE:
        return UsageError(
            f"the row {row} of its batch makes a record of {int(state[k.NEEDED])} bytes, and a request holds "
            f"{int(state[k.RECORD_SIZE_MAX])}: make the row smaller"
        )
    assert status == k.BAD_PARTITION, status
    name = str(columns["topic"][row]) if topic is None else topic
    return UsageError(
        f"the column partition says {columns['partition'][row]}, and the topic {name!r} has {partition_counts[name]} "
        "partitions"
    )
