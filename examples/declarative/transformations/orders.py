"""A declarative pipeline: the orders come from the log, and the large ones go back to it."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
bootstrap = spark.conf.get("spark.shop.bootstrap")


@dp.table
def orders() -> DataFrame:
    """The stream of committed orders."""
    read = (
        spark.readStream.format("stablelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    order = f.from_json(f.col("value").cast("string"), "order INT, customer INT, amount DOUBLE")
    return read.select(order.alias("it")).select("it.*")


@dp.materialized_view
def revenue() -> DataFrame:
    """What each customer has spent."""
    return spark.read.table("orders").groupBy("customer").agg(f.sum("amount").alias("amount"))


dp.create_sink("large_orders", "stablelog", {"kafka.bootstrap.servers": bootstrap, "topic": "large-orders"})


@dp.append_flow(target="large_orders")
def pick_large() -> DataFrame:
    """Orders of more than six."""
    large = spark.readStream.table("orders").where("amount > 6")
    return large.select(
        f.col("order").cast("string").alias("key"), f.to_json(f.struct("order", "amount")).alias("value")
    )
