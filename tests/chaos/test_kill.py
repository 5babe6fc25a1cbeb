"""The broker killed with -9 again and again under transactions; the history holds. STABLELOG_KILLS says how often."""

import contextlib
import os
import threading
import time
from collections import Counter

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from stablelog.testing.history import Fate, History, Seen, WrittenTransaction, check
from tests.chaos.confluent import WAIT_S, patiently, producer_of
from tests.clients.reading import read_to_end
from tests.scale import randomness
from tests.waiting import until

KILLS = int(os.environ.get("STABLELOG_KILLS", "4"))
WRITERS = 3
PARTITIONS = 2


class Writer(threading.Thread):
    """Writes transactions over both partitions until it is told to stop, and keeps what it was told of each."""

    def __init__(self, name, address, stopping):
        super().__init__(name=name, daemon=True)
        self.address, self.stopping = address, stopping
        self.transactions = []
        self.acknowledged = {}
        self.chance = randomness(name)
        self.count = 0

    def producer(self):
        return producer_of(self.address, self.name, timeout_ms=30_000)

    def run(self):
        producer = self.producer()
        while not self.stopping.is_set():
            values = tuple(
                b"%s-%d" % (self.name.encode(), self.count + n) for n in range(self.chance.randint(1, 8))
            )
            self.count += len(values)
            commit = self.chance.random() < 0.7
            self.commit_asked_s = float("inf")
            fate = self.attempt(producer, values, commit=commit)
            self.transactions.append(WrittenTransaction(fate, values, self.name, self.commit_asked_s))
            if fate is Fate.UNKNOWN:
                producer = self.producer()  # its successor: what is undecided is aborted

    def attempt(self, producer, values, *, commit):
        deciding = False
        try:
            producer.begin_transaction()
            for value in values:
                producer.produce(
                    "t", value, partition=self.chance.randrange(PARTITIONS), on_delivery=self.delivered
                )
            producer.flush(30)
            deciding = commit
            if commit:
                self.commit_asked_s = time.monotonic()
            return self.end(producer, commit=commit)
        except KafkaException:
            return Fate.UNKNOWN if deciding else self.abandon(producer)

    def delivered(self, error, message):
        if error is None:
            self.acknowledged[message.value()] = (message.partition(), message.offset())

    def end(self, producer, *, commit):
        try:
            patiently(producer.commit_transaction if commit else producer.abort_transaction)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                producer.abort_transaction(WAIT_S)
                return Fate.ABORTED
            raise
        return Fate.COMMITTED if commit else Fate.ABORTED

    def abandon(self, producer):
        with contextlib.suppress(KafkaException):
            producer.abort_transaction(30)
            return Fate.ABORTED
        return Fate.UNKNOWN


class Watcher(threading.Thread):
    """Looks at the watermarks all along."""

    def __init__(self, address, stopping):
        super().__init__(daemon=True)
        self.address, self.stopping = address, stopping
        self.watermarks = {partition: [] for partition in range(PARTITIONS)}

    def run(self):
        settings = {
            "bootstrap.servers": self.address,
            "group.id": "w",
            "log_level": 0,
            "error_cb": lambda _e: None,
        }
        consumers = [
            Consumer({**settings, "isolation.level": level})
            for level in ("read_committed", "read_uncommitted")
        ]
        while not self.stopping.wait(0.02):
            for partition, seen in self.watermarks.items():
                with contextlib.suppress(KafkaException):
                    at = TopicPartition("t", partition)
                    stable, high = (
                        consumer.get_watermark_offsets(at, timeout=1)[1] for consumer in consumers
                    )
                    seen.append((high, stable))
        for consumer in consumers:
            consumer.close()


class Reader(threading.Thread):
    """Reads what is committed all along, from the start, each record once."""

    def __init__(self, address, stopping):
        super().__init__(daemon=True)
        self.address, self.stopping = address, stopping
        self.seen = {partition: [] for partition in range(PARTITIONS)}

    def run(self):
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "live",
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                "error_cb": lambda _e: None,
            }
        )
        consumer.assign([TopicPartition("t", partition, 0) for partition in self.seen])
        while not self.stopping.is_set():
            for message in consumer.consume(500, 0.1):
                now_s = time.monotonic()
                if message.error() is None:
                    self.seen[message.partition()].append(Seen(now_s, message.offset(), message.value()))
        consumer.close()


@pytest.mark.timeout(400 + 12 * KILLS)
def test_nothing_is_lost_torn_or_seen_though_aborted(tmp_path):
    """Scenario 46, on one machine: kills under load, a third of the transactions aborted."""
    chance = randomness(KILLS)
    stopping = threading.Event()
    with stablelog.serve(
        tmp_path / "data", log_segment_bytes=100_000, stablelog_snapshot_bytes=20_000
    ) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(30)
        writers = [Writer(f"writer-{n}", broker.bootstrap, stopping) for n in range(WRITERS)]
        watcher, reader = Watcher(broker.bootstrap, stopping), Reader(broker.bootstrap, stopping)
        for thread in (*writers, watcher, reader):
            thread.start()
        for kill in range(KILLS):
            time.sleep(chance.uniform(0.1, 1.0))  # the load itself, not a wait for something to happen
            if kill % 2:  # on a busy machine, else, nothing would ever be committed
                enough = _commit_count(writers) + 1
                until(lambda enough=enough: _commit_count(writers) >= enough, "nobody commits")
            broker.kill()
            broker.start()
        until(lambda: _commit_count(writers) > KILLS // 3, "nobody commits")
        until(lambda: sum(map(len, reader.seen.values())) > KILLS // 3, "nobody reads what is committed")
        stopping.set()
        for thread in (*writers, watcher, reader):
            thread.join(120)
            assert not thread.is_alive()
        history = History(
            [txn for writer in writers for txn in writer.transactions],
            read_values(broker.bootstrap, "read_committed"),
            watcher.watermarks,
            reader.seen,
            read_values(broker.bootstrap, "read_uncommitted"),
            {value: place for writer in writers for value, place in writer.acknowledged.items()},
        )
    fates = Counter(txn.fate for txn in history.transactions)
    counts = {
        "transactions": len(history.transactions),
        **{fate.value: fates[fate] for fate in Fate},
        "acknowledged": len(history.acknowledged),
        "read": sum(map(len, history.reads.values())),
        "read live": sum(map(len, history.live.values())),
        "watermarks": sum(map(len, history.watermarks.values())),
    }
    print(f"{KILLS} kills:", ", ".join(f"{count} {name}" for name, count in counts.items()))
    assert check(history) == []
    assert fates[Fate.COMMITTED] > KILLS // 3
    assert counts["read live"] > KILLS // 3


def _commit_count(writers):
    """How many commits were acknowledged until now."""
    return sum(txn.fate is Fate.COMMITTED for writer in writers for txn in writer.transactions.copy())


def read_values(address, isolation):
    """Every partition from its start to its end."""
    return {partition: _read_partition(address, partition, isolation) for partition in range(PARTITIONS)}


def _read_partition(address, partition, isolation):
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "final",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    found = [(message.offset(), message.value()) for message in read_to_end(consumer, "t", partition)]
    consumer.close()
    return found
