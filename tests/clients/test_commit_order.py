"""Unmodified clients on a commit-ordered topic: both orders, every starting position, groups, exactly once."""

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.clients.drivers import Confluent, unique

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


def test_an_uncommitted_reader_gets_the_order_of_the_writes(client, topic):
    assert [value for _, value in client.read(topic, committed=False)] == APPEND_ORDER


def test_a_group_goes_on_where_it_committed(stablelog_broker, topic):
    settings = {
        "bootstrap.servers": stablelog_broker.bootstrap,
        "group.id": "order-resumes",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    seen = []
    for _ in COMMIT_ORDER:
        consumer = Consumer(settings)
        consumer.subscribe([topic])
        message = consumer.poll(20)
        seen.append(message.value())
        consumer.commit(message, asynchronous=False)
        consumer.close()
    assert seen == COMMIT_ORDER


def test_the_order_of_a_topic_cannot_change(stablelog_broker):
    admin = create(stablelog_broker.bootstrap, "order-stays")
    for name, value in (("stablelog.order", "offset"), ("cleanup.policy", "compact")):
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, "order-stays", incremental_configs=[entry])
        with pytest.raises(KafkaException, match=r"stablelog\.order=commit"):
            admin.incremental_alter_configs([resource])[resource].result()
    with pytest.raises(KafkaException, match="one of the two"):
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
