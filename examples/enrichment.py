"""Each order with its customer's name, exactly once: `python -m examples.enrichment`."""

from typing import Any

from pyspark.sql import functions as f

from examples import shop


def run(spark: Any, bootstrap: str, directory: str) -> None:
    """Join the stream of orders with the topic of customers, into the topic `orders-named`."""
    source = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest"}
    customer = f.from_json(f.col("value").cast("string"), "customer INT, name STRING")
    customers = spark.read.format("stablelog").options(**source, subscribe="customers").load()
    names = customers.select(customer.alias("it")).select("it.customer", "it.name")

    order = f.from_json(f.col("value").cast("string"), "order INT, customer INT, amount DOUBLE")
    orders = spark.readStream.format("stablelog").options(**source, subscribe="orders").load()
    named = orders.select("key", order.alias("it")).select("key", "it.*").join(names, "customer")
    query = (
        named.select("key", f.to_json(f.struct("order", "name", "amount")).alias("value"))
        .writeStream.format("stablelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "orders-named")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    shop.main(run)
