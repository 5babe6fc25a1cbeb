"""What a task reads is what a read-committed client reads, also where the tail is no record."""

import shutil
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient

from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.errors import DamageError, DataLossError, RefusedError, UnavailableError, UsageError
from stablelog.spark.record_count import count
from tests.clients.drivers import Confluent, unique
from tests.spark.at_cuts import ordered
from tests.spark.reading import make, rows, settled, tasks


@pytest.mark.extended
@pytest.mark.parametrize("scan", ["fetch", "files"])
@pytest.mark.parametrize("fates", [(True, False), (False, False), (False, True, True), ()])
def test_a_range_ends_by_position(stablelog_broker, fates, scan):
    topic = unique("range")
    client = Confluent(stablelog_broker.bootstrap)
    client.produce(topic, [b"first"])
    with client.transactions(unique("t")) as run:
        for n, commit in enumerate(fates):
            run(topic, [b"%d-%d" % (n, i) for i in range(10)], commit=commit)
    wanted = [b"first"] + [b"%d-%d" % (n, i) for n, commit in enumerate(fates) for i in range(10) if commit]
    settled(stablelog_broker.bootstrap, topic)
    given = {"bootstrap": stablelog_broker.bootstrap, "subscribe": topic, "scan": scan}
    assert [value for (value,) in rows(given, "value")] == wanted
    assert len(rows({**given, "isolation": "read_uncommitted"}, "value")) == 1 + 10 * len(fates)


def test_a_topic_that_is_not_there_is_named(stablelog_broker):
    with pytest.raises(RefusedError, match="there is no topic 'nowhere'"):
        tasks({"bootstrap": stablelog_broker.bootstrap, "subscribe": "nowhere"})


def test_a_number_of_a_partition_that_is_not_there_is_named(stablelog_broker, tmp_path):
    topic = unique("numbers")
    make(stablelog_broker.bootstrap, topic, 2)
    shutil.copytree(stablelog_broker.data / f"{topic}-0", tmp_path / f"{topic}-0")
    for given in ({"bootstrap": stablelog_broker.bootstrap, "subscribe": topic}, {"path": str(tmp_path)}):
        assert tasks({**given, "partitions": "0"}) == []
        with pytest.raises(UsageError, match="the option partitions names 5, but the topics of the read"):
            tasks({**given, "partitions": "0,5"})


@pytest.mark.parametrize("names", [("value",), ("value", "commitSequence")])
def test_a_topic_that_is_replaced_while_it_is_read_is_not_taken_for_the_one_before(
    stablelog_broker, monkeypatch, names
):
    (topic,) = ordered(stablelog_broker.bootstrap, 1, 1)
    admin = AdminClient({"bootstrap.servers": stablelog_broker.bootstrap, "log_level": 0})
    with Confluent(stablelog_broker.bootstrap).transactions(unique("t")) as run:
        run(topic, [b"old"], commit=True)
    settled(stablelog_broker.bootstrap, topic)
    given = {"bootstrap": stablelog_broker.bootstrap, "subscribe": topic}
    planned = tasks(given)
    fetch = BlockingCluster.fetch

    def then_replaced(*args, **named):
        fetched = fetch(*args, **named)
        admin.delete_topics([topic])[topic].result(60)
        make(stablelog_broker.bootstrap, topic, 1, **{"stablelog.order": "commit"})
        return fetched

    monkeypatch.setattr(BlockingCluster, "fetch", then_replaced)
    with pytest.raises(UnavailableError, match="was deleted and created again while it was read"):
        rows(given, *names, planned=planned)
    monkeypatch.undo()
    with pytest.raises(DataLossError, match="was deleted and created again after the read was planned"):
        rows(given, *names, planned=planned)
    assert rows({**given, "failOnDataLoss": "false"}, *names, planned=planned) == []


@pytest.mark.extended
def test_a_broker_whose_answers_do_not_reach_the_offset_is_not_asked_for_ever(stablelog_broker, monkeypatch):
    topic = unique("behind")
    client = Confluent(stablelog_broker.bootstrap)
    for n in range(3):
        client.produce(topic, [b"%d" % n])  # a batch each
    given = {"bootstrap": stablelog_broker.bootstrap, "subscribe": topic, "scan": "fetch"}
    planned = tasks(given)
    fetch = BlockingCluster.fetch

    def first_batch(cluster, topic, partition, offset, *more, **named):
        fetched = fetch(cluster, topic, partition, 0, *more, **named)
        size = int.from_bytes(fetched.records[8:12], "big") + 12
        return replace(fetched, records=fetched.records[:size])

    monkeypatch.setattr(BlockingCluster, "fetch", first_batch)
    for read in (lambda: rows(given, "value", planned=planned), lambda: count(given)):
        with pytest.raises(
            DamageError, match="a fetch from offset 1 returned only records before this offset"
        ):
            read()
