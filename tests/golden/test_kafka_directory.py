"""A directory that Apache Kafka wrote is opened, read from every offset as Kafka served it, proven, and written on."""

import json
import shutil
import subprocess
import sys

import pytest
from confluent_kafka import OFFSET_INVALID

import stablelog
from stablelog.batch.header import headers_in
from stablelog.batch.markers import Marker, MarkerType
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.broker.durability.log_replay import batches_of
from stablelog.env.local_disk import LocalDisk
from stablelog.log.files.log_start import LOG_START_FILE
from stablelog.log.model import Isolation, LogConfig, MarkerWrite, Origin
from stablelog.log.opening import open_partition
from stablelog.log.producer_state.snapshots import SNAPSHOT_ENTRY, SNAPSHOT_HEADER
from stablelog.log.verify import verify_directory
from tests import documented
from tests.commands import COMMAND, run
from tests.golden.kafka_directory import GOLDEN, TOPICS, load_seen, read_partition
from tests.java.load import Reader, commit_offsets, committed_offset, create_topic, producer, send

PREPARE_COMMIT, PREPARE_ABORT = 2, 3
STATE_POSITION = 16  # in the value: after version, producer id, epoch and timeout
pytestmark = pytest.mark.filterwarnings("ignore")

SEEN, READERS_COMMITTED = load_seen()


@pytest.fixture
def data(tmp_path):
    """A copy: opening writes beside Kafka's files."""
    return shutil.copytree(GOLDEN / "data", tmp_path / "data")


def opened_partition(data, topic, *, clean=True):
    partition = open_partition(
        LocalDisk(),
        data / f"{topic}-0",
        LogConfig(index_interval_bytes=300),
        topic=topic,
        partition=0,
        clean=clean,
        now_ms=SEEN[topic].all_records[-1].timestamp_ms,
    )
    partition.log.prove_segments()
    return partition


def check_everywhere(partition, seen, sizes=(1, 700)):
    """From every offset, in fetches of every size, a reader gets what Kafka's clients got."""
    for committed, records in ((True, seen.committed), (False, seen.all_records)):
        for start in range(seen.first_offset, seen.end_offset + 1):
            wanted = [record for record in records if record.offset >= start]
            for size_max in sizes:
                found = read_partition(partition, start, committed=committed, size_max=size_max)
                assert found == wanted, (committed, start, size_max)


def bounds(partition):
    return partition.start_offset, partition.last_stable_offset, partition.end_offset


@pytest.mark.extended
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("topic", TOPICS)
def test_every_reader_gets_what_kafka_served(data, topic, clean):
    """Scenario 49: from the middle of aborted transactions too, over gaps that compaction left, before an open one."""
    partition = opened_partition(data, topic, clean=clean)
    seen = SEEN[topic]
    assert bounds(partition) == (seen.first_offset, seen.stable_offset, seen.end_offset)
    check_everywhere(partition, seen)
    partition.close()
    assert list(verify_directory(LocalDisk(), data / f"{topic}-0")) == []
    partition = opened_partition(data, topic)
    check_everywhere(partition, seen, sizes=(1 << 20,))
    partition.close()


@pytest.mark.parametrize("suffixes", [(".txnindex",), (".index", ".timeindex", ".txnindex"), (".snapshot",)])
def test_what_kafka_can_lose_is_made_again(data, suffixes):
    """Scenario 6: a transaction index that is gone is not an empty one."""
    for path in (data / "everything-0").iterdir():
        if path.suffix in suffixes:
            path.unlink()
    partition = opened_partition(data, "everything")
    check_everywhere(partition, SEEN["everything"], sizes=(700,))
    partition.close()
    for path in (GOLDEN / "data" / "everything-0").glob("*.txnindex"):
        assert (data / "everything-0" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("topic", ["everything", "append-time"])
def test_the_indexes_that_we_make_are_kafkas(data, topic):
    """Byte for byte, also the last entry of the time index, which is added at a stop."""
    for path in (data / f"{topic}-0").iterdir():
        if path.suffix in (".index", ".timeindex", ".txnindex"):
            path.unlink()
    opened_partition(data, topic).close()
    paths = sorted((GOLDEN / "data" / f"{topic}-0").glob("*[xg]"))
    for path in paths:
        assert path.read_bytes() == (data / f"{topic}-0" / path.name).read_bytes(), path


@pytest.mark.parametrize("topic", ["everything", "append-time"])
def test_the_snapshots_that_we_make_are_kafkas(data, topic):
    """With the timestamp of a producer's last event, marker or batch: without it Kafka forgets the producer."""
    for path in (data / f"{topic}-0").glob("*.snapshot"):
        path.unlink()
    opened_partition(data, topic).close()
    opened_partition(data, topic).close()  # from our own file of producers
    paths = sorted((GOLDEN / "data" / f"{topic}-0").glob("*.snapshot"))
    assert len(paths) > 1
    for path in paths:
        kafkas, ours = (
            {row[0]: row for row in SNAPSHOT_ENTRY.iter_unpack(found.read_bytes()[SNAPSHOT_HEADER.size :])}
            for found in (path, data / f"{topic}-0" / path.name)
        )
        assert ours == kafkas, path


def test_markers_of_a_topic_with_the_brokers_times_are_kafkas(data):
    """Their attributes say whose time they carry, as those of all its batches do."""
    partition = opened_partition(data, "append-time")
    partition.config = LogConfig(message_timestamp_type="LogAppendTime")
    (kafkas,) = {header.attributes for header in markers_of(partition)}
    (producer, *_) = partition.log.producers
    end = partition.end_offset
    marker = Marker(MarkerType.ABORT, producer.coordinator_epoch + 1)
    partition.append_markers(
        [MarkerWrite(producer.producer_id, producer.producer_epoch + 1, marker)], now_ms=7
    )
    (ours,) = markers_of(partition, end)
    assert (ours.base_offset, ours.attributes, ours.max_timestamp) == (end, kafkas, 7)
    partition.close()


def markers_of(partition, start=0):
    content = b"".join(partition.read(start, 1 << 20, Isolation.LOG_END).buffers)
    return [header for _, header in headers_in(content) if header.is_control]


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "stablelog.cli.main", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.extended
def test_verify_and_inspect_work_on_it():
    assert json.loads(command("verify", str(GOLDEN / "data"), "--json")) == []
    tables = [json.loads(line) for line in command("inspect", str(GOLDEN / "data"), "--json").splitlines()]
    assert {table["problem"] for table in tables} == {None}
    kinds = {table["file"].rpartition(".")[2].rpartition("/")[2] for table in tables}
    assert kinds == {
        "log",
        "index",
        "timeindex",
        "txnindex",
        "snapshot",
        "leader-epoch-checkpoint",
        "metadata",
    }
    records = command("inspect", str(GOLDEN / "data" / "everything-0"), "--records", "--json")
    rows = [row for line in records.splitlines() for row in json.loads(line)["rows"] if "key" in row]
    assert len([row for row in rows if row["kind"] in ("plain", "transactional")]) == len(
        SEEN["everything"].all_records
    )


@pytest.mark.parametrize(
    ("rows", "is_right"), [(["0 0"], True), (["0 50"], True), (["1 50"], False), (["0 0", "1 50"], False)]
)
def test_verify_knows_leader_epochs_that_begin_at_the_logs_start(data, rows, is_right):
    """After DeleteRecords Kafka lets the first epoch that is left begin at the log's start."""
    directory = data / "everything-0"
    (directory / "leader-epoch-checkpoint").write_text("\n".join(["0", str(len(rows)), *rows, ""]))
    found = [finding.path.name for finding in verify_directory(LocalDisk(), directory)]
    assert found == ([] if is_right else ["leader-epoch-checkpoint"])


def test_verify_knows_a_segment_that_kafkas_compaction_has_emptied(data):
    """Its file is there and holds nothing; the summary that we write beside it tells of the offsets up to the next."""
    directory = data / "everything-0"
    bases = sorted(path.stem for path in directory.glob("*.log"))
    for suffix in ("log", "index", "timeindex", "txnindex"):
        (directory / f"{bases[0]}.{suffix}").write_bytes(b"")
    opened_partition(data, "everything").close()
    assert (directory / f"{bases[0]}.summary").exists()
    assert [finding.path.name for finding in verify_directory(LocalDisk(), directory)] == []


@pytest.mark.extended
def test_a_broker_takes_it_over(data):
    """Its topics, groups and transactions go on, one that Kafka left open too: its producer's successor ends it."""
    with stablelog.serve(data) as broker:
        reader = Reader(broker.bootstrap, committed=True)
        everything = Reader(broker.bootstrap, committed=False)
        assert set(everything.topics()) >= set(TOPICS)
        assert "__cluster_metadata" not in everything.topics()
        assert committed_offset(broker.bootstrap, "readers", "everything") == READERS_COMMITTED
        topics = json.loads((data / "cluster.json").read_text())["topics"]
        assert topics["compacted"]["configs"]["cleanup.policy"] == "compact"
        assert topics["append-time"]["configs"]["message.timestamp.type"] == "LogAppendTime"
        for topic, seen in SEEN.items():
            assert everything.read(topic, seen.first_offset) == seen.all_records
        undecided = SEEN["everything"].all_records[-3:]
        assert [record.value for record in undecided] == [b"undecided"] * 2 + [b"behind the undecided"]
        producer(
            broker.bootstrap, **{"transactional.id": "everything-undecided"}
        )  # aborts it, unless its time is up
        assert committed_offset(broker.bootstrap, "undecided", "everything") == OFFSET_INVALID
        assert reader.read("everything", 0) == [*SEEN["everything"].committed, undecided[-1]]
        assert reader.read("compacted", 0) == SEEN["compacted"].committed
        commit_offsets(broker.bootstrap, "everything")
        by = producer(broker.bootstrap, **{"transactional.id": "everything-one"})
        by.begin_transaction()
        send(by, "everything", [b"went on"])
        by.commit_transaction(30)
        create_topic(broker.bootstrap, "new", {})
        broker.stop()
        broker.start()
        assert reader.read("everything", 0)[-1].value == b"went on"
        assert committed_offset(broker.bootstrap, "readers", "everything") == 5
        reader.close()
        everything.close()
    for topic in TOPICS:
        assert list(verify_directory(LocalDisk(), data / f"{topic}-0")) == []


@pytest.mark.parametrize("cut_size", range(1, 2800, 173))
def test_a_torn_end_is_cut_and_what_it_held_back_is_undecided_again(data, cut_size):
    """A crash of Kafka's machine may leave a part of the last segment. What is whole is read as Kafka served it."""
    path = sorted((data / "everything-0").glob("*.log"))[-1]
    content = path.read_bytes()
    path.write_bytes(content[:-cut_size])
    seen = SEEN["everything"]
    partition = opened_partition(data, "everything", clean=False)
    start, stable, end = bounds(partition)
    assert (start, end) == (seen.first_offset, partition.end_offset)
    assert int(path.stem) <= stable <= end < seen.end_offset
    for committed, limit, records in ((True, stable, seen.committed), (False, end, seen.all_records)):
        wanted = [record for record in records if record.offset < limit]
        assert read_partition(partition, start, committed=committed) == wanted
    partition.close()
    assert list(verify_directory(LocalDisk(), data / "everything-0")) == []


@pytest.mark.extended
def test_a_damaged_partition_stays_as_it_is_at_every_start(data):
    """It was durable when Kafka stopped. That our broker does not stop in order with it offline changes nothing of that."""
    path = data / "everything-0" / "00000000000000000000.log"
    whole = path.read_bytes()
    damaged = whole[:700] + bytes([whole[700] ^ 1]) + whole[701:]
    path.write_bytes(damaged)
    size = sum(log.stat().st_size for log in path.parent.glob("*.log"))
    with stablelog.serve(data) as broker:
        for end in (broker.stop, broker.kill, broker.stop):
            reader = Reader(broker.bootstrap, committed=True)
            assert reader.read("compacted", 0) == SEEN["compacted"].committed
            reader.close()
            end()
            assert path.read_bytes() == damaged
            assert sum(log.stat().st_size for log in path.parent.glob("*.log")) == size
            broker.start()
        broker.stop()
        path.write_bytes(whole)
        broker.start()
        reader = Reader(broker.bootstrap, committed=False)
        assert reader.read("everything", 0) == SEEN["everything"].all_records
        reader.close()


@pytest.mark.extended
@pytest.mark.parametrize(("state", "commit"), [(PREPARE_COMMIT, True), (PREPARE_ABORT, False)])
def test_what_kafka_had_decided_is_carried_out(data, state, commit):
    """Killed between its decision and the markers: they are written to the topic and to the offsets log."""
    decide(data, "everything-undecided", state)
    undecided = SEEN["everything"].all_records[-3:]
    with stablelog.serve(data) as broker:
        reader = Reader(broker.bootstrap, committed=True)
        seen = undecided if commit else undecided[2:]
        assert reader.read("everything", 0) == [*SEEN["everything"].committed, *seen]
        offset = committed_offset(broker.bootstrap, "undecided", "everything")
        assert offset == (9 if commit else OFFSET_INVALID)
        reader.close()


COPY, START, COMPARE, ALTER = documented.take("from-kafka.md")


def test_the_steps_of_the_guide_open_a_directory_of_kafka(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copying, verifying = COPY.replace("/var/lib/kafka/data", str(data)).splitlines()
    subprocess.run(copying.split(), check=True)
    verified = run(*verifying.split()[1:])
    assert verified.returncode == 0, verified.stderr
    serving = [sys.executable, "-c", COMMAND, *START.split()[1:], "--port", "0", "--json"]
    with subprocess.Popen(serving, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as broker:
        try:
            port = json.loads(broker.stdout.readline())["port"]
            steps = [*COMPARE.splitlines(), ALTER.replace("orders", next(iter(TOPICS)))]
            for line in steps:
                done = run(*line.split()[1:], bootstrap=f"127.0.0.1:{port}")
                assert done.returncode == 0, (line, done.stderr)
        finally:
            broker.terminate()


def decide(data, transactional_id, state):
    """Append to Kafka's log of transactions what it would have appended: the latest record with another state."""
    for directory in data.glob("__transaction_state-*"):
        partition = open_partition(
            LocalDisk(), directory, LogConfig(), topic="", partition=0, clean=True, now_ms=0, leader_epoch=0
        )
        latest = None
        for batch, _ in batches_of(partition):
            for record in decode_records(batch):
                if record.key and record.key.endswith(transactional_id.encode()):
                    latest = record
        if latest is not None:
            value = latest.value[:STATE_POSITION] + bytes([state]) + latest.value[STATE_POSITION + 1 :]
            decided = Record(0, latest.timestamp_ms, latest.key, value, ())
            partition.append(encode_batch([decided]), now_ms=0, origin=Origin.COORDINATOR)
        partition.close()
        for path in [
            *directory.glob("*.producers"),
            *directory.glob("*.summary"),
            directory / LOG_START_FILE,
        ]:
            path.unlink(missing_ok=True)  # Kafka has no such files
