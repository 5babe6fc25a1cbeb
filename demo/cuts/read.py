"""Who reads: an unmodified Kafka consumer, read-committed, that tells what it sees as soon as it sees it."""

import json

from confluent_kafka import Consumer

from demo.cuts.ledger import Ledger
from demo.tasks import Task

POLL_S = 0.1


class Reader(Task):
    """Reads topics from their beginning, until it is told to stop."""

    def __init__(self, name: str, bootstrap: str, topics: tuple[str, ...], ledger: Ledger) -> None:
        super().__init__(f"the reader of {name}")
        self._reader = name
        self._topics = list(topics)
        self._ledger = ledger
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader of {name}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            "error_cb": lambda _error: None,
        }

    def work(self) -> None:
        """Read."""
        consumer = Consumer(self._settings)
        consumer.subscribe(self._topics)
        while not self.stopping.is_set():
            for message in consumer.consume(500, timeout=POLL_S):
                if message.error() is None:
                    value = json.loads(message.value())
                    self._ledger.saw(self._reader, value["txn"], doomed=value["doomed"])
        consumer.close()
