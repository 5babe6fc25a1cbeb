"""Writer of `stablelog produce`: passes records to a producer, and waits until they are written."""

import time
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, KafkaException, Producer

from stablelog.cli.admin import group_of_topic
from stablelog.cli.disk_watch import fail_if_full
from stablelog.cli.librdkafka import TIMEOUT_S
from stablelog.cli.output import fail
from stablelog.cli.record_input import BadRecordError, Record
from stablelog.client.admin import Admin
from stablelog.wire.extension.transaction_groups import group_in_words, group_of

POLL_S = 0.5
PROGRESS_COUNT = 1000
DELIVERY_TIMEOUT_MS = 60_000  # how long a record is retried; librdkafka allows no more in a transaction
# Additional wait in which librdkafka reports the reasons for records that it could not deliver.
FLUSH_MARGIN_S = 5


class Writer:
    """Writes records to a topic.

    Args:
        producer: the producer of librdkafka.
        admin: administers the cluster.
        bootstrap: the addresses of the broker.
        topic: the topic to write to.
        partition_count: the number of its partitions.
        transactional_id: the producer's transactional id; None outside transactions.
        written: called when the broker has acknowledged a record.
        advance: called with the number of records that were passed to the producer since the last call.
    """

    def __init__(
        self,
        producer: Producer,
        admin: Admin,
        bootstrap: str,
        topic: str,
        partition_count: int,
        transactional_id: str | None,
        written: Callable[[], None],
        advance: Callable[[int], None],
    ) -> None:
        self._producer = producer
        self._admin = admin
        self._bootstrap = bootstrap
        self._topic = topic
        self._partition_count = partition_count
        self._transactional_id = transactional_id
        self._written = written
        self._advance = advance
        self._failures: list[KafkaError] = []
        self._count = 0

    def send(self, records: Iterable[Record]) -> int:
        """Pass each record to the producer, up to the first one that the broker refuses, and wait until all of them are
        written.

        Returns:
            How many records were written.

        Raises:
            BadRecordError: a record is not valid. The records before it may not be written yet.
            UnavailableError: not all records were written; the message says why.
        """
        self._count = 0
        for record in records:
            if not self._send(record):
                break
            self._count += 1
            if self._count % PROGRESS_COUNT == 0:
                self._advance(PROGRESS_COUNT)
        self._advance(self._count % PROGRESS_COUNT)
        return self.finish()

    def finish(self) -> int:
        """Wait until the records that were passed to the producer are written. Return how many they are.

        Raises:
            UnavailableError: not all records were written; the message says why.
        """
        left = self._flush()
        if self._failures or left:
            what = f"{len(self._failures) + left} of {self._count} records were not written to {self._topic}"
            why = self._reason() if self._failures else f"no broker responds at {self._bootstrap}"
            fail_if_full(self._bootstrap, what)
            fail(f"{what}: {why}")
        return self._count

    def _send(self, record: Record) -> bool:
        """Pass a record to the producer. If an earlier record has failed, return False without passing the record,
        because it would time out, too.
        """
        optional: dict[str, object] = {}
        if record.partition is not None:
            if record.partition >= self._partition_count:
                raise BadRecordError(
                    f"{record.place}: {self._topic} has no partition {record.partition}, only 0 to "
                    f"{self._partition_count - 1}"
                )
            optional["partition"] = record.partition
        if record.timestamp_ms is not None:
            optional["timestamp"] = record.timestamp_ms
        if record.headers is not None:
            optional["headers"] = record.headers
        while not self._failures:
            try:
                self._producer.produce(
                    self._topic, record.value, record.key, on_delivery=self._note, **optional
                )
            except BufferError:
                self._producer.poll(POLL_S)
            except KafkaException as error:
                reason = error.args[0]
                if reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise BadRecordError(f"{record.place}: {reason.str()}") from None
                fail(f"writing to {self._topic}: {reason.str()}")
            else:
                self._producer.poll(0)
                return True
        return False

    def _note(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._failures.append(error)
        else:
            self._written()

    def _flush(self) -> int:
        """Wait until each record is written or has failed. Return how many records still wait, for example after
        Ctrl-C.
        """
        deadline_s = time.monotonic() + DELIVERY_TIMEOUT_MS / 1000 + FLUSH_MARGIN_S
        while (left := int(self._producer.flush(POLL_S))) and time.monotonic() < deadline_s:
            pass
        return left

    def _reason(self) -> str:
        """Return the reason why a record was not written. If the transaction has failed, librdkafka gives the reason
        only at the commit.
        """
        failure = self._failures[0]
        if failure.code() == KafkaError._PURGE_QUEUE:  # noqa: SLF001 - its public name
            try:
                self._producer.commit_transaction(TIMEOUT_S)
            except KafkaException as error:
                failure = error.args[0]
        if failure.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED and self._transactional_id is not None:
            own = group_of(self._transactional_id)
            group = group_of_topic(self._admin, self._topic)
            if group is None:
                return (
                    f"{failure.str()}. The topic may also belong to another transaction group than the transactional id "
                    f"{self._transactional_id!r}: this user may not describe the topic's settings"
                )
            if own != group:
                fitting = f"that begins with {group + '/'!r}" if group else "without a slash"
                return (
                    f"transactional id {self._transactional_id!r} belongs to {group_in_words(own)}, and the topic to "
                    f"{group_in_words(group)}. Use an id {fitting}"
                )
        return str(failure.str())
