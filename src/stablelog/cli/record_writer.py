"""The writer of `stablelog produce`: it builds batches of records, sends them, and waits until the broker has
acknowledged them.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.batch.header import HEADER, Codec
from stablelog.batch.records import Record as BatchRecord
from stablelog.batch.records import encode_batch
from stablelog.cli.admin import group_of_topic
from stablelog.cli.disk_watch import fail_if_full
from stablelog.cli.record_input import BadRecordError, InputRecord
from stablelog.client.blocking.admin import Admin
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.client.core.record_buffer import COMPRESSED_SIZE_MAX
from stablelog.errors import RefusedError, UnavailableError
from stablelog.wire.extension.transaction_groups import group_in_words, group_of
from stablelog.wire.partitioning import partition_for

PROGRESS_COUNT: Final = 1000
DELIVERY_TIMEOUT_S: Final = 60.0  # how long records are sent again while the broker accepts none
BATCH_SIZE_MAX: Final = 256 << 10  # maximum bytes of a batch of several records
UNSENT_SIZE_MAX: Final = 8 << 20  # maximum bytes of records that are in no batch yet, over all partitions
LINGER_S: Final = (
    0.005  # how long a record waits for others before it is sent, if the input has no more of them
)
# What a record takes in a batch at most in addition to its key and value, and to a header's name and value.
RECORD_OVERHEAD: Final = 36
HEADER_OVERHEAD: Final = 10
# A batch stores the difference between the timestamps of a record and of its first record in 64 bits.
TIMESTAMP_FAR: Final = 1 << 61


class WriteTarget(NamedTuple):
    """The topic to which a command writes, the producer, and the settings of the writer.

    Attributes:
        producer: sends the batches.
        admin: administers the cluster.
        bootstrap: the addresses of the broker.
        topic: the topic's name.
        partition_count: how many partitions it has.
        keyless: the partitions to which records without a key are written: those that have a leader.
        batch_size_max: the greatest batch that the topic accepts, in bytes; None if that is unknown.
        codec: the compression of the batches.
        transactional_id: None outside transactions.
        batch_size: the maximum bytes of a batch with more than one record.
        linger_s: how many seconds a record waits for further records of the input before it is sent.
        delivery_timeout_s: how long records are sent again while the broker accepts none.
    """

    producer: BlockingProducer
    admin: Admin
    bootstrap: str
    topic: str
    partition_count: int
    keyless: Sequence[int]
    batch_size_max: int | None
    codec: Codec
    transactional_id: str | None
    batch_size: int = BATCH_SIZE_MAX
    linger_s: float = LINGER_S
    delivery_timeout_s: float = DELIVERY_TIMEOUT_S


class RecordWriter:
    """Writes records to a topic.

    The key of a record chooses its partition, as in Kafka's Java producer, unless the record names one. Records without
    a key go to one partition until a batch of it is sent, and then to the next one.

    Args:
        target: the topic and the producer.
        calling: the context manager in which the writer waits for the broker, which reports errors. It is entered anew
            for each wait.
        advance: called with the number of records that were read since the last call, for a display of the progress.
    """

    def __init__(
        self, target: WriteTarget, calling: AbstractContextManager[None], advance: Callable[[int], None]
    ) -> None:
        self._target = target
        self._producer = target.producer
        self._calling = calling
        self._advance = advance
        self._size_max = min(target.batch_size, target.batch_size_max or target.batch_size) - HEADER.size
        self._turn = random.randrange(len(target.keyless))
        self._count = 0
        # By partition: the records that are in no batch yet, and their greatest size in a batch.
        self._unsent: dict[int, list[BatchRecord]] = {}
        self._sizes: dict[int, int] = {}
        self._size = 0  # over all partitions
        self._oldest_s = 0.0  # when the first of the unsent records was read
        self._is_acknowledged = True  # whether the broker has acknowledged each batch that was sent

    def write_records(self, records: Iterable[InputRecord]) -> int:
        """Write the records, and wait until the broker has acknowledged all of them.

        Returns:
            How many they are.

        Raises:
            BadRecordError: a record is not valid. The records before it may not be written yet.
            UnavailableError: not all records were written; the message says why.
        """
        self._count = 0
        for record in records:
            self._add_record(record)
            if self._count % PROGRESS_COUNT == 0:
                self._advance(PROGRESS_COUNT)
        self._advance(self._count % PROGRESS_COUNT)
        return self.wait_until_written()

    def wait_until_written(self) -> int:
        """Wait until the broker has acknowledged all records. Return how many they are.

        Raises:
            UnavailableError: not all records were written; the message says why.
        """
        self._send_all()
        self._flush()
        return self._count

    def send_before_input(self, wait: Callable[[float], bool]) -> None:
        """Send the buffered records before the command waits for more input (`waiting_input`). If no input comes for a
        while, also wait for their acknowledgement, so that an error is reported soon. `wait` waits for input for the
        given number of seconds at most, and returns whether there is input.
        """
        if self._size:
            left_s = self._oldest_s + self._target.linger_s - time.monotonic()
            if left_s > 0 and wait(left_s):
                return
            self._send_all()
        if not self._is_acknowledged and not wait(self._target.linger_s):
            self.wait_until_written()

    # --- batches ---

    def _add_record(self, record: InputRecord) -> None:
        place, key, value, partition, timestamp_ms, headers = record
        is_keyless = partition is None and key is None
        if partition is None:
            if key is None:
                partition = self._target.keyless[self._turn]
            else:
                partition = partition_for(key, self._target.partition_count)
        elif partition >= self._target.partition_count:
            raise BadRecordError(
                f"{place}: {self._target.topic} has no partition {partition}, only 0 to "
                f"{self._target.partition_count - 1}"
            )
        size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        for name, content in headers or ():
            size += HEADER_OVERHEAD + len(name.encode()) + len(content or b"")
        is_far = timestamp_ms is not None and abs(timestamp_ms) >= TIMESTAMP_FAR
        made = BatchRecord(
            0,
            time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms,
            key,
            value,
            () if headers is None else tuple(headers),
        )
        self._count += 1
        if is_far or size > self._size_max:
            self._send_alone(place, partition, made, size)
            return
        while (waiting := self._sizes.get(partition, 0)) + size > self._size_max:
            self._send_partition(partition)
            if is_keyless:
                partition = self._target.keyless[self._turn]
        if not waiting:
            self._unsent[partition] = []
            if not self._size:
                self._oldest_s = time.monotonic()
        self._unsent[partition].append(made)
        self._sizes[partition] = waiting + size
        self._size += size
        if self._size > UNSENT_SIZE_MAX:
            self._send_all()

    def _send_all(self) -> None:
        for partition in list(self._unsent):
            self._send_partition(partition)

    def _send_partition(self, partition: int) -> None:
        """Send the unsent records of a partition, if there are any."""
        records = self._unsent.pop(partition, None)
        if records is None:
            return
        self._size -= self._sizes.pop(partition)
        if partition == self._target.keyless[self._turn]:
            self._turn = (self._turn + 1) % len(self._target.keyless)
        with self._sending():
            self._is_acknowledged = False
            self._producer.append(self._target.topic, partition, _batch(records, self._target.codec))

    def _send_alone(self, place: str, partition: int, record: BatchRecord, size: int) -> None:
        """Send a record in a batch of its own, and wait for the response, so that a refusal by the broker concerns this
        record alone. The records before it are sent first.

        Args:
            place: names the line or row of the record in messages.
            partition: the partition.
            record: the record.
            size: the greatest size that the record can have in a batch. If it is more than readers accept after
                decompression, the batch is not compressed.

        Raises:
            BadRecordError: the topic does not accept so large a record.
            UnavailableError: a record was not written; the message says why.
        """
        self._send_all()
        self._flush()
        batch = _batch([record], self._target.codec if size <= COMPRESSED_SIZE_MAX else Codec.NONE)
        with self._sending():
            try:
                if self._target.batch_size_max is not None and len(batch) > self._target.batch_size_max:
                    raise RefusedError(ErrorCode.message_too_large, "")
                self._producer.append(self._target.topic, partition, batch)
                self._producer.flush()
            except RefusedError as refused:
                if refused.code is not ErrorCode.message_too_large:
                    raise
                self._count -= 1
                raise BadRecordError(
                    f"{place}: the record takes {len(batch)} bytes, which is more than max.message.bytes of "
                    f"{self._target.topic} allows. Make the record smaller or the setting larger"
                ) from None

    def _flush(self) -> None:
        if not self._is_acknowledged:
            with self._sending():
                self._producer.flush()
            self._is_acknowledged = True

    # --- errors ---

    @contextmanager
    def _sending(self) -> Iterator[None]:
        """Context for calls of the producer; it has no value. It converts an error of the call into one that tells how
        many records were not written, and why.

        Raises:
            UnavailableError: the broker refuses a batch, or does not respond.
        """
        try:
            with self._calling:
                yield
        except BadRecordError:
            raise
        except (RefusedError, UnavailableError) as failure:
            missing = self._count - self._producer.record_count
            what = f"{missing} of {self._count} records were not written to {self._target.topic}"
            fail_if_full(self._target.bootstrap, what)
            raise UnavailableError(f"{what}: {self._reason(failure)}") from failure

    def _reason(self, failure: RefusedError | UnavailableError) -> str:
        """Return the reason of a failure to write records, as text for a message."""
        topic, transactional_id = self._target.topic, self._target.transactional_id
        if not isinstance(failure, RefusedError) or failure.code is not ErrorCode.topic_authorization_failed:
            return str(failure)
        denied = f"this user is not authorized to WRITE to the topic {topic!r}"
        if transactional_id is None:
            return f"{denied}: ask for an ACL"
        own = group_of(transactional_id)
        group = group_of_topic(self._target.admin, topic)
        if group is None:
            return (
                f"{denied}. The topic may also belong to another transaction group than the transactional id "
                f"{transactional_id!r}: this user may not describe the topic's settings"
            )
        if own != group:
            fitting = f"that begins with {group + '/'!r}" if group else "without a slash"
            return (
                f"transactional id {transactional_id!r} belongs to {group_in_words(own)}, and the topic to "
                f"{group_in_words(group)}. Use an id {fitting}"
            )
        return f"{denied}: ask for an ACL"


def _batch(records: list[BatchRecord], codec: Codec) -> bytearray:
    return bytearray(encode_batch(records, codec=codec))
