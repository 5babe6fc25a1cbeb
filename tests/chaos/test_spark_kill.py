"""From the log through Spark to the log, exactly once, with everything killed with -9 at every step of a micro-batch.

STABLELOG_SPARK_KILLS says how often, STABLELOG_SPARK_ROWS over how many rows. See `spark_driver` for the steps.
"""

import collections
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

import stablelog
from stablelog.client.blocking.cluster import LATEST, BlockingCluster
from tests.chaos.spark_driver import STEPS, held, identity, kill_held, write
from tests.client.blocking.test_producer import made
from tests.scale import randomness
from tests.waiting import until

KILLS = int(os.environ.get("STABLELOG_SPARK_KILLS", "3"))
ROWS = int(os.environ.get("STABLELOG_SPARK_ROWS", "1200"))
PARTITIONS = 3
TIMEOUT_S, READ_TIMEOUT_S, TRIES = 300, 60, 5
TARGETS = ("worker", "broker", "driver")
# What a short run kills: it has time for one Java process more than the first.
SHORT = [("written", "worker"), ("asked", "broker"), ("decided", "driver"), ("writing", "broker")]
# Nobody in particular writes Spark's commit log, so there is no worker to kill.
EVERY = [
    (name, target)
    for name in STEPS
    for target in TARGETS
    if not (name.startswith("commit log") and target == "worker")
]
ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300 + 60 * KILLS)]


class Reader:
    """All committed records of a topic, read as they come: (partition, offset) -> value, in order."""

    def __init__(self, bootstrap, topic):
        self.cluster = BlockingCluster(bootstrap, deadline_s=TIMEOUT_S)
        self.topic = topic
        self.found = {}
        self.reached = dict.fromkeys(range(PARTITIONS), 0)  # markers and aborted records are passed over too
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
                "error_cb": lambda _error: None,
            }
        )
        self.consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])

    def read(self):
        """Everything that is stable now."""
        ends = self.cluster.list_offsets({(self.topic, p): LATEST for p in range(PARTITIONS)})
        deadline = time.monotonic() + READ_TIMEOUT_S
        while any(self.reached[p] < ends[self.topic, p].offset for p in range(PARTITIONS)):
            assert time.monotonic() < deadline, f"{self.topic} read to {self.reached}, stable to {ends}"
            for message in self.consumer.consume(10_000, 0.02):
                error, partition, offset = message.error(), message.partition(), message.offset()
                if error is None:
                    assert (partition, offset) not in self.found
                    self.found[partition, offset] = message.value()
                    self.reached[partition] = offset + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self.reached[partition] = max(self.reached[partition], offset)
        return self.found

    def close(self):
        self.consumer.close()
        self.cluster.close()


class Run:
    """A broker, a driver and what is between them."""

    def __init__(self, directory, broker):
        self.directory, self.broker = directory, broker
        self.source, self.sink = Reader(broker.bootstrap, "in"), Reader(broker.bootstrap, "out")
        self.driver = None
        self.row_count = 0
        self.kills = collections.Counter()
        # Of drivers killed about Spark's commit log, whether it was written.
        self.logged = collections.Counter()
        self.torn_checks = self.broker_starts = 0
        write(directory / "broker.json", [identity(broker.pid)])
        self.closing = threading.Event()
        self.keeper = threading.Thread(target=self.keep_broker)
        self.keeper.start()

    def keep_broker(self):
        """Start the broker again whenever it is killed."""
        while not self.closing.wait(0.02):
            # The process stays a zombie, which the broker's `kill` collects.
            if os.waitid(os.P_PID, self.broker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                self.broker.kill()
                self.broker.start()
                write(self.directory / "broker.json", [identity(self.broker.pid)])
                self.broker_starts += 1

    def start_driver(self):
        paths = (ROOT / "tests" / "spark" / "users", ROOT, ROOT / "src")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in paths)}
        command = [sys.executable, "-m", "tests.chaos.spark_driver", str(self.directory)]
        with (self.directory / "driver.log").open("ab") as log:
            self.driver = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    def end_driver(self):
        """The driver is dead, or is to be: with its Java process."""
        with contextlib.suppress(FileNotFoundError):
            kill_held(held(json.loads((self.directory / "driver.json").read_text())))
            (self.directory / "driver.json").unlink()
        self.driver.kill()
        self.driver.wait(TIMEOUT_S)

    def produce(self, count, *, between=False):
        """More rows, in a transaction that is committed; perhaps with one in between that is not."""
        for _ in range(TRIES):
            try:
                self.try_to_produce(count, between=between)
                break
            except KafkaException as failure:
                last = failure  # killed meanwhile. Perhaps the rows are there twice now: what counts is what the topic has
        else:
            raise AssertionError("nothing can be written") from last
        self.row_count += count

    def try_to_produce(self, count, *, between):
        producer = Producer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "transactional.id": "writer",
                "log_level": 0,
                "error_cb": lambda _error: None,
            }
        )
        producer.init_transactions(30)
        for commit in (False, True) if between else (True,):
            producer.begin_transaction()
            for number in range(self.row_count, self.row_count + count):
                value = b"%d" % number if commit else b"never"
                producer.produce("in", value, key=b"%d" % (number % 97), partition=number % PARTITIONS)
            producer.flush(30)
            (producer.commit_transaction if commit else producer.abort_transaction)(30)

    def kill(self, name, target, chance):
        """Have the next micro-batches killed at a step, and what was killed started again."""
        self.say(f"kill {sum(self.kills.values()) + 1}: {target} at {name!r}")
        fired = self.directory / "fired.json"
        fired.unlink(missing_ok=True)
        starts = self.broker_starts
        delay_s = round(chance.uniform(0, 0.15), 3)
        skip = chance.randrange(2)
        write(
            self.directory / "plan.json", {"step": name, "target": target, "skip": skip, "delay_s": delay_s}
        )
        self.produce(max(ROWS // KILLS, 1) + 1, between=chance.random() < 0.3)
        self.wait_for(fired.exists)
        self.kills[name, target] += 1
        self.say("fired")
        if target == "driver":
            self.driver.wait(TIMEOUT_S)
            self.end_driver()
            logged = Path(json.loads(fired.read_text())["logged"]).exists()
            if name.startswith("commit log"):
                self.logged["written" if logged else "not written"] += 1
            assert logged or name != "commit logged"
            self.check_whole()
            self.start_driver()
        elif target == "broker":
            self.wait_for(lambda: self.broker_starts > starts)

    def wait_for(self, condition):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                self.say("failures:\n" + self.failures()[-4000:])
                raise AssertionError("the pipeline stands still")
            if self.driver.poll() is not None and not (self.directory / "fired.json").exists():
                raise AssertionError(f"the driver ended by itself: {self.driver.returncode}")
            time.sleep(0.02)

    def wait_until_all_is_there(self):
        self.wait_for(lambda: len(self.sink.read()) >= len(self.source.read()))

    def failures(self):
        path = self.directory / "failures.txt"
        return path.read_text() if path.exists() else ""

    def wanted(self, before=None):
        """The rows that have to be there: all, or those before these offsets of the source."""
        return collections.Counter(
            b"row " + value
            for (partition, offset), value in self.source.read().items()
            if before is None or offset < before.get(partition, 0)
        )

    def check_whole(self):
        """With no driver: what readers see is exactly what the decisions say was read. Nothing torn."""

        def is_whole():
            # A decision's markers may be on their way, and so may a decision that the driver had just asked for.
            wanted = self.wanted(self.progress())
            return collections.Counter(self.sink.read().values()) == wanted

        until(is_whole, "a part of a micro-batch is seen, or a part is not")
        self.torn_checks += 1

    def progress(self):
        consumer = Consumer(
            {"bootstrap.servers": self.broker.bootstrap, "group.id": "progress", "log_level": 0}
        )
        places = consumer.committed([TopicPartition("in", p) for p in range(PARTITIONS)], timeout=30)
        consumer.close()
        return {place.partition: max(place.offset, 0) for place in places}

    def say(self, text):
        if len(SHORT) < KILLS:
            print(time.strftime("%H:%M:%S"), text, flush=True)

    def close(self):
        (self.directory / "stop").touch()
        self.closing.set()
        self.keeper.join()
        self.end_driver()
        self.source.close()
        self.sink.close()


def plans(chance):
    """Every step with every target, in any order. A driver takes the longest to come back: it is killed less often."""
    if len(SHORT) >= KILLS:
        return SHORT[:KILLS]
    seldom = [plan for plan in EVERY if plan[1] == "driver"]
    often = [plan for plan in EVERY if plan[1] != "driver"]
    chosen = []
    while len(chosen) < KILLS:
        chosen += chance.sample(seldom, len(seldom)) + chance.sample(2 * often, 2 * len(often))
    chosen = chosen[:KILLS]
    chance.shuffle(chosen)
    return chosen


def by_step(kills):
    """At each step of a micro-batch, how many of whom were killed."""
    return {name: {target: kills[name, target] for target in TARGETS} for name in STEPS}


@pytest.mark.night
def test_each_row_once_whatever_is_killed(tmp_path):
    chance = randomness(KILLS)
    with stablelog.serve(tmp_path / "data") as broker:
        for topic in ("in", "out"):
            made(broker.bootstrap, topic, PARTITIONS)
        checkpoint = tmp_path / "checkpoint"
        config = {"bootstrap": broker.bootstrap, "checkpoint": str(checkpoint)}
        write(tmp_path / "config.json", config | {"trigger": max(ROWS // KILLS // 2, 1)})
        run = Run(tmp_path, broker)
        run.start_driver()
        try:
            for name, target in plans(chance):
                run.kill(name, target, chance)
            run.wait_until_all_is_there()
            found = collections.Counter(run.sink.read().values())
            wanted = run.wanted()
            batches = 1 + max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
        finally:
            run.close()
        lost, repeated = wanted - found, found - wanted
        print(
            f"{sum(run.kills.values())} kills ({json.dumps(collections.Counter(t for _, t in run.kills.elements()))}) "
            f"at {len({n for n, _ in run.kills})} steps ({json.dumps(by_step(run.kills))}; Spark's commit log {json.dumps(run.logged)}), {run.row_count} rows in {batches} micro-batches, {run.torn_checks} looks for torn ones: "
            f"{lost.total()} lost, {repeated.total()} repeated, 0 torn; the query was started again {run.failures().count(chr(10))} times"
        )
        assert run.row_count >= ROWS
        assert not lost
        assert not repeated
        if len(EVERY) <= KILLS:
            assert set(run.kills) == set(EVERY)
