"""A producer that writes records of some keys, each once, while others read and brokers are killed."""

import threading
from collections import Counter

from confluent_kafka import Producer

KEYS = 20


class KeyedWriter(threading.Thread):
    """Writes to the topic `in` until it is stopped. The value of a record is its number and its key.

    Args:
        bootstrap: the broker.
        pause_s: the time between two records.

    Attributes:
        truth: how many records each key has.
        values: of all records.
    """

    def __init__(self, bootstrap, pause_s=0.01):
        super().__init__(daemon=True)
        self._stopping, self._pause_s = threading.Event(), pause_s
        self.truth = Counter()
        self.values = []
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        self._producer = Producer({**settings, "log_level": 0, "error_cb": lambda _error: None})
        self._unwritten = None
        self.start()

    def run(self):
        number = 0
        while not self._stopping.wait(self._pause_s):
            key = f"key-{number % KEYS}"
            self.values.append(f"{number} {key}".encode())
            self._producer.produce("in", self.values[-1], key=key)
            self.truth[key] += 1
            self._producer.poll(0)
            number += 1
        self._unwritten = self._producer.flush(120)

    def stop(self):
        """Stop, and wait until all records are written. Returns their count."""
        self._stopping.set()
        self.join(150)
        assert self._unwritten == 0
        return len(self.values)


def totals_by_last_digit(truth):
    """By group of keys, the counts that have to come out of a program that counts records by the last digits of their keys:
    each once, and in order.
    """
    totals = Counter()
    for key, count in truth.items():
        totals[b"group-%s" % key[-1].encode()] += count
    return {group: [b"%d" % count for count in range(1, total + 1)] for group, total in totals.items()}
