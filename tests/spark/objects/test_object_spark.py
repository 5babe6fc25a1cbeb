"""Real queries over a store: batches, streams that cross from the store to the broker, and secrets that stay secret."""

import pytest

from stablelog.testing.s3 import Fault
from tests.spark.objects.stored import in_s3
from tests.spark.starting import in_time

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("objects")]
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


def test_a_stream_without_a_broker_follows_the_store(spark, stored, options, tmp_path):
    _, given = options
    given = {**given, "subscribe": "plain", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    found = streamed(spark, given, str(tmp_path / "sink"), str(tmp_path / "checkpoint"))
    assert found == stored.consumed("plain")[: len(found)]
    assert len(found) > 20
    for path in (tmp_path / "checkpoint").rglob("*"):
        if path.is_file():
            assert secrets_in(path.read_bytes().decode(errors="replace")) == []


@pytest.mark.parametrize("topic", ["plain", "ordered"])
def test_a_stream_crosses_from_the_store_to_the_broker(spark, stored, tmp_path, topic):
    given = {"path": stored.url, "kafka.bootstrap.servers": stored.broker.bootstrap, "subscribe": topic}
    given |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    found = streamed(spark, given, str(tmp_path / "sink"), str(tmp_path / "checkpoint"))
    assert found == stored.consumed(topic)
    assert len(list((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))) > 2


def test_a_read_at_cuts_takes_its_records_from_the_store(spark, stored):
    given = {"path": stored.url, "kafka.bootstrap.servers": stored.broker.bootstrap, "subscribe": "ordered"}
    rows = spark.read.format("stablelog").options(**given, cut="true", includeCommits="true").load()
    found = [(row.offset, bytes(row.value)) for row in rows.orderBy("offset").collect()]
    assert found == stored.consumed("ordered")
    sequences = [
        row.commitSequence for row in rows.orderBy("offset").collect() if row.commitSequence is not None
    ]
    assert sequences == sorted(sequences)


def test_an_error_names_the_store_and_no_secret(spark, options):
    server, given = options
    server.fail(Fault("get", ".log", status=403, count=1000))
    rows = spark.read.format("stablelog").options(**given, subscribe="plain").load()
    with pytest.raises(Exception, match="was rejected") as error:
        rows.collect()
    assert "s3://bucket/prefix" in str(error.value)
    assert secrets_in(str(error.value)) == []
    wrong = {**given, "store.no_such_option": SECRET}
    with pytest.raises(Exception, match="no_such_option") as error:
        spark.read.format("stablelog").options(**wrong, subscribe="plain").load().collect()
    assert secrets_in(str(error.value)) == []
