"""Joint commits over real sockets: children written by confluent-kafka, decided by one call."""

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from stablelog.client import joint
from stablelog.client.cluster import Cluster
from tests.clients.drivers import Confluent, unique

QUIET = {"log_level": 0, "error_cb": lambda _error: None, "linger.ms": 0}


@pytest.fixture
def cluster(stablelog_broker):
    with Cluster(stablelog_broker.bootstrap, deadline_s=10) as cluster:
        yield cluster


def identity(address, transactional_id):
    """Which producer writes under the id: confluent-kafka does not tell."""
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    assert admin is not None
    with Cluster(address) as cluster:
        connection = cluster.coordinator(transactional_id)
        request = connection.request_class(65)(transactional_ids=(transactional_id,))
        from stablelog.cli.transactions import _description_class

        found = connection.call(request, _description_class()).transaction_states[0]
    assert found.error_code is ErrorCode.none
    return found.producer_id, found.producer_epoch


class Child:
    """A task's transaction: begun, written, flushed, never committed by itself."""

    def __init__(self, address, key, version, run="r1", partition=0, attempt=0, timeout_ms=60_000):
        self.address = address
        self.id = joint.child_id(key, version, run, partition, attempt)
        self.producer = Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": self.id,
                "transaction.timeout.ms": timeout_ms,
                **QUIET,
            }
        )
        self.producer.init_transactions(30)
        self.producer.begin_transaction()

    def write(self, topic, *values):
        for value in values:
            self.producer.produce(topic, value, partition=0)
        assert self.producer.flush(30) == 0
        return self

    @property
    def shown(self):
        return (self.id, *identity(self.address, self.id))


def read(address, topic):
    return [value for _, value in Confluent(address).read(topic)]


def test_children_become_visible_together_and_the_commit_is_remembered(cluster):
    key, one, two = unique("query"), unique("t"), unique("t")
    assert joint.supported(cluster)
    assert joint.begin(cluster, key, 0, "r1") == joint.Begun(False, -1, -1)
    a = Child(cluster.bootstrap, key, 0, partition=0).write(one, b"a1", b"a2")
    b = Child(cluster.bootstrap, key, 0, partition=1).write(two, b"b1")
    shown = [a.shown, b.shown]
    assert read(cluster.bootstrap, one) == read(cluster.bootstrap, two) == []
    done = joint.commit(cluster, key, 0, shown, run="r1")
    assert done.commit_sequence > 0
    assert not done.already
    assert read(cluster.bootstrap, one) == [b"a1", b"a2"]
    assert read(cluster.bootstrap, two) == [b"b1"]
    assert joint.commit(cluster, key, 0, shown, run="r1") == joint.Committed(done.commit_sequence, True)
    assert joint.begin(cluster, key, 0, "r2") == joint.Begun(True, done.commit_sequence, 0)
    assert joint.abort(cluster, key, 0, shown)
    assert read(cluster.bootstrap, one) == [b"a1", b"a2"]
    empty = joint.commit(cluster, key, 5, [])
    assert empty == joint.Committed(done.commit_sequence + 1, False)
    assert joint.commit(cluster, key, 3, shown) == joint.Committed(-1, True)


def test_what_is_not_named_is_aborted_and_late_ones_are_refused(cluster):
    key, topic = unique("query"), unique("t")
    winner = Child(cluster.bootstrap, key, 1, attempt=0).write(topic, b"good")
    loser = Child(cluster.bootstrap, key, 1, attempt=1).write(topic, b"bad")
    joint.commit(cluster, key, 1, [winner.shown])
    assert read(cluster.bootstrap, topic) == [b"good"]
    with pytest.raises(KafkaException) as late:
        Child(cluster.bootstrap, key, 1, attempt=2)
    assert late.value.args[0].code() == KafkaError._FENCED
    with pytest.raises(KafkaException) as late:
        loser.producer.commit_transaction(10)
    assert late.value.args[0].fatal()
    assert read(cluster.bootstrap, topic) == [b"good"]
