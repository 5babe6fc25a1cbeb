"""Ranges of partitions, read through the Kafka protocol.

The range is fixed when the read is planned: from the partition's first offset to its end as a reader of this
isolation sees it. Reading ends when the position has reached the end, however many of the offsets are records:
markers and aborted records have offsets too.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stablelog.errors import Unavailable
from stablelog.spark.options import ReadOptions

TIMEOUT_S = 30.0
POLL_S = 0.1
BATCH_COUNT = 20_000


@dataclass(frozen=True, slots=True)
class Range:
    """What one task reads: the offsets [start, end) of a partition."""

    topic: str
    partition: int
    start: int
    end: int


def _client(options: ReadOptions) -> Any:
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": "stablelog-spark",
            "isolation.level": options.isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )


def plan(options: ReadOptions) -> list[Range]:
    """A range for each partition that holds something.

    Raises:
        Unavailable: no broker answers, or a topic is not there.
    """
    from confluent_kafka import KafkaException, TopicPartition

    consumer = _client(options)
    try:
        topics = consumer.list_topics(timeout=TIMEOUT_S).topics
        ranges = []
        for topic in options.topics:
            if topic not in topics:
                raise Unavailable(f"there is no topic {topic!r} at {options.bootstrap}")
            for partition in sorted(topics[topic].partitions):
                start, end = consumer.get_watermark_offsets(
                    TopicPartition(topic, partition), timeout=TIMEOUT_S
                )
                if start < end:
                    ranges.append(Range(topic, partition, start, end))
    except KafkaException as error:
        raise Unavailable(
            f"planning the read at {options.bootstrap} failed: {error.args[0].str()}"
        ) from error
    finally:
        consumer.close()
    return ranges


def read(options: ReadOptions, wanted: Range) -> Iterator[list[Any]]:
    """The messages of a range, in lists.

    Raises:
        Unavailable: the broker does not answer, or retention has removed a part of the range meanwhile.
    """
    from confluent_kafka import TopicPartition

    consumer = _client(options)
    at = TopicPartition(wanted.topic, wanted.partition, wanted.start)
    consumer.assign([at])
    try:
        reached = False
        deadline = time.monotonic() + TIMEOUT_S
        while not reached:
            messages = consumer.consume(BATCH_COUNT, timeout=POLL_S)
            if not messages:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"{options.bootstrap} handed out nothing of {wanted} within {TIMEOUT_S:g} s"
                    )
                continue
            deadline = time.monotonic() + TIMEOUT_S
            found = []
            for message in messages:
                error = message.error()
                if error is None:
                    if message.offset() < wanted.end:
                        found.append(message)
                elif error.name() != "_PARTITION_EOF":
                    raise Unavailable(f"reading {wanted} failed: {error.str()}")
            yield found
            # The end of the partition, as told by EOF or by the next record, lies at or behind the end of the range.
            last = messages[-1]
            reached = last.offset() >= wanted.end - 1 or consumer.position([at])[0].offset >= wanted.end
    finally:
        consumer.close()
