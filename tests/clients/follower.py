"""A consumer that reads what is committed all along, while others write and brokers are killed."""

import threading
from collections import defaultdict

from confluent_kafka import Consumer, TopicPartition


class Follower(threading.Thread):
    """Reads the committed records of a topic from its start until it is stopped, each once.

    Args:
        bootstrap: the broker.
        topic: its partitions exist.
        partition_count: of the topic.

    Attributes:
        values: by key, in the order of their offsets if a key has one partition.
        partitions: the values of each partition, in the order of their offsets.
        count: of the records.
    """

    def __init__(self, bootstrap, topic, partition_count):
        super().__init__(daemon=True)
        self._stopping = threading.Event()
        self.values, self.partitions = defaultdict(list), defaultdict(list)
        self.count = 0
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "follower",
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            "error_cb": lambda _error: None,
        }
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partition_count)])
        self.start()

    def run(self):
        while not self._stopping.is_set():
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:
                    self.values[message.key()].append(message.value())
                    self.partitions[message.partition()].append(message.value())
                    self.count += 1
        self._consumer.close()

    def stop(self):
        """End it."""
        self._stopping.set()
        self.join(60)
        assert not self.is_alive()
