"""Two streaming queries of a generation that were stopped in mid-stream: their checkpoints, and the log beside them.

One reads by offsets. Its last micro-batch is committed in the log and not in the checkpoint, as after a crash between the
two: Spark repeats it. The other one reads at cuts. To both, rows were added that they have not read.
"""

import stablelog
from tests.clients.reading import read_to_end
from tests.golden.generation_load import ORDERED, SMALL
from tests.golden.generation_writers import Confluent
from tests.java.load import create_topic, settings

TIMEOUT_S = 300
QUERIES = {  # what each reads, where to, and how
    "by-offsets": (("numbers",), "numbers-out", {"maxOffsetsPerTrigger": "6"}),
    "at-cuts": (("debits", "credits"), "transfers-out", {"cut": "true", "maxOffsetsPerTrigger": "6"}),
}
TOPICS = {
    "numbers": (2, SMALL),
    "numbers-out": (2, SMALL),
    "debits": (1, ORDERED),
    "credits": (2, ORDERED),
    "transfers-out": (1, ORDERED),
}


def start(spark, bootstrap, name, checkpoints):
    """Start a query that ends when it has read what is there."""
    topics, target, options = QUERIES[name]
    reader = spark.readStream.format("stablelog").option("bootstrap", bootstrap)
    rows = reader.options(subscribe=",".join(topics), startingOffsets="earliest", **options).load()
    writer = rows.selectExpr("key", "value").writeStream.format("stablelog")
    writer = writer.options(bootstrap=bootstrap, topic=target, commitGroup=f"of-{name}")
    writer = writer.option("checkpointLocation", str(checkpoints / name))
    return writer.trigger(availableNow=True).start()


def write_rows(bootstrap, first_number):
    """Transactions of which some abort, over all partitions that the queries read."""
    writers = [Confluent(bootstrap, f"spark-{place}") for place in range(2)]
    for writer in writers:
        writer.number = first_number
    for number in range(4):
        for place, writer in enumerate(writers):
            writer.begin("abort" if (number + place) % 4 == 0 else "commit")
        for topic, partition in (
            ("numbers", 0),
            ("debits", 0),
            ("numbers", 1),
            ("credits", 0),
            ("credits", 1),
        ):
            for writer in writers:
                writer.write(topic, partition, 1 + (number + partition) % 2)
        for writer in writers:
            writer.end()


def values_of(bootstrap, topics):
    """What a committed reader gets of topics, sorted."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        settings(
            bootstrap,
            **{
                "group.id": "looks",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 5,
            },
        )
    )
    found = [
        message.value().decode()
        for topic in topics
        for partition in range(TOPICS[topic][0])
        for message in read_to_end(consumer, topic, partition)
    ]
    consumer.close()
    return sorted(found)


def write_spark(target):
    """Write the log and the checkpoints; returns their directory and what there was to read, and what was delivered."""
    from stablelog.spark.local_session import session
    from tests.golden.generation import now_ms

    spark = session("a generation", "local[2]", spark_ui_enabled="false")
    spark.sparkContext.setLogLevel("OFF")
    with stablelog.serve(target / "data", transaction_max_timeout_ms=2**31 - 1) as broker:
        for topic, (count, configs) in TOPICS.items():
            create_topic(broker.bootstrap, topic, configs, count)
        write_rows(broker.bootstrap, 0)
        for name in QUERIES:
            assert start(spark, broker.bootstrap, name, target).awaitTermination(TIMEOUT_S)
        forget_last_commit(target / "by-offsets")
        write_rows(broker.bootstrap, 10)
        told = {
            name: {
                "read from": values_of(broker.bootstrap, topics),
                "delivered": values_of(broker.bootstrap, [sink]),
            }
            for name, (topics, sink, _) in QUERIES.items()
        }
    spark.stop()
    return target, {"written_ms": now_ms(), "queries": told}


def forget_last_commit(checkpoint):
    """What a driver killed between the sink's commit and Spark's own leaves."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    assert last > 1
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink(missing_ok=True)
