"""`make bench`: throughput, transactions and abort lookups, with the physical limits beside them.

Medians of several runs. A comparison with Apache Kafka in the same run is not here yet.
"""

import argparse
import json
import os
import platform
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from rich.console import Console
from rich.table import Table

import stablelog
from stablelog.batch.markers import Marker, MarkerType
from stablelog.batch.records import Record, encode_batch
from stablelog.env.disk import LocalDisk
from stablelog.log.partition import Isolation, LogConfig, MarkerWrite, Partition

MB = 1e6
_names = iter(range(1 << 30))


def produce(address: str, size: int, count: int) -> float:
    """MB/s of one librdkafka producer, acks=all."""
    topic = f"produce-{next(_names)}"
    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "acks": "all",
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    value = os.urandom(size)
    producer.list_topics(topic, timeout=10)
    began = time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(120) == 0
    produce.topic = topic  # type: ignore[attr-defined]
    return count * size / (time.perf_counter() - began) / MB


def fetch(address: str, size: int, count: int) -> float:
    """MB/s of one read-committed librdkafka consumer, of what `produce` has written last."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "max.partition.fetch.bytes": 10 << 20,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(produce.topic, 0, 0)])  # type: ignore[attr-defined]
    began, got = time.perf_counter(), 0
    while got < count:
        got += len(consumer.consume(min(10_000, count - got), timeout=10))
    seconds = time.perf_counter() - began
    consumer.close()
    return count * size / seconds / MB


def transactions(address: str, records: int, count: int) -> tuple[float, float, float]:
    """(transactions per second, p50 and p99 of commit in ms) of one librdkafka producer."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": f"bench-{next(_names)}",
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    commits = []
    began = time.perf_counter()
    for _ in range(count):
        producer.begin_transaction()
        for _ in range(records):
            producer.produce("transactions", bytes(100))
        asked = time.perf_counter()
        producer.commit_transaction(30)
        commits.append((time.perf_counter() - asked) * 1000)
    commits.sort()
    return count / (time.perf_counter() - began), commits[count // 2], commits[int(count * 0.99)]


def abort_lookup(segments: int, aborts: int) -> float:
    """Microseconds to find the aborted transactions of a fetch, with so many aborts in so many segments."""
    with tempfile.TemporaryDirectory() as directory:
        marker = Marker(MarkerType.ABORT, 0)
        partition = Partition.open(
            LocalDisk(), Path(directory) / "t-0", LogConfig(), topic="t", partition=0, clean=True, now_ms=1
        )
        for at in range(aborts):
            batch = encode_batch(
                [Record(0, 1, None, b"")],
                producer_id=1,
                producer_epoch=0,
                base_sequence=at,
                transactional=True,
            )
            partition.append(batch, now_ms=1)
            partition.append_markers([MarkerWrite(1, 0, marker)], now_ms=1)
            if at % (aborts // segments) == aborts // segments - 1:
                partition.roll(1)
        partition.assume_synced()
        end = partition.end_offset
        places = [end * n // 1000 for n in range(1, 990)]
        for place in places:
            partition.aborted_in(place, place + 20)
        began = time.perf_counter()
        for place in places:
            partition.aborted_in(place, place + 20)
        taken = (time.perf_counter() - began) / len(places) * 1e6
        assert partition.read(0, 100, Isolation.READ_COMMITTED).aborted
        partition.close(clean=False)
        return taken


def start_to_first_record() -> float:
    """Seconds from starting a process to its first acknowledged record."""
    began = time.perf_counter()
    with stablelog.serve() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        producer.produce("first", b"x")
        assert producer.flush(30) == 0
        return time.perf_counter() - began


def memory_mb(pid: int) -> float:
    """Anonymous memory of a process: without the mapped segments, which are the page cache's."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def limits() -> dict[str, float]:
    """What the machine does at best."""
    block = os.urandom(64 << 20)
    began = time.perf_counter()
    bytes(bytearray(block))
    copied = 2 * len(block) / (time.perf_counter() - began) / MB
    with tempfile.NamedTemporaryFile() as file:
        syncs = []
        for _ in range(200):
            os.write(file.fileno(), bytes(100))
            asked = time.perf_counter()
            os.fdatasync(file.fileno())
            syncs.append(time.perf_counter() - asked)
    left, right = socket.socketpair()
    sender = threading.Thread(target=lambda: [left.sendall(block) for _ in range(4)])
    began, got = time.perf_counter(), 0
    sender.start()
    while got < 4 * len(block):
        got += len(right.recv(1 << 20))
    looped = got / (time.perf_counter() - began) / MB
    sender.join()
    return {
        "memory copy, MB/s": copied,
        "socket, MB/s": looped,
        "fdatasync of 100 B, ms": statistics.median(syncs) * 1000,
    }


def median_of(runs: int, measure: Callable[[], float]) -> float:
    """The median of several runs."""
    return statistics.median(measure() for _ in range(runs))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, one run")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    runs, scale = (1, 10) if arguments.quick else (3, 1)
    found: dict[str, float] = limits()
    console = Console(stderr=True)
    with console.status("measuring"), stablelog.serve() as broker:
        found["idle memory, MB"] = memory_mb(broker.pid)
        for size, count in ((1000, 300_000 // scale), (100, 1_000_000 // scale)):
            found[f"produce {size} B, MB/s"] = median_of(
                runs, lambda s=size, c=count: produce(broker.bootstrap, s, c)
            )
            found[f"fetch {size} B, MB/s"] = median_of(
                runs, lambda s=size, c=count: fetch(broker.bootstrap, s, c)
            )
        found["loaded memory, MB"] = memory_mb(broker.pid)
        for records in (1, 10, 1000):
            rate, p50, p99 = transactions(broker.bootstrap, records, max(500 // scale, 50))
            found |= {
                f"transactions of {records}, per s": rate,
                f"commit of {records}, p50 ms": p50,
                f"commit of {records}, p99 ms": p99,
            }
    found["start to first record, s"] = median_of(runs, start_to_first_record)
    for segments in (10, 100, 1000):
        found[f"abort lookup, {segments} segments, us"] = abort_lookup(segments, 100_000 // scale)
    if arguments.json:
        print(json.dumps(found))
        return
    table = Table(
        title=f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        title_justify="left",
    )
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in found.items():
        table.add_row(name, f"{value:,.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
