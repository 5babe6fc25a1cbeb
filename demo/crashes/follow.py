"""A read-committed consumer group that follows while the flights are written; and who samples the watermarks."""

import threading
import time
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException, TopicPartition

from demo.crashes import TOPIC

POLL_S = 0.2
SAMPLE_S = 0.1


@dataclass(slots=True)
class Followed:
    """What the follower has seen. A record that is handed out again after a crash counts once."""

    count: int = 0
    doomed_count: int = 0
    last_offsets: dict[int, int] = field(default_factory=dict)


class Follower(threading.Thread):
    """Reads as a group's member, and commits, until it is told to stop."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="follower", daemon=True)
        self._address = bootstrap
        self._stopping = threading.Event()
        self.followed = Followed()

    def run(self) -> None:
        """Follow."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": "follower",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                "error_cb": lambda _error: None,
            }
        )
        consumer.subscribe([TOPIC])
        while not self._stopping.is_set():
            messages = [
                message for message in consumer.consume(2000, timeout=POLL_S) if message.error() is None
            ]
            for message in messages:
                self._take(message.partition(), message.offset(), message.value())
            if messages:
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException:
                    continue  # the broker is away: what is not committed may come again, and counts once
        consumer.close()

    def _take(self, partition: int, offset: int, value: bytes) -> None:
        followed = self.followed
        if offset <= followed.last_offsets.get(partition, -1):
            return
        followed.last_offsets[partition] = offset
        followed.count += 1
        if b'"doomed":true' in value:
            followed.doomed_count += 1

    def stop(self) -> None:
        """Stop, and wait for it."""
        self._stopping.set()
        self.join()


@dataclass(frozen=True, slots=True)
class Sample:
    """The watermarks of a partition at a time, in seconds since the start."""

    at_s: float
    high_watermark: int
    last_stable_offset: int


class Sampler(threading.Thread):
    """Looks at one partition's watermarks again and again."""

    def __init__(self, bootstrap: str, partition: int) -> None:
        super().__init__(name="sampler", daemon=True)
        self._address = bootstrap
        self._partition = partition
        self._stopping = threading.Event()
        self._began_at = time.monotonic()
        self.samples: list[Sample] = []

    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_at

    def run(self) -> None:
        """Sample."""
        at = TopicPartition(TOPIC, self._partition)
        consumers = [
            Consumer(
                {
                    "bootstrap.servers": self._address,
                    "group.id": "sampler",
                    "isolation.level": isolation,
                    "log_level": 0,
                    "error_cb": lambda _error: None,
                }
            )
            for isolation in ("read_committed", "read_uncommitted")
        ]
        while not self._stopping.wait(SAMPLE_S):
            try:
                stable, high = (consumer.get_watermark_offsets(at, timeout=1)[1] for consumer in consumers)
            except KafkaException:
                continue
            self.samples.append(Sample(self.now_s(), max(high, stable), stable))
        for consumer in consumers:
            consumer.close()

    def stop(self) -> None:
        """Stop, and wait for it."""
        self._stopping.set()
        self.join()
