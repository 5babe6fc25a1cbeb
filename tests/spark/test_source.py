"""The source in Spark itself: what a DataFrame of a topic holds, and how a stream goes over it."""

import json

import pytest
from confluent_kafka import Producer

from tests.clients.drivers import Confluent, unique
from tests.spark.reading import make, settled

COUNT, PARTITIONS = 300, 3


def read(spark, broker, topic, **given):
    reader = spark.read.format("stablelog").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.options(**{"subscribe": topic, **given})


def stream(spark, broker, topic, **given):
    reader = spark.readStream.format("stablelog").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.options(**{"subscribe": topic, "startingOffsets": "earliest", **given}).load()


def fill(broker, topic, first, count, partitions=PARTITIONS):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for number in range(first, first + count):
        producer.produce(
            topic,
            b"%d" % number,
            key=b"k%d" % (number % 7) if number % 5 else None,
            partition=number % partitions,
            timestamp=1_700_000_000_000 + number,
            headers=[("n", b"%d" % number)] if number % 2 else None,
        )
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def numbers(stablelog_broker):
    topic = unique("numbers")
    make(stablelog_broker.bootstrap, topic, PARTITIONS)
    fill(stablelog_broker, topic, 0, COUNT)
    return topic


@pytest.mark.parametrize("scan", ["fetch", "files"])
def test_a_topic_is_a_frame_with_the_columns_of_sparks_kafka_connector(
    spark, stablelog_broker, numbers, scan
):
    frame = read(spark, stablelog_broker, numbers, scan=scan, includeHeaders="true").load()
    assert [(field.name, field.dataType.simpleString(), field.nullable) for field in frame.schema] == [
        ("key", "binary", True),
        ("value", "binary", True),
        ("topic", "string", False),
        ("partition", "int", False),
        ("offset", "bigint", False),
        ("timestamp", "timestamp", False),
        ("timestampType", "int", False),
        ("headers", "array<struct<key:string,value:binary>>", True),
    ]
    rows = {int(bytes(row.value)): row for row in frame.collect()}
    assert sorted(rows) == list(range(COUNT))
    row = rows[31]
    assert (bytes(row.key), row.topic, row.partition, row.offset) == (b"k3", numbers, 1, 10)
    assert (row.timestamp.timestamp(), row.timestampType) == (1_700_000_000.031, 0)
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("n", b"31")]
    assert rows[30].key is None


def test_a_schema_of_the_users_is_honoured(spark, stablelog_broker, numbers):
    frame = read(spark, stablelog_broker, numbers).schema("offset BIGINT, value BINARY").load()
    assert frame.columns == ["offset", "value"]
    assert frame.count() == COUNT
    assert frame.where("offset = 10").count() == PARTITIONS


def test_a_stream_of_what_is_there_comes_in_batches_of_the_size_asked_for(
    spark, stablelog_broker, numbers, tmp_path
):
    found = []
    frame = stream(spark, stablelog_broker, numbers, maxOffsetsPerTrigger="120")
    query = (
        frame.writeStream.foreachBatch(
            lambda batch, _: found.append([int(bytes(r.value)) for r in batch.collect()])
        )
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert [len(batch) for batch in found] == [120, 120, 60]
    assert sorted(number for batch in found for number in batch) == list(range(COUNT))
    source = query.recentProgress[-1]["sources"][0]
    offsets = json.loads(source["endOffset"])
    assert offsets[numbers] == {"0": 100, "1": 100, "2": 100}
    assert json.loads(source["latestOffset"]) == offsets


def test_a_stream_goes_on_where_its_checkpoint_says(spark, stablelog_broker, tmp_path):
    topic = unique("going-on")
    make(stablelog_broker.bootstrap, topic, PARTITIONS)
    found = []

    def run():
        before = len(found)
        frame = stream(spark, stablelog_broker, topic).selectExpr("CAST(CAST(value AS STRING) AS INT) AS n")
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: found.extend(row.n for row in batch.collect()))
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return found[before:]

    fill(stablelog_broker, topic, 0, 50)
    assert sorted(run()) == list(range(50))
    assert run() == []
    with Confluent(stablelog_broker.bootstrap).transactions(unique("t")) as transaction:
        transaction(topic, [b"1000"], commit=False)
        transaction(topic, [b"50"], commit=True)
    settled(stablelog_broker.bootstrap, topic)
    assert run() == [50]
    # The last micro-batch is planned again from its logged offsets, as after a crash before Spark's commit log.
    last = max((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (tmp_path / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    assert run() == [50]
