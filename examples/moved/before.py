"""A job on Spark's Kafka connector, which needs its JARs: `--packages org.apache.spark:spark-sql-kafka-0-10_2.13:...`."""

from typing import Any


def run(spark: Any, bootstrap: str, directory: str) -> None:
    """Copy the stream of orders; at least once."""
    orders = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 200)
        .load()
    )
    query = (
        orders.select("key", "value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "orders-moved")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
