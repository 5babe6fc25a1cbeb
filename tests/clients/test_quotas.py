"""Quotas, with the clients as they are: they are slowed to their rate, and lose nothing."""

import asyncio
import contextlib
import socket
import ssl
import struct
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kio.schema.alter_client_quotas.v1 import request as alter

import stablelog
from stablelog.client.blocking.connection import SocketConnection
from tests.broker.desk import frame, read_answer
from tests.clients.drivers import unique
from tests.secured import secured

RATE = 200_000  # bytes per second
# What a client has free: the quota of ten windows. The tests send three times as much.
BURST = 10 * RATE
VALUE = bytes(20_000)
COUNT = 3 * BURST // len(VALUE)
# The rest takes at least this long. Kafka's measure forgets whole windows, so a client may be faster by some of them.
SECONDS_MIN = 0.6 * 2 * BURST / RATE
SECONDS_MAX = 2 * 2 * BURST / RATE + 10


def limit(bootstrap, entity, **quotas):
    names = tuple(alter.EntityData(entity_type=kind, entity_name=name) for kind, name in entity)
    ops = tuple(
        alter.OpData(key=key, value=float(value or 0), remove=value is None) for key, value in quotas.items()
    )
    entry = alter.EntryData(entity=names, ops=ops)
    with SocketConnection(bootstrap, timeout_s=10) as connection:
        [answer] = connection.request(
            alter.AlterClientQuotasRequest(entries=(entry,), validate_only=False)
        ).entries
    assert not answer.error_code.value, answer.error_message


def of_client(name):
    return (("client-id", name),)


@contextlib.contextmanager
def timed():
    begun = time.monotonic()
    yield
    seconds = time.monotonic() - begun
    assert SECONDS_MIN < seconds < SECONDS_MAX


@pytest.fixture(scope="module")
def bootstrap():
    with stablelog.serve(num_partitions=1) as broker:
        yield broker.bootstrap


def produce(bootstrap, topic, client_id, count=COUNT):
    producer = Producer(
        {"bootstrap.servers": bootstrap, "client.id": client_id, "linger.ms": 5, "batch.size": 100_000}
    )
    failed = []
    for _ in range(count):
        producer.produce(topic, VALUE, on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.poll(0)
    assert producer.flush(240) == 0
    assert not failed


def consume(bootstrap, topic, client_id):
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "client.id": client_id}
    consumer = Consumer({**settings, "fetch.message.max.bytes": 200_000, "queued.min.messages": COUNT})
    consumer.assign([TopicPartition(topic, 0, 0)])
    offsets = []
    while len(offsets) < COUNT:
        message = consumer.poll(120)
        assert message is not None
        assert message.error() is None
        offsets.append(message.offset())
    consumer.close()
    assert offsets == list(range(COUNT))


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_a_producer_and_a_consumer_of_librdkafka_keep_their_rates(bootstrap):
    limit(bootstrap, of_client("slow-producer"), producer_byte_rate=RATE)
    limit(bootstrap, of_client("slow-consumer"), consumer_byte_rate=RATE)
    topic = unique("librdkafka")
    produce(
        bootstrap, unique("warm"), "warm", 1
    )  # the broker imports the modules of a version at its first request
    with timed():
        produce(bootstrap, topic, "slow-producer")
    with timed():
        consume(bootstrap, topic, "slow-consumer")


@pytest.mark.night
@pytest.mark.timeout(300)
def test_a_producer_and_a_consumer_of_aiokafka_keep_their_rates(bootstrap):
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.structs import TopicPartition as Place

    limit(bootstrap, of_client("slow-aio"), producer_byte_rate=RATE, consumer_byte_rate=RATE)
    topic = unique("aiokafka")

    async def conversation():
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, client_id="slow-aio", linger_ms=5)
        await producer.start()
        with timed():
            await asyncio.gather(*[await producer.send(topic, VALUE) for _ in range(COUNT)])
        await producer.stop()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, client_id="slow-aio", max_partition_fetch_bytes=200_000
        )
        await consumer.start()
        place = Place(topic, 0)
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        with timed():
            offsets = [(await asyncio.wait_for(consumer.getone(), 120)).offset for _ in range(COUNT)]
        await consumer.stop()
        assert offsets == list(range(COUNT))

    asyncio.run(conversation())


def ask(connection, api_key, version, **fields):
    data = frame(api_key, version, **fields)
    connection.sendall(struct.pack(">i", len(data)) + data)


def receive(connection, api_key, version):
    size = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0]
    return read_answer(api_key, version, connection.recv(size, socket.MSG_WAITALL))[0]


@pytest.mark.extended
def test_a_muted_connection_is_answered_late_and_others_of_the_broker_at_once(bootstrap):
    host, _, port = bootstrap.rpartition(":")
    limit(bootstrap, of_client("me"), request_percentage=0.00001)
    try:
        with (
            socket.create_connection((host, int(port)), 30) as muted,
            SocketConnection(bootstrap, timeout_s=10) as other,
        ):
            ask(muted, 10, 2, key="g", key_type=0)
            throttle_s = receive(muted, 10, 2).throttle_time.total_seconds()
            assert throttle_s == 1
            begun = time.monotonic()
            ask(muted, 10, 2, key="g", key_type=0)
            assert other.versions
            receive(muted, 10, 2)
            assert 0.9 < time.monotonic() - begun < 15
    finally:
        limit(bootstrap, of_client("me"), request_percentage=None)


@pytest.mark.extended
def test_connections_above_the_rate_of_their_address_are_closed(bootstrap):
    host, _, port = bootstrap.rpartition(":")
    limit(bootstrap, (("ip", "127.0.0.1"),), connection_creation_rate=2)
    opened = [socket.create_connection((host, int(port)), 30) for _ in range(40)]
    try:
        for connection in opened:
            with contextlib.suppress(OSError):
                ask(connection, 10, 2, key="g", key_type=0)
        served = 0
        for connection in opened:
            with contextlib.suppress(OSError):
                served += bool(connection.recv(1))
        assert 15 <= served <= 30
        receive_rest = opened[0].recv(1000)
        assert receive_rest
        ask(opened[0], 49, 1, entries=(), validate_only=False)
    finally:
        entry = alter.EntryData(
            entity=(alter.EntityData(entity_type="ip", entity_name="127.0.0.1"),),
            ops=(alter.OpData(key="connection_creation_rate", value=0.0, remove=True),),
        )
        ask(opened[0], 49, 1, entries=(entry,), validate_only=False)
        for connection in opened[1:]:
            connection.close()
        opened[0].recv(1000)
        opened[0].close()


# -- the rate of new connections on a listener with TLS ------------------------------------------------------------

COUNT_FREE, COUNT_OVER = 20, 10  # what a rate of 2 has free in ten windows, and what is above it


def handshakes(server):
    """Open connections all at once, and then wait for the TLS handshake of each.

    Returns for each connection the seconds from its opening to its handshake; None if the broker has closed it before.
    """
    host, _, port = server.at["SASL_SSL"].rpartition(":")
    context = ssl.create_default_context(cafile=str(server.certificates.trust))
    opened = [
        (socket.create_connection((host, int(port)), 30), time.monotonic())
        for _ in range(COUNT_FREE + COUNT_OVER)
    ]
    found = []
    for connection, begun in opened:
        try:
            context.wrap_socket(connection, server_hostname="localhost").close()
            found.append(time.monotonic() - begun)
        except OSError:
            found.append(None)
            connection.close()
    return found


@pytest.mark.extended
def test_handshakes_above_the_rate_of_the_broker_wait_and_are_done(tmp_path):
    with (
        secured(tmp_path, **{"max.connection.creation.rate": "2"}) as server,
        SocketConnection(server.at["PLAINTEXT"], timeout_s=10) as other,
    ):
        assert other.versions
        found = handshakes(server)
        assert None not in found, "no connection is closed"
        assert min(found[-COUNT_OVER // 2 :]) > 0.5, "the last ones waited for up to a window"
        assert min(found) < 0.5, "the first one did not wait"


@pytest.mark.extended
def test_handshakes_above_the_rate_of_their_address_are_not_begun(tmp_path):
    with secured(tmp_path) as server:
        limit(server.at["PLAINTEXT"], (("ip", "127.0.0.1"),), connection_creation_rate=2)
        found = handshakes(server)
        served = [seconds for seconds in found if seconds is not None]
        assert COUNT_FREE - 5 <= len(served) <= COUNT_FREE + 5
        assert found[0] is not None
        assert found[-1] is None
        assert "its address opens more than 2 connections per second" in server.broker.log_tail(1000)
