"""Every client reads a topic whose aborted data was dropped, over both tiers, as it reads the topic that has it all."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from peers import apache_kafka
from stablelog.batch.header import headers_in
from tests.clients.drivers import DRIVERS, TIMEOUT_S, unique
from tests.scale import FACTOR
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore")
SMALL = {"segment.bytes": "2000"}
TIERED = {
    **SMALL,
    "remote.storage.enable": "true",
    "stablelog.remote.drop.aborted": "true",
    "local.retention.bytes": "6000",
}
SETTINGS = {
    "remote_log_manager_task_interval_ms": 20,
    "log_retention_check_interval_ms": 20,
    "log_cleaner_backoff_ms": 20,
    "rlmm_config_remote_log_metadata_topic_num_partitions": 1,
}


@pytest.fixture(scope="module")
def dropped(tmp_path_factory):
    """A broker with a plain topic, and two with the same records and offsets: aborted data is dropped in the store, or in
    the store and on the local disk.
    """
    folder = tmp_path_factory.mktemp("dropped")
    url = f"file://{folder / 'store'}"
    with stablelog.serve(folder / "data", stablelog_remote_url=url, **SETTINGS) as broker:
        plain, remote, both = (unique(word) for word in ("plain", "remote", "both"))
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        configs = {plain: SMALL, remote: TIERED, both: {**TIERED, "stablelog.local.drop.aborted": "true"}}
        for topic, config in configs.items():
            admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(TIMEOUT_S)
        write(broker.bootstrap, list(configs))
        for topic in (remote, both):
            wait_until_copied(folder, topic)
        assert size(folder / "store", remote) < 0.7 * size(folder / "data", plain)
        assert emptied(folder / "store", remote)
        assert emptied(folder / "store", both)
        yield broker.bootstrap, plain, remote, both


def write(bootstrap, topics):
    """Transactions of three producers at a time, with records of the others between; most of them are aborted."""
    producers = [
        Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("txn"), "log_level": 0})
        for _ in range(3)
    ]
    for producer in producers:
        producer.init_transactions(TIMEOUT_S)
    plain = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(24):
        begun = producers[: 1 + number % 3]
        for producer in begun:
            producer.begin_transaction()
        for record in range(1 + number % 5):
            for which, producer in enumerate(begun):
                word = b"yes" if is_committed(number, which) else b"no"
                send(producer, topics, word + b"-%d-%d-%d" % (number, which, record))
        send(plain, topics, b"yes-plain-%d" % number)
        for which, producer in enumerate(begun):
            end = producer.commit_transaction if is_committed(number, which) else producer.abort_transaction
            end(TIMEOUT_S)
    for number in range(20):  # they fill a segment, so that all before it is sealed
        send(plain, topics, b"yes-end-%d" % number)


def is_committed(number, which):
    return (number + which) % 3 == 0


def send(producer, topics, value):
    for topic in topics:
        producer.produce(topic, value.ljust(100, b"."), partition=0)
    producer.flush(TIMEOUT_S)


def bases(folder, topic):
    return sorted(int(path.stem) for path in (folder / "data" / f"{topic}-0").glob("*.log"))


def copies(store, topic):
    return sorted(store.glob(f"t.{topic}/**/*.log"))


def wait_until_copied(folder, topic):
    """Wait until all sealed segments are in the store, and some are on the local disk, too."""
    until(
        lambda: (
            bases(folder, topic)[0] > 50
            and copies(folder / "store", topic)
            and last_copied(folder / "store", topic) == bases(folder, topic)[-1]
        ),
        f"{topic} was not copied",
    )
    assert len(bases(folder, topic)) > 2


def last_copied(store, topic):
    *_, (_, header) = headers_in(copies(store, topic)[-1].read_bytes())
    return header.next_offset


def size(folder, topic):
    return sum(path.stat().st_size for path in folder.glob(f"*{topic}*/**/*.log"))


def emptied(store, topic):
    """The batches without records in the store: none has an aborted record."""
    headers = [header for path in copies(store, topic) for _, header in headers_in(path.read_bytes())]
    assert not any(b"no-" in path.read_bytes() for path in copies(store, topic))
    return [header for header in headers if not header.record_count]


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_a_read_committed_consumer_gets_the_same_records(driver, dropped):
    bootstrap, plain, *others = dropped
    try:
        client = driver(bootstrap)
    except apache_kafka.NotToBeHad as missing:
        pytest.skip(str(missing))
    wanted = client.read(plain)
    assert len([value for _, value in wanted if value.startswith(b"yes")]) == len(wanted) > 60
    last = wanted[-1][0]
    for topic in others:
        for start in (0, last // 3) if FACTOR == 1 else range(last + 1):
            assert client.read(topic, start=start) == [pair for pair in wanted if pair[0] >= start], start


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_a_read_uncommitted_consumer_misses_only_aborted_records(driver, dropped):
    bootstrap, plain, *others = dropped
    try:
        client = driver(bootstrap)
    except apache_kafka.NotToBeHad as missing:
        pytest.skip(str(missing))
    everything, committed = client.read(plain, committed=False), client.read(plain)
    for topic in others:
        found = client.read(topic, committed=False)
        assert set(committed) <= set(found) < set(everything)
        assert [pair for pair in everything if pair in set(found)] == found
