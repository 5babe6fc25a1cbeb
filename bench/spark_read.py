"""How fast does Spark read a topic, beside Parquet of the same rows?

Two cores, data in the page cache, segment files written by the broker from batches of 16 KB. Each ratio is the median
over runs made one after the other in one session, so that what else the machine does weighs on both.

    python -m bench.spark_read
"""

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from bench.columns import BATCH_SIZE, Figure, show
from stablelog.client.cluster import LATEST, Cluster
from stablelog.client.producer import Producer
from stablelog.spark.encoder import Encoder

PARTITION_COUNT = 2
ROWS_AT_ONCE = 50_000
TRANSACTION_COUNT = 18  # with aborts two more, aborted: a tenth of all
NARROW = "value BINARY, partition INT NOT NULL, offset BIGINT NOT NULL"


@dataclass(frozen=True, slots=True)
class Rows:
    """A topic, and Parquet files of the same rows."""

    topic: str
    parquet: Path
    count: int


def arrow_rows(count: int, value_size: int) -> Iterator[pa.RecordBatch]:
    """Rows with random values and keys of 16 bytes."""
    for first in range(0, count, ROWS_AT_ONCE):
        some = min(ROWS_AT_ONCE, count - first)
        yield pa.RecordBatch.from_pydict(
            {
                "key": _random_binary(some, 8, hexadecimal=True),
                "value": _random_binary(some, value_size),
                "partition": pa.array(np.arange(some, dtype=np.int32) % PARTITION_COUNT),
            }
        )


def _random_binary(count: int, size: int, *, hexadecimal: bool = False) -> pa.Array:
    content = os.urandom(count * size)
    if hexadecimal:
        content, size = content.hex().encode(), 2 * size
    offsets = np.arange(0, count * size + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(content)])


def fill(bootstrap: str, topic: str, count: int, value_size: int, *, aborts: bool = False) -> None:
    """Write rows in transactions; with aborts, a tenth of all transactions are aborted ones more."""
    with Cluster(bootstrap) as cluster:
        producer = Producer(cluster, f"bench-{topic}")
        share = count // TRANSACTION_COUNT
        for number in range(TRANSACTION_COUNT):
            _write(producer, topic, share, value_size, commit=True)
            if aborts and number % 9 == 0:
                _write(producer, topic, share, value_size, commit=False)
        producer.close()


def _write(producer: Producer, topic: str, count: int, value_size: int, *, commit: bool) -> None:
    producer.begin()
    encoder = Encoder(batch_bytes_max=BATCH_SIZE, lingers=True)
    for rows in arrow_rows(count, value_size):
        for one in encoder.encode(rows, topic=topic, partition_counts={topic: PARTITION_COUNT}):
            producer.append(one.topic, one.partition, one.batch)
    for one in encoder.flush():
        producer.append(one.topic, one.partition, one.batch)
    producer.flush()
    producer.end(commit=commit)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a query took: on the clock, and of the processors by all processes of the session."""

    seconds: float
    cpu_seconds: float


def cost(work: Callable[[], object]) -> Cost:
    """What it takes."""
    cpu, began = _cpu_seconds(), time.perf_counter()
    work()
    return Cost(time.perf_counter() - began, _cpu_seconds() - cpu)


def _cpu_seconds() -> float:
    """Processor time of this process and of all that descend from it: the JVM and its Python workers."""
    parents, ticks = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                ticks[int(entry.name)] = sum(map(int, fields[11:15]))  # with those of children that ended
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


def drain(frame: Any) -> None:
    """Make Spark produce every row and every column, and throw them away."""
    frame.write.format("noop").mode("overwrite").save()


def settled(bootstrap: str, topic: str) -> None:
    """Wait until the markers of every transaction are written."""
    with Cluster(bootstrap) as cluster:
        places = {(topic, index): LATEST for index in range(PARTITION_COUNT)}
        while cluster.list_offsets(places) != cluster.list_offsets(places, "read_uncommitted"):
            time.sleep(0.01)


class Bench:
    """Queries in one session, each beside another of the same rows."""

    def __init__(self, spark: Any, bootstrap: str, directory: Path, run_count: int) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._directory = directory
        self._run_count = run_count
        self.figures: list[Figure] = []

    def read(self, topic: str, schema: str | None = None, **options: str) -> Any:
        """A topic as a frame."""
        reader = self._spark.read.format("stablelog").options(
            bootstrap=self._bootstrap, subscribe=topic, **options
        )
        return (reader.schema(schema) if schema else reader).load()

    def make(self, topic: str, count: int, value_size: int, *, aborts: bool = False) -> Rows:
        """A topic and its Parquet."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(topic, PARTITION_COUNT, 1)])[topic].result(30)
        fill(self._bootstrap, topic, count, value_size, aborts=aborts)
        settled(self._bootstrap, topic)
        parquet = self._directory / f"{topic}.parquet"
        self.read(topic).write.parquet(str(parquet))
        found = sum(pq.read_metadata(file).num_rows for file in parquet.glob("*.parquet"))
        return Rows(topic, parquet, found)

    def compare(self, what: str, count: int, ours: Any, theirs: Any, wanted: float | None) -> None:
        """Drain two frames in turn; note how ours does beside theirs, by clock and by processor time."""
        for frame in (ours, theirs, ours, theirs):
            drain(frame)
        pairs = []
        for number in range(self._run_count):
            first, second = (ours, theirs) if number % 2 else (theirs, ours)
            one, other = cost(lambda: drain(first)), cost(lambda: drain(second))  # noqa: B023 -- called at once
            pairs.append((one, other) if number % 2 else (other, one))
        by_clock = statistics.median(b.seconds / a.seconds for a, b in pairs)
        by_cpu = statistics.median(b.cpu_seconds / a.cpu_seconds for a, b in pairs)
        rate = count / statistics.median(a.seconds for a, _ in pairs) / 1e6
        cpu = statistics.median(a.cpu_seconds for a, _ in pairs) / count * 1e6
        self.figures += [
            Figure(f"{what}: ratio", by_clock, "", wanted),
            Figure(f"{what}: ratio by processor time", by_cpu, "", wanted),
            Figure(f"{what}: rate", rate, f"M rows/s at {cpu:.2f} us of processor time each"),
        ]


def run(run_count: int = 5, divisor: int = 1) -> list[Figure]:
    """All figures, in some minutes."""
    spark = stablelog.spark.session(
        "bench", f"local[{PARTITION_COUNT}]", spark_driver_memory="2g", spark_ui_showConsoleProgress="false"
    )
    spark.sparkContext.setLogLevel("OFF")
    with (
        tempfile.TemporaryDirectory() as directory,
        stablelog.serve(Path(directory) / "data", stablelog_flush="os") as broker,
    ):
        bench = Bench(spark, broker.bootstrap, Path(directory), run_count)
        small = bench.make("small", 4_000_000 // divisor, 100)
        large = bench.make("large", 800_000 // divisor, 1000)
        aborted = bench.make("aborted", 4_000_000 // divisor, 100, aborts=True)
        for rows, title, wanted in ((small, "100 B", 0.45), (large, "1000 B", 0.55)):
            parquet = spark.read.parquet(str(rows.parquet))
            for scan in ("files", "fetch"):
                goal = wanted if scan == "files" else None
                bench.compare(
                    f"{title} by {scan}, to Parquet",
                    rows.count,
                    bench.read(rows.topic, scan=scan),
                    parquet,
                    goal,
                )
        parquet = spark.read.parquet(str(small.parquet)).select("value", "partition", "offset")
        narrow = bench.read("small", NARROW, scan="files")
        bench.compare("100 B, three columns, to Parquet", small.count, narrow, parquet, 0.8)
        some, none = bench.read("aborted", scan="files"), bench.read("small", scan="files")
        bench.compare("100 B, a tenth aborted, to none", aborted.count, some, none, 0.95)
    return bench.figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--divisor", type=int, default=1)
    given = parser.parse_args()
    show("Spark reads", run(given.runs, given.divisor))
