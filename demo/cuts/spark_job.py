"""The Spark job: flights joined with the weather of their hour, micro-batch by micro-batch; by offsets and by cut.

Two queries of the same commit-ordered topics, with the same limit, which differ by one option. A process of its own,
which prints what each micro-batch held as a line of JSON, and ends when both queries have had as many records as it is
told by a line.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from demo.busy import run_child
from demo.cuts import COMMIT_ORDERED
from demo.cuts.spark_watch import BY_CUT, QUERIES
from demo.spark_session import job_arguments, quiet_session

POLL_S = 0.05
FAILURES_MAX = 5  # of each query: on a busy machine a worker of Spark's may come too late
VALUE = """txn STRING, sizes STRUCT<flights: INT, weather: INT>, origin STRING, hour STRING, has_weather BOOLEAN,
    dep_delay DOUBLE, visib DOUBLE, doomed BOOLEAN"""


class Query:
    """One of the two."""

    def __init__(
        self, spark: Any, name: str, bootstrap: str, checkpoint: Path, offsets_per_batch: int
    ) -> None:
        self.name = name
        self._record_counts: dict[int, int] = {}
        self._failure_count = 0
        rows = (
            spark.readStream.format("stablelog")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", ",".join(COMMIT_ORDERED))
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", offsets_per_batch)
            .option("cut", str(name == BY_CUT).lower())
            .load()
            .select(f.from_json(f.col("value").cast("string"), VALUE).alias("it"))
            .select("it.*")
        )
        self._stream = rows.writeStream.queryName(name).foreachBatch(self._judge)
        self._stream = self._stream.option("checkpointLocation", str(checkpoint / name.replace(" ", "-")))
        self._running: Any = None

    def start(self) -> None:
        """Begin."""
        self._running = self._stream.start()

    def stop(self) -> None:
        """End it."""
        self._running.stop()

    def is_waiting(self) -> bool:
        """Whether it has planned, and found nothing to do."""
        return "Waiting for data" in self._running.status["message"]

    def record_count(self) -> int:
        """Of all micro-batches. One that was repeated counts once."""
        return sum(self._record_counts.values())

    def keep_running(self) -> None:
        """Start it again where it failed, unless it fails again and again."""
        if self._running.isActive:
            return
        self._failure_count += 1
        if self._failure_count == FAILURES_MAX:
            self._running.awaitTermination()  # raises
        self.start()

    def _judge(self, batch: Any, batch_id: int) -> None:
        """Print what a micro-batch held: what of it is whole, and what the join misses."""
        began_at = time.time()
        batch.persist()
        is_weather = f.col("has_weather").isNull()
        flights, weather = batch.where(~is_weather), batch.where(is_weather)
        transactions = (
            batch.groupBy("txn")
            .agg(
                f.count("has_weather").alias("flights"),
                f.count(f.when(is_weather, 1)).alias("weather"),
                f.first("sizes").alias("sizes"),
                f.count(f.when(f.col("doomed"), 1)).alias("doomed"),
            )
            .collect()
        )
        joined = flights.join(weather.select("origin", "hour", f.lit(True).alias("found")), ["origin", "hour"], "left")  # fmt: skip
        bare_count = joined.where(f.col("has_weather") & f.col("found").isNull()).count()
        batch.unpersist()
        torn = [
            one["txn"]
            for one in transactions
            if (one["flights"], one["weather"]) != (one["sizes"]["flights"], one["sizes"]["weather"])
        ]
        record_count = sum(one["flights"] + one["weather"] for one in transactions)
        said = {
            "query": self.name,
            "batch_id": batch_id,
            "began_at": began_at,
            "ended_at": time.time(),
            "record_count": record_count,
            "transaction_count": len(transactions),
            "torn": torn,
            "bare_count": bare_count,
            "doomed_count": sum(one["doomed"] for one in transactions),
        }
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        self._record_counts[batch_id] = record_count


def main() -> None:
    """Run the job."""
    given = job_arguments("offsets_per_batch")
    spark = quiet_session("cuts")
    queries = [
        Query(spark, name, given.bootstrap, given.checkpoint, given.offsets_per_batch) for name in QUERIES
    ]
    for place, query in enumerate(queries):  # one after the other: two cores are busy with each
        query.start()
        wait_until(queries[: place + 1], query.is_waiting)
    told: list[str] = []
    threading.Thread(target=lambda: told.append(sys.stdin.readline()), daemon=True).start()
    wait_until(queries, lambda: bool(told))
    if told[0]:  # nothing if whoever started it is gone
        wait_until(queries, lambda: all(query.record_count() >= int(told[0]) for query in queries))
    for query in queries:
        query.stop()


def wait_until(queries: list[Query], is_so: Callable[[], bool]) -> None:
    """Wait, and keep the queries running."""
    while not is_so():
        for query in queries:
            query.keep_running()
        time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(run_child(main))
