"""Orders of every ten minutes, each window written once when it is over: `python -m examples.windowed_counts`."""

from typing import Any

from pyspark.sql import functions as f

from examples import shop


def run(spark: Any, bootstrap: str, directory: str) -> None:
    """Count orders in windows of ten minutes, for which none is awaited any more, into the topic `order-counts`."""
    orders = (
        spark.readStream.format("stablelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    order = f.from_json(f.col("value").cast("string"), "order INT, amount DOUBLE, at BIGINT")
    placed = orders.select(order.alias("it")).select("it.*", f.timestamp_seconds("it.at").alias("placed"))
    counts = (
        placed.withWatermark("placed", "5 minutes")
        .groupBy(f.window("placed", "10 minutes"))
        .agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))
    )
    query = (
        counts.select(
            f.date_format("window.start", "yyyy-MM-dd'T'HH:mm").alias("key"),
            f.to_json(f.struct("orders", "amount")).alias("value"),
        )
        .writeStream.format("stablelog")
        .outputMode("append")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "order-counts")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    shop.main(run)
