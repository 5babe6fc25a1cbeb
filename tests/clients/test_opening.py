"""Clients of a broker that was killed, and is recovering a partition of theirs: they wait, and go on.

The Java client and Kafka Streams: tests/java/test_streams.py.
"""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient, NewTopic

from tests import slow_opening
from tests.clients.drivers import Aiokafka, Confluent, KafkaPython, unique
from tests.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.extended]

QUESTIONS = 6  # of clients to the partition, before it opens


@pytest.fixture(scope="module")
def slow(module_path):
    with (
        pytest.MonkeyPatch.context() as patch,
        slow_opening.serve(module_path / "data", patch) as served,
    ):
        yield served


@pytest.fixture(params=[Confluent, KafkaPython, Aiokafka], ids=lambda driver: driver.name)
def driver(request):
    return request.param


@pytest.fixture
def admin(slow):
    return AdminClient({"bootstrap.servers": slow[0].bootstrap, "log_level": 0})


@pytest.fixture
def topic(admin):
    name = unique("opening")
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    return name


def kill_and_start(slow):
    """A broker that opens no partition for now. Returns how to have it opened, once clients have asked for it."""
    broker, opening = slow
    opening.hold()
    broker.kill()
    broker.start()
    before = opening.asked_count()

    def release(*waiting):
        try:
            until(lambda: opening.asked_count() >= before + QUESTIONS, "nobody asks")
            assert not any(one.done() for one in waiting), [one.result() for one in waiting if one.done()]
        finally:
            opening.release()

    return release


def is_stable(admin, group):
    described = admin.describe_consumer_groups([group])[group].result(30)
    return described.state is ConsumerGroupState.STABLE


def follow(address, topic, count, begun):
    """Read so many values with kafka-python, as no member of a group: a member's poll() raises while no broker is there."""
    from kafka import KafkaConsumer
    from kafka.errors import KafkaConnectionError

    consumer = KafkaConsumer(topic, bootstrap_servers=address, group_id=None, auto_offset_reset="earliest")
    found = []
    while len(found) < count:
        with contextlib.suppress(KafkaConnectionError):
            for messages in consumer.poll(500).values():
                found += [message.value for message in messages]
                begun.set()
    consumer.close()
    return found


def test_clients_that_were_there_before(slow, driver, admin, topic):
    """They know a leader, and ask it for what it has not opened."""
    address, group, begun = slow[0].bootstrap, unique("group"), threading.Event()
    with ThreadPoolExecutor(2) as threads, driver(address).transactions(unique("txn")) as run:
        run(topic, [b"a"], commit=True)
        if driver is KafkaPython:
            reading = threads.submit(follow, address, topic, 3, begun)
            assert begun.wait(PATIENCE_S)
        else:
            reading = threads.submit(driver(address).consume, group, topic, 3)
            until(lambda: is_stable(admin, group), "the reader has not joined")
        release = kill_and_start(slow)
        writing = threads.submit(run, topic, [b"b"], commit=True)
        release(reading, writing)
        writing.result(120)
        run(topic, [b"c"], commit=True)
        assert reading.result(120) == [b"a", b"b", b"c"]


def test_clients_that_come_while_it_opens(slow, driver, topic):
    address = slow[0].bootstrap
    driver(address).produce(topic, [b"a"])

    def transact():
        with driver(address).transactions(unique("txn")) as run:
            run(topic, [b"c"], commit=True)

    release = kill_and_start(slow)
    with ThreadPoolExecutor(3) as threads:
        doing = [
            threads.submit(driver(address).consume, unique("group"), topic, 3),
            threads.submit(driver(address).produce, topic, [b"b"]),
            threads.submit(transact),
        ]
        release(*doing)
        reading, *writing = doing
        for one in writing:
            one.result(120)
        found = reading.result(120)
        assert found[0] == b"a"
        assert sorted(found) == [b"a", b"b", b"c"]
