"""Our own client, and the sink made of it, against Apache Kafka."""

import random

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from stablelog.client.blocking.cluster import EARLIEST, LATEST, BlockingCluster
from stablelog.client.blocking.connection import SocketConnection
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.errors import RefusedError
from stablelog.spark.options import write_options
from stablelog.spark.sink.task import Task, write_part
from stablelog.spark.sink.task_commits import abort_parts, commit_parts
from stablelog.spark.sink.task_messages import JointWrite
from stablelog.spark.sink.writer import stream_writer
from tests.client.blocking.test_producer import END_TXN, PRODUCE, batch, committed, made, through
from tests.client.faults import Proxy
from tests.clients.drivers import Confluent, unique

INIT_PRODUCER_ID, TWO_PHASE = 22, 6  # the API, and its version that KIP-939 added

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def kafka(shared_kafka):
    return shared_kafka


@pytest.fixture(params=["first dialect", "second dialect"])
def dialect(request, monkeypatch):
    if request.param == "first dialect":
        monkeypatch.setattr(SocketConnection, "features", {})
    return request.param


def test_metadata_offsets_and_batches(kafka):
    topic = made(kafka.bootstrap, unique("t"), 2)
    with Confluent(kafka.bootstrap).transactions(unique("p")) as run:
        run(topic, [b"a"], commit=False)
        run(topic, [b"b"], commit=True)
    with BlockingCluster(kafka.bootstrap) as cluster:
        assert list(cluster.metadata([topic])[topic].partitions) == [0, 1]
        # Also waits until the end is stable.
        assert committed(kafka.bootstrap, topic) == [b"b"]
        found = cluster.list_offsets({(topic, 0): LATEST, (topic, 1): EARLIEST})
        assert (found[topic, 0].offset, found[topic, 1].offset) == (4, 0)
        assert [first for _, first in cluster.fetch(topic, 0, 0).aborted] == [0]


@pytest.mark.parametrize("fate", ["answer", "request"])
def test_lost_requests_and_answers_neither_lose_nor_repeat(kafka, dialect, fate):
    topic = made(kafka.bootstrap, unique("t"), 2)
    chance = random.Random(1)

    def lose(key, count):
        return fate if key in (PRODUCE, END_TXN) and chance.random() < 0.2 else None

    host, port = kafka.bootstrap.split(":")
    with Proxy((host, int(port)), lose) as proxy, through(proxy, kafka) as cluster:
        producer = BlockingProducer(cluster, unique("p"))
        for number in range(2):
            producer.begin()
            for n in range(40):
                producer.append(topic, n % 2, batch(b"%d-%d" % (number, n)))
            producer.flush()
            producer.end(commit=True)
        producer.close()
    for partition in (0, 1):
        wanted = [b"%d-%d" % (number, n) for number in range(2) for n in range(partition, 40, 2)]
        assert committed(kafka.bootstrap, topic, partition) == wanted


def test_a_producer_fenced_by_its_successor_is_told_in_words(kafka, dialect):
    topic, name = made(kafka.bootstrap, unique("t")), unique("p")
    with BlockingCluster(kafka.bootstrap) as cluster:
        first, second = BlockingProducer(cluster, name), BlockingProducer(cluster, name)
        first.begin()
        first.append(topic, 0, batch(b"lost"))
        first.flush()
        second.begin()
        with pytest.raises(RefusedError, match="fenced by a later producer"):
            first.append(topic, 0, batch(b"late"))
            first.flush()
        first.close()
        second.close()
    assert committed(kafka.bootstrap, topic) == []


def test_kafka_offers_no_two_phase_commit(kafka):
    """When it does, docs/how-it-works/spark-internals.md, "Writes", has to be thought over."""
    with BlockingCluster(kafka.bootstrap) as cluster:
        connection = cluster.any_connection()
        assert connection.supports_api(INIT_PRODUCER_ID, 5)
        assert not connection.supports_api(INIT_PRODUCER_ID, TWO_PHASE)


def test_the_sink_promises_what_it_can(kafka):
    topic = made(kafka.bootstrap, unique("t"))
    given = {"bootstrap": kafka.bootstrap, "topic": topic}
    schema = StructType([StructField("value", StringType())])
    with pytest.raises(RefusedError, match=r"no stablelog broker.*guarantee=at-least-once"):
        stream_writer(given, schema)
    stream_writer(given | {"guarantee": "at-least-once"}, schema)

    options, part = write_options(given | {"guarantee": "at-least-once"}), JointWrite(unique("q"), 0, "r")

    def write(value, task):
        return write_part(options, part, task, iter([pa.RecordBatch.from_pydict({"value": [value]})]))

    write("of a task that failed", Task(0, 0))
    abort_parts(options, [write("dropped", Task(0, 1))])
    messages = [write("a", Task(0, 0)), write("b", Task(1, 0))]
    commit_parts(options, messages)
    abort_parts(options, messages)
    assert sorted(committed(kafka.bootstrap, topic)) == [b"a", b"b"]
