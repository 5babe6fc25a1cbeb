"""Each batch once and in order, whatever is lost on the way; and an end that cannot be misunderstood."""

import inspect
import random
import threading

import pytest

import stablelog
from stablelog.batch.header import headers_in
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.client.blocking.cluster import EARLIEST, LATEST, BlockingCluster
from stablelog.client.blocking.connection import SocketConnection
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.client.core import producer as core
from stablelog.client.responses import RetriableError
from stablelog.errors import RefusedError, UnavailableError
from tests.client.faults import Proxy
from tests.clients.drivers import Confluent, unique
from tests.waiting import until

PRODUCE, END_TXN = 0, 26


def batch(*values):
    return bytearray(encode_batch([Record(0, 0, None, value) for value in values]))


def committed(bootstrap, topic, partition=0):
    """The values that a read-committed reader of this room sees."""
    with BlockingCluster(bootstrap) as cluster:
        target = (topic, partition)
        end = cluster.list_offsets({target: LATEST}, "read_uncommitted")[target].offset
        # A commit is answered before its marker need be visible.
        cluster.retrying("seeing the end", lambda: seen(cluster, target, end))
        offset = cluster.list_offsets({target: EARLIEST})[target].offset
        values = []
        while offset < end:
            fetched = cluster.fetch(topic, partition, offset)
            aborted = sorted(fetched.aborted, key=lambda txn: txn[1])
            for position, header in headers_in(fetched.records):
                mine = [
                    txn for txn in aborted if txn[0] == header.producer_id and txn[1] <= header.base_offset
                ]
                if not header.is_control and not mine:
                    values += [record.value for record in decode_records(fetched.records, position)]
                elif header.is_control and mine:
                    aborted.remove(mine[0])
                offset = header.next_offset
        return values


def seen(cluster, target, end):
    if cluster.list_offsets({target: LATEST})[target].offset < end:
        raise RetriableError(f"{target} is not stable up to {end}")


def made(bootstrap, topic, partitions=1):
    """Create a topic without retention: records of `batch` are as old as 1970, and Apache Kafka looks for old ones 30 s
    after its start. Return its name when the broker's metadata has it: Apache Kafka answers CreateTopics earlier.
    """
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})]
    admin.create_topics(topics)[topic].result()
    until(lambda: topic in admin.list_topics(timeout=30).topics, f"the metadata does not name {topic}")
    return topic


@pytest.fixture(params=["first dialect", "second dialect"])
def dialect(request, monkeypatch):
    if request.param == "first dialect":
        monkeypatch.setattr(SocketConnection, "features", {})
    return request.param


@pytest.fixture
def topic(stablelog_broker):
    return made(stablelog_broker.bootstrap, unique("produced"), 2)


def test_what_is_committed_is_read_and_what_is_aborted_is_not(stablelog_broker, topic, dialect):
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        producer = BlockingProducer(cluster, unique("p"))
        producer.begin()
        for commit in (True, True, False, None, True):
            if producer.producer_id < 0:
                producer.begin()
            if commit is None:  # a transaction of nothing
                producer.end(commit=True)
                continue
            for n in range(3):
                producer.append(topic, n % 2, batch(b"%d-%s" % (n, str(commit).encode())))
            producer.flush()
            assert producer.record_count == 3
            producer.end(commit=commit)
        producer.close()
    assert committed(stablelog_broker.bootstrap, topic) == [b"0-True", b"2-True"] * 3
    assert committed(stablelog_broker.bootstrap, topic, 1) == [b"1-True"] * 3


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fate", ["answer", "request"])
@pytest.mark.parametrize("seed", range(3))
def test_lost_requests_and_answers_neither_lose_nor_repeat(stablelog_broker, topic, dialect, fate, seed):
    chance = random.Random(seed)

    def lose(key, count):
        return fate if key in (PRODUCE, END_TXN) and chance.random() < 0.2 else None

    wanted = [b"%d" % n for n in range(60)]
    with (
        Proxy((stablelog_broker.host, stablelog_broker.port), lose) as proxy,
        through(proxy, stablelog_broker) as cluster,
    ):
        producer = BlockingProducer(cluster, unique("p"))
        producer.begin()
        for value in wanted:
            producer.append(topic, 0, batch(value))
        producer.flush()
        producer.end(commit=True)
        producer.close()
    assert committed(stablelog_broker.bootstrap, topic) == wanted


class through(BlockingCluster):  # noqa: N801
    """A cluster whose brokers are all reached by the proxy."""

    def __init__(self, proxy, broker, **more):
        super().__init__(proxy.bootstrap, **more)
        self._proxy = proxy

    def open_connection(self, address, probe=None):
        return super().open_connection(self._proxy.bootstrap, probe)


@pytest.mark.extended
def test_a_broker_killed_in_between_loses_and_repeats_nothing():
    with stablelog.serve() as broker, BlockingCluster(broker.bootstrap) as cluster:
        made(broker.bootstrap, "t", 3)
        producer = BlockingProducer(cluster, "p")
        producer.begin()
        wanted = {0: [], 1: [], 2: []}
        starting = threading.Thread(target=lambda: None)
        starting.start()
        for n in range(90):
            wanted[n % 3].append(b"%d" % n)
            producer.append("t", n % 3, batch(b"%d" % n))
            if n % 30 == 15:
                starting.join()
                broker.kill()
                starting = threading.Thread(target=broker.start)
                starting.start()
        producer.flush()
        starting.join()
        broker.kill()
        broker.start()
        producer.end(commit=True)
        assert {p: committed(broker.bootstrap, "t", p) for p in range(3)} == wanted
        assert producer.producer_id >= 0
        producer.close()


def test_a_producer_fenced_by_its_successor_is_told_in_words(stablelog_broker, topic):
    name = unique("p")
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        first, second = BlockingProducer(cluster, name), BlockingProducer(cluster, name)
        first.begin()
        first.append(topic, 0, batch(b"lost"))
        first.flush()
        second.begin()
        with pytest.raises(
            RefusedError, match=f"the transaction of '{name}' has ended.*fenced by a later producer"
        ):
            first.append(topic, 0, batch(b"late"))
            first.flush()
        with pytest.raises(RefusedError, match="has ended"):
            first.end(commit=True)
        second.append(topic, 0, batch(b"kept"))
        second.flush()
        second.end(commit=True)
        first.close()
        second.close()
    assert committed(stablelog_broker.bootstrap, topic) == [b"kept"]


def test_a_topic_that_is_not_there_is_named(stablelog_broker):
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        producer = BlockingProducer(cluster, unique("p"))
        producer.begin()
        with pytest.raises(RefusedError, match="there is no topic 'nowhere'"):
            producer.append("nowhere", 0, batch(b"a"))


def test_a_batch_that_is_too_large_is_told_with_its_size(stablelog_broker, topic):
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        producer = BlockingProducer(cluster, unique("p"))
        producer.begin()
        with pytest.raises(
            RefusedError, match=r"a batch of 20000\d\d bytes \(records: 1\) is more than max.message.bytes"
        ):
            producer.append(topic, 0, batch(bytes(2_000_000)))
            producer.flush()
        producer.end(commit=False)
        producer.close()


def test_a_timeout_that_is_too_long_is_told(stablelog_broker):
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        producer = BlockingProducer(cluster, unique("p"), transaction_timeout_ms=2**31 - 1)
        with pytest.raises(RefusedError, match=r"transaction\.max\.timeout\.ms"):
            producer.begin()


@pytest.mark.extended
def test_a_broker_that_stays_away_is_given_up():
    with stablelog.serve() as broker, BlockingCluster(broker.bootstrap) as cluster:
        made(broker.bootstrap, "t")
        producer = BlockingProducer(cluster, "p", deadline_s=0.5)
        producer.begin()
        broker.kill()
        with pytest.raises(UnavailableError, match="p: no batch was acknowledged for"):
            producer.append("t", 0, batch(b"a"))
            producer.flush()


def test_more_than_fits_in_the_queue_arrives_in_order(stablelog_broker, topic):
    large = bytes(900_000)
    offsets = {}
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        producer = BlockingProducer(cluster, unique("p"), on_acknowledged=offsets.__setitem__)
        producer.begin()
        for n in range(30):
            producer.append(topic, n % 2, batch(b"%d" % n, large))
        producer.flush()
        assert offsets == {n: n - n % 2 for n in range(30)}
        producer.end(commit=True)
        producer.close()
    for partition in (0, 1):
        found = committed(stablelog_broker.bootstrap, topic, partition)
        assert found[::2] == [b"%d" % n for n in range(partition, 30, 2)]


def test_what_an_append_costs_does_not_grow_with_what_waits(stablelog_broker, topic, monkeypatch):
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        producer = BlockingProducer(cluster, unique("p"))
        producer.begin()
        looked_up = []
        leader = cluster.core.leader
        monkeypatch.setattr(
            cluster.core, "leader", lambda *target: looked_up.append(target) or leader(*target)
        )
        for n in range(300):  # of each partition five are under way, and no answer is taken before `flush`
            producer.append(topic, n % 2, batch(b"%d" % n))
        assert len(looked_up) <= 2 * 300
        producer.flush()
        producer.end(commit=True)
        producer.close()
    for partition in (0, 1):
        found = committed(stablelog_broker.bootstrap, topic, partition)
        assert found == [b"%d" % n for n in range(partition, 300, 2)]


def test_other_clients_read_what_was_produced(stablelog_broker, topic):
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        producer = BlockingProducer(cluster, unique("p"))
        producer.begin()
        producer.append(topic, 0, batch(b"a", b"b"))
        producer.flush()
        producer.end(commit=True)
        producer.close()
    assert [value for _, value in Confluent(stablelog_broker.bootstrap).read(topic)] == [b"a", b"b"]


@pytest.mark.parametrize("name", ["begin", "append", "flush", "end"])
def test_a_blocking_call_has_the_arguments_and_the_help_of_its_steps_and_a_result(name):
    blocking, steps = getattr(BlockingProducer, name), getattr(core.BatchProducer, name)
    assert blocking.__doc__ == steps.__doc__
    assert "Raises:" in blocking.__doc__
    assert inspect.signature(blocking).parameters == inspect.signature(steps).parameters
    assert inspect.signature(blocking).return_annotation is (int if name == "append" else type(None))
