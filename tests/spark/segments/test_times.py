"""Reads that begin or end at a time: every scan finds the same first record of that time or later."""

import random
import shutil

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import stablelog
from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.errors import UnavailableError
from stablelog.log.partition import Isolation
from stablelog.log.search.times import run_lookup
from stablelog.log.time_lookup import look_up_time
from stablelog.spark import count
from stablelog.spark.segments.times import first_in_files
from stablelog.spark.source import broker_log
from stablelog.spark.source.broker_log import first_record
from tests.clients.drivers import TIMEOUT_S, unique
from tests.log.compaction.test_policy import HOUR_MS, KeyedLog, compact_somehow, random_words
from tests.spark.reading import make, rows, settled
from tests.spark.test_counting import files_of
from tests.waiting import until

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
        with pytest.raises(UnavailableError, match="no record of time"):
            read(way, startingTimestamp=150)


@pytest.mark.extended
def test_the_directory_of_a_stopped_broker_keeps_what_was_deleted_from_readers(tmp_path):
    topic = unique("stopped")
    with stablelog.serve(tmp_path / "data") as broker:
        make(broker.bootstrap, topic, 1)
        produce(Producer({"bootstrap.servers": broker.bootstrap}), topic, range(100))
        delete_before(broker.bootstrap, topic, 50)
    way = {"path": str(tmp_path / "data"), "subscribe": topic}
    assert read(way, startingTimestamp=10) == list(range(50, 100))
    assert read(way, startingTimestamp=10, endingTimestamp=60) == list(range(50, 60))


def test_a_read_begins_at_a_record_behind_an_open_transaction(stablelog_broker, tmp_path):
    topic = unique("undecided")
    make(stablelog_broker.bootstrap, topic, 1)
    produce(Producer({"bootstrap.servers": stablelog_broker.bootstrap}), topic, range(5))
    given = {"bootstrap.servers": stablelog_broker.bootstrap, "transactional.id": unique("txn")}
    undecided = Producer(given)
    undecided.init_transactions(TIMEOUT_S)
    undecided.begin_transaction()
    produce(undecided, topic, [50], 5)
    for way in ways(stablelog_broker, topic, tmp_path):
        with pytest.raises(UnavailableError, match="no record of time"):
            read(way, startingTimestamp=60)
        assert read(way, startingTimestamp=20) == []
        assert read({**way, "isolation": "read_uncommitted"}, startingTimestamp=20) == [5]
        assert read(way, endingTimestamp=20) == [0, 1, 2, 3, 4]
    undecided.abort_transaction(TIMEOUT_S)


# -- markers are no records ------------------------------------------------------------------------------------


def filled_with_events(bootstrap, **configs):
    """Two transactions of 50 records with the times 0 to 99, whose markers at 50 and 101 have the time of now."""
    topic = unique("events")
    make(bootstrap, topic, 1, **configs)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("txn"), "linger.ms": 0})
    producer.init_transactions(TIMEOUT_S)
    for first in (0, 50):
        producer.begin_transaction()
        produce(producer, topic, range(first, first + 50), first)
        producer.commit_transaction(TIMEOUT_S)
    settled(bootstrap, topic)
    return topic


def check_events(way):
    """`offset` is `time` up to the first marker, and one more behind it."""
    offsets = [*range(50), *range(51, 101)]
    for isolation in ("read_committed", "read_uncommitted"):
        given = {**way, "isolation": isolation}
        assert read(given, endingTimestamp=75) == offsets[:75]
        assert read(given, startingTimestamp=75) == offsets[75:]
        assert read(given, startingTimestamp=20, endingTimestamp=60) == offsets[20:60]
        assert read(given, endingTimestamp=1000) == offsets
        with pytest.raises(UnavailableError, match="no record of time"):
            read(given, startingTimestamp=100)


@pytest.mark.extended
def test_a_range_of_times_ends_at_a_record_and_not_at_a_marker(stablelog_broker, tmp_path):
    topic = filled_with_events(stablelog_broker.bootstrap, **{"segment.bytes": "3000"})
    for way in ways(stablelog_broker, topic, tmp_path):
        check_events(way)


@pytest.mark.extended
def test_in_a_compacted_topic_too(tmp_path):
    given = {"cleanup.policy": "compact", "segment.bytes": "3000", "min.cleanable.dirty.ratio": "0.01"}
    with stablelog.serve(tmp_path / "data", log_cleaner_backoff_ms=20) as broker:
        topic = unique("events")
        make(broker.bootstrap, topic, 1, **given)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": unique("txn")})
        producer.init_transactions(TIMEOUT_S)
        for first in (0, 50, 100):  # of the first transaction only its marker is left
            producer.begin_transaction()
            for number in range(first, first + 50):
                time = FIRST_MS + number
                producer.produce(
                    topic, b"%d" % number * 9, b"%d" % (number % 50), partition=0, timestamp=time
                )
                producer.flush(TIMEOUT_S)
            producer.commit_transaction(TIMEOUT_S)
        settled(broker.bootstrap, topic)
        log = broker.data / f"{topic}-0" / f"{0:020d}.log"
        until(lambda: next(headers_in(log.read_bytes()))[1].base_offset >= 50, "nothing was compacted")
        last_base = int(max(log.parent.glob("*.log")).stem)
        checkpoint = broker.data / "cleaner-offset-checkpoint"
        until(lambda: f"{topic} 0 {last_base}\n" in checkpoint.read_text(), "not all was compacted")
        for way in ways(broker, topic, tmp_path / "copied"):
            left = read(way)
            assert min(left) > 50
            assert max(left) == 151
            records = {
                offset: offset - offset // 51 for offset in left
            }  # their times: a marker is before each 50
            for time in (60, 100, 110, 149):
                wanted = [offset for offset in left if records[offset] < time]
                assert read(way, endingTimestamp=time) == wanted
                assert read(way, startingTimestamp=time) == [one for one in left if one not in wanted]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_from_a_marker_that_a_broker_answers_the_first_record_is_looked_for(
    stablelog_broker, monkeypatch, isolation
):
    topic = filled_with_events(stablelog_broker.bootstrap)
    place = (topic, 0)
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:

        def found(time, start):
            return first_record(cluster, place, FIRST_MS + time, start, isolation)

        assert found(20, 20) == 20, "what is no marker is believed"
        assert [found(75, 50), found(50, 50), found(100, 50), found(100, 101)] == [76, 51, None, None]
        monkeypatch.setattr(broker_log, "FETCH_SIZE", 1)  # a batch in each answer
        assert found(75, 50) == 76


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(15))
def test_files_and_the_log_itself_find_the_same_in_any_history(seed, tmp_path):
    chance = random.Random(seed)
    log = KeyedLog(segment_bytes=400, index_interval_bytes=100)
    for step in range(5):
        for _ in range(5):
            log.write(random_words(chance, 5), roll=False)
            log.now_ms += chance.randint(-HOUR_MS, HOUR_MS)  # of records and of markers
        if chance.random() < 0.5:
            log.partition.roll(log.now_ms)
            log.sync()
        compact_somehow(log, chance)
        if chance.random() < 0.3:
            log.partition.deletion.delete_records(
                chance.randint(log.partition.start_offset, log.stable_offset)
            )
        files = files_of(log, tmp_path / str(step))
        records = [
            (record.offset, record.timestamp_ms)
            for header, batch in log.batches()
            if not header.is_control
            for record in decode_records(batch)
            if record.offset >= log.partition.start_offset
        ]
        for level in (Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED):
            end = log.partition.visible_end(level)
            for time in sorted({time + more for _, time in records for more in (0, 1)}):
                wanted = next((offset for offset, found in records if found >= time), end)
                told = run_lookup(look_up_time(log.partition, time, level))
                assert (end if told is None else told[0]) == min(wanted, end)
                found = first_in_files(files, time, log.partition.start_offset, end)
                assert (end if found is None else found) == min(wanted, end)
