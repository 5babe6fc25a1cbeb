"""Reads with the option cut from an object store, without a broker: whole transactions over all topics."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

import stablelog as stablelog_module
from stablelog.errors import DataLossError, UsageError
from stablelog.spark import count
from stablelog.spark.objects.stored_commits import last_complete_sequence
from stablelog.spark.option_table import BATCH
from stablelog.spark.options import read_options
from stablelog.spark.schema import Columns, default_schema
from stablelog.spark.source.object_log import ObjectLog
from stablelog.spark.source.reader import StablelogReader
from stablelog.wire.extension.cut import RESOLVED
from tests.broker.tiering.test_restored_broker import stablelog
from tests.clients.drivers import unique
from tests.scale import seeds
from tests.spark.at_cuts import Query, Writers, names_in, ordered
from tests.spark.objects.stored import OFTEN, TIERED, Stored, serving
from tests.spark.reading import rows
from tests.waiting import until

pytestmark = [pytest.mark.xdist_group("objects"), pytest.mark.extended]
COLUMNS = ("topic", "partition", "offset", "value", "commitSequence", "commitTimestamp", "transactionGroup")


@pytest.fixture(scope="module")
def running(module_path):
    with serving(module_path) as broker:
        yield Stored(broker, f"file://{module_path}/store")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A stream reads the manifests at each trigger."""
    monkeypatch.setattr("stablelog.spark.source.object_log.REFRESH_S", 0)


class Written:
    """Transfers over two topics with two partitions each, whose sealed segments are in the store."""

    def __init__(self, stored, seed=1, steps=400):
        self.stored = stored
        self.topics = ordered(stored.broker.bootstrap, **TIERED)
        self.writers = Writers(stored.broker.bootstrap, self.topics, seed=seed)
        self.write(steps)

    def write(self, steps):
        self.writers.write(steps)
        self.writers.finish()  # A segment is copied when none of its transactions is open.
        for topic in self.topics:
            for index in range(2):
                self.stored.wait_until_copied(topic, index)

    @property
    def given(self):
        """The options of a read of the store."""
        return {"path": self.stored.url, "subscribe": ",".join(self.topics), "cut": "true"}

    @property
    def from_broker(self):
        given = {"kafka.bootstrap.servers": self.stored.broker.bootstrap}
        return given | {"subscribe": ",".join(self.topics), "cut": "true"}

    def last_cut(self, **more):
        log = ObjectLog(read_options({**self.given, **more}, BATCH), with_pins=False)
        log.partitions()
        return log.cut(self.topics, RESOLVED)

    def remove(self, offsets):
        """Remove the records before these offsets, by partition. The store drops whole segments, some time later."""
        admin = AdminClient({"bootstrap.servers": self.stored.broker.bootstrap, "log_level": 0})
        wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        for removed in admin.delete_records(wanted).values():
            removed.result(60)

    def manifest(self, place):
        return self.stored.manifest(*place)


def only_values(found):
    return [(row[3],) for row in found]


@pytest.mark.parametrize("seed", seeds(2))
def test_a_read_is_that_of_the_broker_at_the_last_cut_of_the_store(running, seed):
    written = Written(running, seed)
    last = written.last_cut().commit_sequence
    found = rows(written.given, *COLUMNS)
    assert len(names_in(only_values(found))) > 20
    assert sorted(found) == sorted(rows({**written.from_broker, "endingCut": str(last)}, *COLUMNS))
    assert count(written.given) == len(found)
    for start in range(0, last + 1, 7):
        bounds = {"startingCut": str(start), "endingCut": str(min(start + 5, last))}
        part = rows({**written.given, **bounds}, *COLUMNS)
        assert sorted(part) == sorted(rows({**written.from_broker, **bounds}, *COLUMNS))
        names_in(only_values(part))
    with pytest.raises(UsageError, match=rf"endingCut={last + 1} is after the last .*, {last}: "):
        rows({**written.given, "endingCut": str(last + 1)}, "value")


def test_every_micro_batch_has_whole_transactions(running):
    written = Written(running, 3)
    reading = Query({**written.given, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"})
    seen = []
    for _ in range(4):
        for batch in reading.start().batches():
            seen += names_in(batch)
        written.write(100)
    reading.start(**{"kafka.bootstrap.servers": running.broker.bootstrap})
    written.writers.finish()
    for batch in reading.batches():
        seen += names_in(batch)
    assert sorted(seen) == sorted(written.writers.committed)
    # The store has less than what was read with the broker, and a stream without it waits.
    reading.start()
    reading.given.pop("kafka.bootstrap.servers")
    assert reading.start().batches() == []
    reading.stop()


def test_a_limit_in_bytes_ends_a_micro_batch_at_a_cut(running):
    written = Written(running, 4)
    reading = Query({**written.given, "startingOffsets": "earliest", "maxBytesPerTrigger": "2000"}).start()
    batches = reading.batches()
    assert len(batches) > 3
    assert len([name for batch in batches for name in names_in(batch)]) > 20
    reading.stop()


def test_a_partition_without_later_commits_holds_the_cut_and_is_named(running, caplog):
    written = Written(running, 5)
    reading = Query({**written.given, "startingOffsets": "earliest"}).start()
    seen = [name for batch in reading.batches() for name in names_in(batch)]
    admin = AdminClient({"bootstrap.servers": running.broker.bootstrap, "log_level": 0})
    for created in admin.create_partitions([NewPartitions(topic, 3) for topic in written.topics]).values():
        created.result(60)
    written.write(200)
    until(lambda: written.last_cut().commit_sequence == 0, "the new partition is not in a manifest")
    with caplog.at_level(logging.WARNING):
        assert reading.start().batches() == []
        assert rows(written.given, "value") == []
    assert f"has no later commit of {written.topics[0]}-2, which may have some that" in caplog.text
    # What the read does not name does not hold it.
    assert rows({**written.given, "partitions": "0,1"}, "value") != []
    written.writers.partitions = 3
    for producer in written.writers.producers:
        producer.list_topics(timeout=60)
    until(lambda: (written.write(50) or True) and written.last_cut().commit_sequence, "the cut stays")
    seen += [name for batch in reading.start().batches() for name in names_in(batch)]
    assert len(seen) == len(set(seen)) > 50
    reading.stop()


@pytest.mark.parametrize("seed", seeds(2))
def test_what_retention_has_torn_is_left_out_or_refused(running, seed):
    written = Written(running, seed)
    last = written.last_cut().commit_sequence
    whole = rows(written.given, *COLUMNS)
    order = {row[4]: json.loads(row[3])[0] for row in whole}
    chosen = written.topics[0], 1
    given = {**written.given, "endingCut": str(last)}

    def check():
        """Check a read from the first whole transaction on. Return whether some are gone."""
        removed = max(written.last_cut().removed.values())
        try:
            found = rows({**given, "startingOffsets": "earliest"}, *COLUMNS)
        except DataLossError:
            found = []
        if removed != max(written.last_cut().removed.values()):
            return False  # The store has dropped a segment meanwhile.
        assert set(names_in(only_values(found))) == {name for at, name in order.items() if at > removed}
        assert sorted(found) == sorted(row for row in whole if row[4] > removed)
        if removed > 1:
            with pytest.raises(DataLossError, match=r"all transactions after \d+ are whole"):
                rows({**given, "startingCut": str(removed - 1)}, "value")
        return 0 < len(found) < len(whole)

    for start in range(1, written.manifest(chosen).end_offset - 60, 20):
        written.remove({chosen: start})
        check()
    until(check, "nothing is dropped")
    found = rows({**given, "startingOffsets": "earliest"}, *COLUMNS)
    # The store drops whole segments, so it may have more than the broker.
    by_broker = rows({**written.from_broker, "startingOffsets": "earliest", "endingCut": str(last)}, *COLUMNS)
    assert set(by_broker) <= set(found)


def plain_records(running, topic, count):
    producer = Producer({"bootstrap.servers": running.broker.bootstrap})
    for _ in range(count):
        producer.produce(topic, bytes(200), partition=0)
        assert producer.flush(60) == 0


def committed(running, topic, partition=0):
    """Commit one transaction of one record."""
    producer = Producer({"bootstrap.servers": running.broker.bootstrap, "transactional.id": unique("one")})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"committed", partition=partition)
    producer.commit_transaction(60)


def test_a_stream_that_has_read_records_outside_transactions_from_the_broker_goes_on_from_the_store(running):
    (topic,) = ordered(running.broker.bootstrap, 1, 1, **TIERED)
    committed(running, topic)
    plain_records(running, topic, 15)
    running.wait_until_copied(topic)
    given = {"kafka.bootstrap.servers": running.broker.bootstrap, "subscribe": topic, "cut": "true"}
    reading = Query({**given, "startingOffsets": "earliest"}, "value", "offset").start()
    seen = [row for batch in reading.batches() for row in batch]
    assert len(seen) == 16
    reading.stop()
    reading.given.pop("kafka.bootstrap.servers")
    reading.start(path=running.url)
    assert reading.batches() == []
    committed(running, topic)
    plain_records(running, topic, 15)
    running.wait_until_copied(topic)
    seen += [row for batch in reading.start().batches() for row in batch]
    assert len({offset for _, offset in seen}) == len(seen) > 17
    reading.stop()


def test_a_partition_whose_first_object_is_there_before_its_manifest_is_empty(running):
    (topic,) = ordered(running.broker.bootstrap, 1, 2, **TIERED)
    for _ in range(10):
        committed(running, topic)
    plain_records(running, topic, 15)
    running.wait_until_copied(topic)
    (first,) = running.prefix.partitions(topic)
    second = Path(urlsplit(running.url).path) / first._replace(partition=1).directory
    second.mkdir()
    (second / "unfinished.log").write_bytes(b"x")
    given = {"path": running.url, "subscribe": topic}
    assert rows({**given, "cut": "true"}, "value") == []
    assert len(rows({**given, "includeCommits": "true"}, "value", "commitSequence")) > 10


def test_the_last_commit_does_not_count_while_a_transaction_is_open_at_the_end(running):
    """A part of a joint commit's children may be there: they share a commit sequence."""
    (topic,) = ordered(running.broker.bootstrap, 1, 1, **TIERED)
    for _ in range(10):
        committed(running, topic)
    plain_records(running, topic, 15)
    running.wait_until_copied(topic)
    log = ObjectLog(read_options({"path": running.url, "subscribe": topic}, BATCH), with_pins=False)
    log.partitions()
    (stored,) = log.stored_partitions()
    assert last_complete_sequence(stored) == stored.order.latest_sequence
    *before, last = stored.manifest.segments
    still_open = replace(last.summary, stable_offset=last.end_offset - 1)
    stored.manifest = stored.manifest._replace(segments=(*before, replace(last, summary=still_open)))
    assert last_complete_sequence(stored) == stored.order.latest_sequence - 1


def test_topics_that_cannot_be_read_at_cuts_are_refused(running):
    bootstrap = running.broker.bootstrap
    (one,) = ordered(bootstrap, 1, 1, **TIERED)
    (other,) = ordered(bootstrap, 1, 1, **{**TIERED, "stablelog.group": "other"})
    (plain,) = ordered(bootstrap, 1, 1, **{**TIERED, "stablelog.order": "offset"})
    producer = Producer({"bootstrap.servers": bootstrap})
    for topic in (one, other, plain):
        for _ in range(60):
            producer.produce(topic, bytes(100), partition=0)
            assert producer.flush(60) == 0
        running.wait_until_copied(topic)
    given = {"path": running.url, "cut": "true"}
    with pytest.raises(UsageError, match=rf"'{plain}' in .* is not commit-ordered"):
        rows({**given, "subscribe": f"{one},{plain}"}, "value")
    with pytest.raises(UsageError, match="all topics of a cut must belong to one group"):
        rows({**given, "subscribe": f"{one},{other}"}, "value")
    with pytest.raises(UsageError, match=r"columns of commits: .* is not commit-ordered"):
        columns = Columns(default_schema(include_headers=False, include_commits=True))
        StablelogReader(read_options({"path": running.url, "subscribe": plain}, BATCH), columns).partitions()
    outside = rows(
        {**given, "subscribe": other, "includeCommits": "true"}, "commitSequence", "transactionGroup"
    )
    assert set(outside) == {(None, "other")}


def test_a_part_of_a_transaction_that_a_restore_left_is_in_no_read(tmp_path):
    with serving(tmp_path) as broker:
        written = Written(Stored(broker, f"file://{tmp_path}/store"), 8)
        broker.kill()
    before = written.last_cut()
    report = json.loads(stablelog("restore", written.stored.url, "--data", tmp_path / "again", "--json"))
    torn = report["torn_sequences"][""]
    with stablelog_module.serve(
        tmp_path / "again", stablelog_remote_url=written.stored.url, **OFTEN
    ) as broker:
        written.stored = Stored(broker, written.stored.url)
        written.writers = Writers(broker.bootstrap, written.topics, seed=9)
        first = report["commit_sequences"][""]
        until(lambda: written.write(50) or written.last_cut().commit_sequence > first, "nothing is copied")
        found = names_in(only_values(rows(written.given, *COLUMNS)))
        assert 0 < len(found) <= len(written.writers.committed)
        assert torn > before.commit_sequence
        with pytest.raises(DataLossError, match=f"all transactions after {torn} are whole"):
            rows({**written.given, "startingCut": str(torn - 1)}, "value")
