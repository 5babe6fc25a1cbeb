"""Every client reads tiered topics as it reads a local topic with the same records: copies byte for byte, copies without
aborted data, and commit order.
"""

from dataclasses import dataclass

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
TIERED = {**SMALL, "remote.storage.enable": "true", "local.retention.bytes": "6000"}
DROPPED = {**TIERED, "stablelog.remote.drop.aborted": "true"}
ORDERED = {"stablelog.order": "commit"}
SETTINGS = {
    "remote_log_manager_task_interval_ms": 20,
    "log_retention_check_interval_ms": 20,
    "log_cleaner_backoff_ms": 20,
    "rlmm_config_remote_log_metadata_topic_num_partitions": 1,
}


@dataclass
class Topics:
    """The names of topics with the same records at the same offsets.

    Attributes:
        bootstrap: the address of their broker.
        plain: has no remote tier.
        copied: its copies are byte for byte.
        dropped: aborted data is dropped in the store; in the second one also on the local disk.
        ordered: commit-ordered topics, without and with a remote tier.
    """

    bootstrap: str
    plain: str
    copied: str
    dropped: tuple[str, str]
    ordered: tuple[str, str]


@pytest.fixture(scope="module")
def topics(module_path):
    """The topics, of whose segments the first ones are only in the store, and some are in both tiers."""
    store, data = module_path / "store", module_path / "data"
    with stablelog.serve(data, stablelog_remote_url=store.as_uri(), **SETTINGS) as broker:
        configs = {
            "plain": SMALL,
            "copied": TIERED,
            "remote": DROPPED,
            "both": {**DROPPED, "stablelog.local.drop.aborted": "true"},
            "ordered": {**SMALL, **ORDERED},
            "ordered-tiered": {**TIERED, **ORDERED},
        }
        names = {word: unique(word) for word in configs}
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        new = [NewTopic(names[word], 1, 1, config=config) for word, config in configs.items()]
        for created in admin.create_topics(new).values():
            created.result(TIMEOUT_S)
        write(broker.bootstrap, list(names.values()))
        for word in ("copied", "remote", "both", "ordered-tiered"):
            wait_until_copied(module_path, names[word])
        for word in ("copied", "ordered-tiered"):
            assert has_aborted(store, names[word])
        for word in ("remote", "both"):
            assert emptied(store, names[word])
            assert size(store, names[word]) < 0.7 * size(data, names["plain"])
        yield Topics(
            broker.bootstrap,
            names["plain"],
            names["copied"],
            (names["remote"], names["both"]),
            (names["ordered"], names["ordered-tiered"]),
        )


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


def has_aborted(store, topic):
    """Whether the store has aborted records."""
    return any(b"no-" in path.read_bytes() for path in copies(store, topic))


def emptied(store, topic):
    """The batches without records in the store: none has an aborted record."""
    headers = [header for path in copies(store, topic) for _, header in headers_in(path.read_bytes())]
    assert not has_aborted(store, topic)
    return [header for header in headers if not header.record_count]


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def client(request, topics):
    """A client of the topics' broker."""
    try:
        return request.param(topics.bootstrap)
    except apache_kafka.NotAvailableError as missing:
        pytest.skip(str(missing))


def check_from_each_start(client, topic, wanted, **reading):
    """Check that a client gets the wanted records from the first remote offset on, and from one in the middle; in long
    runs from each offset.
    """
    last = wanted[-1][0]
    for start in (0, last // 3) if FACTOR == 1 else range(last + 1):
        assert client.read(topic, start=start, **reading) == [pair for pair in wanted if pair[0] >= start], (
            start
        )


@pytest.mark.extended
def test_a_read_committed_consumer_gets_the_same_records(client, topics):
    wanted = client.read(topics.plain)
    assert len([value for _, value in wanted if value.startswith(b"yes")]) == len(wanted) > 60
    for topic in (topics.copied, *topics.dropped):
        check_from_each_start(client, topic, wanted)


@pytest.mark.extended
def test_a_read_uncommitted_consumer_misses_aborted_records_only_if_the_topic_drops_them(client, topics):
    everything, committed = client.read(topics.plain, committed=False), client.read(topics.plain)
    assert client.read(topics.copied, committed=False) == everything
    for topic in topics.dropped:
        found = client.read(topic, committed=False)
        assert set(committed) <= set(found) < set(everything)
        assert [pair for pair in everything if pair in set(found)] == found


@pytest.mark.extended
def test_a_consumer_of_a_commit_ordered_topic_gets_the_same_records(client, topics):
    local, tiered = topics.ordered
    wanted, by_offset = client.read(local), client.read(topics.plain)
    assert sorted(value for _, value in wanted) == sorted(value for _, value in by_offset)
    assert [value for _, value in wanted] != [value for _, value in by_offset], "transactions overlap"
    check_from_each_start(client, tiered, wanted)
    assert client.read(tiered, committed=False) == client.read(local, committed=False)
