"""The same job on stablelog: the format is all that changed, no JAR is needed, and each row arrives exactly once."""

from typing import Any


def run(spark: Any, bootstrap: str, directory: str) -> None:
    """Copy the stream of orders; exactly once."""
    orders = (
        spark.readStream.format("stablelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 200)
        .load()
    )
    query = (
        orders.select("key", "value")
        .writeStream.format("stablelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "orders-moved")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
