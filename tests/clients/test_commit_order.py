"""Unmodified clients on a commit-ordered topic: both orders, every starting position, groups, times, waiting, exactly once."""

import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

import stablelog
from tests.client.transactions import flush
from tests.clients.drivers import LONG_S, Confluent, unique
from tests.spark.reading import settled

pytestmark = pytest.mark.filterwarnings("ignore")

COMMIT_ORDER = [b"p0", b"b0", b"b1", b"a0", b"a1", b"a2", b"p1"]
APPEND_ORDER = [b"a0", b"b0", b"x0", b"p0", b"a1", b"b1", b"a2", b"p1"]


@pytest.fixture(scope="module")
def topic(stablelog_broker):
    """`a` begins first and commits last, `b` overtakes it, `x` is aborted, `p` is outside of transactions."""
    name = "in-commit-order"
    create(stablelog_broker.bootstrap, name)
    settings = {"bootstrap.servers": stablelog_broker.bootstrap, "linger.ms": 0, "log_level": 0}
    writers = {who: Producer(settings | {"transactional.id": f"order-{who}"}) for who in "abx"}
    writers["p"] = Producer(settings)
    for who in "abx":
        writers[who].init_transactions()
        writers[who].begin_transaction()
    for value in APPEND_ORDER[:-1]:
        writers[chr(value[0])].produce(name, value, partition=0)
        writers[chr(value[0])].flush()
    writers["x"].abort_transaction()
    writers["b"].commit_transaction()
    writers["a"].commit_transaction()
    writers["p"].produce(name, APPEND_ORDER[-1], partition=0)
    writers["p"].flush()
    return name


def create(bootstrap, name, **configs):
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = NewTopic(name, 1, 1, config={"stablelog.order": "commit", **configs})
    admin.create_topics([new])[name].result()
    return admin


@pytest.fixture
def committed(stablelog_broker, topic):
    """What a committed reader gets of the topic."""
    return Confluent(stablelog_broker.bootstrap).read(topic)


def test_a_committed_reader_gets_commit_order_from_every_position(client, topic, committed):
    assert [value for _, value in committed] == COMMIT_ORDER
    assert len({offset for offset, _ in committed}) == len(committed)
    for start in range(committed[-1][0] + 2):
        assert client.read(topic, start=start) == [row for row in committed if row[0] >= start]


@pytest.mark.extended
def test_an_uncommitted_reader_gets_the_order_of_the_writes(client, topic):
    written = client.read(topic, committed=False)
    assert [value for _, value in written] == APPEND_ORDER
    for start in range(written[-1][0] + 2):
        assert client.read(topic, start=start, committed=False) == [row for row in written if row[0] >= start]


@pytest.mark.extended
def test_a_group_goes_on_where_it_committed_until_nothing_is_left(client, topic):
    group = unique("order-resumes")
    seen = [client.consume(group, topic, count) for count in (1, 3, 3)]
    assert [value for values in seen for value in values] == COMMIT_ORDER
    assert client.end(topic) - client.committed(group, topic) == 0


@pytest.mark.sampled(5)
@pytest.mark.parametrize("order", ["commit", "offset"])
def test_a_topic_that_ends_with_a_transaction_leaves_no_more_lag_than_it_does_elsewhere(
    stablelog_broker, client, order
):
    """Behind the last record stands the marker, which some clients count and none hands out."""
    name, group = unique("order-lag"), unique("order-lag")
    create(stablelog_broker.bootstrap, name, **{"stablelog.order": order})
    with client.transactions(unique("order-lag")) as run:
        run(name, [b"1", b"2", b"3"], commit=True)
    settled(stablelog_broker.bootstrap, name)
    assert client.consume(group, name, 3) == [b"1", b"2", b"3"]
    assert 0 <= client.end(name) - client.committed(group, name) <= 1


def test_a_lookup_by_time_finds_commits_by_the_time_of_their_commit(stablelog_broker, client):
    """Both write in one go, when neither has committed: by the times of the records they could not be told apart."""
    name = unique("order-times")
    soon_ms = time.time_ns() // 1_000_000 + 1_800_000  # ahead of everything, as records may be by an hour
    create(stablelog_broker.bootstrap, name)
    with stablelog.connect(stablelog_broker.bootstrap) as native:
        first, second = native.transaction(), native.transaction()
        for txn in (first, second):
            txn.write(name, b"v", timestamp_ms=1, partition=0)
            txn.write(name, b"v", timestamp_ms=soon_ms, partition=0)
            flush(txn)
        second_at = second.commit().first.offset
        settled(stablelog_broker.bootstrap, name)
        (seen,) = native.read(name, wait=0)
        while time.time_ns() // 1_000_000 <= seen.time_ms:
            time.sleep(0.001)
        first_at = first.commit().first.offset
        settled(stablelog_broker.bootstrap, name)
        seen, last = native.read(name, wait=0)
    assert client.at_time(name, 0) == second_at
    assert client.at_time(name, seen.time_ms) == second_at
    assert client.at_time(name, seen.time_ms + 1) == first_at
    assert client.at_time(name, last.time_ms) == first_at
    assert client.at_time(name, last.time_ms + 1) is None


@pytest.mark.extended
def test_who_waits_at_the_end_gets_a_commit_at_once(stablelog_broker, client):
    """The fetch may be held back for a minute: it is answered by the commit, not by the writes before it."""
    name = unique("order-waits")
    create(stablelog_broker.bootstrap, name)
    with (
        stablelog.connect(stablelog_broker.bootstrap) as native,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(client.consume, unique("order-waits"), name, 2)
        with native.transaction(timeout=120) as txn:
            txn.write(name, b"1", partition=0)
            flush(txn)
            wait([waiting], 1)  # no reader has it meanwhile, however long that is
            assert not waiting.done()
            txn.write(name, b"2", partition=0)
        assert waiting.result(LONG_S - 10) == [b"1", b"2"]


def test_the_order_of_a_topic_cannot_change(stablelog_broker):
    admin = create(stablelog_broker.bootstrap, "order-stays")
    for name, value in (("stablelog.order", "offset"), ("cleanup.policy", "compact")):
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, "order-stays", incremental_configs=[entry])
        with pytest.raises(KafkaException, match=r"stablelog\.order=commit"):
            admin.incremental_alter_configs([resource])[resource].result()
    with pytest.raises(KafkaException, match="cannot be combined"):
        create(stablelog_broker.bootstrap, "order-both", **{"cleanup.policy": "compact"})


def test_consume_transform_produce_is_exactly_once(stablelog_broker, client, topic, committed):
    """Every other attempt is aborted; the group goes on where its last committed transaction left it."""
    out, group = unique("order-out"), unique("order-copies")
    create(stablelog_broker.bootstrap, out)
    with client.transactions(unique("order-copier")) as run:
        for attempt in range(2 * len(committed)):
            position = client.committed(group, topic) or 0
            offset, value = client.read(topic, start=position)[0]
            run(out, [value], commit=attempt % 2 == 1, offsets=(group, topic, offset + 1))
    assert [value for _, value in client.read(out)] == COMMIT_ORDER


def test_what_others_commit_is_read_while_a_transaction_stays_open(stablelog_broker, client):
    name = unique("never-waits")
    create(stablelog_broker.bootstrap, name)
    settings = {
        "bootstrap.servers": stablelog_broker.bootstrap,
        "transaction.timeout.ms": 600_000,
        "linger.ms": 0,
        "log_level": 0,
    }
    neighbour, writer = (Producer(settings | {"transactional.id": unique("waits")}) for _ in range(2))
    for producer in (neighbour, writer):
        producer.init_transactions()
    neighbour.begin_transaction()
    neighbour.produce(name, b"undecided")
    neighbour.flush()
    written = []
    for number in range(3):
        written.append(b"decided %d" % number)
        writer.begin_transaction()
        writer.produce(name, written[-1])
        writer.commit_transaction()
        assert [value for _, value in client.read(name)] == written
    neighbour.commit_transaction()
    assert [value for _, value in client.read(name)] == [*written, b"undecided"]
