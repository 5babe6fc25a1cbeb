"""The source in Spark itself: what a DataFrame of a topic holds, and how a stream goes over it."""

import json
import shutil
import subprocess
import sys

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import PySparkException, StreamingQueryException

from stablelog.spark import count
from tests.clients.drivers import Confluent, unique
from tests.spark.histories import Writers, truth
from tests.spark.reading import make, settled
from tests.spark.starting import in_time
from tests.waiting import until

COUNT, PARTITIONS = 300, 3
KEPT = {"retention.ms": "-1"}  # the records are of the year 2023
TIMEOUT_S = 300  # on a loaded machine


def read(spark, broker, topic, **given):
    reader = spark.read.format("stablelog").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.options(**{"subscribe": topic, **given})


def stream(spark, broker, topic, **given):
    reader = spark.readStream.format("stablelog").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.options(**{"subscribe": topic, "startingOffsets": "earliest", **given}).load()


def to_the_end(writer):
    """Read all that is there; returns the query."""

    def ended():
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(TIMEOUT_S)
        return query

    return in_time(ended)


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
    make(stablelog_broker.bootstrap, topic, PARTITIONS, **KEPT)
    fill(stablelog_broker, topic, 0, COUNT)
    return topic


@pytest.mark.extended
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


@pytest.mark.extended
def test_a_schema_of_the_users_is_honoured(spark, stablelog_broker, numbers):
    frame = read(spark, stablelog_broker, numbers).schema("offset BIGINT, value BINARY").load()
    assert frame.columns == ["offset", "value"]
    assert frame.count() == COUNT
    assert frame.where("offset = 10").count() == PARTITIONS


@pytest.mark.extended
def test_a_stream_of_what_is_there_comes_in_batches_of_the_size_asked_for(
    spark, stablelog_broker, numbers, tmp_path
):
    found = []
    frame = stream(spark, stablelog_broker, numbers, maxOffsetsPerTrigger="120")
    writer = frame.writeStream.foreachBatch(
        lambda batch, _: found.append([int(bytes(r.value)) for r in batch.collect()])
    )
    query = to_the_end(writer.option("checkpointLocation", str(tmp_path)))
    assert [len(batch) for batch in found] == [120, 120, 60]
    assert sorted(number for batch in found for number in batch) == list(range(COUNT))
    source = query.recentProgress[-1]["sources"][0]
    offsets = json.loads(source["endOffset"])
    assert offsets[numbers] == {"0": 100, "1": 100, "2": 100}
    assert json.loads(source["latestOffset"]) == offsets


@pytest.mark.extended
def test_a_stream_goes_on_where_its_checkpoint_says(spark, stablelog_broker, tmp_path):
    topic = unique("going-on")
    make(stablelog_broker.bootstrap, topic, PARTITIONS, **KEPT)
    found = []

    def run(**given):
        before = len(found)
        frame = stream(spark, stablelog_broker, topic, **given)
        frame = frame.selectExpr("CAST(CAST(value AS STRING) AS INT) AS n")
        writer = frame.writeStream.foreachBatch(
            lambda batch, _: found.extend(row.n for row in batch.collect())
        )
        to_the_end(writer.option("checkpointLocation", str(tmp_path)))
        return found[before:]

    fill(stablelog_broker, topic, 0, 50)
    assert sorted(run()) == list(range(50))
    assert run() == []
    with Confluent(stablelog_broker.bootstrap).transactions(unique("t")) as transaction:
        transaction(topic, [b"1000"], commit=False)
        transaction(topic, [b"50"], commit=True)
    settled(stablelog_broker.bootstrap, topic)
    mounted = {"mount": str(stablelog_broker.data), "kafka.max.poll.records": "1"}
    assert run(**mounted) == [50]  # How the records are read is no part of a checkpoint.
    # The last micro-batch is planned again from its logged offsets, as after a crash before Spark's commit log.
    last = max((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (tmp_path / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    assert run() == [50]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_history_reads_as_confluent_kafka_reads_it(spark, stablelog_broker, isolation):
    topic, bootstrap = unique("history"), stablelog_broker.bootstrap
    make(bootstrap, topic, 2, **{"segment.bytes": "1500"})
    writers = Writers(bootstrap, topic, 2, 11)
    for _ in range(40):
        writers.step()
    writers.end_all()
    settled(bootstrap, topic)
    wanted = truth(bootstrap, topic, 2, isolation)
    for scan in ("fetch", "files"):
        frame = read(spark, stablelog_broker, topic, isolation=isolation, scan=scan, targetBytesPerTask="700")
        found = [(row.partition, row.offset, bytes(row.value)) for row in frame.load().collect()]
        assert sorted(found) == wanted
    assert count({"bootstrap": bootstrap, "subscribe": topic, "isolation": isolation}) == len(wanted)


@pytest.mark.extended
def test_a_view_in_sql(spark, stablelog_broker, numbers):
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW numbers USING stablelog OPTIONS "
        f"('kafka.bootstrap.servers' '{stablelog_broker.bootstrap}', subscribe '{numbers}')"
    )
    assert spark.sql("SELECT count(*) AS n, max(offset) AS last FROM numbers").collect() == [(COUNT, 99)]


def test_a_directory_without_a_broker(spark, stablelog_broker, numbers, tmp_path):
    for directory in stablelog_broker.data.glob(f"{numbers}-*"):
        shutil.copytree(directory, tmp_path / directory.name)
    frame = spark.read.format("stablelog").option("subscribe", numbers).load(str(tmp_path))
    assert frame.count() == COUNT
    running = spark.read.format("stablelog").option("subscribe", numbers).load(str(stablelog_broker.data))
    with pytest.raises(PySparkException, match="is in use by a running broker"):
        running.count()


@pytest.mark.extended
def test_a_sealed_segment_with_other_headers_fails_the_read_and_the_stream(spark, stablelog_broker, tmp_path):
    topic = unique("changed")
    make(stablelog_broker.bootstrap, topic, 1, **KEPT, **{"segment.bytes": "2000"})
    for first in (0, 100, 200):
        fill(stablelog_broker, topic, first, 100, partitions=1)
    directory = stablelog_broker.data / f"{topic}-0"
    until(lambda: list(directory.glob("*.summary")), "no segment is sealed")
    shutil.copytree(directory, tmp_path / directory.name)
    path = (tmp_path / directory.name / min(directory.glob("*.summary")).name).with_suffix(".log")
    content = bytearray(path.read_bytes())
    content[15] ^= 1  # the leader epoch, which is no part of a batch's CRC
    path.write_bytes(content)
    with pytest.raises(PySparkException, match=f"{path}: the batches are not those that were synced"):
        spark.read.format("stablelog").load(str(tmp_path)).collect()
    running = stream(spark, stablelog_broker, topic, mount=str(tmp_path), scan="files").writeStream
    with pytest.raises(StreamingQueryException, match=f"{path}: the batches are not those that were synced"):
        to_the_end(running.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")))


@pytest.mark.extended
def test_the_source_can_be_registered_where_spark_has_not_found_it(spark, stablelog_broker, numbers):
    from pyspark_stablelog import DefaultSource

    registered = spark.newSession()
    registered.dataSource.register(DefaultSource)
    assert read(registered, stablelog_broker, numbers).load().count() == COUNT


@pytest.mark.extended
def test_a_topic_without_records_is_an_empty_frame(spark, stablelog_broker):
    topic = unique("empty")
    make(stablelog_broker.bootstrap, topic, 2)
    assert read(spark, stablelog_broker, topic).load().collect() == []


@pytest.mark.extended
@pytest.mark.parametrize(
    ("given", "schema", "message"),
    [
        ({"subscribe": "nowhere"}, None, "there is no topic 'nowhere'"),
        ({"subscribr": "x"}, None, "stablelog has no option 'subscribr'; did you mean subscribe?"),
        ({"maxOffsetsPerTrigger": "5"}, None, "maxOffsetsPerTrigger is an option of a stream's read"),
        (
            {"mount": "/nowhere/at/all"},
            None,
            "the files of .*-0 are not in /nowhere/at/all, or cannot be read",
        ),
        ({}, "value STRING", "column value is BINARY, not STRING: cast it after the read"),
        ({}, "values BINARY", "there is no column 'values'; the columns are key, value, topic"),
        (
            {},
            "key BINARY NOT NULL",
            "column key is NOT NULL in the schema, but some records have no value for it",
        ),
    ],
)
def test_what_cannot_be_is_told_in_one_message(spark, stablelog_broker, numbers, given, schema, message):
    reader = read(spark, stablelog_broker, numbers, **given)
    with pytest.raises(PySparkException, match=message):
        (reader.schema(schema) if schema else reader).load().collect()


@pytest.mark.extended
def test_a_schema_may_say_what_is_never_null(spark, stablelog_broker, numbers):
    frame = read(spark, stablelog_broker, numbers).schema("partition INT, offset BIGINT NOT NULL").load()
    assert [field.nullable for field in frame.schema] == [True, False]
    assert frame.count() == COUNT


@pytest.mark.extended
def test_a_stream_reads_what_comes_partitions_that_come_and_tells_what_goes(
    spark, stablelog_broker, tmp_path
):
    topic, bootstrap = unique("growing"), stablelog_broker.bootstrap
    make(bootstrap, topic, 1, **KEPT)
    fill(stablelog_broker, topic, 0, 10, partitions=1)
    found = []
    frame = stream(spark, stablelog_broker, topic).selectExpr("CAST(CAST(value AS STRING) AS INT) AS n")
    writer = frame.writeStream.foreachBatch(lambda batch, _: found.extend(row.n for row in batch.collect()))
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="100 milliseconds")

    def begun():
        query = writer.start()
        wait_for(query, lambda: len(found) == 10)
        return query

    query = in_time(begun)
    try:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
        fill(stablelog_broker, topic, 10, 20, partitions=3)
        wait_for(query, lambda: len(found) == 30)
        assert sorted(found) == list(range(30))
        admin.delete_topics([topic])[topic].result(30)
        make(bootstrap, topic, 3)
        with pytest.raises(
            StreamingQueryException, match=f"{topic} was deleted and created again|there is no topic"
        ):
            query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()
    assert sorted(found) == list(range(30))


def wait_for(query, condition):
    def holds():
        assert query.isActive or query.awaitTermination(TIMEOUT_S)  # which raises what it has failed with
        return condition()

    until(holds, "the query does not come to it", patience_s=TIMEOUT_S)


@pytest.mark.extended
def test_what_spark_imports_everywhere_is_small():
    """Spark imports the package in each of its Python processes; only PySpark, which is there, may cost anything."""
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_stablelog; "
        "print(*sorted(name.partition('.')[0] for name in set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"pyspark_stablelog", "stablelog"}
