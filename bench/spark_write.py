"""How fast does Spark write a topic, and what does a micro-batch from topic to topic cost?

Two cores. The sink is given Parquet of random rows and writes them in one joint commit; the figure wanted is for an idle
machine. A micro-batch of few rows goes from one topic to another, exactly once: what it takes is overhead.

    python -m bench --only spark-write
"""

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import stablelog
from bench.contestants import OURS
from bench.report import Section, Wanted
from bench.spark_session import PARTITION_COUNT, Cost, arrow_rows, cost, make_topic
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.spark.columns.encoder import Encoder

ROWS_OF_A_TRIGGER = 10
TRIGGER_COUNT = 25
FIRST_TRIGGERS = 5  # not counted: processes start, and the JVM compiles
PROGRESS_S = 60.0
PHASES = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


class Bench:
    """Writes in one session, to one broker."""

    def __init__(self, spark: Any, bootstrap: str, directory: Path, run_count: int) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._directory = directory
        self._run_count = run_count
        self.section = Section("Spark writes a topic", beside="")

    def sink(self, count: int, value_size: int, wanted: float | None) -> None:
        """Rows a second from Parquet into a topic."""
        parquet = self._directory / f"{value_size}.parquet"
        parquet.mkdir()
        rows = pa.Table.from_batches(arrow_rows(count, value_size)).select(["key", "value"])
        for part in range(PARTITION_COUNT):
            share = count // PARTITION_COUNT
            pq.write_table(rows.slice(part * share, share), parquet / f"{part}.parquet")
        make_topic(self._bootstrap, f"into-{value_size}")
        frame = self._spark.read.parquet(str(parquet))
        best = self._writes(frame, "ready", {})
        found = self._writes(
            frame, "stablelog", {"bootstrap": self._bootstrap, "topic": f"into-{value_size}"}
        )
        for what, kind, aim in (
            ("M rows/s", "seconds", wanted),
            ("M rows per processor second", "cpu_seconds", None),
        ):
            row = self.section.row(
                f"{value_size:,} B, {what}",
                wanted=None if aim is None else Wanted(aim, of_figure=True),
                limit=count / 1e6 / statistics.median(getattr(one, kind) for one in best),
            )
            for one in found:
                row.add(OURS, count / 1e6 / getattr(one, kind))

    def _writes(self, frame: Any, kind: str, options: Mapping[str, str]) -> list[Cost]:
        return [
            cost(lambda: frame.write.format(kind).options(**options).mode("append").save())
            for _ in range(self._run_count + 1)
        ][1:]

    def triggers(self) -> None:
        """What a micro-batch of few rows takes, from topic to topic, and where."""
        best = self._ready_triggers()
        make_topic(self._bootstrap, "from")
        make_topic(self._bootstrap, "to")
        target = {"bootstrap": self._bootstrap, "topic": "to"}
        source = self._spark.readStream.format("stablelog").options(
            bootstrap=self._bootstrap, subscribe="from", startingOffsets="earliest"
        )
        query = self._query(source.load().select("key", "value"), "stablelog", target)
        costs = []
        try:
            with BlockingCluster(self._bootstrap) as cluster:
                producer = BlockingProducer(cluster, "bench-triggers")
                for _ in range(TRIGGER_COUNT):
                    _some_rows(producer)
                    costs.append(cost(query.processAllAvailable))
                    # It may have been told of a look that began before the commit; the next one begins after it.
                    query.processAllAvailable()
                producer.close()
            found = self._durations(query, "stablelog")
        finally:
            query.stop()
        for phase in ("triggerExecution", *PHASES):
            is_all = phase == "triggerExecution"
            row = self.section.row(
                "micro-batch of 10 rows, topic to topic, ms" if is_all else f"of that, {phase}, ms",
                wanted=Wanted(200, at_most=True, of_figure=True) if is_all else None,
                limit=statistics.median(one.get(phase, 0) for one in best),
            )
            row.runs[OURS] = [one.get(phase, 0) for one in found]
        row = self.section.row("processor time of a micro-batch, ms")
        row.runs[OURS] = [one.cpu_seconds * 1000 for one in costs[FIRST_TRIGGERS:]]

    def _ready_triggers(self) -> list[Mapping[str, float]]:
        """The same with a source that has its rows and a sink that drops them."""
        source = self._spark.readStream.format("ready").options(columns="key,value", count=TRIGGER_COUNT)
        query = self._query(source.load(), "ready", {})
        try:
            query.processAllAvailable()
            return self._durations(query, "ready")
        finally:
            query.stop()

    def _durations(self, query: Any, kind: str) -> Sequence[Mapping[str, float]]:
        """Of the micro-batches that had rows, without the first ones."""
        committed = (self._directory / f"checkpoint-{kind}" / "commits").iterdir()
        last = max(int(path.name) for path in committed if path.name.isdecimal())
        until = time.monotonic() + PROGRESS_S
        while (query.lastProgress or {"batchId": -1})[
            "batchId"
        ] < last:  # it is told a little after the commit
            assert time.monotonic() < until, "Spark does not tell how it went"
            time.sleep(0.01)
        found = [progress["durationMs"] for progress in query.recentProgress if progress["numInputRows"]]
        return found[FIRST_TRIGGERS:]

    def _query(self, frame: Any, kind: str, options: Mapping[str, str]) -> Any:
        checkpoint = str(self._directory / f"checkpoint-{kind}")
        return frame.writeStream.format(kind).options(checkpointLocation=checkpoint, **options).start()


def _some_rows(producer: BlockingProducer) -> None:
    producer.begin()
    [rows] = arrow_rows(ROWS_OF_A_TRIGGER, 100)
    for one in Encoder().encode(rows, topic="from", partition_counts={"from": PARTITION_COUNT}):
        producer.append(one.topic, one.partition, one.batch)
    producer.flush()
    producer.end(commit=True)


def run(spark: Any, run_count: int, divisor: int) -> list[Section]:
    """All figures, in some minutes."""
    with tempfile.TemporaryDirectory() as directory, stablelog.serve(Path(directory) / "data") as broker:
        bench = Bench(spark, broker.bootstrap, Path(directory), run_count)
        bench.sink(2_000_000 // divisor, 100, 0.7)
        bench.sink(400_000 // divisor, 1000, None)
        bench.triggers()
    return [bench.section]
