"""Cuts in Spark itself: every micro-batch whole, through restarts of the query and kill -9 of the broker."""

import pytest

import stablelog
from tests.spark.at_cuts import Writers, names_in, ordered
from tests.spark.starting import in_time


class Batches:
    """What each micro-batch held, by its number."""

    def __init__(self):
        self.rows = {}

    def __call__(self, frame, number):
        rows = [tuple(row) for row in frame.collect()]
        assert self.rows.setdefault(number, rows) == rows, "a repeated micro-batch is another one"


def stream(spark, bootstrap, topics, **given):
    reader = spark.readStream.format("stablelog").option("kafka.bootstrap.servers", bootstrap)
    given = {"cut": "true", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40", **given}
    return reader.options(subscribe=",".join(topics), **given).load()


def run(frame, checkpoint, batches):
    """Read all that is there."""
    writer = frame.writeStream.foreachBatch(batches).option("checkpointLocation", str(checkpoint))

    def ended():
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(300)
        return query

    return in_time(ended)


def test_micro_batches_are_whole_through_restarts_and_kills(spark, tmp_path):
    with stablelog.serve(tmp_path / "data") as broker:
        topics = ordered(broker.bootstrap)
        writers = Writers(broker.bootstrap, topics)
        writers.hang()
        batches = Batches()
        writers.write(60)
        frame = stream(spark, broker.bootstrap, topics).selectExpr("value", "topic")
        query = run(frame, tmp_path / "checkpoint", batches)
        assert "#cut" in query.lastProgress["sources"][0]["endOffset"]
        broker.kill()
        broker.start()
        writers.write(40)
        writers.finish()
        frame = stream(spark, broker.bootstrap, topics).selectExpr("value", "topic")
        run(frame, tmp_path / "checkpoint", batches)
        seen = [name for rows in batches.rows.values() for name in names_in(rows)]
        assert sorted(seen) == sorted(writers.committed)
        assert len(batches.rows) >= 3
        writers.close()


@pytest.mark.extended
def test_a_batch_at_cuts_and_its_commits(spark, stablelog_broker):
    topics = ordered(stablelog_broker.bootstrap)
    writers = Writers(stablelog_broker.bootstrap, topics)
    writers.write(80)
    writers.finish()
    writers.close()
    reader = spark.read.format("stablelog").option("bootstrap", stablelog_broker.bootstrap)
    reader = reader.options(subscribe=",".join(topics), cut="true", includeCommits="true")
    by_commit = reader.load().groupBy("commitSequence").count().orderBy("commitSequence").collect()
    assert sorted(count for _, count in by_commit) == sorted(writers.committed.values())
    middle = by_commit[len(by_commit) // 2][0]
    head = reader.option("endingCut", middle).load()
    tail = reader.option("startingCut", middle).option("endingCut", by_commit[-1][0]).load()
    first, records = tail.selectExpr("min(commitSequence)", "count(*)").collect()[0]
    assert first == by_commit[len(by_commit) // 2 + 1][0]
    amounts = head.selectExpr(
        "from_json(CAST(value AS STRING), 'ARRAY<STRING>')[2] AS amount", "commitSequence"
    )
    last, total, count = amounts.selectExpr(
        "max(commitSequence)", "CAST(sum(amount) AS INT)", "count(*)"
    ).collect()[0]
    assert (last, total, count + records) == (middle, 0, sum(writers.committed.values()))
