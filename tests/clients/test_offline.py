"""Clients of a topic of which one partition could not be opened: the other one is read and written."""

import shutil

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from peers import apache_kafka
from tests.clients.drivers import DRIVERS, Confluent, unique
from tests.java.client import Java

pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = [unique("offline") for _ in range(2 * len(DRIVERS))]


@pytest.fixture(scope="module")
def damaged(module_path):
    """A broker whose topics have an open partition 0 and an offline partition 1."""
    with stablelog.serve(module_path / "data") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic(name, 2, 1) for name in NAMES]).values():
            made.result(30)
        broker.stop()
        for name in NAMES:
            shutil.rmtree(broker.data / f"{name}-1")
        broker.start()
        yield broker


@pytest.fixture
def target_broker(damaged):
    return damaged


@pytest.fixture
def topic():
    return NAMES.pop()


@pytest.mark.extended
def test_the_open_partition_is_read_and_written(client, topic):
    client.produce(topic, [b"a"])
    with client.transactions(unique("txn")) as run:
        run(topic, [b"b"], commit=True)
        run(topic, [b"c"], commit=False)
    assert [value for _, value in client.read(topic)] == [b"a", b"b"]
    assert client.consume(unique("group"), topic, 2) == [b"a", b"b"]


@pytest.mark.extended
def test_a_transaction_that_wants_the_offline_partition_is_aborted_and_followed_by_another(damaged, topic):
    producer = Producer(
        {
            "bootstrap.servers": damaged.bootstrap,
            "transactional.id": unique("txn"),
            "log_level": 0,
            "error_cb": lambda _error: None,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"nowhere", partition=1)
    with pytest.raises(KafkaException) as failure:
        producer.commit_transaction(60)
    assert failure.value.args[0].txn_requires_abort()
    producer.abort_transaction(60)
    producer.begin_transaction()
    producer.produce(topic, b"here", partition=0)
    producer.commit_transaction(60)
    assert [value for _, value in Confluent(damaged.bootstrap).read(topic)] == [b"here"]


@pytest.fixture
def java(damaged):
    try:
        return Java(damaged.bootstrap)
    except apache_kafka.NotAvailableError as missing:
        pytest.skip(str(missing))


@pytest.mark.java
def test_records_without_a_key_go_to_the_open_partition(java, topic):
    name = java.open({"linger.ms": 0})
    for number in range(20):
        assert java.send(name, topic, [b"%d" % number]) == [[0, number]]
    java.ask("close", name=name)


@pytest.mark.extended
@pytest.mark.java
def test_kafkas_command_lists_the_offline_partition(java, topic):
    described = java.tool(
        "org.apache.kafka.tools.TopicCommand", "--describe", "--unavailable-partitions", "--topic", topic
    )
    (line,) = [line.split() for line in described if "Partition:" in line]
    assert line[line.index("Partition:") + 1] == "1"
    assert line[line.index("Leader:") + 1] == "none"


def test_a_topic_with_an_offline_partition_can_be_deleted(damaged, topic):
    admin = AdminClient({"bootstrap.servers": damaged.bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(60)
