"""Streams at cuts: whole transactions over all topics in every micro-batch, whatever is done to the query."""

import json

import pytest

import stablelog
from tests.clients.drivers import Confluent
from tests.spark.at_cuts import Query, Writers, names_in, ordered, total


@pytest.fixture
def topics(stablelog_broker):
    return ordered(stablelog_broker.bootstrap)


def query(broker, topics, *names, **given):
    where = {"bootstrap": broker.bootstrap, "subscribe": ",".join(topics)}
    return Query({**where, "cut": "true", "startingOffsets": "earliest", **given}, *names)


@pytest.mark.parametrize("seed", range(3))
def test_transfers_sum_to_zero_in_every_micro_batch(stablelog_broker, topics, seed):
    writers = Writers(stablelog_broker.bootstrap, topics, seed=seed)
    writers.hang()
    reading = query(stablelog_broker, topics, "value", "topic", maxOffsetsPerTrigger="3").start()
    seen = []
    for round_number in range(12):
        writers.write(12)
        for _ in range(4):
            rows = reading.batch()
            if rows:
                names = names_in(rows)
                assert len(rows) <= 3 or len(names) == 1
                seen += names
        if round_number % 4 == 3:
            reading.plan()  # written down, and not read before the crash
            reading.start()
    writers.finish()
    for rows in reading.start(maxOffsetsPerTrigger="5").batches():
        assert len(rows) <= 5
        seen += names_in(rows)
    assert sorted(seen) == sorted(writers.committed)
    sequences = [offset["#cut"]["commitSequence"] for offset in reading.planned]
    assert sequences == sorted(sequences)
    reading.stop()
    writers.close()


def test_without_cuts_the_same_is_torn(stablelog_broker, topics):
    writers = Writers(stablelog_broker.bootstrap, topics)
    writers.write(120)
    writers.finish()
    for limit in ({"maxOffsetsPerTrigger": "3"}, {}):
        reading = query(stablelog_broker, topics, cut="false", **limit).start()
        torn = [rows for rows in reading.batches() if total(rows) != 0]
        assert bool(torn) == bool(limit)
        reading.stop()
    writers.close()


def test_a_micro_batch_reads_the_same_again(stablelog_broker, topics):
    writers = Writers(stablelog_broker.bootstrap, topics)
    names = ("value", "topic", "partition", "offset")
    reading = query(stablelog_broker, topics, *names, maxOffsetsPerTrigger="7").start()
    first = []
    for _ in range(6):
        writers.write(20)
        first += reading.batches()
    reading.start()
    assert [sorted(reading.rows_of(number)) for number in range(len(first))] == [
        sorted(rows) for rows in first
    ]
    reading.stop()
    writers.finish()
    writers.close()


def test_columns_of_commits(stablelog_broker, topics):
    writers = Writers(stablelog_broker.bootstrap, topics)
    outside = Confluent(stablelog_broker.bootstrap)
    outside.produce(topics[0], [json.dumps(["outside", 1, 0])])
    writers.write(60)
    outside.produce(topics[0], [json.dumps(["outside", 1, 0])] * 3)
    writers.finish()
    with stablelog.connect(stablelog_broker.bootstrap) as client:
        read = list(client.read(topics, wait=0))
    names = ("topic", "commitSequence", "partition", "offset", "commitTimestamp", "transactionGroup", "value")
    for cut in ("true", "false"):
        expected = {
            (one.topic, one.partition, one.offset): (part.commit_sequence, part.time_ms)
            for part in read
            for one in part.records
        }
        reading = query(stablelog_broker, topics, *names, cut=cut, maxRecordsPerPartition="5").start()
        found = [row for rows in reading.batches() for row in rows]
        reading.stop()
        assert len(found) == len(expected) + 4
        for topic, sequence, partition, offset, committed, group, value in found:
            assert group == ""
            if "outside" in value.decode():
                assert (sequence, committed) == (None, None)
            else:
                at_ms = round(committed.timestamp() * 1000)
                assert expected.pop((topic, partition, offset)) == (sequence, at_ms)
        assert expected == {}
    alone = query(stablelog_broker, topics, "commitSequence").start()
    assert len([row for rows in alone.batches() for row in rows]) == len(found)
    writers.close()
