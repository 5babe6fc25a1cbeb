"""How fast does Spark write a topic, and what does a micro-batch from topic to topic cost?

Two cores. The sink is given Parquet of random rows and writes them in one joint commit; the figure wanted is for an idle
machine. A micro-batch of few rows goes from one topic to another, exactly once: what it takes is overhead.

    python -m bench.spark_write
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from bench.columns import Figure, show
from bench.spark_read import PARTITION_COUNT, arrow_rows, cost
from stablelog.client.cluster import Cluster
from stablelog.client.producer import Producer
from stablelog.spark.encoder import Encoder

ROWS_OF_A_TRIGGER = 10
TRIGGER_COUNT = 20


class Bench:
    """Writes in one session, to one broker."""

    def __init__(self, spark: Any, bootstrap: str, directory: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._directory = directory

    def make(self, topic: str) -> None:
        """A topic."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(topic, PARTITION_COUNT, 1)])[topic].result(30)

    def sink(self, count: int, value_size: int, run_count: int, wanted: float | None) -> list[Figure]:
        """Rows a second from Parquet into a topic."""
        parquet = self._directory / f"{value_size}.parquet"
        parquet.mkdir()
        rows = pa.Table.from_batches(arrow_rows(count, value_size)).select(["key", "value"])
        for part in range(PARTITION_COUNT):
            share = count // PARTITION_COUNT
            pq.write_table(rows.slice(part * share, share), parquet / f"{part}.parquet")
        self.make(f"into-{value_size}")
        frame = self._spark.read.parquet(str(parquet))
        target = {"bootstrap": self._bootstrap, "topic": f"into-{value_size}"}
        costs = [
            cost(lambda: frame.write.format("stablelog").options(**target).mode("append").save())
            for _ in range(run_count + 1)
        ][1:]
        rate = count / statistics.median(one.seconds for one in costs) / 1e6
        cpu = statistics.median(one.cpu_seconds for one in costs) / count * 1e6
        return [
            Figure(f"sink, {value_size} B", rate, f"M rows/s at {cpu:.2f} us of processor time each", wanted),
        ]

    def triggers(self) -> list[Figure]:
        """What a micro-batch of few rows takes, from topic to topic."""
        self.make("from")
        self.make("to")
        query = (
            self._spark.readStream.format("stablelog")
            .options(bootstrap=self._bootstrap, subscribe="from", startingOffsets="earliest")
            .load()
            .select("key", "value")
            .writeStream.format("stablelog")
            .options(
                bootstrap=self._bootstrap, topic="to", checkpointLocation=str(self._directory / "checkpoint")
            )
            .start()
        )
        try:
            with Cluster(self._bootstrap) as cluster:
                producer = Producer(cluster, "bench-triggers")
                costs = []
                for _ in range(TRIGGER_COUNT):
                    producer.begin()
                    [rows] = arrow_rows(ROWS_OF_A_TRIGGER, 100)
                    for one in Encoder().encode(
                        rows, topic="from", partition_counts={"from": PARTITION_COUNT}
                    ):
                        producer.append(one.topic, one.partition, one.batch)
                    producer.flush()
                    producer.end(commit=True)
                    costs.append(cost(query.processAllAvailable))
                producer.close()
            took = [
                progress["durationMs"]["triggerExecution"]
                for progress in query.recentProgress
                if progress["numInputRows"]
            ]
        finally:
            query.stop()
        cpu = statistics.median(one.cpu_seconds for one in costs[3:]) * 1000
        return [
            Figure(
                "micro-batch of 10 rows, topic to topic",
                statistics.median(took[3:]),
                f"ms at {cpu:.0f} ms of processor time",
                200,
            )
        ]


def run(run_count: int = 3, divisor: int = 1) -> list[Figure]:
    """All figures, in some minutes."""
    spark = stablelog.spark.session(
        "bench", f"local[{PARTITION_COUNT}]", spark_driver_memory="2g", spark_ui_showConsoleProgress="false"
    )
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as directory, stablelog.serve(Path(directory) / "data") as broker:
        bench = Bench(spark, broker.bootstrap, Path(directory))
        return [
            *bench.sink(2_000_000 // divisor, 100, run_count, 0.7),
            *bench.sink(400_000 // divisor, 1000, run_count, None),
            *bench.triggers(),
        ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--divisor", type=int, default=1)
    given = parser.parse_args()
    show("Spark writes", run(given.runs, given.divisor))
