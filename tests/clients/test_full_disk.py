"""Unmodified clients on a full disk: they wait, read, and go on by themselves when there is room."""

import errno
import threading

import pytest

from stablelog.errors import DiskError
from tests.clients.drivers import unique
from tests.full_disk import served
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def broker():
    with served(group_initial_rebalance_delay_ms=0) as made:
        yield made


@pytest.fixture
def topic(broker):
    name = unique("full")
    broker.call(lambda made: made.topic_files.create(name, 1, {}))
    return name


@pytest.fixture
def target_broker(broker):
    return broker


WRITES = (0, 22, 24, 25, 28)  # Produce, InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit


def write_count(broker):
    """How many writing requests were answered."""
    return broker.call(lambda made: sum(made.metrics.requests[key] for key in WRITES))


def while_full(broker, work):
    """Do work on a full disk, which grows once the client has asked again for what it was refused."""
    broker.fill()
    done = threading.Thread(target=work)
    done.start()
    try:
        until(lambda: broker.is_full, "the client has met the full disk")
        count = write_count(broker)
        until(lambda: write_count(broker) > count + 1, "it asks again")
        assert done.is_alive(), "nothing is acknowledged"
    finally:
        broker.grow()
    done.join(60)
    assert not done.is_alive()
    until(lambda: not broker.is_full, "the broker takes writes")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("idempotent", [False, True])
def test_a_producer_waits_and_goes_on(client, broker, topic, idempotent):
    values = [b"%d" % n for n in range(20)]
    while_full(broker, lambda: client.produce(topic, values, idempotent=idempotent))
    seen = [value for _, value in client.read(topic)]
    assert seen == values if idempotent else sorted(seen) == sorted(values)  # else retries may take turns


@pytest.mark.extended
def test_a_transaction_that_begins_on_a_full_disk_is_committed_when_there_is_room(client, broker, topic):
    with client.transactions(unique("me")) as run:
        run(topic, [b"a"], commit=True)
        while_full(broker, lambda: run(topic, [b"b", b"c"], commit=True, offsets=("g", topic, 1)))
        run(topic, [b"d"], commit=True)
    assert [value for _, value in client.read(topic)] == [b"a", b"b", b"c", b"d"]
    assert client.committed("g", topic) == 1


def test_a_new_transactional_producer_waits_for_room(client, broker, topic):
    def work():
        with client.transactions(unique("me")) as run:
            run(topic, [b"a"], commit=True)

    while_full(broker, work)
    assert [value for _, value in client.read(topic)] == [b"a"]


def test_readers_are_served_with_their_groups(client, broker, topic):
    values = [b"%d" % n for n in range(10)]
    client.produce(topic, values)
    broker.fill()
    try:
        broker.call(lambda made: made.reserve.record_failure(DiskError("writing", errno.ENOSPC)))
        assert [value for _, value in client.read(topic)] == values
        group = unique("group")
        assert len(client.consume(group, topic, 10)) == 10
        assert broker.is_full
    finally:
        broker.grow()
    until(lambda: not broker.is_full, "the broker takes writes")
    assert client.committed(group, topic) == 10
