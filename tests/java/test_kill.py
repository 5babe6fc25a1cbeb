"""The broker killed with -9 under the Java client: transactions in the second dialect, and idempotent writes in flight.

STABLELOG_KILLS says how often; `tests/chaos` does it with librdkafka, which speaks the first dialect.
"""

import contextlib
import os
import threading
import time
from collections import Counter

import pytest

import stablelog
from peers import apache_kafka
from stablelog.testing.history import Fate, History, WrittenTransaction, check
from tests.chaos.test_kill import Reader, Watcher, read_values
from tests.java.client import JavaProcess, RefusedError, encoded
from tests.scale import randomness
from tests.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]

KILLS = int(os.environ.get("STABLELOG_KILLS", "2"))
PARTITIONS = 2


class JavaWriter(threading.Thread):
    """Writes until it is told to stop, with a Java process of its own, and keeps what it was told of each write."""

    def __init__(self, name, address, stopping):
        super().__init__(name=name, daemon=True)
        self.address, self.stopping = address, stopping
        self.transactions = []
        self.acknowledged = {}
        self.chance = randomness(name)
        self.count = 0
        self.failures = Counter()
        self.java = JavaProcess()

    def ask(self, what, settings=None, **more):
        return self.java.ask(self.address, what, settings, name=self.name, **more)

    def open(self):
        settings = {
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            **self.settings(),
        }
        self.ask("producer", {"delivery.timeout.ms": 60_000, "request.timeout.ms": 5000, **settings})

    def next_values(self, count):
        self.count += count
        return tuple(b"%s-%d" % (self.name.encode(), self.count - count + n) for n in range(count))

    def send(self, values, partition):
        places = self.ask("send", topic="t", partition=partition, values=[encoded(value) for value in values])
        self.acknowledged |= {value: tuple(place) for value, place in zip(values, places, strict=True)}

    def run(self):
        self.open()
        while not self.stopping.is_set():
            self.write()
        self.java.close()


class TransactionalWriter(JavaWriter):
    """Transactions over both partitions, of which a third is aborted."""

    def settings(self):
        return {"transactional.id": self.name, "transaction.timeout.ms": 30_000}

    def write(self):
        values = self.next_values(self.chance.randint(2, 8))
        commit = self.chance.random() < 0.7
        self.commit_asked_s = float("inf")
        fate = self.attempt(values, commit=commit)
        self.transactions.append(WrittenTransaction(fate, values, self.name, self.commit_asked_s))
        if fate is Fate.UNKNOWN:
            with contextlib.suppress(RefusedError):
                self.ask("close")
            self.open()  # its successor: what is undecided is aborted

    def attempt(self, values, *, commit):
        try:
            self.ask("begin")
            self.send(values[::2], 0)
            self.send(values[1::2], 1)
            if commit:
                self.commit_asked_s = time.monotonic()
            self.ask("commit" if commit else "abort")
        except RefusedError as refused:
            self.failures[str(refused)[:80]] += 1
            return Fate.UNKNOWN
        return Fate.COMMITTED if commit else Fate.ABORTED


class IdempotentWriter(JavaWriter):
    """Many small batches in flight, each of which is written once, whatever is sent again."""

    def settings(self):
        return {"enable.idempotence": True, "max.in.flight.requests.per.connection": 5, "batch.size": 64}

    def write(self):
        values = self.next_values(40)
        try:
            self.send(values, self.chance.randrange(PARTITIONS))
        except RefusedError as refused:
            self.failures[str(refused)[:80]] += 1
            self.transactions += [WrittenTransaction(Fate.UNKNOWN, (value,), self.name) for value in values]
        else:
            self.transactions += [WrittenTransaction(Fate.COMMITTED, (value,), self.name) for value in values]


def all_went_on(writers, ended):
    """Whether each writer has a few more transactions behind it than it had."""
    return all(len(writer.transactions) >= before + 3 for writer, before in zip(writers, ended, strict=True))


def has_seen_both_ends(writer):
    """Whether transactions of this writer were committed, and others aborted."""
    return {Fate.COMMITTED, Fate.ABORTED} <= {txn.fate for txn in writer.transactions.copy()}


def test_nothing_is_lost_written_twice_or_seen_though_aborted(kafka_jars, tmp_path):
    """Scenario 46, on one machine, in the second dialect."""
    chance = randomness(KILLS)
    stopping = threading.Event()
    settings = {"log_segment_bytes": 100_000, "stablelog_snapshot_bytes": 20_000}
    with stablelog.serve(tmp_path / "data", **settings) as broker:
        try:
            kinds = {"java-1": TransactionalWriter, "java-2": TransactionalWriter, "plain": IdempotentWriter}
            writers = [kind(name, broker.bootstrap, stopping) for name, kind in kinds.items()]
        except apache_kafka.NotAvailableError as missing:
            pytest.skip(str(missing))
        writers[0].ask("create_topic", topic="t", partitions=PARTITIONS)
        watcher, reader = Watcher(broker.bootstrap, stopping), Reader(broker.bootstrap, stopping)
        threads = (*writers, watcher, reader)
        for thread in threads:
            thread.start()
        for _ in range(KILLS):
            ended = [len(writer.transactions) for writer in writers]
            until(lambda ended=ended: all_went_on(writers, ended), "not everybody writes")
            time.sleep(chance.uniform(0, 0.3))  # the load itself, not a wait for something to happen
            broker.kill()
            broker.start()
        # However busy the machine is, there has to be something to look at.
        until(lambda: all(map(has_seen_both_ends, writers[:2])), "nothing was committed, or nothing aborted")
        stopping.set()
        for thread in threads:
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
    failures = sum((writer.failures for writer in writers), Counter())
    print(KILLS, "kills", dict(fates), dict(failures))
    assert check(history) == []
    assert fates[Fate.COMMITTED] > fates[Fate.UNKNOWN]
    assert fates[Fate.ABORTED] > 0
