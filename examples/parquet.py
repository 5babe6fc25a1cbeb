"""A topic to Parquet and back: `python -m examples.parquet`."""

from typing import Any

from examples import shop


def run(spark: Any, bootstrap: str, directory: str) -> None:
    """Copy the committed orders to Parquet, and the copy to the topic `orders-copy`, as one transaction."""
    orders = (
        spark.read.format("stablelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "orders")
        .load()
    )
    orders.select("key", "value", "timestamp").write.mode("overwrite").parquet(f"{directory}/orders")

    copied = spark.read.parquet(f"{directory}/orders")
    (
        copied.select("key", "value")
        .write.format("stablelog")
        .mode("append")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "orders-copy")
        .save()
    )
    print(f"{copied.count()} orders to Parquet and back")


if __name__ == "__main__":
    shop.main(run)
