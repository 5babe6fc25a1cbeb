"""Faults of requests, over real sockets and with real client libraries."""

import asyncio
import contextlib
import itertools
import threading
from datetime import timedelta

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v5.request import FindCoordinatorRequest
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

import stablelog
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.connection import SocketConnection
from stablelog.errors import RefusedError, UnavailableError, UsageError
from stablelog.testing.faults import Faults
from stablelog.testing.faulty_broker import FaultyBroker
from stablelog.testing.topics import create_topic
from stablelog.wire.api import ApiKey
from stablelog.wire.fetch import encode_fetch_request, read_fetch_response
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore")  # kafka-python's, of its own imports

TIMEOUT_S = 60
COORDINATOR = FindCoordinatorRequest(key_type=1, coordinator_keys=("x",))


@pytest.fixture
def faults(stablelog_faults):
    return stablelog_faults.faults


@contextlib.contextmanager
def connected(broker, client_id="me"):
    with SocketConnection(broker.bootstrap, client_id=client_id, timeout_s=TIMEOUT_S) as connection:
        assert connection.versions
        yield connection


def values(broker, topic):
    """The values of a topic."""
    import kafka

    reader = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    place = kafka.TopicPartition(topic, 0)
    reader.assign([place])
    end = reader.end_offsets([place])[place]
    found = []
    while reader.position(place) < end:
        found += [one.value for many in reader.poll(1000).values() for one in many]
    reader.close()
    return found


@pytest.mark.extended
def test_without_faults_the_proxy_passes_everything_on(stablelog_faults, faults):
    with connected(stablelog_faults) as connection:
        (coordinator,) = connection.request(COORDINATOR).coordinators
    assert coordinator.error_code is ErrorCode.none
    assert f"{coordinator.host}:{coordinator.port}" == stablelog_faults.bootstrap
    assert faults.requests() == {"ApiVersions": 1, "FindCoordinator": 1}


@pytest.mark.extended
def test_a_failed_request_gets_the_error_and_does_not_reach_the_broker(stablelog_faults, faults):
    fault = faults.fail("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", count=2)
    with connected(stablelog_faults) as connection:
        codes = [connection.request(COORDINATOR).coordinators[0].error_code for _ in range(3)]
    assert codes == [ErrorCode.coordinator_not_available, ErrorCode.coordinator_not_available, ErrorCode.none]
    assert fault.happened == 2
    fault.wait()


def test_a_dropped_request_closes_the_connection(stablelog_faults, faults):
    fault = faults.drop("FindCoordinator")
    with connected(stablelog_faults) as connection, pytest.raises(UnavailableError, match="did not respond"):
        connection.request(COORDINATOR)
    fault.wait()
    with connected(stablelog_faults) as connection:
        assert connection.request(COORDINATOR)


@pytest.mark.extended
@pytest.mark.parametrize("is_delivered", [True, False])
def test_the_broker_gets_a_dropped_request_only_if_it_is_delivered(stablelog_faults, faults, is_delivered):
    asked = InitProducerIdRequest(transactional_id=None, transaction_timeout=timedelta(minutes=1))
    with connected(stablelog_faults) as connection:
        first = connection.request(asked).producer_id
        faults.drop("InitProducerId", is_delivered=is_delivered)
        with pytest.raises(UnavailableError):
            connection.request(asked)
    with connected(stablelog_faults) as connection:
        assert connection.request(asked).producer_id - first == (2 if is_delivered else 1)


def test_a_duplicated_request_is_applied_twice_and_answered_once(stablelog_faults, faults):
    asked = InitProducerIdRequest(transactional_id=None, transaction_timeout=timedelta(minutes=1))
    with connected(stablelog_faults) as connection:
        fault = faults.duplicate("InitProducerId")
        first, second = (connection.request(asked).producer_id for _ in range(2))
    fault.wait()
    assert second - first == 2


def test_a_fault_happens_also_if_the_client_leaves_at_once(stablelog_faults, faults, stablelog_topic):
    """The first request waits for records, so the second one cannot be answered before the client has gone."""
    topic = stablelog_topic()
    fault = faults.duplicate("Fetch")
    body = encode_fetch_request(12, {(topic, 0): 0}, 1 << 20, 0, wait_ms=100)
    with connected(stablelog_faults) as connection:
        connection.send(ApiKey.FETCH, 12, [body], flexible=True)
    fault.wait()


def test_a_delayed_request_is_held_until_it_is_released(stablelog_faults, faults):
    fault = faults.delay("FindCoordinator")
    answered = threading.Event()

    def ask():
        with connected(stablelog_faults) as connection:
            connection.request(COORDINATOR)
            answered.set()

    asking = threading.Thread(target=ask)
    asking.start()
    fault.wait()
    with connected(stablelog_faults, "another") as connection:
        assert connection.request(COORDINATOR)  # only one request is held
    assert not answered.is_set()
    fault.release()
    asking.join(TIMEOUT_S)
    assert answered.is_set()


def test_the_broker_gets_a_released_request_of_a_client_that_has_gone(stablelog_faults, faults):
    asked = InitProducerIdRequest(transactional_id=None, transaction_timeout=timedelta(minutes=1))
    held = faults.delay("InitProducerId", client_id="gone")
    with connected(stablelog_faults) as connection:
        first = connection.request(asked).producer_id
        with connected(stablelog_faults, "gone") as gone:
            gone.send(ApiKey.INIT_PRODUCER_ID, 1, [b"\xff\xff\0\0\xea\x60"], flexible=False)
            held.wait()
        faults.clear()
        own = itertools.count(1)
        until(
            lambda: connection.request(asked).producer_id - first - next(own) == 1,
            "the broker did not get it",
        )


def test_a_request_gets_the_fault_that_was_set_first(stablelog_faults, faults):
    first, second = (
        faults.fail("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
        faults.drop("FindCoordinator"),
    )
    with connected(stablelog_faults) as connection:
        code = connection.request(COORDINATOR).coordinators[0].error_code
        assert (code, second.happened) == (ErrorCode.coordinator_not_available, 0)
        with pytest.raises(UnavailableError):
            connection.request(COORDINATOR)
    first.wait()
    second.wait()


def test_a_test_can_wait_for_the_first_requests_of_a_fault(stablelog_faults, faults):
    fault = faults.fail("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", count=3)
    with pytest.raises(TimeoutError, match="has happened to 0 of 1 requests"):
        fault.wait(0.01, count=1)
    with connected(stablelog_faults) as connection:
        connection.request(COORDINATOR)
    fault.wait(count=1)
    with pytest.raises(TimeoutError, match="has happened to 1 of 3 requests"):
        fault.wait(0.01)
    with pytest.raises(UsageError, match=r"count=4 is not valid: .* applies to 3 requests"):
        fault.wait(count=4)
    for count in (0, -1):
        with pytest.raises(UsageError, match=f"count={count} is not valid: the count must be 1 or more"):
            fault.wait(count=count)
    assert repr(fault) == "<Fault: fail FindCoordinator, happened to 1 of 3 requests>"


def test_a_faulty_broker_shows_its_address_its_data_and_its_process(stablelog_faults):
    broker = stablelog_faults.broker
    place = f"<FaultyBroker at {stablelog_faults.bootstrap} on {broker.data}"
    assert repr(stablelog_faults) == f"{place}, running as process {broker.pid}>"
    stablelog_faults.kill()
    assert repr(stablelog_faults) == f"{place}, not running>"


def test_a_request_that_is_delayed_for_a_time_goes_on_by_itself(stablelog_faults, faults):
    fault = faults.delay("FindCoordinator", 0.01)
    with connected(stablelog_faults) as connection:
        assert connection.request(COORDINATOR)
    fault.wait()


def test_a_fault_applies_to_the_client_that_it_names(stablelog_faults, faults):
    fault = faults.fail("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", client_id="other")
    for client_id, code in (("me", ErrorCode.none), ("other", ErrorCode.coordinator_not_available)):
        with connected(stablelog_faults, client_id) as connection:
            assert connection.request(COORDINATOR).coordinators[0].error_code is code
    assert fault.happened == 1


def test_responses_keep_the_order_of_the_requests(stablelog_faults, faults, stablelog_topic):
    """A Fetch that waits for records, and behind it a request that fails: the failure comes after the Fetch."""
    topic = stablelog_topic()
    fault = faults.fail("Heartbeat", "REBALANCE_IN_PROGRESS")
    with connected(stablelog_faults) as connection:
        body = encode_fetch_request(12, {(topic, 0): 0}, 1 << 20, 0, wait_ms=200)
        connection.send(ApiKey.FETCH, 12, [body], flexible=True)
        connection.send(ApiKey.HEARTBEAT, 0, [b"\0\1g\0\0\0\1\0\1m"], flexible=False)
        fetched = read_fetch_response(12, connection.receive(flexible=True))
        assert fetched.partitions[topic, 0].error is ErrorCode.none
        assert bytes(connection.receive(flexible=False)) == (27).to_bytes(2, "big")
    fault.wait()


def test_a_fault_that_does_not_happen_is_told(faults):
    fault = faults.drop("EndTxn", client_id="nobody")
    with pytest.raises(
        TimeoutError, match="the fault 'drop EndTxn of client 'nobody'' has happened to 0 of 1 requests"
    ):
        fault.wait(0.01)


@pytest.mark.parametrize(
    ("request_fault", "message"),
    [
        (lambda faults: faults.drop("Produced"), "no API 'Produced'; did you mean Produce?"),
        (lambda faults: faults.fail("EndTxn", "FENCED"), "no error 'FENCED'"),
        (
            lambda faults: faults.fail("Metadata", "NOT_CONTROLLER"),
            "a response of Metadata cannot report an error",
        ),
        (
            lambda faults: faults.delay("end_txn", count=0),
            "count=0 is not valid: the count must be 1 or more",
        ),
    ],
)
def test_a_fault_that_cannot_be_is_refused_at_once(request_fault, message):
    with pytest.raises(UsageError, match=message):
        request_fault(Faults())


def test_the_broker_names_the_proxy_and_no_other_address():
    with pytest.raises(UsageError, match="port cannot be set for a faulty broker"):
        FaultyBroker(port=9092)
    with pytest.raises(UsageError, match=r"'num_partition' .*; did you mean num_partitions?"):
        FaultyBroker(num_partition=3)


@pytest.mark.extended
def test_a_killed_broker_comes_back_with_its_address_and_its_data(stablelog_faults, stablelog_topic):
    topic, address = stablelog_topic(), stablelog_faults.bootstrap
    stablelog_faults.kill()
    assert not stablelog_faults.is_running
    with pytest.raises(UnavailableError), connected(stablelog_faults) as connection:
        connection.request(COORDINATOR)
    stablelog_faults.start()
    stablelog_faults.restart()
    assert stablelog_faults.bootstrap == address
    with BlockingCluster(address) as cluster:
        assert topic in cluster.metadata()


def test_a_test_may_leave_the_broker_killed(stablelog_faults):
    stablelog_faults.faults.drop("Metadata", count=1000)
    stablelog_faults.kill()


@pytest.mark.extended
def test_the_next_test_finds_it_running_without_faults(stablelog_faults):
    with BlockingCluster(stablelog_faults.bootstrap) as cluster:
        cluster.metadata()


@pytest.mark.extended
@pytest.mark.stablelog(num_partitions=3)
def test_a_marker_sets_the_brokers_settings(stablelog_faults):
    with BlockingCluster(stablelog_faults.bootstrap) as cluster:
        create_topic(stablelog_faults.bootstrap, "made", -1, {})
        assert cluster.partition_counts(["made"]) == {"made": 3}


def test_topics_have_fresh_names_and_their_own_settings(stablelog_broker, stablelog_topic):
    names = [stablelog_topic("orders", partitions=2, cleanup_policy="compact") for _ in range(2)]
    assert len(set(names)) == 2
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        assert [len(topic.partitions) for topic in cluster.metadata(names).values()] == [2, 2]
    with pytest.raises(RefusedError, match=r"cleanup.policy='never' is not valid"):
        stablelog_topic(cleanup_policy="never")
    with pytest.raises(RefusedError, match=r"did you mean cleanup.policy"):
        stablelog_topic(cleanup_polic="compact")


# --- client libraries ---


def confluent(broker, topic):
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    producer.produce(topic, b"once")
    assert producer.flush(TIMEOUT_S) == 0


def kafka_python(broker, topic):
    import kafka

    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True, acks="all")
    producer.send(topic, b"once").get(TIMEOUT_S)
    producer.close()


def aio(broker, topic):
    async def work():
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True) as producer:
            await producer.send_and_wait(topic, b"once")

    asyncio.run(asyncio.wait_for(work(), TIMEOUT_S))


def native(broker, topic):
    with stablelog.connect(broker.bootstrap) as client, client.transaction() as txn:
        txn.write(topic, b"once")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("write", [confluent, kafka_python, aio, native], ids=lambda write: write.__name__)
@pytest.mark.parametrize(
    "request_fault",
    [
        lambda faults: faults.drop("Produce"),
        lambda faults: faults.drop("Produce", is_delivered=False),
        lambda faults: faults.duplicate("Produce"),
        lambda faults: faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER"),
        lambda faults: faults.delay("Produce", 0.05),
    ],
    ids=["lost response", "lost request", "duplicate", "error", "delay"],
)
def test_each_client_library_writes_once_despite_a_fault(
    stablelog_faults, stablelog_topic, write, request_fault
):
    topic = stablelog_topic()
    fault = request_fault(stablelog_faults.faults)
    write(stablelog_faults, topic)
    fault.wait()
    assert values(stablelog_faults, topic) == [b"once"]


def test_a_producer_that_awaits_no_response_can_have_faults(stablelog_faults, stablelog_topic):
    import kafka

    topic = stablelog_topic()
    for count, request_fault in enumerate((stablelog_faults.faults.duplicate, stablelog_faults.faults.drop)):
        fault = request_fault("Produce")
        producer = kafka.KafkaProducer(bootstrap_servers=stablelog_faults.bootstrap, acks=0)
        producer.send(topic, b"%d" % count).get(TIMEOUT_S)
        producer.close()
        fault.wait()
    assert values(stablelog_faults, topic)[:2] == [b"0", b"0"]


def test_a_consumer_reads_on_after_the_broker_was_killed(stablelog_faults, stablelog_topic):
    topic = stablelog_topic()
    confluent(stablelog_faults, topic)

    async def work():
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=stablelog_faults.bootstrap, auto_offset_reset="earliest"
        )
        async with consumer:
            first = await consumer.getone()
            await asyncio.to_thread(stablelog_faults.restart)
            await asyncio.to_thread(confluent, stablelog_faults, topic)
            return [first.offset, (await consumer.getone()).offset]

    assert asyncio.run(asyncio.wait_for(work(), TIMEOUT_S)) == [0, 1]
