"""Transfers between accounts in several partitions: whoever reads a batch sees money move, and none appear or vanish."""

import json
import random
import shutil
import threading
import time

import pytest
from confluent_kafka import Producer

from tests.clients.drivers import unique
from tests.spark.histories import OPEN_MS
from tests.spark.reading import make, rows, settled
from tests.waiting import until

PARTITIONS, ACCOUNTS = 4, 12
PATIENCE_S = 240  # on a busy machine


class Bank(threading.Thread):
    """Moves money, a transfer a transaction, and gives up some of them. Each touches two or three partitions."""

    def __init__(self, bootstrap, topic):
        super().__init__(daemon=True)
        self.topic, self.random = topic, random.Random(5)
        self.stopped = threading.Event()
        self.failure, self.committed = None, 0
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": unique("bank"),
                "transaction.timeout.ms": OPEN_MS,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self.producer.init_transactions(30)

    def run(self):
        try:
            while not self.stopped.is_set():
                self.transfer()
        except Exception as failure:
            self.failure = failure

    def transfer(self):
        amounts = [self.random.randint(1, 100) for _ in range(self.random.randint(1, 2))]
        self.producer.begin_transaction()
        for amount in [*amounts, -sum(amounts)]:
            account = self.random.randrange(ACCOUNTS)
            content = json.dumps({"account": account, "amount": amount})
            self.producer.produce(self.topic, content, partition=account % PARTITIONS)
        if self.random.random() < 0.7:
            self.producer.commit_transaction(30)
            self.committed += 1
        else:
            self.producer.flush(30)
            self.producer.abort_transaction(30)

    def stop(self):
        self.stopped.set()
        self.join()
        assert self.failure is None


def total(values):
    return sum(json.loads(value)["amount"] for value in values)


@pytest.fixture
def bank(stablelog_broker):
    topic = unique("bank")
    make(stablelog_broker.bootstrap, topic, PARTITIONS, **{"segment.bytes": "4000"})
    bank = Bank(stablelog_broker.bootstrap, topic)
    bank.start()
    yield bank
    bank.stop()


@pytest.mark.extended
def test_every_batch_sums_to_zero_while_the_bank_works(stablelog_broker, bank):
    given = {"bootstrap": stablelog_broker.bootstrap, "subscribe": bank.topic}
    counts = []
    begun, deadline = bank.committed, time.monotonic() + PATIENCE_S
    while bank.committed < begun + 100 or len(counts) < 20:
        assert bank.failure is None
        assert time.monotonic() < deadline, (bank.committed, len(counts))
        for scan in ("fetch", "files"):
            values = [value for (value,) in rows({**given, "scan": scan}, "value")]
            assert total(values) == 0, (scan, len(values))
            counts.append(len(values))
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@pytest.mark.extended
def test_spark_sums_to_zero_while_the_bank_works(spark, stablelog_broker, bank):
    for scan in ("fetch", "files"):
        reader = spark.read.format("stablelog").option("bootstrap", stablelog_broker.bootstrap)
        frame = reader.options(subscribe=bank.topic, scan=scan).load()
        amounts = frame.selectExpr("from_json(CAST(value AS STRING), 'account INT, amount BIGINT') AS t")
        assert amounts.selectExpr("sum(t.amount)").collect()[0][0] in (0, None)


def test_what_was_left_when_the_bank_closed(stablelog_broker, bank, tmp_path):
    until(lambda: bank.committed >= 10, "the bank does not work")
    bank.stop()
    settled(stablelog_broker.bootstrap, bank.topic)
    for directory in stablelog_broker.data.glob(f"{bank.topic}-*"):
        shutil.copytree(directory, tmp_path / directory.name)
    values = [value for (value,) in rows({"path": str(tmp_path)}, "value")]
    assert total(values) == 0
    assert len(values) >= 2 * bank.committed
