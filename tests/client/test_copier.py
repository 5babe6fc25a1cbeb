"""Copiers and their broker are killed, frozen and joined by others; the copy has each record once, in order.

STABLELOG_KILLS says how often.
"""

import os
import signal
import subprocess
import sys
import time

import pytest

import stablelog
from stablelog.batch.walk import walk_fields
from stablelog.client.blocking.cluster import EARLIEST, BlockingCluster
from stablelog.client.core.record_reader import RecordReader
from tests.clients.drivers import unique
from tests.scale import randomness
from tests.waiting import until

KILLS = int(os.environ.get("STABLELOG_KILLS", "5"))
SESSION_S = 1.5
PARTITIONS, KEYS = 3, 10
PATIENCE_S = 120
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.session.timeout.ms": int(1000 * SESSION_S),
    "group.initial.rebalance.delay.ms": 0,
}


class Copiers:
    """Processes that copy one topic into another, as members of one group."""

    def __init__(self, directory, bootstrap):
        self.bootstrap, self.directory = bootstrap, directory
        self.source, self.target, self.group = unique("source"), unique("target"), unique("group")
        self.running = []
        self.count = 0

    def start(self):
        face = ("threads", "asyncio")[self.count % 2]
        self.count += 1
        words = [sys.executable, "-m", "tests.client.copier"]
        words += [self.bootstrap, self.source, self.target, self.group, face]
        with open(self.directory / f"copier-{self.count}.log", "wb") as log:
            self.running.append(subprocess.Popen(words, stdout=log, stderr=log))

    def kill(self, place):
        process = self.running.pop(place)
        process.kill()
        process.wait()

    def close(self):
        while self.running:
            self.running[0].send_signal(signal.SIGCONT)
            self.kill(0)

    def said(self):
        """What the copiers have said."""
        logs = sorted(self.directory.glob("copier-*.log"))
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in logs)

    def check_alive(self):
        assert all(process.poll() is None for process in self.running), self.said()


def written(client, topic, first, count):
    """Write numbers, each with the key that it belongs to."""
    with client.transaction() as txn:
        for number in range(first, first + count):
            txn.write(topic, b"%d" % number, key=b"%d" % (number % KEYS))
    return first + count


class Copy:
    """What readers of committed records see in the target, by key."""

    def __init__(self, bootstrap, topic):
        self.cluster = BlockingCluster(bootstrap)
        self.reader = RecordReader(
            self.cluster.core,
            {(topic, partition): EARLIEST for partition in range(PARTITIONS)},
            "read_committed",
        )
        self.numbers = {key: [] for key in range(KEYS)}

    def look(self):
        for batch in self.cluster.run(self.reader.read_round(0.1)).batches:
            for _, _, key, value, _ in walk_fields(batch.records, batch.header.record_count):
                self.numbers[int(key)].append(int(value))
        return sum(map(len, self.numbers.values()))

    def check(self, count):
        """The copy is right, up to what is missing at its end."""
        for key, numbers in self.numbers.items():
            wanted = list(range(key, count, KEYS))
            assert numbers == wanted[: len(numbers)], f"key {key}"


@pytest.fixture
def copiers(tmp_path):
    with stablelog.serve(tmp_path / "data", settings=SETTINGS) as broker:
        made = Copiers(tmp_path, broker.bootstrap)
        yield broker, made
        made.close()


def disturb(broker, copiers, chance):
    """Kill or freeze somebody."""
    kind = chance.choice(("broker", "copier", "copier", "frozen", "other"))
    if kind == "broker":
        broker.kill()
        broker.start()
    elif kind == "copier":
        copiers.kill(chance.randrange(len(copiers.running)))
        copiers.start()
    elif (
        kind == "frozen"
    ):  # until the group has replaced it: then it wakes up, and goes on with what it was doing
        frozen = chance.choice(copiers.running)
        frozen.send_signal(signal.SIGSTOP)
        time.sleep(SESSION_S * chance.uniform(0.5, 2.5))
        frozen.send_signal(signal.SIGCONT)
    elif len(copiers.running) < 3:
        copiers.start()
    else:
        copiers.kill(0)
    return kind


def copies_once(broker, copiers, chance, kills=KILLS):
    """Copiers have copied each record once, whoever was killed."""
    with stablelog.connect(broker.bootstrap, deadline=60) as client:
        for topic in (copiers.source, copiers.target):
            client.admin.topics.create(topic, partitions=PARTITIONS)
        copiers.start()
        copiers.start()
        count = 0
        copy = Copy(broker.bootstrap, copiers.target)
        for _ in range(kills):
            count = written(client, copiers.source, count, chance.randint(50, 400))
            time.sleep(chance.uniform(0, 0.5))  # somewhere in a copier's transaction
            disturb(broker, copiers, chance)
            copiers.check_alive()
            copy.look()
            copy.check(count)
        count = written(client, copiers.source, count, 100)
        until(
            lambda: copiers.check_alive() or copy.look() >= count,
            lambda: f"{copy.look()} of {count}: {copiers.said()}",
            patience_s=PATIENCE_S,
        )
        copy.check(count)
        assert copy.look() == count
        copy.cluster.close()


def test_a_copy_has_each_record_once_whoever_is_killed(copiers):
    copies_once(*copiers, randomness("copier"))
