"""Transfers over several topics by writers that overlap, and a streaming query as Spark runs it, without Spark."""

import json
import pickle
import random
from collections import Counter

from confluent_kafka import KafkaException, Producer
from pyspark.sql.types import StructType

from stablelog.spark.option_table import STREAM
from stablelog.spark.options import read_options
from stablelog.spark.schema import Columns
from stablelog.spark.source.cut_reader import CutStreamReader
from stablelog.spark.source.reader import StablelogStreamReader
from tests.clients.drivers import unique
from tests.spark.reading import ROWS, make

TIMEOUT_S = 60


def ordered(bootstrap, count=2, partitions=2, **configs):
    """Commit-ordered topics."""
    topics = [unique("ordered") for _ in range(count)]
    for topic in topics:
        make(bootstrap, topic, partitions, **{"stablelog.order": "commit", **configs})
    return topics


class Writers:
    """Some producers whose transactions overlap; each transaction moves money between topics, and sums to zero.

    Attributes:
        committed: the names of transactions that were committed, with the count of their records.
    """

    def __init__(self, bootstrap, topics, partitions=2, seed=1, count=3):
        self.topics, self.partitions, self.random = topics, partitions, random.Random(seed)
        self.bootstrap = bootstrap
        self.producers = [self._producer() for _ in range(count)]
        self.open = [[] for _ in self.producers]
        self.committed = {}
        self._number = 0

    def _producer(self):
        settings = {"bootstrap.servers": self.bootstrap, "linger.ms": 0, "log_level": 0}
        made = Producer(
            {
                **settings,
                "transactional.id": unique("bank"),
                "transaction.timeout.ms": 900_000,  # of a machine that is slow
                "error_cb": lambda _: None,
            }
        )
        made.init_transactions(TIMEOUT_S)
        return made

    def hang(self):
        """A transaction over all partitions that is never ended."""
        producer = self._producer()
        producer.begin_transaction()
        for topic in self.topics:
            for partition in range(self.partitions):
                producer.produce(topic, json.dumps(["hanging", 1, 10**6]), partition=partition)
        assert producer.flush(TIMEOUT_S) == 0
        self.producers.append(producer)
        self.open.append(None)

    def step(self):
        """One writer writes one record, or ends its transaction."""
        chosen = self.random.choice([n for n, legs in enumerate(self.open) if legs is not None])
        producer, legs = self.producers[chosen], self.open[chosen]
        if not legs:
            amounts = [self.random.randint(1, 100) for _ in range(self.random.randint(1, 4))]
            self._number += 1
            name = f"t{self._number}"
            legs += [[name, len(amounts) + 1, amount] for amount in [*amounts, -sum(amounts)]]
            producer.begin_transaction()
        if legs[0] is None:
            self._end(chosen)
            return
        leg = legs.pop(0)
        place = self.random.choice(self.topics), self.random.randrange(self.partitions)
        producer.produce(place[0], json.dumps(leg), partition=place[1])
        assert producer.flush(TIMEOUT_S) == 0
        if not legs:
            legs += [None, leg]

    def _end(self, chosen):
        producer, (_, last) = self.producers[chosen], self.open[chosen]
        self.open[chosen] = []
        commit = self.random.random() < 0.75
        _surely(producer.commit_transaction if commit else producer.abort_transaction)
        if commit:
            self.committed[last[0]] = last[1]

    def write(self, count):
        """So many steps."""
        for _ in range(count):
            self.step()

    def finish(self):
        """End what is open, but for what hangs."""
        while any(self.open):
            self.step_open()

    def step_open(self):
        """A step of a writer whose transaction is open."""
        kept = self.open
        self.open = [legs or None for legs in kept]
        self.step()
        self.open = [now if now is not None else before for now, before in zip(self.open, kept, strict=True)]

    def close(self):
        """Abort what hangs."""
        for producer, legs in zip(self.producers, self.open, strict=True):
            if legs is None or legs:
                _surely(producer.abort_transaction)


def _surely(end):
    while True:
        try:
            end(TIMEOUT_S)
            return
        except KafkaException as failure:
            if not failure.args[0].retriable():
                raise


class Query:
    """A streaming query, with a checkpoint as Spark keeps one: offsets that were planned, and how many were done.

    Args:
        given: the options.
        names: the columns.
    """

    def __init__(self, given, *names):
        self.given, self.names = given, names or ("value",)
        self.planned, self.done = [], 0
        self.reader = None

    def start(self, **more):
        """Begin, or begin again as after a crash: what is pending is planned from its offsets."""
        self.stop()
        self.given = {**self.given, **more}
        options = read_options(self.given, STREAM)
        schema = StructType([field for name in self.names for field in ROWS.fields if field.name == name])
        kind = CutStreamReader if options.cut else StablelogStreamReader
        self.reader = pickle.loads(pickle.dumps(kind(options, Columns(schema))))
        if not self.planned:
            self.planned.append(self._kept(self.reader.initialOffset()))
        return self

    @staticmethod
    def _kept(offset):
        """As it comes back from the checkpoint."""
        return json.loads(json.dumps(offset))

    def plan(self):
        """Write the next offset down. Returns whether there is one."""
        if self.done < len(self.planned) - 1:
            return True
        end = self.reader.latestOffset(self.planned[-1], self.reader.getDefaultReadLimit())
        if json.dumps(end) == json.dumps(self.planned[-1]):
            return False
        self.planned.append(self._kept(end))
        return True

    def rows_of(self, number):
        """What a micro-batch reads, as often as one likes."""
        found = []
        for task in self.reader.partitions(self.planned[number], self.planned[number + 1]):
            for batch in self.reader.read(pickle.loads(pickle.dumps(task))):
                found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return found

    def batch(self):
        """The rows of the next micro-batch; None if there is nothing to read."""
        if not self.plan():
            return None
        found = self.rows_of(self.done)
        self.done += 1
        return found

    def batches(self):
        """All micro-batches that there are."""
        found = []
        while (rows := self.batch()) is not None:
            found.append(rows)
        return found

    def stop(self):
        """Let go of what the reader holds."""
        if self.reader is not None:
            self.reader.stop()
            self.reader = None


def values(rows):
    """The first column, read as JSON."""
    return [json.loads(row[0]) for row in rows]


def total(rows):
    return sum(amount for _, _, amount in values(rows))


def names_in(rows):
    """The transactions of a micro-batch. Fails if one of them is not whole."""
    counts = Counter(name for name, _, _ in values(rows))
    for name, count, _ in values(rows):
        assert counts[name] == count, f"{name} is torn"
    assert total(rows) == 0
    return list(counts)
