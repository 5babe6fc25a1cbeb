"""What an object store that is away does to clients of the local disk: the latency of a producer and of a consumer of the newest
records, while the store answers, refuses connections, or never answers.
"""

import contextlib
import os
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from bench.contestants import OURS
from bench.limits import Limits
from bench.loads import PATIENCE_S, QUIET, fetch_request, percentile, receive
from bench.report import Section, Wanted
from bench.tier_load import STEADY, steady_latencies_ms
from bench.tier_stores import (
    TIERED,
    create,
    fill_partitions,
    local_logs,
    s3_store,
    serve,
    wait_until,
    wait_until_remote,
)
from stablelog.embedded import EmbeddedBroker

ANSWERS = "store answers"
SECONDS = 600.0  # of an outage
WARM_S = 1.0
P99_RATIO_MAX = 1.1
SEGMENT_SIZE = 256 << 10  # 200 records of 100 B a second fill a segment in 10 s
REMOTE_SIZE = 4 * SEGMENT_SIZE
REMOTE_PAUSE_S = 0.2  # between two fetches from the store
ERROR_SIZE_MAX = 1 << 10  # of a response without records
DUE = struct.Struct(">d")
COPIED_END = re.compile(rf"copied \d+ segments of {STEADY}-0 to \S+, up to offset (\d+)")
# How the store goes away and comes back: signals to its process.
OUTAGES = (
    ("refuses connections", signal.SIGUSR1, signal.SIGUSR2),
    ("does not answer", signal.SIGSTOP, signal.SIGCONT),
)


@dataclass(frozen=True, slots=True)
class Latencies:
    """The latencies of one producer and one consumer, in ms, from when each record was due to be sent.

    Attributes:
        produced: to the acknowledgement.
        read: to the record's arrival at the consumer.
    """

    produced: list[float]
    read: list[float]


def latencies(broker: EmbeddedBroker, seconds: float) -> Latencies:
    """Produce at a steady pace, and read the records as they come."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "bench", **QUIET})
    partition = TopicPartition(STEADY, 0)
    _, partition.offset = consumer.get_watermark_offsets(partition, timeout=PATIENCE_S)
    consumer.assign([partition])
    is_over = threading.Event()
    found: list[float] = []

    def read() -> None:
        while not is_over.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                (due_s,) = DUE.unpack_from(message.value())
                found.append((time.perf_counter() - due_s) * 1000)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        produced = steady_latencies_ms(broker, seconds, lambda due_s: DUE.pack(due_s).ljust(100))
        # One record more is read than counts: the first one finds the way.
        wait_until(lambda: len(found) > len(produced), "all records are read")
    finally:
        is_over.set()
        thread.join()
        consumer.close()
    return Latencies(produced, found[1:])


@dataclass(frozen=True, slots=True)
class Side:
    """A broker with a store of its own."""

    store_pid: int
    broker: EmbeddedBroker


@contextlib.contextmanager
def side() -> Iterator[Side]:
    """Run a broker and its store while the block runs. The topic "remote" is only in the store."""
    with s3_store(0) as store, serve(store.url) as broker:
        assert store.pid is not None
        config = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_SIZE)}
        create(broker.bootstrap, STEADY, config)
        create(broker.bootstrap, "remote", TIERED | {"segment.bytes": str(SEGMENT_SIZE)})
        fill_partitions(broker.bootstrap, "remote", 1, REMOTE_SIZE)
        wait_until_remote(broker.data, "remote")
        yield Side(store.pid, broker)


def measured(sides: tuple[Side, ...], seconds: float) -> list[Latencies]:
    """Measure the clients of several brokers at the same time."""
    with ThreadPoolExecutor(len(sides)) as threads:
        return list(threads.map(lambda one: latencies(one.broker, seconds), sides))


def local_clients_while_away(section: Section, seconds: float, best: Limits) -> None:
    """Measure local clients while the store of their broker is away for so long, once for each kind of outage, and beside
    them those of a second broker, whose store answers. So whatever else the machine does meanwhile, it does to both.
    """
    limit = best.sync_ms + best.round_trip_ms
    with side() as one, side() as other:
        measured((one, other), WARM_S)  # warms up, and is not counted
        for (name, leave, come_back), sides in zip(OUTAGES, ((one, other), (other, one)), strict=True):
            away = sides[0]
            os.kill(away.store_pid, leave)
            try:
                with remote_reader(away.broker) as waits_ms:
                    ours, theirs = measured(sides, seconds)
            finally:
                os.kill(away.store_pid, come_back)
            copied_s = until_copied_s(away.broker)
            prefix, wanted = f"the store {name}", Wanted(P99_RATIO_MAX, at_most=True)
            for what, figures, others in (
                ("produce at 200 records/s", ours.produced, theirs.produced),
                ("a consumer of these records", ours.read, theirs.read),
            ):
                row = section.row(f"{prefix}: {what}, p99 ms", wanted=wanted, limit=limit)
                row.add(OURS, percentile(figures, 99))
                row.add(ANSWERS, percentile(others, 99))
            row = section.row(f"{prefix}: longest fetch from the store, ms", limit=fetch_wait_ms())
            row.add(OURS, max(waits_ms))
            section.row(f"{prefix}: copies are complete again, s").add(OURS, copied_s)


def fetch_wait_ms() -> float:
    """Return for how long the fetches from the store may wait."""
    (wait_ms,) = struct.unpack_from(">i", fetch_request(b"", 0), 4 + 10 + 4)
    return float(wait_ms)


@contextlib.contextmanager
def remote_reader(broker: EmbeddedBroker) -> Iterator[list[float]]:
    """Fetch an offset that is only in the store, again and again, while the block runs. Yields the times of the fetches, in
    ms. No response may have records.
    """
    waits_ms: list[float] = []
    failures: list[str] = []
    is_over = threading.Event()

    def read() -> None:
        with socket.create_connection((broker.host, broker.port), timeout=PATIENCE_S) as connection:
            while not is_over.wait(REMOTE_PAUSE_S):
                asked_s = time.perf_counter()
                connection.sendall(fetch_request(b"remote", 0))
                head = memoryview(bytearray(4))
                receive(connection, head)
                answer = memoryview(bytearray(int.from_bytes(head, "big")))
                receive(connection, answer)
                waits_ms.append((time.perf_counter() - asked_s) * 1000)
                if len(answer) > ERROR_SIZE_MAX:
                    failures.append(f"the response has {len(answer)} bytes")

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield waits_ms
    finally:
        is_over.set()
        thread.join()
    assert waits_ms, "nothing was fetched from the store"
    assert not failures, f"the store is away, and {failures[0]}"


def until_copied_s(broker: EmbeddedBroker) -> float:
    """Wait until all sealed segments are copied. Return how long that took."""
    begun_s = time.perf_counter()
    log = broker.log_path
    active = int(local_logs(broker.data, STEADY)[-1].stem)
    wait_until(
        lambda: max([0, *map(int, COPIED_END.findall(log.read_text()))]) >= active,
        f"the sealed segments of {STEADY} are copied",
    )
    return time.perf_counter() - begun_s
