"""Reads whose bounds are behind an open transaction: the offsets exist, but a read-committed reader does not see them."""

import json
import shutil

import pytest
from confluent_kafka import Producer

from stablelog.errors import DataLossError, UnavailableError
from stablelog.spark.option_table import STREAM
from stablelog.spark.options import read_options
from stablelog.spark.source.reader import open_log
from tests.clients.drivers import TIMEOUT_S, unique
from tests.spark.at_cuts import Query, ordered
from tests.spark.reading import make, rows

FIRST_MS = 1_790_000_000_000
SCANS = ["fetch", "auto"]


class Held:
    """A topic with the offsets 0 to 9, an open transaction at 10 to 14, and the offsets 15 to 24.

    Times in ms after FIRST_MS: the number of the record for the first ten, 100 in the transaction, 200 for the next
    five and 1000 for the last five.
    """

    def __init__(self, broker):
        self.broker, self.topic = broker, unique("held")
        make(broker.bootstrap, self.topic, 1)
        settings = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        self.plain = Producer(settings)
        self.open = Producer({**settings, "transactional.id": unique("open")})
        self.open.init_transactions(TIMEOUT_S)
        self.open.begin_transaction()
        for producer, times in (
            (self.plain, range(10)),
            (self.open, [100] * 5),
            (self.plain, [200] * 5 + [1000] * 5),
        ):
            for time in times:
                producer.produce(self.topic, b"", partition=0, timestamp=FIRST_MS + time)
            assert producer.flush(TIMEOUT_S) == 0

    def given(self, **more):
        return {"bootstrap": self.broker.bootstrap, "subscribe": self.topic, **more}

    def at(self, offset):
        return json.dumps({self.topic: {"0": offset}})

    def end(self):
        """Commit the transaction, and append one record."""
        self.open.commit_transaction(TIMEOUT_S)
        self.plain.produce(self.topic, b"", partition=0, timestamp=FIRST_MS + 1000)
        assert self.plain.flush(TIMEOUT_S) == 0


@pytest.fixture
def held(stablelog_broker):
    found = Held(stablelog_broker)
    yield found
    found.open.abort_transaction(TIMEOUT_S)


def offsets(rows):
    return [offset for (offset,) in rows]


def read_on(query):
    """The offsets of all micro-batches that there are."""
    return [offset for batch in query.batches() for offset in offsets(batch)]


@pytest.fixture
def streaming(held):
    queries = []

    def start(**more):
        queries.append(Query(held.given(**more), "offset").start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("bears", ["true", "false"])
def test_a_stream_begins_where_a_read_uncommitted_query_ended(held, streaming, scan, bears):
    old = streaming(isolation="read_uncommitted", startingOffsets="earliest", scan=scan)
    assert read_on(old) == list(range(25))
    end = json.dumps({held.topic: old.planned[-1][held.topic]})
    new = streaming(startingOffsets=end, scan=scan, failOnDataLoss=bears)
    limited = streaming(startingOffsets=end, scan=scan, failOnDataLoss=bears, maxOffsetsPerTrigger="3")
    assert new.planned[0][held.topic] == {"0": 25}
    assert (read_on(new), read_on(limited)) == ([], [])
    held.end()
    held.open.begin_transaction()
    # Offset 25 has the marker.
    assert read_on(new) == [26]
    assert read_on(limited) == [26]


@pytest.mark.extended
def test_a_checkpoint_goes_on_with_the_other_isolation_level(held, streaming):
    query = streaming(isolation="read_uncommitted", startingOffsets="earliest")
    assert read_on(query) == list(range(25))
    query.start(isolation="read_committed")
    assert read_on(query) == []
    held.end()
    held.open.begin_transaction()
    query.start(isolation="read_committed")
    assert read_on(query) == [26]


@pytest.mark.parametrize("strategy", ["error", "latest"])
def test_a_stream_begins_at_the_first_record_of_a_time(held, streaming, strategy):
    given = {"startingOffsetsByTimestampStrategy": strategy}
    found = streaming(startingTimestamp=str(FIRST_MS + 1000), **given)
    assert found.planned[0][held.topic] == {"0": 20}
    assert read_on(found) == []
    none = {"startingTimestamp": str(FIRST_MS + 1001), **given}
    if strategy == "error":
        with pytest.raises(UnavailableError, match="has no record of time"):
            streaming(**none)
    else:
        assert streaming(**none).planned[0][held.topic] == {"0": 25}
    held.end()
    held.open.begin_transaction()
    assert read_on(found) == [20, 21, 22, 23, 24, 26]


def directory_of(held, tmp_path):
    shutil.copytree(held.broker.data / f"{held.topic}-0", tmp_path / f"{held.topic}-0")
    return {"path": str(tmp_path)}


@pytest.mark.parametrize("scan", [*SCANS, "directory"])
def test_a_batch_ends_at_the_open_transaction(held, tmp_path, scan):
    given = directory_of(held, tmp_path) if scan == "directory" else held.given(scan=scan)
    assert offsets(rows({**given, "endingOffsets": held.at(25)}, "offset")) == list(range(10))
    for start in (10, 12, 25):
        assert rows({**given, "startingOffsets": held.at(start)}, "offset") == []
    assert rows({**given, "startingTimestamp": str(FIRST_MS + 1000)}, "offset") == []
    past = {**given, "startingOffsets": held.at(26)}
    with pytest.raises(DataLossError, match="ends at offset 25, but startingOffsets is 26"):
        rows(past, "offset")
    assert rows({**past, "failOnDataLoss": "false"}, "offset") == []


def test_a_commit_ordered_topic_has_no_offset_behind_its_visible_end(stablelog_broker):
    """An offset of a read-uncommitted reader is the offset of another record there."""
    (topic,) = ordered(stablelog_broker.bootstrap, 1, 1)
    settings = {"bootstrap.servers": stablelog_broker.bootstrap, "log_level": 0}
    producer = Producer({**settings, "transactional.id": unique("open")})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"", partition=0, timestamp=FIRST_MS)
    assert producer.flush(TIMEOUT_S) == 0
    given = {"bootstrap": stablelog_broker.bootstrap, "subscribe": topic}
    log = open_log(read_options(given, STREAM))
    try:
        assert log.log_ends([(topic, 0)]) == log.latest([(topic, 0)]) == {(topic, 0): 0}
        assert log.at_times({(topic, 0): FIRST_MS}) == {(topic, 0): None}
    finally:
        log.close()
    with pytest.raises(DataLossError, match="ends at offset 0, but startingOffsets is 1"):
        rows({**given, "startingOffsets": json.dumps({topic: {"0": 1}})}, "offset")
    producer.abort_transaction(TIMEOUT_S)
