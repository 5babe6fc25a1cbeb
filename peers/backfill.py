"""A topic with a known number of sealed segments, and a read-committed consumer that reads all of it.

Both functions take bootstrap servers only, so that different brokers have the same content and the same consumer.
"""

from collections.abc import Collection

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

TIMEOUT_S = 60
# Two transactions fill a segment: 24 kB remain, and the next record, of 64 kB, begins the next segment.
SEGMENT_SIZE = 1 << 20  # Apache Kafka's minimum of `segment.bytes`
TRANSACTION_RECORDS, RECORD_SIZE = 8, 64_000
SEGMENT_RECORDS = 2 * TRANSACTION_RECORDS
TOPIC_SETTINGS = {"segment.bytes": str(SEGMENT_SIZE)}


def fill(bootstrap: str, topic: str, segment_count: int, aborted: Collection[int] = ()) -> None:
    """Write a number of full segments, and one record in the segment that stays active.

    Args:
        bootstrap: the broker's address.
        topic: an empty topic with one partition and TOPIC_SETTINGS.
        segment_count: the number of full segments.
        aborted: the numbers of the segments, from 0, whose second transaction is aborted. All others are committed.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"fill-{topic}", "linger.ms": 0})
    producer.init_transactions(TIMEOUT_S)
    for number in range(segment_count):
        _transaction(producer, topic, TRANSACTION_RECORDS)
        _transaction(producer, topic, TRANSACTION_RECORDS, abort=number in aborted)
    _transaction(producer, topic, 1)


def _transaction(producer: Producer, topic: str, record_count: int, *, abort: bool = False) -> None:
    producer.begin_transaction()
    for _ in range(record_count):
        producer.produce(topic, bytes(RECORD_SIZE), partition=0)
    producer.flush(TIMEOUT_S)  # librdkafka discards the unsent records of an aborted transaction
    (producer.abort_transaction if abort else producer.commit_transaction)(TIMEOUT_S)


def committed_count(segment_count: int, aborted: Collection[int] = ()) -> int:
    """The number of records that a read-committed consumer gets of what `fill` wrote."""
    return segment_count * SEGMENT_RECORDS - len(aborted) * TRANSACTION_RECORDS + 1


def read(bootstrap: str, topic: str) -> int:
    """Read partition 0 from the beginning to the end, read-committed, and return the number of records.

    Raises:
        KafkaException: the broker answered with an error.
        TimeoutError: no record came for TIMEOUT_S.
    """
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "backfill",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    record_count = 0
    try:
        while True:
            message = consumer.poll(TIMEOUT_S)
            if message is None:
                raise TimeoutError(
                    f"no record of {topic} came for {TIMEOUT_S} s after {record_count} records"
                )
            error = message.error()
            if error is None:
                record_count += 1
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name in the library
                return record_count
            else:
                raise KafkaException(error)
    finally:
        consumer.close()
