"""What the stream's reader answers Spark, without Spark and without a broker."""

import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from stablelog.errors import DataLossError
from stablelog.spark.option_table import STREAM
from stablelog.spark.options import read_options
from stablelog.spark.schema import Columns
from stablelog.spark.source import reader as source_reader
from stablelog.spark.source.reader import StablelogStreamReader
from tests.spark.source.test_resolve import A, B, LogOnPaper

GIVEN = {"bootstrap": "h:1", "subscribe": "x"}


class GrowingLog(LogOnPaper):
    """Counts what it is asked."""

    def __init__(self):
        super().__init__()
        self.asked = 0

    def latest(self, places):
        self.asked += 1
        return super().latest(places)

    def limit_ranges(self, ranges, topic_ids, count_max, size_max):
        return {one.place: one.end_after(count_max or 1) for one in ranges}

    def close(self):
        pass


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(source_reader, "time", clock)
    return clock


def reader(**given):
    made = StablelogStreamReader(read_options({**GIVEN, **given}, STREAM), Columns(StructType([])))
    made.source = GrowingLog()
    return made


def offsets(a, b):
    return {"#topics": {"x": "id"}, "x": {"0": a, "1": b}}


def test_a_stream_begins_at_the_end_unless_told_otherwise(clock):
    assert reader().initialOffset() == offsets(20, 5)
    assert reader(startingOffsets="earliest").initialOffset() == offsets(10, 0)
    assert reader(startingTimestamp="2000").initialOffset() == offsets(10, 2)


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "7", "maxBytesPerTrigger": "1k"}, ReadMaxRows(7)),
        ({"maxBytesPerTrigger": "1k"}, ReadMaxBytes(1024)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
    ],
)
def test_the_limit_that_spark_is_told(given, limit):
    assert reader(**given).getDefaultReadLimit() == limit


def test_a_limit_holds_unless_spark_wants_everything(clock):
    made = reader(maxOffsetsPerTrigger="2")
    assert made.latestOffset(offsets(10, 0), ReadMaxRows(2)) == offsets(12, 2)
    assert made.latestOffset(offsets(10, 0), ReadAllAvailable()) == offsets(20, 5)


def test_what_is_there_now_is_not_what_comes_later(clock):
    made = reader()
    made.prepareForTriggerAvailableNow()
    made.source.ends = {A: 30, B: 50}
    assert made.latestOffset(offsets(10, 0), ReadAllAvailable()) == offsets(20, 5)
    assert made.latestOffset(offsets(20, 5), ReadAllAvailable()) == offsets(20, 5)
    # A run before this one came further.
    assert made.latestOffset(offsets(25, 5), ReadAllAvailable()) == offsets(25, 5)


def test_too_few_offsets_are_waited_for_but_not_for_ever(clock):
    made = reader(minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    limit = made.getDefaultReadLimit()
    start = offsets(20, 0)
    assert made.latestOffset(start, limit) == start
    clock.now += 29
    assert made.latestOffset(start, limit) == start
    clock.now += 2
    assert made.latestOffset(start, limit) == offsets(20, 5)
    assert made.latestOffset(offsets(20, 5), limit) == offsets(20, 5)
    made.source.ends = {A: 40, B: 5}
    clock.now += 1
    assert made.latestOffset(offsets(20, 5), limit) == offsets(40, 5)


def test_what_was_written_before_spark_asks_is_seen_however_long_nothing_came(clock):
    """`processAllAvailable` ends with the first answer that has nothing new."""
    made = reader()
    end = made.latestOffset(offsets(10, 0), ReadAllAvailable())
    for _ in range(1000):  # ten seconds of what Spark does
        clock.now += 0.01
        assert made.latestOffset(end, ReadAllAvailable()) == end
    made.source.ends = {A: 21, B: 5}
    assert made.latestOffset(end, ReadAllAvailable()) == offsets(21, 5)
    assert made.source.asked == 1002, "one request each time"


def test_what_is_reported_is_what_there_is(clock):
    made = reader(maxOffsetsPerTrigger="1")
    assert made.reportLatestOffset() is None
    made.latestOffset(offsets(10, 0), ReadMaxRows(1))
    assert made.reportLatestOffset() == offsets(20, 5)


def test_a_limit_does_not_count_what_was_removed(clock):
    limit, start = ReadMaxRows(3), offsets(2, 5)
    with pytest.raises(DataLossError, match="offsets 2 to 9 were removed before they were read"):
        reader(maxOffsetsPerTrigger="3").latestOffset(start, limit)
    bearing = reader(maxOffsetsPerTrigger="3", failOnDataLoss="false")
    assert bearing.latestOffset(start, limit) == offsets(13, 5)


def test_offsets_come_back_as_the_text_they_were(clock):
    made = reader()
    first = json.dumps(made.latestOffset(offsets(10, 0), ReadAllAvailable()))
    again = json.dumps(made.latestOffset(json.loads(first), ReadAllAvailable()))
    assert first == again


def test_offsets_of_a_topic_that_was_created_again_are_never_taken_for_the_old_ones(clock):
    made = reader()
    end = made.latestOffset(offsets(10, 0), ReadAllAvailable())
    made.source.partitions = lambda **_how: dict.fromkeys((A, B), "another")
    made.source.ends = {A: 40, B: 40}
    clock.now += 1  # less than metadata is kept for
    with pytest.raises(DataLossError, match="x was deleted and created again"):
        made.latestOffset(end, ReadAllAvailable())


def test_what_is_there_now_of_a_topic_that_was_created_again_ends_where_it_ends(clock):
    made = reader(failOnDataLoss="false")
    made.source.partitions = lambda **_how: dict.fromkeys((A, B), "another")
    made.prepareForTriggerAvailableNow()
    end = made.latestOffset(offsets(1000, 5), ReadAllAvailable())
    assert end == {"#topics": {"x": "another"}, "x": {"0": 20, "1": 5}}
