"""The Spark pipeline of the demo: flights from the log, named and summed up, back into the log, exactly once.

Two streams. One gives every flight its airline's name and writes it to `flights-named`: a row in, a row out. The
other sums up per carrier and writes each new sum to `delays`. What a micro-batch writes is one transaction, keyed by
the query and the batch, so a driver that is killed and started again on the same checkpoint writes nothing twice.
It begins when it is told a line, and prints how far it is, a line for each batch, so that whoever started it can
choose the moment to kill it.
"""

import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from demo.busy import run_child
from demo.crashes import DELAYS_TOPIC, NAMED_TOPIC, TOPIC
from demo.flights import airlines
from demo.spark_session import job_arguments, quiet_session

POLL_S = 0.05
FLIGHT = "row BIGINT, carrier STRING, hour STRING, dep_delay DOUBLE, arr_delay DOUBLE, doomed BOOLEAN"


def start(spark: Any, bootstrap: str, checkpoint: Path, rows_per_batch: int) -> list[Any]:
    """Start both streams on all that is in the log by now. Returns the queries."""
    sink = {"kafka.bootstrap.servers": bootstrap}
    flights = (
        spark.readStream.format("stablelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows_per_batch)
        .load()
        .select(f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight"))
        .select("flight.*")
    )
    names = spark.createDataFrame(sorted(airlines().items()), "carrier STRING, airline STRING")
    named = flights.join(f.broadcast(names), "carrier")
    rows = named.select(f.col("carrier").alias("key"), f.to_json(f.struct("*")).alias("value"))
    sums = flights.groupBy("carrier").agg(
        f.count("*").alias("flights"),
        f.sum("dep_delay").alias("dep_delay"),
        f.count("dep_delay").alias("departed"),
    )
    changes = sums.select(f.col("carrier").alias("key"), f.to_json(f.struct("*")).alias("value"))

    def write_changes(batch: Any, batch_id: int) -> None:
        # What a driver that was killed has written of this batch already is not written again.
        once = {"txnAppId": DELAYS_TOPIC, "txnVersion": str(batch_id)}
        batch.write.format("stablelog").mode("append").options(**sink, **once, topic=DELAYS_TOPIC).save()

    streams = [
        rows.writeStream.format("stablelog").options(**sink, topic=NAMED_TOPIC).queryName(NAMED_TOPIC),
        changes.writeStream.outputMode("update").foreachBatch(write_changes).queryName(DELAYS_TOPIC),
    ]
    queries = []
    for name, stream in zip((NAMED_TOPIC, DELAYS_TOPIC), streams, strict=True):
        stream = stream.option("checkpointLocation", str(checkpoint / name)).trigger(availableNow=True)
        queries.append(stream.start())
        wait_for_sources(queries[-1])
    return queries


def wait_for_sources(query: Any) -> None:
    """Wait until a query has opened its sources, or has failed. Another query may start then.

    All queries of a session share one map of environment variables for the source, and Spark adds variables to it when it
    opens the source of a query, without a lock. Two queries that start at the same time can leave a wrong size in the map.
    Each micro-batch of both then fails with `Task not serializable`, because of `Illegal size`.
    """
    while query.isActive and query.status["message"].startswith("Initializing"):
        time.sleep(POLL_S)


def follow(queries: list[Any]) -> None:
    """Print a line for each batch of the first query, until all queries have ended or one has failed."""
    told = -1
    while True:
        is_running = any(query.isActive for query in queries)
        progress = queries[0].lastProgress
        if progress is not None and progress["batchId"] > told:
            told = progress["batchId"]
            sys.stdout.write(f"batch {progress['numInputRows']}\n")
            sys.stdout.flush()
        for query in queries:
            if not query.isActive:
                query.awaitTermination()  # raises the error of one that has failed
        if not is_running:
            return
        time.sleep(POLL_S)


def main() -> None:
    """Start a session, and run both streams when told to."""
    given = job_arguments("rows_per_batch")
    ready = quiet_session("pipeline")
    if sys.stdin.readline():  # nothing if whoever started it is gone
        follow(start(ready, given.bootstrap, given.checkpoint, given.rows_per_batch))


if __name__ == "__main__":
    sys.exit(run_child(main))
