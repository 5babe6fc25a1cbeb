"""A data directory of Apache Kafka, read without a broker: what Kafka's own clients got of it, from every offset."""

import json
import shutil

import pytest

from tests.golden.kafka_directory import GOLDEN, TOPICS, load_seen
from tests.spark.reading import rows

SEEN, _ = load_seen()
COLUMNS = ("offset", "timestamp", "key", "value", "headers")


def read(data, topic, isolation, start):
    given = {
        "path": str(data),
        "subscribe": topic,
        "isolation": isolation,
        "startingOffsets": json.dumps({topic: {"0": start}}),
    }
    return [
        (
            offset,
            round(at.timestamp() * 1000),
            key,
            value,
            tuple((header["key"], header["value"]) for header in headers or ()),
        )
        for offset, at, key, value, headers in rows(given, *COLUMNS)
    ]


def seen(topic, isolation, start):
    records = SEEN[topic].committed if isolation == "read_committed" else SEEN[topic].all_records
    return [
        (record.offset, record.timestamp_ms, record.key, record.value, record.headers)
        for record in records
        if record.offset >= start
    ]


@pytest.mark.extended
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("topic", TOPICS)
def test_every_offset_reads_as_kafka_served_it(topic, isolation):
    end = SEEN[topic].stable_offset if isolation == "read_committed" else SEEN[topic].end_offset
    for start in range(SEEN[topic].first_offset, end + 1):
        assert read(GOLDEN / "data", topic, isolation, start) == seen(topic, isolation, start), start


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "suffixes",
    [(".txnindex",), (".index", ".timeindex", ".txnindex"), (".snapshot",), (".txnindex", ".snapshot")],
)
@pytest.mark.parametrize("topic", TOPICS)
def test_what_kafka_can_lose_is_not_taken_for_empty(tmp_path, topic, suffixes):
    data = shutil.copytree(GOLDEN / "data", tmp_path / "data")
    for path in (data / f"{topic}-0").iterdir():
        if path.suffix in suffixes:
            path.unlink()
    for start in range(SEEN[topic].first_offset, SEEN[topic].stable_offset, 7):
        assert read(data, topic, "read_committed", start) == seen(topic, "read_committed", start), start


def test_times_are_found_without_a_broker():
    records = SEEN["everything"].committed
    time_ms = sorted(record.timestamp_ms for record in records)[len(records) // 2]
    first = next(record.offset for record in SEEN["everything"].all_records if record.timestamp_ms >= time_ms)
    given = {"path": str(GOLDEN / "data"), "subscribe": "everything", "startingTimestamp": str(time_ms)}
    assert [offset for (offset,) in rows(given, "offset")] == [
        record.offset for record in records if record.offset >= first
    ]


def test_no_topic_named_is_every_topic_that_is_not_internal():
    found = {topic for (topic,) in rows({"path": str(GOLDEN / "data")}, "topic")}
    assert found == set(TOPICS)
