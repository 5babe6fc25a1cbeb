"""A producer without transactions: each batch once and in order, whatever is lost on the way."""

import random
import threading

import pytest

import stablelog
from stablelog.batch.header import Codec, headers_in
from stablelog.batch.records import Record, encode_batch
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.errors import RefusedError, UnavailableError
from tests.client.blocking.test_producer import PRODUCE, batch, committed, made, through
from tests.client.faults import Proxy
from tests.clients.drivers import unique


@pytest.fixture
def topic(stablelog_broker):
    return made(stablelog_broker.bootstrap, unique("idempotent"), 2)


@pytest.mark.parametrize("fate", ["answer", "request"])
@pytest.mark.parametrize("seed", range(3))
def test_lost_requests_and_answers_neither_lose_nor_repeat_nor_swap(stablelog_broker, topic, fate, seed):
    chance = random.Random(seed)

    def lose(key, _count):
        return fate if key == PRODUCE and chance.random() < 0.2 else None

    wanted = [b"%d" % n for n in range(60)]
    with (
        Proxy((stablelog_broker.host, stablelog_broker.port), lose) as proxy,
        through(proxy, stablelog_broker) as cluster,
    ):
        producer = BlockingProducer(cluster, None)
        producer.begin()
        for n, value in enumerate(wanted):
            producer.append(topic, n % 2, batch(value))
        producer.flush()
        assert producer.record_count == len(wanted)
        producer.close()
    assert committed(stablelog_broker.bootstrap, topic) == wanted[::2]
    assert committed(stablelog_broker.bootstrap, topic, 1) == wanted[1::2]


def test_batches_have_the_producer_and_its_sequence_numbers_and_no_transaction(stablelog_broker, topic):
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        producer = BlockingProducer(cluster, None)
        producer.begin()
        for codec in Codec:
            records = [Record(0, 0, None, b"same") for _ in range(3)]
            producer.append(topic, 0, bytearray(encode_batch(records, codec=codec)))
        producer.flush()
        producer.close()
        found = [header for _, header in headers_in(cluster.fetch(topic, 0, 0).records)]
    assert [header.codec for header in found] == list(Codec)
    assert [header.base_sequence for header in found] == [0, 3, 6, 9, 12]
    assert {(header.producer_id, header.is_transactional) for header in found} == {
        (producer.producer_id, False)
    }


@pytest.mark.extended
def test_a_broker_killed_in_between_loses_and_repeats_nothing():
    with stablelog.serve() as broker, BlockingCluster(broker.bootstrap) as cluster:
        made(broker.bootstrap, "t", 2)
        producer = BlockingProducer(cluster, None)
        producer.begin()
        starting = threading.Thread(target=lambda: None)
        starting.start()
        for n in range(60):
            producer.append("t", n % 2, batch(b"%d" % n))
            if n % 30 == 15:
                starting.join()
                broker.kill()
                starting = threading.Thread(target=broker.start)
                starting.start()
        producer.flush()
        starting.join()
        producer.close()
        for partition in (0, 1):
            assert committed(broker.bootstrap, "t", partition) == [b"%d" % n for n in range(partition, 60, 2)]


def test_a_topic_that_is_deleted_in_between_ends_the_producer_by_name(stablelog_broker, topic):
    with (
        BlockingCluster(stablelog_broker.bootstrap) as cluster,
        stablelog.connect(stablelog_broker.bootstrap) as other,
    ):
        producer = BlockingProducer(cluster, None)
        producer.begin()
        producer.append(topic, 0, batch(b"a"))
        producer.flush()
        other.admin.topics.delete(topic)
        with pytest.raises(RefusedError, match=f"there is no topic '{topic}'"):
            producer.append(topic, 0, batch(b"b"))
            producer.flush()


@pytest.mark.parametrize("transactional_id", [None, "id"])
def test_records_for_a_topic_that_was_deleted_do_not_go_to_the_next_one_of_its_name(
    stablelog_broker, topic, transactional_id
):
    with (
        BlockingCluster(stablelog_broker.bootstrap) as cluster,
        stablelog.connect(stablelog_broker.bootstrap) as other,
    ):
        producer = BlockingProducer(cluster, transactional_id and unique(transactional_id))
        producer.begin()
        producer.append(topic, 0, batch(b"a"))
        producer.flush()
        other.admin.topics.delete(topic)
        made(stablelog_broker.bootstrap, topic)
        cluster.forget_metadata()
        with pytest.raises(RefusedError, match=f"topic '{topic}' was deleted and created again"):
            producer.append(topic, 0, batch(b"b"))
    assert committed(stablelog_broker.bootstrap, topic) == []


@pytest.mark.extended
def test_a_broker_that_stays_away_is_given_up():
    with stablelog.serve() as broker, BlockingCluster(broker.bootstrap) as cluster:
        made(broker.bootstrap, "t")
        producer = BlockingProducer(cluster, None, deadline_s=0.5)
        producer.begin()
        broker.kill()
        with pytest.raises(UnavailableError, match="an idempotent producer: no batch was acknowledged for"):
            producer.append("t", 0, batch(b"a"))
            producer.flush()
