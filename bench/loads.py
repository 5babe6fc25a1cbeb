"""What do clients do to a broker, and how fast was it?

Every load takes an address and knows nothing of whose broker answers there. The client is librdkafka through
confluent-kafka, but for `fetch_undecoded`, which shows what brokers hand out when no client makes objects of it.
"""

import contextlib
import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from peers import apache_kafka
from stablelog.batch.header import headers_in

MB = 1e6
QUIET = {"log_level": 0}
PATIENCE_S = 60.0
READ_SIZE_MAX = 1 << 20  # as clients ask by default
E2E_LATENCY = "org.apache.kafka.tools.EndToEndLatency"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of one partition that is full of equal records."""

    name: str
    record_size: int
    record_count: int

    @property
    def megabytes(self) -> float:
        """The values that it holds."""
        return self.record_size * self.record_count / MB


@contextlib.contextmanager
def topic_of(bootstrap: str, record_size: int, record_count: int) -> Iterator[Topic]:
    """A topic for the block, not written to yet."""
    topic = Topic(f"records-{os.getpid()}-{next(_numbers)}", record_size, record_count)
    Producer({"bootstrap.servers": bootstrap, **QUIET}).list_topics(topic.name, timeout=PATIENCE_S)
    yield topic
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.delete_topics([topic.name])[topic.name].result()


def produce(bootstrap: str, topic: Topic) -> float:
    """Fill the topic with one producer, acks=all. Returns MB/s."""
    producer = producer_of(bootstrap, topic)
    began = time.perf_counter()
    fill(producer, topic)
    return topic.megabytes / (time.perf_counter() - began)


def producer_of(bootstrap: str, topic: Topic) -> Producer:
    """A producer with acks=all that knows the topic's leader."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            **QUIET,
        }
    )
    producer.list_topics(topic.name, timeout=PATIENCE_S)
    return producer


def fill(producer: Producer, topic: Topic) -> None:
    """Produce the topic's records, and wait until all are acknowledged."""
    value = os.urandom(topic.record_size)
    for _ in range(topic.record_count):
        while True:
            try:
                producer.produce(topic.name, value)
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(PATIENCE_S)
    assert left == 0, f"{left} records were not acknowledged"


def fetch(bootstrap: str, topic: Topic) -> float:
    """Read the topic with one read-committed consumer. Returns MB/s."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "max.partition.fetch.bytes": READ_SIZE_MAX,
            "fetch.queue.backoff.ms": 1,  # by default a client that cannot keep up pauses for a second
            "enable.auto.commit": False,
            **QUIET,
        }
    )
    consumer.assign([TopicPartition(topic.name, 0, 0)])
    began, count = time.perf_counter(), 0
    while count < topic.record_count:
        got = consumer.consume(min(10_000, topic.record_count - count), timeout=PATIENCE_S)
        assert got, f"{topic.record_count - count} records did not come"
        count += len(got)
    seconds = time.perf_counter() - began
    consumer.close()
    return topic.megabytes / seconds


def fetch_undecoded(bootstrap: str, topic: Topic) -> float:
    """Read the topic, read-committed, looking only at the headers of batches. Returns MB/s of values."""
    host, _, port = bootstrap.rpartition(":")
    name = topic.name.encode()
    answer = memoryview(bytearray(READ_SIZE_MAX * 2))
    offset = 0
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        began = time.perf_counter()
        while offset < topic.record_count:
            connection.sendall(fetch_request(name, offset))
            receive(connection, answer[:4])
            size = int.from_bytes(answer[:4], "big")
            receive(connection, answer[:size])
            offset = end_of_records(answer[:size], len(name), offset)
        return topic.megabytes / (time.perf_counter() - began)


def fetch_request(name: bytes, offset: int, size_max: int = READ_SIZE_MAX, partition: int = 0) -> bytes:
    """Fetch v4, read committed: a partition from an offset."""
    body = struct.pack(">hhih", 1, 4, 0, -1)  # Fetch, version 4, correlation id, no client id
    body += struct.pack(">iiiib", -1, 500, 1, size_max, 1)  # replica, wait ms, bytes min, max, isolation
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiqi", 1, partition, offset, size_max)
    return struct.pack(">i", len(body)) + body


def receive(connection: socket.socket, into: memoryview) -> None:
    """Fill a buffer from a connection."""
    at = 0
    while at < len(into):
        count = connection.recv_into(into[at:])
        assert count, "the broker closed the connection"
        at += count


def end_of_records(answer: memoryview, name_size: int, offset: int) -> int:
    """The offset after the records of a Fetch v4 answer for one partition in which nothing was aborted.

    It is the asked offset where the broker wants to be asked again: the segment is not proven yet.
    """
    at = 4 + 4 + 4 + 2 + name_size + 4  # correlation id, throttle, topics, name, partitions
    _, error, _, _, aborted_count = struct.unpack_from(">ihqqi", answer, at)
    if error == ErrorCode.not_leader_or_follower:
        return offset
    assert error == 0, f"the broker answered with error {error}"
    assert aborted_count <= 0
    at += struct.calcsize(">ihqqi") + 4  # and the size of the records
    for _, header in headers_in(answer[at:]):
        offset = header.next_offset
    return offset


def percentile(figures: Iterable[float], percent: float) -> float:
    """The figure that so many percent do not pass."""
    row = sorted(figures)
    return row[min(int(len(row) * percent / 100), len(row) - 1)]


@dataclass(frozen=True, slots=True)
class Transactions:
    """How a row of transactions went."""

    per_s: float
    commit_ms: list[float]  # of commit_transaction() alone


def transactions(bootstrap: str, record_count: int, seconds: float, producers: int = 1) -> Transactions:
    """Commit transactions for some seconds, one after the other from each producer.

    Args:
        bootstrap: the broker.
        record_count: records of 100 B in each transaction.
        seconds: how long.
        producers: how many work side by side, each with its own transactional id and topic.
    """
    commits = Committers(bootstrap, record_count, producers).commit(lambda began: _until(began + seconds))
    return Transactions(len(commits) / seconds, commits)


def _until(deadline_s: float) -> Iterator[None]:
    """Something at least once, and then until a time: also on a machine that stands still."""
    yield
    while time.perf_counter() < deadline_s:
        yield


class Committers:
    """Producers that commit transactions side by side, each with its own transactional id and topic.

    Each has committed one transaction when this returns, so that its topic is there.

    Args:
        bootstrap: the broker.
        record_count: records of 100 B in each transaction.
        count: of the producers.
    """

    def __init__(self, bootstrap: str, record_count: int, count: int = 1) -> None:
        self._record_count = record_count
        self._producers: list[tuple[str, Producer]] = []
        for _ in range(count):
            name = f"transactions-{os.getpid()}-{next(_numbers)}"
            settings = {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0, **QUIET}
            producer = Producer(settings)
            producer.init_transactions(PATIENCE_S)
            self._commit(name, producer)
            self._producers.append((name, producer))

    def commit(self, times: Callable[[float], Iterable[object]]) -> list[float]:
        """Commit transactions, one after the other from each producer.

        Args:
            times: given the time at which all begin, what each producer commits one transaction for.

        Returns:
            Milliseconds of each commit_transaction() alone.
        """
        ready = threading.Barrier(len(self._producers))
        commits: list[list[float]] = [[] for _ in self._producers]

        def work(name: str, producer: Producer, found: list[float]) -> None:
            ready.wait(PATIENCE_S)
            found.extend(self._commit(name, producer) for _ in times(time.perf_counter()))

        threads = [
            threading.Thread(target=work, args=(*one, found))
            for one, found in zip(self._producers, commits, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(commits), "a producer failed"
        return list(itertools.chain.from_iterable(commits))

    def _commit(self, name: str, producer: Producer) -> float:
        value = bytes(100)
        producer.begin_transaction()
        for _ in range(self._record_count):
            producer.produce(name, value)
        asked = time.perf_counter()
        producer.commit_transaction(PATIENCE_S)
        return (time.perf_counter() - asked) * 1000


def end_to_end(bootstrap: str, count: int, per_s: int = 200) -> float:
    """Send records of 100 B at a steady pace, acks=all, to a waiting read-committed consumer.

    Returns:
        The 99th percentile, in ms, of the time from when a record was due to be sent to when the consumer had it.
    """
    with topic_of(bootstrap, 100, count) as topic:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                **QUIET,
            }
        )
        consumer.assign([TopicPartition(topic.name, 0, 0)])
        arrived: list[float] = []

        def receive(record_count: int) -> None:
            for _ in range(record_count):
                message = consumer.poll(PATIENCE_S)
                assert message is not None, "the records stopped coming"
                arrived.append(time.perf_counter())

        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, **QUIET})
        producer.produce(topic.name, bytes(100))  # the first one finds the way
        producer.flush(PATIENCE_S)
        receive(1)
        thread = threading.Thread(target=receive, args=(count,))
        thread.start()
        began = time.perf_counter() + 0.1
        due = [began + n / per_s for n in range(count)]
        for at in due:
            time.sleep(max(at - time.perf_counter(), 0))
            producer.produce(topic.name, bytes(100))
            producer.poll(0)
        producer.flush(PATIENCE_S)
        thread.join()
        consumer.close()
        latencies = (came - sent for came, sent in zip(arrived[1:], due, strict=True))
        return percentile(latencies, 99) * 1000


def kafka_e2e_latency(bootstrap: str, count: int) -> float:
    """Run Kafka's own `kafka-e2e-latency.sh`: records of 100 B, acks=all, each sent when the last one was read.

    Its consumer asks only once the record is acknowledged, and never waits at the broker.

    Returns:
        Its mean, in ms. Its percentiles are whole milliseconds.
    """
    topic = f"e2e-{os.getpid()}-{next(_numbers)}"
    told = apache_kafka.run_tool(E2E_LATENCY, bootstrap, topic, str(count), "all", "100")
    return float(told.partition("Avg latency: ")[2].split()[0])


def first_record(bootstrap: str) -> None:
    """Produce one record to a new topic, and wait until it is acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, **QUIET})
    producer.produce("first", b"record")
    assert producer.flush(PATIENCE_S) == 0
