"""A topic of changes kept as a table, a Delta table where Delta is there: `python -m examples.change_stream`."""

from pathlib import Path
from typing import Any

from pyspark.sql import Window
from pyspark.sql import functions as f

from examples import shop


def newest(changes: Any) -> Any:
    """The last change of each key. The offset orders them: a key is always in the same partition."""
    last = Window.partitionBy("key").orderBy(f.col("offset").desc())
    return changes.withColumn("place", f.row_number().over(last)).where("place = 1").drop("place")


def merge_into_delta(changes: Any, table: str) -> None:
    """Apply the changes by MERGE; a key without a value goes. A batch that is repeated changes nothing."""
    spark = changes.sparkSession
    spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{table}` (key STRING, value STRING) USING delta")
    changes.createOrReplaceTempView("changes")
    spark.sql(
        f"MERGE INTO delta.`{table}` t USING changes c ON t.key = c.key "
        "WHEN MATCHED AND c.value IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET value = c.value "
        "WHEN NOT MATCHED AND c.value IS NOT NULL THEN INSERT (key, value) VALUES (c.key, c.value)"
    )


def merge_into_parquet(changes: Any, batch_id: int, table: str) -> None:
    """Write the table anew as `version=<batch>`: the one before it, with the changes. To repeat it changes nothing."""
    spark = changes.sparkSession
    kept = changes
    if Path(f"{table}/version={batch_id - 1}/_SUCCESS").exists():
        before = spark.read.parquet(f"{table}/version={batch_id - 1}")
        kept = before.join(changes, "key", "left_anti").unionByName(changes)
    kept.where("value IS NOT NULL").write.mode("overwrite").parquet(f"{table}/version={batch_id}")


def run(spark: Any, bootstrap: str, directory: str) -> None:
    """Keep the newest value of each basket."""
    table = f"{directory}/baskets"
    has_delta = "DeltaSparkSessionExtension" in spark.conf.get("spark.sql.extensions", "")

    def merge(batch: Any, batch_id: int) -> None:
        texts = batch.select(f.col("key").cast("string"), f.col("value").cast("string"), "offset")
        changes = newest(texts).drop("offset")
        if has_delta:
            merge_into_delta(changes, table)
        else:
            merge_into_parquet(changes, batch_id, table)

    query = (
        spark.readStream.format("stablelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "baskets")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 200)
        .load()
        .writeStream.queryName("baskets")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .foreachBatch(merge)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    shop.main(run)
