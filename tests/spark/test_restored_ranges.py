"""Streams and counts over a restored log: the offsets that the restore left without records are no work and no records."""

import contextlib
import json

import pyarrow as pa
import pytest
from confluent_kafka import Producer

import stablelog
from stablelog.env.objects.opening import open_store
from stablelog.errors import DataLossError
from stablelog.spark import count
from stablelog.spark.options import write_options
from stablelog.spark.sink.task import Task, write_part
from stablelog.spark.sink.task_commits import abort_parts, commit_parts
from stablelog.spark.sink.task_messages import JointWrite
from stablelog.tier.prefix import Prefix
from tests.broker.tiering.test_restored_broker import stablelog as command
from tests.clients.drivers import TIMEOUT_S, unique
from tests.spark.at_cuts import Query
from tests.spark.histories import truth
from tests.spark.objects.stored import OFTEN
from tests.spark.reading import make, rows, settled
from tests.waiting import until

pytestmark = pytest.mark.extended

TOPICS = {"plain": {}, "ordered": {"stablelog.order": "commit"}}
# The batch of a transaction and its marker fill a segment, so that each transaction seals the one before.
SUNK = "sunk"
TIERED = {"remote.storage.enable": "true", "segment.bytes": "1500"}
RECORDS, VALUE = 5, bytes(250)
TRANSACTIONS = 6
SETTINGS = {**OFTEN, "stablelog_remote_coordinator_copy_interval_ms": 100}
LIMITS = {
    "no limit": {},
    "records": {"maxOffsetsPerTrigger": "20"},
    "bytes": {"maxBytesPerTrigger": "6k"},
    "least": {"minOffsetsPerTrigger": "5"},
}


def write(bootstrap, *partitions, count=1):
    """Commit transactions with records in these partitions of both topics."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("t"), "log_level": 0})
    producer.init_transactions(TIMEOUT_S)
    for _ in range(count):
        producer.begin_transaction()
        for topic in TOPICS:
            for partition in partitions:
                for _ in range(RECORDS):
                    producer.produce(topic, VALUE, partition=partition)
        producer.commit_transaction(TIMEOUT_S)
    for topic in TOPICS:
        settled(bootstrap, topic)


class Life:
    """A broker, its store, and what was known when it had read everything.

    Attributes:
        broker: the running broker.
        store: the URL of its store.
        positions: offsets of streams, by topic and whether they are at cuts: before the last transaction, and after it.
        lost: by topic and partition, the offsets that the restore left without records.
    """

    def __init__(self, directory):
        self.directory, self.store = directory, f"file://{directory}/store"
        self.broker, self.positions, self.lost, self._seen = None, [], {}, {}

    def at_end(self):
        """The last offsets of a stream of each topic, with and without cuts."""
        found = {}
        for kind in KINDS:
            query = self.query(kind, startingOffsets="latest").start()
            found[kind] = query.planned[0]
            query.stop()
        return found

    def given(self, topic, **more):
        return {"bootstrap": self.broker.bootstrap, "subscribe": topic, **more}

    def query(self, kind, **more):
        topic, cut = kind
        return Query(self.given(topic, cut=cut, **more), "partition", "offset")

    def records(self, topic):
        """(partition, offset) of all records, as a consumer gets them."""
        if topic not in self._seen:
            found = truth(self.broker.bootstrap, topic, 2, "read_committed")
            self._seen[topic] = [row[:2] for row in found]
        return self._seen[topic]

    def add(self):
        """Write new records into the first partition."""
        write(self.broker.bootstrap, 0, count=2)
        self._seen.clear()

    def sink(self, version, **more):
        """Write a micro-batch of a query into the topic of the sink."""
        options = write_options({"bootstrap": self.broker.bootstrap, "topic": SUNK, **more})
        part = JointWrite("query", version, unique("run"), in_sequence=True)
        values = pa.RecordBatch.from_pydict({"value": [VALUE] * RECORDS})
        written = [write_part(options, part, Task(0), iter([values]))]
        try:
            commit_parts(options, written)
        except DataLossError:
            abort_parts(options, written)
            raise

    def is_copied(self):
        """Whether the store has all but the last segments of the topics, and all of the commit log."""
        prefix = Prefix(open_store(self.store))
        ends = {
            (one.topic, one.partition): prefix.last_manifest(one).end_offset
            for topic in (*TOPICS, "__transaction_state")
            for one in prefix.partitions(topic)
        }
        for topic in TOPICS:
            for index in (0, 1):
                *_, last = sorted((self.broker.data / f"{topic}-{index}").glob("*.log"))
                if ends.get((topic, index)) != int(last.stem):
                    return False
        *_, last = sorted((self.broker.data / "__transaction_state-0").glob("*.log"))
        return last.stat().st_size == 0 and ends.get(("__transaction_state", 0)) == int(last.stem)


KINDS = [("plain", "false"), ("ordered", "false"), ("ordered", "true")]
BY_DAY = [
    (("plain", "false"), "records"),
    (("plain", "false"), "least"),
    (("ordered", "true"), "records"),
    (("ordered", "true"), "bytes"),
]
ALL = pytest.mark.parametrize(
    ("kind", "limit"),
    [
        pytest.param(kind, limit, marks=[] if (kind, limit) in BY_DAY else pytest.mark.night)
        for kind in KINDS
        for limit in LIMITS
    ],
)


@pytest.fixture(scope="module")
def life(module_path):
    found = Life(module_path)
    with contextlib.ExitStack() as stack:
        url = {"stablelog_remote_url": found.store}
        found.broker = stack.enter_context(stablelog.serve(module_path / "old", **url, **SETTINGS))
        make(found.broker.bootstrap, SUNK, 1, **TIERED)
        for topic, configs in TOPICS.items():
            make(found.broker.bootstrap, topic, 2, **TIERED, **configs)
        write(found.broker.bootstrap, 0, 1, count=TRANSACTIONS)
        found.positions.append(found.at_end())
        for version in range(TRANSACTIONS):
            found.sink(version)
        write(found.broker.bootstrap, 0, 1)
        found.positions.append(found.at_end())
        until(found.is_copied, "the store lacks a segment")
        found.broker.kill()
        report = json.loads(command("restore", found.store, "--data", module_path / "new", "--json"))
        for one in report["ranges"]:
            found.lost[one["topic"], one["partition"]] = one["lost_from"], one["next_offset"]
        found.broker = stack.enter_context(stablelog.serve(module_path / "new", **url, **SETTINGS))
        found.positions.append(found.at_end())
        yield found


@pytest.fixture(scope="module")
def grown(life):
    """With new records in the first partition. The other one is idle."""
    life.add()
    return life


def expected(life, topic, position):
    """(partition, offset) of the records of a read from a position on."""
    return sorted(row for row in life.records(topic) if row[1] >= position.get(str(row[0]), 0))


def check(life, kind, start, limit, **more):
    """Read on from a position. Everything is read, in few tasks, and no micro-batch ends among the lost offsets."""
    topic, _ = kind
    query = life.query(kind, **LIMITS[limit], **more)
    query.planned = [start] if start else []
    query.start()
    found, task_count = [], 0
    try:
        for batch in query.batches():
            found += batch
            task_count += len(query.reader.partitions(*query.planned[query.done - 1 : query.done + 1]))
    finally:
        query.stop()
    assert sorted(found) == expected(life, topic, query.planned[0][topic])
    assert task_count <= 24
    assert len(query.planned) <= 15
    for planned in query.planned[1:]:
        for index, offset in planned[topic].items():
            low, high = life.lost[topic, int(index)]
            assert not low < offset < high, planned
    if limit in ("records", "bytes") and len(found) > 30:
        assert len(query.planned) > 2
    return query


def check_all(life, kind, limit, is_idle):
    before, inside, after = (found[kind] for found in life.positions)
    check(life, kind, None, limit, startingOffsets="earliest")
    query = check(life, kind, before, limit)
    if is_idle and limit == "least":
        assert query.planned == [before], "lost offsets are no records to wait for"
    check(life, kind, after, limit)
    topic = kind[0]
    assert all(
        low < inside[topic][str(index)] < high
        for (of, index), (low, high) in life.lost.items()
        if of == topic
    )
    if not (is_idle and limit == "least"):
        with pytest.raises(DataLossError, match="are gone with the disk of a lost broker"):
            check(life, kind, inside, limit)
    check(life, kind, inside, limit, failOnDataLoss="false")


@ALL
def test_a_restored_log_with_nothing_new(life, kind, limit):
    check_all(life, kind, limit, is_idle=True)


@ALL
def test_a_restored_log_with_new_records_and_an_idle_partition(grown, kind, limit):
    check_all(grown, kind, limit, is_idle=False)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("scan", ["fetch", "auto"])
def test_a_batch_and_a_count_over_a_restored_log(grown, topic, scan):
    for place, position in enumerate(found[topic, "false"][topic] for found in grown.positions):
        given = grown.given(
            topic, scan=scan, startingOffsets=json.dumps({topic: position}), minPartitions="3"
        )
        if place == 1:
            for read in (lambda given=given: rows(given, "offset"), lambda given=given: count(given)):
                with pytest.raises(DataLossError, match="are gone with the disk of a lost broker"):
                    read()
            given |= {"failOnDataLoss": "false"}
        wanted = expected(grown, topic, position)
        assert sorted(rows(given, "partition", "offset")) == wanted
        assert count(given) == len(wanted)
        assert sorted(rows({**given, "maxRecordsPerPartition": "3"}, "partition", "offset")) == wanted


def test_a_sink_whose_last_micro_batch_is_lost_fails_at_the_first_one(life, caplog):
    lost_from, _ = life.lost[SUNK, 0]
    message = (
        f"rows of committed micro-batches of query query are gone, .*: {SUNK}-0 from offset {lost_from} on"
    )
    with pytest.raises(DataLossError, match=message):
        life.sink(TRANSACTIONS)
    life.sink(TRANSACTIONS, failOnDataLoss="false")
    assert "the query continues, because failOnDataLoss is false" in caplog.text
    life.sink(TRANSACTIONS + 1)
    found = truth(life.broker.bootstrap, SUNK, 1, "read_committed")
    assert len(found) == (TRANSACTIONS + 1) * RECORDS
