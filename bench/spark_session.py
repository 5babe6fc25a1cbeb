"""In which session is Spark measured, how is the cost of a query taken, and what is the best that Spark leaves room for?

The best: a Python source that hands out Arrow batches which it has, and a Python sink that counts rows. What they
take is what Spark itself takes to move rows from and to Python; no source or sink in Python can be faster.
"""

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit

import stablelog
from bench.contestants import OURS
from bench.report import Section, Wanted
from peers import apache_kafka, spark_connector
from stablelog.spark.columns.builder import BYTES_MAX, ROWS_MAX
from stablelog.spark.schema import default_schema

PARTITION_COUNT = 2
ROWS_AT_ONCE = 50_000
WARM_UP_COUNT = 2  # queries that are not counted: the JVM compiles what they run


def connector_jars() -> tuple[list[Path], str]:
    """The jars of Spark's Kafka connector; with none, why there are none."""
    try:
        return spark_connector.jars(), ""
    except apache_kafka.NotAvailableError as missing:
        return [], str(missing)


@contextlib.contextmanager
def session(jars: Sequence[Path]) -> Iterator[Any]:
    """Spark on two cores, with these jars."""
    settings = {"spark_jars": ",".join(map(str, jars))} if jars else {}
    spark = stablelog.spark.session(
        "bench",
        f"local[{PARTITION_COUNT}]",
        spark_driver_memory="2g",
        spark_ui_enabled="false",
        spark_ui_showConsoleProgress="false",
        spark_sql_streaming_checkpoint_fileChecksum_enabled="false",
        **settings,
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        with prepared(spark):
            yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def prepared(spark: Any) -> Iterator[None]:
    """Let a session know `format("ready")`; its workers need not find this module."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        spark.dataSource.register(Ready)
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


# -- what a query costs ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """What a query took: on the clock, and of the processors by all processes of the session."""

    seconds: float
    cpu_seconds: float


def cost(work: Callable[[], object]) -> Cost:
    """What it takes."""
    before, began = processor_ticks(), time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    # A worker that has ended since is in nobody's account, for Spark waits for none: what it had taken is not to be
    # taken off what the others took.
    ticks = sum(ticks - before.get(process, 0) for process, ticks in processor_ticks().items())
    return Cost(seconds, ticks / os.sysconf("SC_CLK_TCK"))


def processor_ticks() -> dict[tuple[int, int], int]:
    """What this process and all that descend from it have taken: the JVM, its Python workers, the broker.

    By process id and start, for ids are used again.
    """
    parents, taken = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                # With what those of its children took that ended, and that it waited for.
                taken[int(entry.name)] = int(fields[19]), sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return {(pid, taken[pid][0]): taken[pid][1] for pid in ours}


def drain(frame: Any) -> None:
    """Make Spark produce every row and every column, and throw them away."""
    frame.write.format("noop").mode("overwrite").save()


def drained(frame: Any, run_count: int) -> Cost:
    """What it takes to drain a frame: medians."""
    costs = [cost(lambda: drain(frame)) for _ in range(run_count + WARM_UP_COUNT)][WARM_UP_COUNT:]
    return Cost(
        statistics.median(one.seconds for one in costs), statistics.median(one.cpu_seconds for one in costs)
    )


@dataclass(frozen=True, slots=True)
class Contender:
    """A frame of stablelog's.

    Attributes:
        what: the rows and columns that are read.
        frame: what is drained.
        count: its rows.
        wanted: the ratio of its rate to the other's.
    """

    what: str
    frame: Any
    count: int
    wanted: Wanted | None = None


@dataclass(frozen=True, slots=True)
class Contest:
    """Frames of stablelog's and another's, drained in turn, and where it is noted.

    Attributes:
        section: where to.
        ours: stablelog's frames, each held against the other.
        theirs: the other's frame, and how many rows it has.
        limit: what a source takes that has its batches ready.
    """

    section: Section
    ours: Sequence[Contender]
    theirs: tuple[Any, int]
    limit: Cost | None = None

    def run(self, run_count: int) -> None:
        """Drain all, each time beginning with the next one."""
        other, other_count = self.theirs
        frames = [*(one.frame for one in self.ours), other]
        for run in range(run_count + WARM_UP_COUNT):
            took = {}
            for turn in range(len(frames)):
                place = (run + turn) % len(frames)
                took[place] = cost(lambda: drain(frames[place]))  # noqa: B023 - called at once
            if run < WARM_UP_COUNT:
                continue
            for place, one in enumerate(self.ours):
                self._note(one, OURS, one.count, took[place])
                self._note(one, self.section.beside, other_count, took[len(self.ours)])

    def _note(self, one: Contender, name: str, count: int, took: Cost) -> None:
        best = self.limit
        for what, seconds, best_seconds in (
            ("M rows/s", took.seconds, best and best.seconds),
            ("M rows per processor second", took.cpu_seconds, best and best.cpu_seconds),
        ):
            limit = one.count / best_seconds / 1e6 if best_seconds else None
            row = self.section.row(f"{one.what}, {what}", wanted=one.wanted, limit=limit)
            row.add(name, count / max(seconds, 0.01) / 1e6)


# -- rows ------------------------------------------------------------------------------------------------------


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


def make_topic(bootstrap: str, topic: str) -> None:
    """A topic of two partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITION_COUNT, 1)])[topic].result(30)


def _random_binary(count: int, size: int, *, hexadecimal: bool = False) -> pa.Array:
    content = os.urandom(count * size)
    if hexadecimal:
        content, size = content.hex().encode(), 2 * size
    offsets = np.arange(0, count * size + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(content)])


# -- the best that Spark leaves room for -----------------------------------------------------------------------


def _batch(names: Sequence[str], value_size: int, count: int) -> pa.RecordBatch:
    from pyspark.sql.pandas.types import to_arrow_schema

    made = {
        "key": _random_binary(count, 8, hexadecimal=True),
        "value": _random_binary(count, value_size),
        "topic": pa.array(["topic"] * count),
        "partition": pa.array(np.zeros(count, np.int32)),
        "offset": pa.array(np.arange(count)),
        "timestamp": pa.array(np.arange(count), pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array(np.zeros(count, np.int32)),
    }
    schema = to_arrow_schema(_schema(names), timezone="UTC")
    return pa.RecordBatch.from_arrays([made[name] for name in names], schema=schema)


def _schema(names: Sequence[str]) -> Any:
    known = default_schema(include_headers=False)
    return type(known)([known[name] for name in names])


class _ReadyReader(DataSourceReader):
    """Hands out one batch again and again."""

    def __init__(self, names: Sequence[str], value_size: int, count: int) -> None:
        self._asked = names, value_size, min(ROWS_MAX, BYTES_MAX // (value_size + 16))
        self._count = count // PARTITION_COUNT

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITION_COUNT)]

    def read(self, partition: Any) -> Iterator[Any]:
        batch, left = _batch(*self._asked), self._count
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


class _ReadyStreamReader(DataSourceStreamReader):
    """A few rows for each of so many micro-batches."""

    def __init__(self, count: int) -> None:
        self._count = count

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"batch": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"batch": min(start["batch"] + 1, self._count)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITION_COUNT)]

    def read(self, partition: Any) -> Iterator[Any]:
        yield _batch(("key", "value"), 100, 5)


class _Counted(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Takes rows and drops them."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, *_: Any) -> None:
        """Nothing was kept."""

    abort = commit


class Ready(DataSource):
    """`format("ready")`: a source that has its rows, and a sink that drops them."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> Any:
        return _schema(self.options.get("columns", "key,value").split(","))

    def reader(self, schema: Any) -> DataSourceReader:
        return _ReadyReader(schema.names, int(self.options["size"]), int(self.options["count"]))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _ReadyStreamReader(int(self.options["count"]))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return _Counted()

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        return _Counted()


def ready(spark: Any, columns: Sequence[str], value_size: int, count: int) -> Any:
    """A frame of a source that has its rows."""
    return spark.read.format("ready").options(columns=",".join(columns), size=value_size, count=count).load()
