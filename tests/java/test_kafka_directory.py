"""Apache Kafka and stablelog on each other's directories, fresh ones; `tests/golden` does it with one that is kept."""

import shutil

import pytest

import stablelog
from peers import apache_kafka
from stablelog.env.local_disk import LocalDisk
from stablelog.log.indexes.transaction_index import TransactionIndex
from stablelog.log.verify import verify_directory
from tests.golden.kafka_directory import SETTINGS, TOPICS, look, write_load
from tests.java.dump import SHORT_LIVED, dump, files_of
from tests.java.load import (
    committed_offset,
    create_topic,
    producer,
    send,
    write_everything,
    write_worked_example,
)

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]

STEP = 31  # not every offset: tests/golden reads from all of them, without sockets
EXAMPLE = "worked-example"
AS_IT_IS, WITHOUT_INDEXES = "as-it-is", "without-indexes"


@pytest.fixture(scope="module")
def kafka(kafka_jars, module_path):
    """Kafka, killed under an open transaction, and what its clients saw. (What `tests/golden` keeps was stopped in order.)"""
    broker = apache_kafka.KafkaBroker(module_path / "data", SETTINGS, SHORT_LIVED)
    try:
        broker.start()
        held = write_load(broker.bootstrap, broker.data)
        for name in (AS_IT_IS, WITHOUT_INDEXES):
            create_topic(broker.bootstrap, name, {"index.interval.bytes": "300"})
        create_topic(broker.bootstrap, EXAMPLE, {})
        write_worked_example(broker.bootstrap, EXAMPLE)
        seen = look(broker.bootstrap, step=STEP)
        readers = committed_offset(broker.bootstrap, "readers", "everything")
        broker.kill()
        yield broker, seen, readers
        del held
    finally:
        broker.stop()


def clients_see_with_stablelog_what_they_saw_with_kafka(kafka, tmp_path):
    """By both isolations; an open transaction stays open, the offsets of groups are there, and all can be proven."""
    broker, seen, readers = kafka
    data = shutil.copytree(broker.data, tmp_path / "data")
    for topic in TOPICS:
        assert list(verify_directory(LocalDisk(), data / f"{topic}-0")) == []
    with stablelog.serve(data) as ours:
        assert look(ours.bootstrap, step=STEP) == seen
        assert committed_offset(ours.bootstrap, "readers", "everything") == readers
        send(producer(ours.bootstrap), "everything", [b"written on"])
    assert dump(*files_of(data / "everything-0")).complaints == []


def the_worked_example_gives_the_same_index_in_both(kafka, tmp_path):
    """The abort index's design, section 5: which entries there are, and the stable offset that each of them tells."""
    broker, _, _ = kafka
    with stablelog.serve(tmp_path / "data") as ours:
        create_topic(ours.bootstrap, EXAMPLE, {})
        write_worked_example(ours.bootstrap, EXAMPLE)
    entries = []
    for data in (broker.data, tmp_path / "data"):
        (path,) = (data / f"{EXAMPLE}-0").glob("*.txnindex")
        index = TransactionIndex(path.read_bytes())
        entries.append(
            [
                (txn.first_offset, txn.last_offset, txn.stable_offset)
                for txn in map(index.__getitem__, range(len(index)))
            ]
        )
    assert entries[0] == entries[1] == [(2, 5, 6), (6, 9, 7)]


def clients_see_with_kafka_what_they_saw_with_stablelog(kafka, tmp_path):
    """Kafka opens our partitions, and makes from our log the indexes that we made."""
    broker, _, _ = kafka
    topics = (AS_IT_IS, WITHOUT_INDEXES)
    mine = tmp_path / "data" / "mine-0"
    with stablelog.serve(tmp_path / "data") as ours:
        create_topic(ours.bootstrap, "mine", {"segment.bytes": "3000", "index.interval.bytes": "300"})
        held = write_everything(ours.bootstrap, "mine")
        seen = look(ours.bootstrap, ["mine"], step=STEP)["mine"]
        ours.stop()
        del held
    for topic in topics:
        theirs = broker.data / f"{topic}-0"
        metadata = (theirs / "partition.metadata").read_bytes()
        shutil.rmtree(theirs)
        shutil.copytree(mine, theirs)
        (theirs / "partition.metadata").write_bytes(metadata)
    for path in (broker.data / f"{WITHOUT_INDEXES}-0").iterdir():
        if path.suffix in (".index", ".timeindex", ".txnindex"):
            path.unlink()
    broker.start()
    assert look(broker.bootstrap, topics, step=STEP) == dict.fromkeys(topics, seen)
    broker.stop()
    told = [line for line in broker.log_tail(1000).splitlines() if "ERROR" in line or "WARN" in line]
    assert [line for line in told if any(topic in line for topic in topics)] == []
    paths = sorted((broker.data / f"{WITHOUT_INDEXES}-0").glob("*[xg]"))
    for path in paths:
        assert path.read_bytes() == (mine / path.name).read_bytes(), path.name


def test_each_opens_what_the_other_wrote(kafka, tmp_path):
    """One test, so that Kafka is started by one of the processes that share the tests."""
    for check in (
        clients_see_with_stablelog_what_they_saw_with_kafka,
        the_worked_example_gives_the_same_index_in_both,
        clients_see_with_kafka_what_they_saw_with_stablelog,
    ):
        directory = tmp_path / check.__name__
        directory.mkdir()
        check(kafka, directory)
