"""Reads that begin or end at a time: every scan finds the same first record of that time or later."""

import shutil

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import stablelog
from stablelog.errors import Unavailable
from stablelog.spark import count
from tests.clients.drivers import TIMEOUT_S, unique
from tests.spark.reading import make, rows

FIRST_MS = 1_500_000_000_000


def produce(producer, topic, times, count_before=0):
    """One record in a batch for each time, in ms behind FIRST_MS; its value is its number."""
    for number, time in enumerate(times, count_before):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=FIRST_MS + time)
        assert producer.flush(TIMEOUT_S) == 0


def delete_before(bootstrap, topic, offset):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    at = TopicPartition(topic, 0, offset)
    admin.delete_records([at])[at].result(TIMEOUT_S)


def ways(broker, topic, copied):
    """By each scan of a running broker, and from a copy of its directory."""
    shutil.copytree(broker.data / f"{topic}-0", copied / f"{topic}-0")
    yield {"bootstrap": broker.bootstrap, "subscribe": topic, "scan": "fetch"}
    yield {"bootstrap": broker.bootstrap, "subscribe": topic, "scan": "files"}
    yield {"path": str(copied)}


def read(given, **bounds):
    """The offsets of a read, which is also counted."""
    asked = {**given, **{option: str(FIRST_MS + time) for option, time in bounds.items()}}
    found = [offset for (offset,) in rows(asked, "offset")]
    assert count(asked) == len(found)
    return found


@pytest.fixture(scope="module")
def shortened(stablelog_broker):
    """A topic with records 50 to 99 left: their times are 50 to 99, and those of the deleted ones 200 to 249."""
    topic = unique("shortened")
    make(stablelog_broker.bootstrap, topic, 1, **{"segment.bytes": "3000"})
    produce(
        Producer({"bootstrap.servers": stablelog_broker.bootstrap}),
        topic,
        [*range(200, 250), *range(50, 100)],
    )
    delete_before(stablelog_broker.bootstrap, topic, 50)
    return topic


def test_what_was_deleted_is_not_read_again_by_its_time(stablelog_broker, shortened, tmp_path):
    for way in ways(stablelog_broker, shortened, tmp_path):
        assert read(way, startingTimestamp=10) == list(range(50, 100))
        assert read(way, startingTimestamp=60) == list(range(60, 100))
        assert read(way, startingTimestamp=60, endingTimestamp=70) == list(range(60, 70))
        with pytest.raises(Unavailable, match="no record of time"):
            read(way, startingTimestamp=150)


def test_the_directory_of_a_stopped_broker_keeps_what_was_deleted_from_readers(tmp_path):
    topic = unique("stopped")
    with stablelog.serve(tmp_path / "data") as broker:
        make(broker.bootstrap, topic, 1)
        produce(Producer({"bootstrap.servers": broker.bootstrap}), topic, range(100))
        delete_before(broker.bootstrap, topic, 50)
    way = {"path": str(tmp_path / "data"), "subscribe": topic}
    assert read(way, startingTimestamp=10) == list(range(50, 100))
    assert read(way, startingTimestamp=10, endingTimestamp=60) == list(range(50, 60))


def test_a_record_that_cannot_be_seen_yet_is_not_found(stablelog_broker, tmp_path):
    topic = unique("undecided")
    make(stablelog_broker.bootstrap, topic, 1)
    produce(Producer({"bootstrap.servers": stablelog_broker.bootstrap}), topic, range(5))
    given = {"bootstrap.servers": stablelog_broker.bootstrap, "transactional.id": unique("txn")}
    undecided = Producer(given)
    undecided.init_transactions(TIMEOUT_S)
    undecided.begin_transaction()
    produce(undecided, topic, [50], 5)
    for way in ways(stablelog_broker, topic, tmp_path):
        with pytest.raises(Unavailable, match="no record of time"):
            read(way, startingTimestamp=20)
        assert read({**way, "isolation": "read_uncommitted"}, startingTimestamp=20) == [5]
        assert read(way, endingTimestamp=20) == [0, 1, 2, 3, 4]
    undecided.abort_transaction(TIMEOUT_S)
