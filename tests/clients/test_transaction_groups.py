"""Unmodified clients and topics of another transaction group: they are told so, abort, and go on."""

import time

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

import stablelog
from peers import apache_kafka
from tests.clients.drivers import DRIVERS, unique
from tests.spark.reading import settled

pytestmark = pytest.mark.filterwarnings("ignore")

PATIENCE_S = 60  # of a client that is refused; one that tried again for ever would take longer


def create(broker, word, **configs):
    name = unique(word)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    given = {setting.replace("_", "."): value for setting, value in configs.items()}
    admin.create_topics([NewTopic(name, 1, 1, config=given)])[name].result(30)
    return name


def of(read):
    return [value for _, value in read]


@pytest.fixture
def payments(stablelog_broker):
    return create(stablelog_broker, "paid", stablelog_group="payments")


@pytest.fixture
def ordinary(stablelog_broker):
    return create(stablelog_broker, "ordinary")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("word", ["plain", "payments/worker", "other/worker"])
def test_a_topic_of_another_group_is_refused_and_the_next_transaction_works(
    client, stablelog_broker, payments, ordinary, word
):
    others = create(stablelog_broker, "others", stablelog_group="other")
    own, foreign = {
        "plain": (ordinary, payments),
        "payments/worker": (payments, ordinary),
        "other/worker": (others, payments),
    }[word]
    with client.transactions(unique(word)) as run:
        began_s = time.monotonic()
        with pytest.raises(Exception, match=r"(?i)authoriz"):  # on the first partition
            run(foreign, [b"never"], commit=True)
        run(own, [b"a"], commit=True)
        with pytest.raises(Exception, match=r"(?i)authoriz"):  # on a later one
            run((own, foreign), [b"never"], commit=True)
        assert time.monotonic() - began_s < PATIENCE_S
        run(own, [b"b"], commit=True)
        run(own, [b"c"], commit=False)
    assert of(client.read(own)) == [b"a", b"b"]
    assert client.read(foreign) == []
    assert client.read(foreign, committed=False) == []


@pytest.mark.extended
def test_offsets_belong_to_no_group(client, stablelog_broker, payments, ordinary):
    reader = unique("reader")
    with client.transactions(unique("payments/worker")) as run:
        run(payments, [b"a"], commit=True, offsets=(reader, ordinary, 5))
    assert client.committed(reader, ordinary) == 5
    with client.transactions(unique("plain")) as run:
        run(ordinary, [b"b"], commit=True, offsets=(reader, payments, 7))
        run(ordinary, [b"c"], commit=False, offsets=(reader, payments, 9))
    assert client.committed(reader, payments) == 7


def test_outside_transactions_anybody_writes_anywhere(client, payments):
    client.produce(payments, [b"a"])
    assert of(client.read(payments)) == [b"a"]


@pytest.mark.extended
@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_a_restart_keeps_every_group(driver, tmp_path):
    """The same producer ids, numbers and offsets go on, and what was open is aborted by its successor."""

    def served():
        return stablelog.serve(tmp_path / "data", group_initial_rebalance_delay_ms=0)

    with served() as broker:
        try:
            client = driver(broker.bootstrap)
        except apache_kafka.NotAvailableError as missing:
            pytest.skip(str(missing))
        topics = {
            group: create(broker, "t", stablelog_group=group, stablelog_order="commit")
            for group in ("", "a", "b")
        }
        for round_number in range(2):
            for group, topic in topics.items():
                with client.transactions(f"{group}/w" if group else "w") as run:
                    run(topic, [b"%d" % round_number], commit=True)
    with served() as broker:
        client = driver(broker.bootstrap)
        with stablelog.connect(broker.bootstrap) as native:
            for group, topic in topics.items():
                with client.transactions(f"{group}/w" if group else "w") as run:
                    run(topic, [b"2"], commit=True)
                settled(broker.bootstrap, topic)
                found = list(native.read(topic, cut=True, wait=0))
                assert [t.commit_sequence for t in found] == [1, 2, 3], group
                assert [r.value for t in found for r in t.records] == [b"0", b"1", b"2"]


def test_the_group_of_a_topic_is_seen_and_stays(stablelog_broker, payments):
    admin = AdminClient({"bootstrap.servers": stablelog_broker.bootstrap, "log_level": 0})
    resource = ConfigResource(ResourceType.TOPIC, payments)
    entry = admin.describe_configs([resource])[resource].result(30)["stablelog.group"]
    assert (entry.value, entry.is_read_only) == ("payments", True)
    with pytest.raises(Exception, match="cannot change"):
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry

        change = ConfigEntry("stablelog.group", "other", incremental_operation=AlterConfigOpType.SET)
        changed = ConfigResource(ResourceType.TOPIC, payments, incremental_configs=[change])
        admin.incremental_alter_configs([changed])[changed].result(30)
    with pytest.raises(Exception, match="1 to 100 characters"):
        create(stablelog_broker, "bad", stablelog_group="a/b")
