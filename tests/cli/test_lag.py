"""The lag of a group ends at the last record that its consumers can read."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.cli.test_cli import answer
from tests.client.blocking.test_producer import made
from tests.clients.drivers import unique
from tests.commands import run


@pytest.fixture
def topic(stablelog_broker):
    return made(stablelog_broker.bootstrap, unique("lag"), 2)


@pytest.fixture
def producer(stablelog_broker):
    producer = Producer(
        {"bootstrap.servers": stablelog_broker.bootstrap, "transactional.id": unique("id"), "log_level": 0}
    )
    producer.init_transactions(30)
    return producer


def commit(bootstrap, group, topic, offset, partition=0):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
    consumer.close()


def described(bootstrap, group, partition=0):
    (found,) = answer("groups", "describe", group, bootstrap=bootstrap)
    (row,) = (row for row in found["partitions"] if row["partition"] == partition)
    return row


def write(producer, topic, *values, end=True, partition=0):
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=partition)
    producer.flush()
    if end is not None:
        (producer.commit_transaction if end else producer.abort_transaction)(30)


@pytest.mark.extended
def test_markers_and_aborted_records_behind_the_last_record_do_not_count(stablelog_broker, topic, producer):
    at, group = stablelog_broker.bootstrap, unique("group")
    write(producer, topic, b"a")
    write(producer, topic, b"b")
    write(producer, topic, b"gone", b"gone", end=False)
    for position, lag in ((0, 3), (2, 1), (3, 0), (4, 0), (7, 0)):
        commit(at, group, topic, position)
        row = described(at, group)
        assert (row["end"], row["lag"], row["held_back"], row["held_by"]) == (7, lag, 0, "")
        assert row["visible_end"] == max(3, position)


@pytest.mark.extended
def test_what_an_open_transaction_holds_back_is_shown_with_its_owner(stablelog_broker, topic, producer):
    at, group = stablelog_broker.bootstrap, unique("group")
    write(producer, topic, b"a")
    commit(at, group, topic, 2)
    write(producer, topic, *[b"v"] * 50, end=None)
    other = Producer({"bootstrap.servers": at, "transactional.id": unique("other"), "log_level": 0})
    other.init_transactions(30)
    write(other, topic, b"w", b"w", end=None, partition=1)
    row = described(at, group)
    assert (row["lag"], row["held_back"]) == (0, 50)
    assert row["held_by"].endswith(" since offset 2")
    row = described(at, group, partition=1)  # held back from its first offset, so it has no committed offset
    assert (row["offset"], row["lag"], row["held_back"]) == (None, 0, 2)
    assert row["held_by"].endswith(" since offset 0")
    assert "since offset 2" in run("groups", "describe", group, bootstrap=at).stdout
    consumed = run("consume", topic, bootstrap=at)
    assert consumed.stdout == "a\n"
    assert consumed.stderr == (
        f"an open transaction holds back 52 offsets at the end of {topic}: 'stablelog topics describe {topic}' names it\n"
    )
    assert run("consume", topic, "--isolation", "read_uncommitted", bootstrap=at).stderr == ""
    producer.abort_transaction(30)
    other.abort_transaction(30)


@pytest.mark.extended
def test_in_commit_order_nothing_is_held_back(stablelog_broker, producer):
    at, group, topic = stablelog_broker.bootstrap, unique("group"), unique("ordered")
    run("topics", "create", topic, "--config", "stablelog.order=commit", bootstrap=at)
    write(producer, topic, b"a")
    commit(at, group, topic, 1)
    write(producer, topic, b"gone", b"gone", end=False)
    write(producer, topic, b"open", end=None)
    row = described(at, group)
    assert (row["held_back"], row["held_by"]) == (0, "")
    (found,) = answer("topics", "describe", topic, bootstrap=at)
    (partition,) = found["partitions"]
    assert partition["held_back"] == 0
    assert partition["held_by"].endswith(" since offset 6")  # It keeps files from retention.
    assert partition["high_watermark"] > partition["last_stable"]
    assert run("consume", topic, bootstrap=at).stderr == ""
    producer.abort_transaction(30)


def test_a_group_past_the_end_has_a_negative_lag(stablelog_broker, topic, producer):
    at, group = stablelog_broker.bootstrap, unique("group")
    write(producer, topic, b"a")
    commit(at, group, topic, 9)
    assert described(at, group)["lag"] == -7
