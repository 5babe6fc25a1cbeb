"""Streams at cuts: whole transactions over all topics in every micro-batch, whatever is done to the query."""

import json
import os
import random
import time
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

import stablelog
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.commits import describe_commits
from stablelog.client.blocking.connection import SocketConnection
from stablelog.client.blocking.cuts import describe_cut
from stablelog.errors import DataLossError, RefusedError, UnavailableError, UsageError
from stablelog.spark.option_table import BATCH
from stablelog.spark.options import read_options
from stablelog.spark.record_count import count
from stablelog.spark.schema import Columns, default_schema
from stablelog.spark.source import broker_log, cut_reader, cuts, reader
from stablelog.spark.source.reader import StablelogReader
from tests.clients.drivers import Confluent, unique
from tests.scale import seeds
from tests.spark.at_cuts import Query, Writers, names_in, ordered, total, values
from tests.spark.reading import make, rows


@pytest.fixture
def topics(stablelog_broker):
    return ordered(stablelog_broker.bootstrap)


SEEDS = int(os.environ.get("STABLELOG_SEEDS", "2"))  # of long histories
QUERIES = []


@pytest.fixture(autouse=True)
def stopped():
    """No query outlives its test."""
    yield
    while QUERIES:
        QUERIES.pop().stop()


def where(broker, topics):
    return {"bootstrap": broker.bootstrap, "subscribe": ",".join(topics)}


def query(broker, topics, *names, **given):
    if not any(name.startswith("starting") for name in given):
        given["startingOffsets"] = "earliest"
    QUERIES.append(Query({**where(broker, topics), "cut": "true", **given}, *names))
    return QUERIES[-1]


@pytest.mark.extended
@pytest.mark.parametrize("seed", seeds(SEEDS))
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
    writers.close()


@pytest.mark.extended
@pytest.mark.parametrize("seed", seeds(SEEDS // 2))
def test_transfers_sum_to_zero_though_the_broker_is_killed(tmp_path, seed):
    chance = random.Random(seed)
    with stablelog.serve(tmp_path / "data") as broker:
        topics = ordered(broker.bootstrap, 3)
        writers = Writers(broker.bootstrap, topics, seed=seed, count=4)
        writers.hang()
        limit = str(chance.choice([3, 10, 40]))
        reading = query(broker, topics, maxOffsetsPerTrigger=limit).start()
        seen = []
        for _ in range(2):
            writers.write(chance.randrange(20, 60))
            is_planned = chance.random() < 0.5 and reading.plan()
            broker.kill()
            broker.start()
            if chance.random() < 0.5:
                reading.start()
            if is_planned:
                seen += names_in(reading.batch())
            writers.write(chance.randrange(5))
        writers.finish()
        for found in reading.batches():
            seen += names_in(found)
        assert sorted(seen) == sorted(writers.committed)
        writers.close()
        QUERIES.remove(reading)
        reading.stop()


@pytest.mark.extended
def test_without_cuts_the_same_is_torn(stablelog_broker, topics):
    writers = Writers(stablelog_broker.bootstrap, topics)
    writers.write(120)
    writers.finish()
    for limit in ({"maxOffsetsPerTrigger": "3"}, {}):
        reading = query(stablelog_broker, topics, cut="false", **limit).start()
        torn = [rows for rows in reading.batches() if total(rows) != 0]
        assert bool(torn) == bool(limit)
    writers.close()


@pytest.mark.extended
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
    writers.finish()
    writers.close()


@pytest.mark.extended
def test_columns_of_commits(stablelog_broker, topics):
    writers = Writers(stablelog_broker.bootstrap, topics)
    outside = Confluent(stablelog_broker.bootstrap)
    outside.produce(topics[0], [json.dumps(["outside", 1, 0])])
    writers.write(60)
    outside.produce(topics[0], [json.dumps(["outside", 1, 0])] * 3)
    writers.finish()
    with stablelog.connect(stablelog_broker.bootstrap) as client:
        read, left = [], sum(writers.committed.values())
        for part in client.read(
            topics, cut=False, wait=60
        ):  # the last one becomes visible a flush after it is committed
            read.append(part)
            left -= len(part.records)
            if left <= 0:
                break
    names = ("topic", "commitSequence", "partition", "offset", "commitTimestamp", "transactionGroup", "value")
    for cut in ("true", "false"):
        expected = {
            (one.topic, one.partition, one.offset): (part.commit_sequence, part.time_ms)
            for part in read
            for one in part.records
        }
        reading = query(stablelog_broker, topics, *names, cut=cut, maxRecordsPerPartition="5").start()
        found = [row for rows in reading.batches() for row in rows]
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


@pytest.fixture(scope="module")
def admin(stablelog_broker):
    return AdminClient({"bootstrap.servers": stablelog_broker.bootstrap, "log_level": 0})


def transfer(client, *places, name=None):
    """One transaction with a record in each of these partitions."""
    name = name or unique("transfer")
    with client.transaction() as txn:
        for number, (topic, partition) in enumerate(places):
            amount = len(places) - 1 if number == 0 else -1
            txn.write(topic, json.dumps([name, len(places), amount]), partition=partition)
    return txn.commit().commit_sequence


@pytest.fixture
def client(stablelog_broker):
    with stablelog.connect(stablelog_broker.bootstrap, deadline=60) as client:
        yield client


@pytest.mark.extended
def test_partitions_and_topics_that_come_later_are_read_from_their_beginning_and_whole(
    stablelog_broker, admin, client
):
    word = unique("pattern")
    made = {"stablelog.order": "commit"}
    reading = query(stablelog_broker, [], "value", subscribePattern=f"{word}-.*", startingOffsets="latest")
    reading.given.pop("subscribe")
    reading.start()  # before there is any topic
    make(stablelog_broker.bootstrap, f"{word}-a", 1, **made)
    transfer(client, (f"{word}-a", 0))
    reading.start()
    assert len(reading.batch()) == 1
    for topic, partitions in ((f"{word}-b", 2), (f"{word}-c", 1)):
        make(stablelog_broker.bootstrap, topic, partitions, **made)
        transfer(client, (f"{word}-a", 0), (topic, partitions - 1), (topic, 0))
        assert len(names_in(reading.batch())) == 1  # however old the reader's list of topics is
    grown = admin.create_partitions([NewPartitions(f"{word}-a", 2)])
    grown[f"{word}-a"].result(60)
    with stablelog.connect(stablelog_broker.bootstrap) as other:
        transfer(other, (f"{word}-a", 0), (f"{word}-a", 1))
    assert len(names_in(reading.batch())) == 1
    assert reading.batch() is None


def test_a_topic_with_a_history_is_joined_at_the_cut(stablelog_broker, client, topics, caplog):
    reading = query(stablelog_broker, topics[:1]).start()
    transfer(client, (topics[0], 0), (topics[1], 0))
    assert len(reading.batch()) == 1
    transfer(client, (topics[0], 1), (topics[1], 0), name="new")
    reading.start(subscribe=",".join(topics))
    assert names_in(reading.batch()) == ["new"]
    assert f"{topics[1]}-0 is read from offset" in caplog.text
    assert reading.batch() is None
    reading.start()
    assert {name for name, _, _ in values(reading.rows_of(1))} == {"new"}


def test_a_topic_that_was_created_again_is_lost(stablelog_broker, admin, client, topics):
    reading = query(stablelog_broker, topics).start()
    transfer(client, (topics[0], 0), (topics[1], 0))
    reading.batch()
    admin.delete_topics([topics[0]])[topics[0]].result(60)
    make(stablelog_broker.bootstrap, topics[0], 2, **{"stablelog.order": "commit"})
    with stablelog.connect(stablelog_broker.bootstrap) as other:
        transfer(other, (topics[0], 0), (topics[1], 0), name="new")
    with pytest.raises(DataLossError, match="was deleted and created again"):
        reading.start().batch()
    assert names_in(reading.start(failOnDataLoss="false").batch()) == ["new"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_stream_that_bears_losses_goes_on_without_a_topic_that_was_deleted(
    stablelog_broker, admin, client, topics, is_restarted
):
    reading = query(stablelog_broker, topics, failOnDataLoss="false").start()
    transfer(client, (topics[0], 0), (topics[1], 0))
    assert len(names_in(reading.batch())) == 1
    admin.delete_topics([topics[0]])[topics[0]].result(60)
    if is_restarted:
        reading.start()
    assert not reading.batch()
    with stablelog.connect(stablelog_broker.bootstrap) as other:
        transfer(other, (topics[1], 0), (topics[1], 1), name="later")
    assert [names_in(rows) for rows in reading.batches() if rows] == [["later"]]
    with pytest.raises(RefusedError, match="there is no topic"):
        reading.start(failOnDataLoss="true").batch()


def test_a_topic_that_was_deleted_before_its_first_micro_batch_is_borne(
    stablelog_broker, admin, client, topics
):
    transfer(client, (topics[0], 0), (topics[1], 0), name="old")
    reading = query(stablelog_broker, topics[:1], startingOffsets="latest", failOnDataLoss="false").start()
    transfer(client, (topics[0], 0), (topics[1], 0), name="new")
    reading.start(subscribe=",".join(topics))
    assert reading.plan()  # written down, and not read before the topic was deleted
    admin.delete_topics([topics[1]])[topics[1]].result(60)
    with pytest.raises(RefusedError, match="there is no topic"):
        reading.start(failOnDataLoss="true").batch()
    assert {name for name, _, _ in values(reading.start(failOnDataLoss="false").batch())} == {"new"}
    assert [rows for rows in reading.batches() if rows] == []


def test_a_cut_that_is_behind_after_a_start_is_no_loss(stablelog_broker, client, topics, monkeypatch):
    reading = query(stablelog_broker, topics).start()
    transfer(client, (topics[0], 0), (topics[1], 0))
    reading.batch()
    ask = broker_log.describe_cut

    def behind(cluster, names, commit_sequence):
        return ask(cluster, names, 0 if commit_sequence == cuts.RESOLVED else commit_sequence)

    reading.start()
    monkeypatch.setattr(broker_log, "describe_cut", behind)
    monkeypatch.setattr(cuts, "SETTLING_TRIES", 3)
    assert reading.batch() is None
    monkeypatch.undo()
    transfer(client, (topics[0], 0), (topics[1], 0), name="later")
    assert [names_in(rows) for rows in reading.batches()] == [["later"]]


def test_what_was_committed_before_spark_asks_is_read_though_its_markers_are_not_durable_yet(
    stablelog_broker, client, topics, monkeypatch
):
    reading = query(stablelog_broker, topics).start()
    transfer(client, (topics[0], 0), (topics[1], 0))
    ask, asked, lag = broker_log.describe_cut, [], 3

    def lagging(cluster, names, commit_sequence):
        asked.append(commit_sequence)
        is_behind = asked.count(cuts.RESOLVED) <= lag
        return ask(cluster, names, 0 if commit_sequence == cuts.RESOLVED and is_behind else commit_sequence)

    monkeypatch.setattr(broker_log, "describe_cut", lagging)
    assert len(names_in(reading.batch())) == 1
    assert asked.count(cuts.RESOLVED) > lag
    monkeypatch.setattr(cuts, "SETTLING_TRIES", 5)
    asked.clear()
    lag = 1 << 30  # the disk stands still
    for _ in range(3):
        assert not reading.plan()
    assert asked.count(cuts.RESOLVED) <= 8, "what was waited for in vain is not waited for each time"


def test_what_was_removed_is_lost_and_the_earliest_cut_lies_behind_it(
    stablelog_broker, admin, client, topics
):
    places = [(topic, partition) for topic in topics for partition in range(2)]
    reading = query(stablelog_broker, topics, maxOffsetsPerTrigger="4").start()
    sequences = [transfer(client, *places) for _ in range(3)]
    assert len(reading.batch()) == 4
    with stablelog.connect(stablelog_broker.bootstrap) as other:
        second = next(other.read(topics[0], after=sequences[0], wait=0)).records[0]
    before = TopicPartition(topics[0], second.partition, second.offset + 1)
    deleted = admin.delete_records([before])
    deleted[before].result(60)
    with pytest.raises(DataLossError, match=f"{topics[0]}-{second.partition} begins at offset"):
        reading.batch()
    fresh = query(stablelog_broker, topics).start()
    assert len(names_in(fresh.batch())) == 1
    with pytest.raises(DataLossError, match=f"all transactions after {sequences[1]} are whole"):
        query(stablelog_broker, topics, startingCut=str(sequences[0])).start()
    lenient = {"startingCut": str(sequences[0]), "failOnDataLoss": "false"}
    assert len(query(stablelog_broker, topics, **lenient).start().batch()) == 7


def test_a_checkpoint_is_of_one_way_to_read(stablelog_broker, topics):
    with_cut = query(stablelog_broker, topics).start()
    with pytest.raises(UsageError, match="the checkpoint is of a query with cut=true"):
        with_cut.start(cut="false").batch()
    without = query(stablelog_broker, topics, cut="false").start()
    with pytest.raises(UsageError, match="the checkpoint is of a query without cut=true"):
        without.start(cut="true").batch()


def test_topics_that_have_no_cut_are_refused(stablelog_broker, topics):
    ordinary = unique("ordinary")
    make(stablelog_broker.bootstrap, ordinary, 1)
    with pytest.raises(UsageError, match=rf"cut=true: topic '{ordinary}'.*stablelog\.order=commit"):
        query(stablelog_broker, [*topics, ordinary]).start()
    with pytest.raises(UsageError, match="columns of commits"):
        schema = default_schema(include_headers=False, include_commits=True)
        StablelogReader(
            read_options(where(stablelog_broker, [ordinary]), BATCH), Columns(schema)
        ).partitions()


def test_a_checkpoint_of_another_group_or_of_another_commit_log_is_told(stablelog_broker, client, topics):
    reading = query(stablelog_broker, topics).start()
    transfer(client, (topics[0], 0), (topics[1], 0))
    (start,) = reading.planned
    for cut, message in [
        ({"commitSequence": 0, "group": "another"}, "the checkpoint belongs to transaction group 'another'"),
        ({"commitSequence": 2**40, "group": ""}, "the commit log was lost"),
    ]:
        reading.planned = [{**start, "#cut": cut}]
        with pytest.raises((DataLossError, UsageError), match=message):
            reading.batch()
    assert len(names_in(reading.start(failOnDataLoss="false").batch())) == 1


def commits_of(broker, topic, partition):
    with BlockingCluster(broker.bootstrap) as cluster:
        return describe_commits(cluster, topic, partition).commits


def between(broker, topics, **given):
    """The names of the transactions of a batch; whole ones."""
    return names_in(rows({**where(broker, topics), "cut": "true", **given}, "value"))


@pytest.mark.extended
def test_a_batch_from_cut_to_cut_is_the_same_whenever_it_is_read(stablelog_broker, client, topics):
    places = [(topic, partition) for topic in topics for partition in range(2)]
    sequences = [transfer(client, *places[number % 3 :], name=f"b{number}") for number in range(6)]
    expected = {}
    for first in range(6):
        for last in range(first, 6):
            bounds = {"startingCut": str(sequences[first]), "endingCut": str(sequences[last])}
            expected[first, last] = sorted(between(stablelog_broker, topics, **bounds))
            assert expected[first, last] == [f"b{number}" for number in range(first + 1, last + 1)]
    transfer(client, *places, name="later")
    bounds = {"startingCut": str(sequences[1]), "endingCut": str(sequences[4])}
    assert sorted(between(stablelog_broker, topics, **bounds)) == expected[1, 4]
    assert count({**where(stablelog_broker, topics), "cut": "true", **bounds}) == 3 + 2 + 4
    assert len(between(stablelog_broker, topics, startingCut="0")) == 7
    with pytest.raises(UsageError, match="begins after commit sequence"):
        between(stablelog_broker, topics, startingCut=str(sequences[3]), endingCut=str(sequences[2]))
    with pytest.raises(UsageError, match="endingCut=1099511627776 is after the last commit that can be read"):
        between(stablelog_broker, topics, endingCut=str(2**40))


def test_offsets_are_taken_if_they_are_a_cut(stablelog_broker, client, topics):
    one = topics[0]
    transfer(client, (one, 0), (one, 1), (one, 0))
    transfer(client, (one, 1), (one, 0), name="second")
    transfer(client, (one, 1), (one, 1), name="third")
    bounds = {index: commits_of(stablelog_broker, one, index) for index in range(2)}

    def from_offsets(first, second):
        offsets = json.dumps({one: {"0": first, "1": second}})
        return between(stablelog_broker, [one], startingOffsets=offsets)

    assert sorted(from_offsets(bounds[0][1].start_offset, bounds[1][1].start_offset)) == ["second", "third"]
    assert sorted(from_offsets(bounds[0][0].end_offset, bounds[1][0].end_offset)) == ["second", "third"]
    assert from_offsets(-1, bounds[1][2].start_offset) == ["third"]
    assert from_offsets(-1, -1) == []
    assert len(from_offsets(-2, -2)) == 3
    inside = rf"startingOffsets: offset \d+ of {one}-0 is inside the transaction with commit sequence"
    with pytest.raises(UsageError, match=inside):
        from_offsets(bounds[0][0].start_offset + 1, bounds[1][0].end_offset)
    behind = f"startingOffsets is no cut .*: the transactions after commit sequence .* before it in {one}-1"
    with pytest.raises(UsageError, match=behind):
        from_offsets(bounds[0][0].end_offset, bounds[1][1].end_offset)
    with pytest.raises(UsageError, match="endingOffsets is no cut"):
        between(stablelog_broker, [one], endingOffsets=json.dumps({one: {"0": -1, "1": 0}}))


@pytest.mark.extended
def test_offsets_of_a_query_begin_another(stablelog_broker, topics):
    writers = Writers(stablelog_broker.bootstrap, topics)
    writers.write(60)
    first = query(stablelog_broker, topics, maxOffsetsPerTrigger="7").start()
    seen = [name for _ in range(3) for name in names_in(first.batch() or [])]
    writers.write(20)
    second = query(stablelog_broker, topics, startingOffsets=json.dumps(first.planned[-1])).start()
    assert second.planned == first.planned[-1:]
    writers.finish()
    seen += [name for found in second.batches() for name in names_in(found)]
    assert sorted(seen) == sorted(writers.committed)
    writers.close()


@pytest.mark.extended
def test_a_time_lies_before_the_first_transaction_that_was_committed_at_it(stablelog_broker, client, topics):
    places = [(topics[0], 0), (topics[1], 1)]
    for number in range(4):
        transfer(client, *places[: 1 + number % 2], name=f"at{number}")
        time.sleep(0.005)  # so that commits have times of their own
    a = commits_of(stablelog_broker, *places[0])
    for number in range(4):
        at = str(a[number].time_ms)
        assert sorted(between(stablelog_broker, topics, startingTimestamp=at)) == [
            f"at{n}" for n in range(number, 4)
        ]
        assert sorted(between(stablelog_broker, topics, endingTimestamp=at)) == [
            f"at{n}" for n in range(number)
        ]
    late = {"startingTimestamp": str(a[3].time_ms + 10**6)}
    with pytest.raises(UnavailableError, match="no record has time"):
        between(stablelog_broker, topics, **late)
    late["startingOffsetsByTimestampStrategy"] = "latest"
    assert between(stablelog_broker, topics, **late) == []


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


def test_an_idle_stream_asks_one_thing_and_commits_elsewhere_are_nothing_to_it(
    stablelog_broker, client, topics, monkeypatch
):
    clock, calls = Clock(), []
    monkeypatch.setattr(cut_reader, "time", clock)
    call = SocketConnection.request_unchanged
    monkeypatch.setattr(
        SocketConnection, "request_unchanged", lambda *args, **named: calls.append(1) or call(*args, **named)
    )
    reading = query(stablelog_broker, topics[:1]).start()
    transfer(client, (topics[0], 0), (topics[0], 1))
    assert len(reading.batch()) == 2
    calls.clear()
    for _ in range(100):  # a second of what Spark does
        clock.now += 0.01
        assert not reading.plan()
    assert len(calls) < 120
    transfer(client, (topics[1], 0))
    assert not reading.plan()
    clock.now += 2 * cut_reader.METADATA_AGE_MAX_S  # then everything is asked anew
    assert not reading.plan()
    transfer(client, (topics[0], 0))
    assert len(names_in(reading.batch())) == 1
    reported = reading.reader.reportLatestOffset()
    assert reported == reading.planned[-1]


@pytest.mark.extended
def test_the_share_of_a_trigger(stablelog_broker, client, topics):
    places = [(topic, partition) for topic in topics for partition in range(2)]
    for _ in range(6):
        transfer(client, *places)
    by_bytes = query(stablelog_broker, topics, maxBytesPerTrigger="700").start()
    sizes = [len(names_in(found)) for found in by_bytes.batches()]
    assert sum(sizes) == 6
    assert 1 < len(sizes) <= 6
    alone = query(stablelog_broker, topics, maxBytesPerTrigger="1").start()
    assert [len(names_in(found)) for found in alone.batches()] == [1] * 6
    now = query(stablelog_broker, topics, maxOffsetsPerTrigger="8").start()
    now.reader.prepareForTriggerAvailableNow()
    transfer(client, *places)
    assert [len(found) for found in now.batches()] == [8, 8, 8]
    now.start()
    assert [len(found) for found in now.batches()] == [4]


def test_too_few_records_are_waited_for_but_not_for_ever(stablelog_broker, client, topics, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(cut_reader, "time", clock)
    monkeypatch.setattr(reader, "time", clock)
    waiting = query(stablelog_broker, topics, minOffsetsPerTrigger="4", maxTriggerDelay="30s").start()
    transfer(client, (topics[0], 0), (topics[1], 0), (topics[1], 1))
    assert not waiting.plan()
    clock.now += 29
    assert not waiting.plan()
    clock.now += 2
    assert len(names_in(waiting.batch())) == 1
    transfer(client, (topics[0], 0), (topics[1], 0))
    clock.now += 1
    assert not waiting.plan()
    transfer(client, (topics[0], 0), (topics[1], 0))
    assert len(names_in(waiting.batch())) == 2


@pytest.mark.extended
def test_records_outside_transactions_are_read_once(stablelog_broker, client, topics):
    outside = Confluent(stablelog_broker.bootstrap)
    reading = query(stablelog_broker, topics, maxOffsetsPerTrigger="3").start()
    expected = []
    for number in range(4):
        expected += [f"{number}.{n}" for n in range(5)]
        outside.produce(topics[0], [json.dumps([f"{number}.{n}", 1, 0]) for n in range(5)])
        if number % 2:
            expected.append(f"txn{number}")
            transfer(client, (topics[0], 0), (topics[1], 1), name=f"txn{number}")
    batches = reading.batches()
    assert max(len(found) for found in batches) <= 3
    assert sorted(name for found in batches for name in names_in(found)) == sorted(expected)


def test_a_transaction_that_retention_has_torn_is_lost_in_words(
    stablelog_broker, client, topics, monkeypatch
):
    """It is gone from one partition as a whole, though positions before it are there."""
    reading = query(stablelog_broker, topics).start()
    sequence = transfer(client, (topics[0], 0), (topics[1], 0))

    def torn(*args, **named):
        found = describe_cut(*args, **named)
        return replace(found, torn={**found.torn, (topics[1], 0): sequence})

    monkeypatch.setattr(broker_log, "describe_cut", torn)
    message = f"were removed from {topics[1]}-0"
    with pytest.raises(DataLossError, match=message):
        reading.batch()
    with pytest.raises(DataLossError, match=message):
        reading.start().batch()  # planned from what was written down


def test_a_group_of_its_own_has_its_own_commits(stablelog_broker):
    configs = {"stablelog.group": unique("group")}
    topics = ordered(stablelog_broker.bootstrap, **configs)
    group = configs["stablelog.group"]
    reading = query(stablelog_broker, topics, "value", "transactionGroup", "commitSequence").start()
    with stablelog.connect(stablelog_broker.bootstrap) as client:
        for _ in range(2):
            with client.transaction(group=group) as txn:
                txn.write(topics[0], json.dumps(["a", 2, 5]), partition=0)
                txn.write(topics[1], json.dumps(["a", 2, -5]), partition=0)
    found = reading.batch()
    assert sorted(row[1:] for row in found) == [(group, 1), (group, 1), (group, 2), (group, 2)]
    assert reading.planned[1]["#cut"] == {"commitSequence": 2, "group": group}
    reading.planned[1]["#cut"]["group"] = "another"
    with pytest.raises(UsageError, match="the checkpoint belongs to transaction group 'another'"):
        reading.batch()
    ungrouped = ordered(stablelog_broker.bootstrap, 1)
    with pytest.raises(UsageError, match=r"cut=true: .* belongs to .*transaction group"):
        query(stablelog_broker, [*topics, *ungrouped]).start()
