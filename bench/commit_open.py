"""What does an open transaction do to others? In commit order nothing; in an ordinary topic it holds back all that follows.

Small transactions are committed at a steady pace, and a waiting read-committed consumer says when it has their records:
with nobody else there, beside a transaction that stays open, and beside one of a gigabyte that is written, committed
and read.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.commit_fetch import fetch_undecoded
from bench.contestants import OURS, memory_mb
from bench.interleaved import ORDERS
from bench.limits import Limits
from bench.loads import MB, PATIENCE_S, QUIET, Topic, percentile
from bench.report import Section, Wanted
from stablelog.embedded import EmbeddedBroker

PAUSE_S = 0.01  # between two transactions
WITHHELD_S = 1.0  # what has not come after so long is withheld
LONG_RECORD_SIZE = 100_000


class Pair:
    """A transactional producer and a waiting read-committed consumer of one partition."""

    def __init__(self, bootstrap: str, topic: str, producer_name: str) -> None:
        self.topic = topic
        self._producer = transactional(bootstrap, producer_name)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                **QUIET,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._came: dict[bytes, float] = {}
        self._more = threading.Condition()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()
        self._serial = 0

    def _receive(self) -> None:
        while not self._ends.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() or not (message.value() or b"").startswith(b"seen "):
                continue
            with self._more:
                self._came[message.value()] = time.perf_counter()
                self._more.notify_all()

    def commit(self, patience_s: float) -> float | None:
        """Commit a transaction of one record. Returns the ms until the consumer has it, None if it does not come."""
        self._serial += 1
        value = b"seen %d" % self._serial
        self._producer.begin_transaction()
        self._producer.produce(self.topic, value)
        self._producer.flush(PATIENCE_S)
        asked = time.perf_counter()
        self._producer.commit_transaction(PATIENCE_S)
        with self._more:
            if not self._more.wait_for(lambda: value in self._came, patience_s):
                return None
            return (self._came[value] - asked) * 1000

    def observe(self, until: Callable[[], bool]) -> list[float]:
        """Commit until it is enough, and once at least. Returns how soon each could be read, in ms as `commit` does."""
        seen: list[float] = []
        while not (seen and until()):
            took = self.commit(PATIENCE_S)
            assert took is not None, "a committed record did not come"
            seen.append(took)
            time.sleep(PAUSE_S)
        return seen

    def withheld(self, count: int) -> int:
        """Commit so many transactions. Returns how many of their records the consumer does not get."""
        values = []
        for _ in range(count):
            self._serial += 1
            values.append(b"seen %d" % self._serial)
            self._producer.begin_transaction()
            self._producer.produce(self.topic, values[-1])
            self._producer.commit_transaction(PATIENCE_S)
        with self._more:
            self._more.wait_for(lambda: all(value in self._came for value in values), WITHHELD_S)
            return sum(value not in self._came for value in values)

    def close(self) -> None:
        """End both."""
        self._ends.set()
        self._thread.join()
        self._consumer.close()


def transactional(bootstrap: str, name: str) -> Producer:
    """A producer that is ready to begin a transaction."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "linger.ms": 0,
            "transaction.timeout.ms": 600_000,
            "batch.size": 1_000_000,
            **QUIET,
        }
    )
    producer.init_transactions(PATIENCE_S)
    return producer


@contextlib.contextmanager
def a_pair(broker: EmbeddedBroker, contestant: str, name: str) -> Iterator[Pair]:
    """A new topic in this order with a producer and a consumer, warmed up."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
    topic = f"{name}-{ORDERS[contestant]}"
    admin.create_topics([NewTopic(topic, 1, config={"stablelog.order": ORDERS[contestant]})])[topic].result()
    pair = Pair(broker.bootstrap, topic, topic)
    try:
        for _ in range(5):
            pair.commit(PATIENCE_S)
        yield pair
    finally:
        pair.close()


def counted(count: int) -> Callable[[], bool]:
    """Whether it was asked more often than that."""
    left = [count]

    def enough() -> bool:
        left[0] -= 1
        return left[0] < 0

    return enough


def measure_open(broker: EmbeddedBroker, count: int, best: Limits, section: Section) -> None:
    """Commit with nobody else there and beside an open transaction, in both orders."""
    limit = 2 * best.sync_ms + 2 * best.round_trip_ms
    for contestant in ORDERS:
        with a_pair(broker, contestant, "open") as pair:
            alone = pair.observe(counted(count))
            neighbour = transactional(broker.bootstrap, f"neighbour-{contestant}")
            neighbour.begin_transaction()
            neighbour.produce(pair.topic, b"undecided")
            neighbour.flush(PATIENCE_S)
            beside = pair.observe(counted(count)) if contestant == OURS else []
            withheld = 0 if contestant == OURS else pair.withheld(20)
            neighbour.abort_transaction(PATIENCE_S)
        for percent in (50, 99):
            section.row(f"commit to visible, nobody else there, p{percent} ms", limit=limit).add(
                contestant, percentile(alone, percent)
            )
        for percent in (50, 99):
            row = section.row(f"commit to visible, beside an open transaction, p{percent} ms", limit=limit)
            if beside:
                row.add(contestant, percentile(beside, percent))
        aim = Wanted(0, at_most=True, of_figure=True)
        section.row("withheld while it is open, of 20 transactions", wanted=aim).add(contestant, withheld)


def measure_long(broker: EmbeddedBroker, megabytes: int, section: Section) -> None:
    """Write, commit and read one long transaction, while another producer commits small ones.

    While it is written, they go to the same partition; while it is committed and read, to another topic: what follows
    it in its own partition can be read as soon, but stands behind its bytes.
    """
    for contestant in ORDERS:
        seen: dict[str, list[float]] = {}
        with a_pair(broker, contestant, "long") as same, a_pair(broker, contestant, "other") as other:
            memory_before = memory_mb(broker.pid)
            long = _Long(broker, same.topic, megabytes)
            seen["before"] = same.observe(counted(100))
            if contestant == OURS:  # in an ordinary topic nothing is to be seen until it ends
                seen["while it is written"] = _observe_during(long.write, same)
            else:
                long.write()
            seen["while it is committed and read"] = _observe_during(long.commit_and_read, other)
            memory = long.memory_at_most_mb - memory_before
        section.row(f"{megabytes:,} MB written, MB/s").add(contestant, long.write_mb_s)
        section.row("its commit, ms").add(contestant, long.commit_ms)
        section.row("read, MB/s").add(contestant, long.read_mb_s)
        section.row("the broker's memory grows by, MB").add(contestant, max(memory, 0))
        for phase, took in seen.items():
            for percent in (50, 99):
                row = section.row(f"others' commit to visible {phase}, p{percent} ms")
                row.add(contestant, percentile(took, percent))


def _observe_during(work: Callable[[], None], pair: Pair) -> list[float]:
    thread = threading.Thread(target=work)
    thread.start()
    seen = pair.observe(lambda: not thread.is_alive())
    thread.join()
    return seen


class _Long:
    """A long transaction, and what the broker's memory is meanwhile."""

    def __init__(self, broker: EmbeddedBroker, topic: str, megabytes: int) -> None:
        self._broker = broker
        self._topic = Topic(topic, LONG_RECORD_SIZE, int(megabytes * MB) // LONG_RECORD_SIZE)
        self._producer = transactional(broker.bootstrap, f"{topic}-one")
        self.memory_at_most_mb = 0.0
        self.write_mb_s = self.commit_ms = self.read_mb_s = 0.0

    def _look(self) -> None:
        self.memory_at_most_mb = max(self.memory_at_most_mb, memory_mb(self._broker.pid))

    def write(self) -> None:
        """All of its records."""
        value = bytes(LONG_RECORD_SIZE)
        began = time.perf_counter()
        self._producer.begin_transaction()
        for number in range(self._topic.record_count):
            while True:
                try:
                    self._producer.produce(self._topic.name, value)
                    break
                except BufferError:
                    self._producer.poll(0.01)
            if number % 100 == 0:
                self._look()
        while self._producer.flush(0.1):
            self._look()
        self.write_mb_s = self._topic.megabytes / (time.perf_counter() - began)

    def commit_and_read(self) -> None:
        """Commit it, and read all that is in the topic by now."""
        asked = time.perf_counter()
        self._producer.commit_transaction(PATIENCE_S)
        self.commit_ms = (time.perf_counter() - asked) * 1000
        self.read_mb_s = fetch_undecoded(self._broker, self._topic).megabytes_per_s
        self._look()
