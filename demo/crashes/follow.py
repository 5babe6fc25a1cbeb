"""A read-committed consumer group that follows while the flights are written."""

import threading
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException

from demo.crashes import TOPIC
from demo.crashes.history import FOLLOWED, History

POLL_S = 0.2


@dataclass(slots=True)
class Followed:
    """What the follower has seen. A record that is handed out again after a crash counts once."""

    count: int = 0
    doomed_count: int = 0
    last_offsets: dict[int, int] = field(default_factory=dict)


class Follower(threading.Thread):
    """Reads as a group's member, and commits, until it is told to stop."""

    def __init__(self, bootstrap: str, history: History) -> None:
        super().__init__(name="follower", daemon=True)
        self._address = bootstrap
        self._history = history
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
                self._history.reached(FOLLOWED, self.followed.count)
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
