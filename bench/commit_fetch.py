"""What does commit order cost a reader? Fetches, bytes from disk and the index, beside an ordinary topic of the same data.

In an ordinary topic a transaction's batches are handed out as they lie, among those of others; in commit order the
broker gathers them. That takes the broker's time, so that its processor time stands beside the wall's.
"""

import os
import socket
import struct
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

from bench.contestants import OURS
from bench.interleaved import ORDERS, ORDINARY, Shape, start
from bench.limits import Limits
from bench.loads import PATIENCE_S, READ_SIZE_MAX, Topic, fetch, fetch_request, receive
from bench.report import Section, Wanted
from stablelog.batch.header import CONTROL, HEADER, LENGTH_AND_OFFSET_SIZE
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.commits import describe_commits
from stablelog.commit_order.opening import CommitOrdered
from stablelog.commit_order.view import CommitOrder
from stablelog.embedded import EmbeddedBroker
from stablelog.env.local_disk import LocalDisk
from stablelog.log.files.names import COMMIT_SUFFIXES
from stablelog.log.opening import open_partition
from stablelog.log.partition import LogConfig

LOOKED_AT = struct.Struct(">qi9xhi30xi")  # base offset, length, attributes, last offset delta, records
PAGE_SIZE = 4096
READS = 3  # of a topic, for one figure
AT_LEAST, AT_MOST = 0.7, 2  # of an ordinary topic's rate; bytes read for each that is handed out
SMALL_BATCH_MAX = 4 << 10  # decision 19 wants nothing of the rate of smaller batches


@dataclass(frozen=True, slots=True)
class Fetched:
    """How a read went. `read_size` are the bytes that the broker had the disk read for it, `size` those it handed out."""

    megabytes_per_s: float
    broker_ms_per_mb: float
    size: int
    read_size: int

    @property
    def read_per_byte(self) -> float:
        """Bytes from disk for each that was handed out."""
        return self.read_size / self.size


def processor_s(pid: int) -> float:
    """The processor time that a process's first thread has taken, to the nanosecond: a broker's event loop."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def read_from_disk(pid: int) -> int:
    """The bytes that a process has had the disk read: page faults and reading ahead count."""
    return int(Path(f"/proc/{pid}/io").read_text().split("read_bytes:")[1].split()[0])


def make_cold(broker: EmbeddedBroker, shapes: tuple[Shape, ...]) -> None:
    """Start the broker anew, with nothing of its data in the page cache."""
    broker.stop()
    os.sync()
    for path in broker.data.rglob("*"):
        if path.is_file():
            drop_pages(path)
    start(broker, shapes)


def drop_pages(path: Path) -> None:
    """Have nothing of a file in the page cache, that is on the disk by now. (What is mapped would stay there.)"""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def fetch_undecoded(
    broker: EmbeddedBroker, topic: Topic, *, start: int = 0, size_max: int = READ_SIZE_MAX
) -> Fetched:
    """Read records, read-committed, looking only at the headers of batches.

    Args:
        broker: where.
        topic: what of it is wanted: so many records.
        start: from which position.
        size_max: bytes of one answer.
    """
    answer = memoryview(bytearray(READ_SIZE_MAX * 2))
    name, position, left, size_all = topic.name.encode(), start, topic.record_count, 0
    with socket.create_connection((broker.host, broker.port), timeout=PATIENCE_S) as connection:
        before_s, before_size, began = (
            processor_s(broker.pid),
            read_from_disk(broker.pid),
            time.perf_counter(),
        )
        while left > 0:
            connection.sendall(fetch_request(name, position, size_max))
            receive(connection, answer[:4])
            size = int.from_bytes(answer[:4], "big")
            receive(connection, answer[:size])
            position, count, records_size = _batches_of(answer[:size], len(name), position)
            # Right after a commit an answer may have waited in vain for it to be durable.
            is_late = not records_size and time.perf_counter() - began > PATIENCE_S
            assert not is_late, f"{left} records of {topic.name} did not come"
            left -= count
            size_all += records_size
        seconds = time.perf_counter() - began
        taken_s = processor_s(broker.pid) - before_s
        read_size = read_from_disk(broker.pid) - before_size
    return Fetched(topic.megabytes / seconds, taken_s * 1000 / topic.megabytes, size_all, read_size)


def _batches_of(answer: memoryview, name_size: int, position: int) -> tuple[int, int, int]:
    """(next position, data records, bytes of batches) of a Fetch v4 answer for one partition."""
    at = 4 + 4 + 4 + 2 + name_size + 4  # correlation id, throttle, topics, name, partitions
    _, error, _, _, aborted_count = struct.unpack_from(">ihqqi", answer, at)
    assert error == 0, f"the broker answered with error {error}"
    at += struct.calcsize(">ihqqi") + max(aborted_count, 0) * 16 + 4
    begin, count = at, 0
    while len(answer) - at >= HEADER.size:
        base_offset, length, attributes, last_offset_delta, records = LOOKED_AT.unpack_from(answer, at)
        end = at + length + LENGTH_AND_OFFSET_SIZE
        if end > len(answer):
            break
        if not attributes & CONTROL:
            count += records
        position, at = base_offset + last_offset_delta + 1, end
    return position, count, at - begin


def measure_fetch(
    broker: EmbeddedBroker, shapes: tuple[Shape, ...], run_count: int, best: Limits, section: Section
) -> None:
    """Read the topics of every shape in turn, without decoding and with librdkafka. The first run is not counted."""
    for shape in shapes:
        for run in range(run_count + 1):
            into = section if run else Section("warming up", beside=ORDINARY)
            is_small = shape.records * shape.record_size <= SMALL_BATCH_MAX
            aim = None if is_small else Wanted(AT_LEAST)
            rate = into.row(f"{named(shape)}: fetch, MB/s", wanted=aim, limit=best.loopback_mb_s)
            taken = into.row(f"{named(shape)}: processor time of the broker, ms/MB")
            client = into.row(f"{named(shape)}: fetch by librdkafka, MB/s", wanted=aim)
            for number in range(READS):
                for contestant in sorted(ORDERS, reverse=(run + number) % 2 == 0):
                    got = fetch_undecoded(broker, shape.topic(contestant))
                    rate.add(contestant, got.megabytes_per_s)
                    taken.add(contestant, got.broker_ms_per_mb)
            for contestant in sorted(ORDERS, reverse=run % 2 == 0):
                client.add(contestant, fetch(broker.bootstrap, shape.topic(contestant)))


def measure_reading(
    broker: EmbeddedBroker, shapes: tuple[Shape, ...], run_count: int, section: Section
) -> None:
    """Count what the disk reads for what is handed out: of whole topics, and of single transactions."""
    aim = Wanted(AT_MOST, at_most=True, of_figure=True)
    for run in range(run_count):
        for state in ("cold", "warm"):
            if state == "cold":
                make_cold(broker, shapes)
            for shape in shapes:
                row = section.row(f"{named(shape)}: all of it, {state}", wanted=aim, limit=1)
                for contestant in ORDERS:
                    row.add(contestant, fetch_undecoded(broker, shape.topic(contestant)).read_per_byte)
        make_cold(broker, shapes)
        for shape in shapes:
            row = section.row(
                f"{named(shape)}: one transaction, cold", wanted=aim, limit=_pages_per_byte(shape)
            )
            row.add(OURS, _fetch_one(broker, shape, (run + 1) / (run_count + 1)).read_per_byte)


def _fetch_one(broker: EmbeddedBroker, shape: Shape, place: float) -> Fetched:
    """Read one transaction, at such a part of the topic, and nothing of the next."""
    name = shape.topic(OURS).name
    with BlockingCluster(broker.bootstrap) as cluster:
        end = describe_commits(cluster, name, 0, count_max=1).end_offset
        one = describe_commits(cluster, name, 0, offset=int(end * place), count_max=2).commits[1]
    records = Topic(name, shape.record_size, one.end_offset - one.start_offset)
    size = records.record_count * (shape.record_size + 20) + shape.batches * HEADER.size
    return fetch_undecoded(broker, records, start=one.start_offset, size_max=size)


def _pages_per_byte(shape: Shape) -> float:
    """What the disk reads at least for a batch, which begins anywhere in a page."""
    size = HEADER.size + shape.records * (shape.record_size + 8)
    return (size + PAGE_SIZE - 1) / size


def named(shape: Shape) -> str:
    """The shape in a row's name."""
    return f"{shape.writers} writers, {shape.records * shape.record_size / 1000:g} kB"


def measure_index(directory: Path, shapes: tuple[Shape, ...], section: Section) -> None:
    """Weigh the commit index of topics that no broker has open: on disk, and in memory once the partition is open."""
    for shape in shapes:
        name = shape.topic(OURS).name
        files = {path: path.stat().st_size for path in (directory / f"{name}-0").iterdir()}
        size = sum(size for path, size in files.items() if path.suffix in COMMIT_SUFFIXES)
        log_size = sum(size for path, size in files.items() if path.suffix == ".log")
        section.row(f"{named(shape)}: on disk, B per transaction").add(OURS, size / shape.transaction_count)
        section.row(f"{named(shape)}: on disk, % of the log").add(OURS, size * 100 / log_size)
        partition = open_partition(
            LocalDisk(),
            directory / f"{name}-0",
            LogConfig(order="commit"),
            topic=name,
            partition=0,
            clean=True,
            now_ms=1,
            order=CommitOrdered(LocalDisk()),
        )
        tracemalloc.start()
        view = CommitOrder(partition, LocalDisk())
        section.row(f"{named(shape)}: in memory, B per transaction").add(
            OURS, tracemalloc.get_traced_memory()[0] / shape.transaction_count
        )
        tracemalloc.stop()
        view.close()
        partition.close()
