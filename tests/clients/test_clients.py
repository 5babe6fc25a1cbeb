"""Unmodified clients against a running broker."""

import functools
import operator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.drivers import Confluent, unique
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def topic(stablelog_broker):
    name = unique("topic")
    admin = AdminClient({"bootstrap.servers": stablelog_broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    return name


def values(word, count):
    return [b"%s-%d" % (word.encode(), n) for n in range(count)]


def of(read):
    return [value for _, value in read]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_what_is_produced_is_read(client, topic, compression):
    client.produce(topic, values("v", 100), compression=compression)
    assert of(client.read(topic)) == values("v", 100)


def test_read_committed_is_right_from_every_offset(client, topic):
    """Scenario 49: also from the middle of an aborted transaction."""
    with client.transactions(unique("txn")) as run:
        run(topic, values("a", 4), commit=True)
        run(topic, values("b", 3), commit=False)
        run(topic, values("c", 4), commit=True)
        run(topic, values("d", 2), commit=False)
    everything = client.read(topic, committed=False)
    assert of(everything) == values("a", 4) + values("b", 3) + values("c", 4) + values("d", 2)
    committed = [(offset, value) for offset, value in everything if value[:1] in b"ac"]
    for start in range(everything[-1][0] + 2):
        assert client.read(topic, start=start) == [pair for pair in committed if pair[0] >= start], start


@pytest.mark.sampled(1)
def test_counter_example_a_two_aborted_transactions_that_overlap(client, topic, stablelog_broker):
    """Scenario 49, layout A: aborted P1[2..20], P2[3..12]; nothing of P2 leaks into a read from 10."""
    writer = Confluent(stablelog_broker.bootstrap)
    one, two = _producer(writer, "a1"), _producer(writer, "a2")
    writer.produce(topic, values("plain", 2))
    _write(one, topic, values("p1", 1))
    _write(two, topic, values("p2", 9))
    two.abort_transaction(30)
    _write(one, topic, values("p1", 7))
    one.abort_transaction(30)
    writer.produce(topic, values("after", 1))
    for start in range(2, 22):
        assert of(client.read(topic, start=start)) == values("after", 1), start


def test_counter_example_b_the_next_transaction_of_a_producer_is_not_swallowed(
    client, topic, stablelog_broker
):
    """Scenario 49, layout B: a read from the middle of P's aborted transaction sees P's next, committed one."""
    writer = Confluent(stablelog_broker.bootstrap)
    producer = _producer(writer, "b")
    _write(producer, topic, values("aborted", 1))
    writer.produce(topic, values("plain", 3))
    producer.abort_transaction(30)
    _write(producer, topic, values("next", 2))
    producer.commit_transaction(30)
    assert of(client.read(topic, start=2)) == values("plain", 3)[1:] + values("next", 2)
    assert of(client.read(topic, start=4)) == values("next", 2)


def _producer(driver, word):
    from confluent_kafka import Producer

    producer = Producer(driver.settings(**{"transactional.id": unique(word)}))
    producer.init_transactions(30)
    return producer


def _write(producer, topic, content):
    import contextlib

    from confluent_kafka import KafkaException

    with contextlib.suppress(KafkaException):
        producer.begin_transaction()  # unless it is open
    for value in content:
        producer.produce(topic, value, partition=0)
        assert producer.flush(30) == 0


@pytest.mark.extended
def test_offsets_in_a_transaction_count_when_it_commits(client, topic):
    """Scenario 47: and not when it is aborted."""
    source, group = unique("source"), unique("group")
    client.produce(source, values("in", 5))
    with client.transactions(unique("ctp")) as run:
        run(topic, values("x", 2), commit=False, offsets=(group, source, 2))
        assert client.committed(group, source) is None
        run(topic, values("y", 5), commit=True, offsets=(group, source, 5))
    assert client.committed(group, source) == 5
    assert of(client.read(topic)) == values("y", 5)


def test_a_successor_fences_its_predecessor(client, topic):
    """Scenario 43: what the predecessor has open is aborted, and it can write no more."""
    name = unique("fenced")
    with contextlib_suppress_all(), client.transactions(name) as first:
        first(topic, values("first", 2), commit=True)
        with client.transactions(name) as second:
            second(topic, values("second", 2), commit=True)
            with pytest.raises(Exception, match=r"(?i)fenc|epoch|state"):
                first(topic, values("zombie", 2), commit=True)
    assert of(client.read(topic)) == values("first", 2) + values("second", 2)


def contextlib_suppress_all():
    import contextlib

    return contextlib.suppress(Exception)  # closing a fenced client may complain


@pytest.mark.extended
def test_two_members_of_a_group_share_the_partitions(stablelog_broker):
    from confluent_kafka import Consumer

    name, group = unique("shared"), unique("group")
    admin = AdminClient({"bootstrap.servers": stablelog_broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, 4, 1)])[name].result(30)
    settings = {
        "bootstrap.servers": stablelog_broker.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "heartbeat.interval.ms": 200,
        "log_level": 0,
    }
    members = [Consumer(settings), Consumer(settings)]
    for member in members:
        member.subscribe([name])

    def shares():
        for member in members:
            member.poll(0.05)
        return [sorted(at.partition for at in member.assignment()) for member in members]

    def shared():
        found = shares()
        return all(found) and sorted(functools.reduce(operator.iadd, found, [])) == [0, 1, 2, 3] and found

    assert sorted(len(share) for share in until(shared, "the partitions are not shared")) == [2, 2]
    members.pop(0).close()
    until(lambda: shares() == [[0, 1, 2, 3]], "nobody takes over")
    members[0].close()


@pytest.mark.extended
def test_only_aborted_records_do_not_stop_a_reader(client, topic):
    """Scenario 50: it goes on to what lies behind them."""
    with client.transactions(unique("big")) as run:
        for _ in range(5):
            run(topic, [bytes(20_000)] * 20, commit=False)
        run(topic, values("end", 1), commit=True)
    assert of(client.read(topic)) == values("end", 1)
