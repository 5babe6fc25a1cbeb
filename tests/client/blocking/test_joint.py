"""Joint commits over real sockets: children written by confluent-kafka, decided by one call, through kill -9."""

import contextlib
import socket
import struct
import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from stablelog.client.blocking import joint
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.connection import run
from stablelog.client.core.admin.transactions import describe_at_coordinator
from stablelog.errors import RefusedError
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.joint import JointChild
from tests.broker.desk import frame
from tests.clients.drivers import Confluent, unique
from tests.spark.reading import settled

QUIET = {"log_level": 0, "error_cb": lambda _error: None, "linger.ms": 0}
TIMEOUT_S = 60


@pytest.fixture
def cluster(stablelog_broker):
    with BlockingCluster(stablelog_broker.bootstrap, deadline_s=60, timeout_s=TIMEOUT_S) as cluster:
        yield cluster


@pytest.fixture
def topic(stablelog_broker):
    return create(stablelog_broker.bootstrap)


def create(address, partitions=2):
    name = unique("joint")
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    return name


class Child:
    """A task's transaction: begun, written, flushed, never committed by itself."""

    def __init__(self, address, key, version, part=0, run="r1", attempt=0):
        self.address = address
        self.id = joint.child_id(key, version, run, part, attempt)
        self.producer = Producer({"bootstrap.servers": address, "transactional.id": self.id, **QUIET})
        self.producer.init_transactions(TIMEOUT_S)
        self.producer.begin_transaction()

    def write(self, topic, *values, partition=0):
        for value in values:
            self.producer.produce(topic, value, partition=partition)
        assert self.producer.flush(TIMEOUT_S) == 0
        return self

    @property
    def shown(self):
        """Its id, producer id and epoch. confluent-kafka does not tell, the coordinator does."""
        with BlockingCluster(self.address, timeout_s=TIMEOUT_S) as cluster:
            connection = cluster.coordinator(self.id)
            found = run(describe_at_coordinator(connection, self.id))
        return self.id, found.producer_id, found.producer_epoch


def read(address, topic, *, partition_count=2):
    """What a read-committed consumer gets of all partitions, up to their ends."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": unique("reader"),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partition_count)])
    found, ended = [], set()
    while len(ended) < partition_count:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        if message.error() is None:
            found.append(message.value())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return sorted(found)


@pytest.mark.extended
def test_children_become_visible_together_and_the_commit_is_remembered(cluster, topic):
    key, at = unique("query"), cluster.bootstrap
    assert joint.supported(cluster)
    assert joint.begin(cluster, key, 0, "r1") == joint.JointVersion(False, -1, -1)
    shown = [
        Child(at, key, 0, 0).write(topic, b"a1", b"a2").write(topic, b"a3", partition=1).shown,
        Child(at, key, 0, 1).write(topic, b"b1", partition=1).shown,
    ]
    assert read(at, topic) == []
    done = joint.commit(cluster, key, 0, shown, run="r1")
    assert done.commit_sequence > 0
    assert not done.already
    settled(at, topic)
    assert read(at, topic) == [b"a1", b"a2", b"a3", b"b1"]
    assert joint.commit(cluster, key, 0, shown, run="r1") == joint.JointCommit(
        done.commit_sequence, True, run="r1"
    )
    assert joint.begin(cluster, key, 0, "r2") == joint.JointVersion(True, done.commit_sequence, 0, run="r1")
    assert joint.abort(cluster, key, 0, shown)
    assert joint.commit(cluster, key, 5, []) == joint.JointCommit(done.commit_sequence + 1, False)
    assert joint.commit(cluster, key, 3, shown) == joint.JointCommit(-1, True)
    assert read(at, topic) == [b"a1", b"a2", b"a3", b"b1"]


@pytest.mark.extended
def test_what_is_not_named_is_aborted_and_late_ones_are_refused(cluster, topic):
    key, at = unique("query"), cluster.bootstrap
    winner = Child(at, key, 1, attempt=0).write(topic, b"good")
    loser = Child(at, key, 1, attempt=1).write(topic, b"bad")
    with pytest.raises(RefusedError, match=r"the transaction of joint:.*:0:1 .* was fenced"):
        joint.commit(cluster, key, 1, [winner.shown, (loser.id, loser.shown[1], 9)])
    joint.commit(cluster, key, 1, [winner.shown])
    with pytest.raises(KafkaException) as late:
        Child(at, key, 1, attempt=2)
    assert late.value.args[0].code() == KafkaError._FENCED
    with pytest.raises(KafkaException) as late:
        loser.producer.commit_transaction(TIMEOUT_S)
    assert late.value.args[0].fatal()
    settled(at, topic)
    assert read(at, topic) == [b"good"]


def test_a_group_is_as_far_as_the_commit(cluster, topic):
    key, at, group = unique("query"), cluster.bootstrap, unique("group")
    child = Child(at, key, 0).write(topic, b"a")
    offsets = {(group, topic, 0): (3, "from here"), (group, topic, 1): 4}
    assert not joint.commit(cluster, key, 0, [child.shown], group_offsets=offsets).already
    consumer = Consumer({"bootstrap.servers": at, "group.id": group, **QUIET})
    found = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], TIMEOUT_S)
    consumer.close()
    assert [(p.offset, p.metadata) for p in found] == [(3, "from here"), (4, None)]
    with pytest.raises(RefusedError, match=r"partition nowhere-0 does not exist or is not open"):
        joint.commit(cluster, key, 1, [], group_offsets={(group, "nowhere", 0): 5})
    with pytest.raises(RefusedError, match="offset_metadata_too_large"):
        joint.commit(cluster, key, 1, [], group_offsets={(group, topic, 0): (5, "m" * 9000)})


@pytest.mark.extended
def test_who_reads_committed_never_sees_a_part(cluster, topic):
    """A consumer polls all the while, and each version's rows come from both of its children or not at all."""
    key, at, stopping = unique("query"), cluster.bootstrap, threading.Event()
    seen, torn = set(), []
    last_known = [-1]

    def watch():
        while not stopping.is_set():
            before = last_known[0]
            values = set(read(at, topic))
            seen.update(values)
            # What was committed before the reading began is there, whole.
            torn.extend(v for v in range(before + 1) if {b"%d-0" % v, b"%d-1" % v} - values)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for version in range(5):
            children = [
                Child(at, key, version, part).write(topic, b"%d-%d" % (version, part), partition=part)
                for part in (0, 1)
            ]
            orphan = Child(at, key, version, 1, attempt=1).write(topic, b"orphan", partition=1)
            joint.commit(cluster, key, version, [child.shown for child in children])
            del orphan
            settled(at, topic)
            assert set(read(at, topic)) >= {b"%d-0" % version, b"%d-1" % version}
            last_known[0] = version
    finally:
        stopping.set()
        watcher.join(60)
    assert not torn
    assert b"orphan" not in seen
    assert read(at, topic) == sorted(b"%d-%d" % (version, part) for version in range(5) for part in (0, 1))


KILL_AFTER_S = (0, 0.004, None)  # the last one once it is answered


@pytest.mark.extended
def test_kill_between_the_decision_and_its_answer_leaves_all_or_nothing():
    """The request is sent, the broker killed, the answer lost: asked again, it is the commit that was, or it is made."""
    with stablelog.serve() as broker, BlockingCluster(broker.bootstrap, deadline_s=60) as cluster:
        topic = create(broker.bootstrap)
        expected, found_committed, sequences = [], [], []
        for version, delay_s in enumerate(KILL_AFTER_S):
            joint.begin(cluster, "q", version, f"r{version}")
            values = [b"%d-%d" % (version, part) for part in range(3)]
            children = [
                Child(broker.bootstrap, "q", version, part, run=f"r{version}").write(
                    topic, values[part], partition=part % 2
                )
                for part in range(3)
            ]
            shown = [child.shown for child in children]
            with contextlib.closing(
                socket.create_connection((broker.host, broker.port), TIMEOUT_S)
            ) as lonely:
                lonely.sendall(commit_frame("q", version, shown[:2], f"r{version}"))
                if delay_s is None:
                    assert lonely.recv(1, socket.MSG_PEEK), "its answer has come, and nobody reads it"
                else:
                    time.sleep(delay_s)
                broker.kill()
            cluster.close()
            broker.start()
            begun = joint.begin(cluster, "q", version)
            found_committed.append(begun.committed)
            if begun.committed:
                settled(broker.bootstrap, topic)
            visible = read(broker.bootstrap, topic)
            assert visible == sorted(expected + (values[:2] if begun.committed else [])), version
            done = joint.commit(cluster, "q", version, shown[:2], run=f"r{version}")
            assert done.already == begun.committed
            assert begun.commit_sequence in (-1, done.commit_sequence)
            sequences.append(done.commit_sequence)
            expected += values[:2]
            settled(broker.bootstrap, topic)
            assert read(broker.bootstrap, topic) == sorted(expected)
            with pytest.raises(RefusedError, match="does not belong to version"):
                joint.commit(cluster, "q", version + 1, shown[2:])
        assert sequences == [1, 2, 3]
        assert found_committed[-1], "the answer of the last one was lost"


def commit_frame(key, version, shown, run):
    children = tuple(JointChild(transactional_id=i, producer_id=p, producer_epoch=e) for i, p, e in shown)
    data = frame(
        ApiKey.COMMIT_JOINT, 0, key=key, version=version, run=run, children=children, group_offsets=()
    )
    return struct.pack(">i", len(data)) + data


@pytest.mark.extended
def test_clients_that_do_not_know_the_apis_do_not_mind(stablelog_broker, topic):
    """They are advertised to everybody; the tests of tests/clients run with them too."""
    versions = {}
    with BlockingCluster(stablelog_broker.bootstrap, timeout_s=TIMEOUT_S) as cluster:
        versions = cluster.any_connection().versions
    assert {10_001, 10_002, 10_003} <= versions.keys()
    Confluent(stablelog_broker.bootstrap).produce(topic, [b"x"])
    assert b"x" in read(stablelog_broker.bootstrap, topic)
