"""Real queries over a store: batches, streams that cross from the store to the broker, and secrets that stay secret."""

import pytest

from stablelog.batch.header import headers_in
from stablelog.spark import verify
from stablelog.testing.s3 import S3Fault
from tests.spark.objects.stored import in_s3
from tests.spark.starting import in_time

pytestmark = pytest.mark.spark
SECRET = "uncommonsecretvalue"
KEY_ID = "uncommonkeyid"


@pytest.fixture
def options(stored):
    with in_s3(stored.url) as (server, given):
        secrets = {"store.aws_secret_access_key": SECRET, "store.aws_access_key_id": KEY_ID}
        yield server, {**given, **secrets}


def streamed(spark, given, sink, checkpoint):
    """Run a stream to the end of what is there. Return the rows that the sink has, as (offset, value)."""

    def run():
        rows = spark.readStream.format("stablelog").options(**given).load().select("offset", "value")
        query = (
            rows.writeStream.format("parquet").option("path", sink).option("checkpointLocation", checkpoint)
        )
        query.trigger(availableNow=True).start().awaitTermination()

    in_time(run)
    return sorted((row.offset, bytes(row.value)) for row in spark.read.parquet(sink).collect())


def secrets_in(text):
    return [word for word in (SECRET, KEY_ID) if word in text]


@pytest.mark.extended
@pytest.mark.parametrize("topic", ["plain", "ordered"])
def test_a_batch_is_what_a_consumer_gets_and_its_plan_has_no_secret(spark, stored, options, topic):
    _, given = options
    rows = spark.read.format("stablelog").options(**given, subscribe=topic).load()
    found = [(row.offset, bytes(row.value)) for row in rows.collect()]
    assert len(found) > 20
    assert found == stored.consumed(topic)[: len(found)]
    plan = rows._jdf.queryExecution().toString()
    assert "Physical Plan" in plan
    assert secrets_in(plan) == []


@pytest.mark.extended
def test_a_stream_without_a_broker_follows_the_store(spark, stored, options, tmp_path):
    _, given = options
    given = {**given, "subscribe": "plain", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    found = streamed(spark, given, str(tmp_path / "sink"), str(tmp_path / "checkpoint"))
    assert found == stored.consumed("plain")[: len(found)]
    assert len(found) > 20
    for path in (tmp_path / "checkpoint").rglob("*"):
        if path.is_file():
            assert secrets_in(path.read_bytes().decode(errors="replace")) == []


@pytest.mark.extended
@pytest.mark.parametrize("topic", ["plain", "ordered"])
def test_a_stream_crosses_from_the_store_to_the_broker(spark, stored, tmp_path, topic):
    given = {"path": stored.url, "kafka.bootstrap.servers": stored.broker.bootstrap, "subscribe": topic}
    given |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    found = streamed(spark, given, str(tmp_path / "sink"), str(tmp_path / "checkpoint"))
    assert found == stored.consumed(topic)
    assert len(list((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))) > 2


@pytest.mark.extended
def test_a_read_at_cuts_takes_its_records_from_the_store(spark, stored):
    given = {"path": stored.url, "kafka.bootstrap.servers": stored.broker.bootstrap, "subscribe": "ordered"}
    rows = spark.read.format("stablelog").options(**given, cut="true", includeCommits="true").load()
    found = [(row.offset, bytes(row.value)) for row in rows.orderBy("offset").collect()]
    assert found == stored.consumed("ordered")
    sequences = [
        row.commitSequence for row in rows.orderBy("offset").collect() if row.commitSequence is not None
    ]
    assert sequences == sorted(sequences)


@pytest.mark.extended
def test_an_error_names_the_store_and_no_secret(spark, options):
    server, given = options
    server.fail(S3Fault("get", ".log", status=403, count=1000))
    rows = spark.read.format("stablelog").options(**given, subscribe="plain").load()
    with pytest.raises(Exception, match="was rejected") as error:
        rows.collect()
    assert "s3://bucket/prefix" in str(error.value)
    assert secrets_in(str(error.value)) == []
    wrong = {**given, "store.no_such_option": SECRET}
    with pytest.raises(Exception, match="no_such_option") as error:
        spark.read.format("stablelog").options(**wrong, subscribe="plain").load().collect()
    assert secrets_in(str(error.value)) == []


@pytest.mark.extended
def test_a_verification_finds_each_damaged_object_and_no_other(spark, options):
    server, given = options
    found = verify(given).collect()
    objects = {key.removeprefix("prefix/") for key in server.objects if key.endswith((".log", ".indexes"))}
    assert {row.object for row in found} == {key for key in objects if not key.startswith("t.__")}
    assert [row for row in found if row.fault] == []
    logs = sorted(key for key in objects if key.endswith(".log") and not key.startswith("t.__"))
    indexes = sorted(key for key in objects if key.endswith(".indexes") and "t.ordered" in key)

    def content(key):
        return server.objects[f"prefix/{key}"]

    def change(key, position):
        changed = bytearray(content(key))
        changed[position] ^= 1
        server.objects[f"prefix/{key}"] = bytes(changed)

    second = [position for position, _ in headers_in(content(logs[1]))][1]
    change(logs[1], second + 7)  # a base offset
    change(logs[2], 70)  # a record
    server.objects[f"prefix/{logs[3]}"] = content(logs[3])[:-1]
    server.objects[f"prefix/{logs[4]}"] += b"x"
    del server.objects[f"prefix/{logs[5]}"]
    change(indexes[0], 0)
    faults = {row.object: row.fault for row in verify(given).where("fault is not null").collect()}
    assert faults.keys() == {*logs[1:6], indexes[0]}
    words = (
        "before or after its place",
        "CRC of the batch",
        "fewer than",
        "more than",
        "is missing",
        "file of kind",
    )
    for key, word in zip([*logs[1:6], indexes[0]], words, strict=True):
        assert word in faults[key] or "not expected" in faults[key]
