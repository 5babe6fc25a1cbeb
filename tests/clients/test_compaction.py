"""What compaction leaves is read by every client: emptied batches, fillers, batches with gaps, markers with a delete horizon."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from peers import apache_kafka
from stablelog.batch.header import DELETE_HORIZON, headers_in
from tests.clients.drivers import DRIVERS, TIMEOUT_S, unique
from tests.waiting import until

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.extended]
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "2048",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "600000",
}


@pytest.fixture(scope="module")
def compacted(module_path):
    """A broker with a compacted topic, the committed value of each key, and the end of what was compacted."""
    with stablelog.serve(module_path, log_cleaner_backoff_ms=20) as broker:
        topic = unique("compacted")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(topic, 1, 1, config=CONFIG)])[topic].result(TIMEOUT_S)
        wanted = write(broker.bootstrap, topic)
        yield broker.bootstrap, topic, wanted, wait_until_compacted(module_path, topic)


def write(bootstrap, topic):
    wanted = {}
    producers = [
        Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("txn"), "log_level": 0})
        for _ in range(3)
    ]
    for producer in producers:
        producer.init_transactions(TIMEOUT_S)
    for number in range(30):
        producer, commit = producers[number % 3], number % 5 < 3
        producer.begin_transaction()
        for key in range(number % 7, 7):
            name, value = b"key-%d" % key, b"%s-%d" % (b"yes" if commit else b"no", number)
            producer.produce(topic, value, name, partition=0)
            if commit:
                wanted[name] = value
        producer.flush(TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S) if commit else producer.abort_transaction(TIMEOUT_S)
    plain = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(60):  # they fill a segment, so that all before it is sealed
        plain.produce(topic, b"yes" * 10 + b"%d" % number, b"plain-%d" % (number % 2), partition=0)
        plain.flush(TIMEOUT_S)
    wanted[b"plain-0"], wanted[b"plain-1"] = b"yes" * 10 + b"58", b"yes" * 10 + b"59"
    return wanted


def wait_until_compacted(data, topic):
    checkpoint = data / "cleaner-offset-checkpoint"
    last_base = max(int(path.stem) for path in (data / f"{topic}-0").glob("*.log"))

    def is_compacted():
        text = checkpoint.read_text() if checkpoint.exists() else ""
        rows = [int(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(topic)]
        return rows == [last_base]

    until(is_compacted, "the topic was not compacted")
    headers = [
        header
        for path in sorted((data / f"{topic}-0").glob("*.log"))
        for _, header in headers_in(path.read_bytes())
    ]
    assert any(not header.record_count for header in headers)
    assert any(header.attributes & DELETE_HORIZON for header in headers)
    assert any(header.record_count <= header.last_offset_delta for header in headers)
    return last_base


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_a_compacted_topic_gives_every_client_the_last_committed_values(driver, compacted):
    bootstrap, topic, wanted, end = compacted
    try:
        client = driver(bootstrap)
    except apache_kafka.NotAvailableError as missing:
        pytest.skip(str(missing))
    everything = client.read(topic)
    values = [value for _, value in everything]
    assert not [value for value in values if value.startswith(b"no")]
    assert set(wanted.values()) <= set(values)
    assert len(values) < 100
    for start in (1, end // 3, end // 2, end - 1):
        assert client.read(topic, start=start) == [pair for pair in everything if pair[0] >= start], start
