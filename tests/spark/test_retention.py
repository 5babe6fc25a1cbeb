"""What is read while the broker writes, rolls and deletes: all of it, or a word about what is missing."""

import json
import shutil
import threading
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import stablelog
from stablelog.errors import DamageError, DataLossError, RefusedError, UnavailableError, UsageError
from stablelog.spark import record_count
from stablelog.spark.option_table import STREAM
from stablelog.spark.options import read_options
from stablelog.spark.planning import TaskLimits
from stablelog.spark.schema import Columns
from stablelog.spark.segments.segment_file import GoneError
from stablelog.spark.source.reader import StablelogStreamReader
from tests.clients.drivers import Confluent, unique
from tests.spark.histories import Writers, truth
from tests.spark.reading import make, rows, settled, tasks
from tests.waiting import until

PATIENCE_S = 240  # on a busy machine
SMALL = {"segment.bytes": "1500", "index.interval.bytes": "200"}


def given(broker, topic, **more):
    return {"bootstrap": broker.bootstrap, "subscribe": topic, **more}


def delete_before(broker, topic, offset, partition=0):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    at = TopicPartition(topic, partition, offset)
    admin.delete_records([at])[at].result(30)


def filled(broker, **configs):
    """A topic of one partition and many segments: 200 records, the last of them in the last segment."""
    topic = unique("retained")
    make(broker.bootstrap, topic, 1, **SMALL, **configs)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for number in range(200):
        producer.produce(topic, b"%03d" % number + b"x" * 60, partition=0)
        if number % 10 == 9:
            assert producer.flush(30) == 0
    return topic


def logs(broker, topic, pattern="*.log"):
    return sorted((broker.data / f"{topic}-0").glob(pattern))


@pytest.fixture(scope="module")
def keeping_broker():
    """A broker that removes no file of a deleted segment while somebody looks."""
    with stablelog.serve(log_retention_check_interval_ms=10**12) as broker:
        yield broker


def wait_until_gone(path):
    until(lambda: not path.exists(), f"{path} stays")


@pytest.mark.extended
def test_segments_that_are_deleted_meanwhile_are_read_while_they_are_kept(keeping_broker):
    topic = filled(keeping_broker)
    asked = given(keeping_broker, topic, scan="files")
    planned = tasks(asked)
    first = logs(keeping_broker, topic)[0]
    delete_before(keeping_broker, topic, 150)
    wait_until_gone(first)
    assert len(rows(asked, "offset", planned=planned)) == 200


@pytest.mark.extended
@pytest.mark.parametrize("scan", ["fetch", "files"])
def test_what_was_removed_meanwhile_is_told(keeping_broker, scan, caplog):
    topic = filled(keeping_broker)
    asked = given(keeping_broker, topic, scan=scan)
    planned = tasks(asked, TaskLimits(target_size=1000))
    delete_before(keeping_broker, topic, 150)
    for path in logs(keeping_broker, topic, "*.deleted"):
        path.unlink()
    with pytest.raises(
        DataLossError, match=f"{topic}-0 begins at offset 150 now: offsets 0 to .* were removed while"
    ):
        rows(asked, "offset", planned=planned)
    left = rows({**asked, "failOnDataLoss": "false"}, "offset", planned=planned)
    # A file that is still there is read as it was planned, also where its first offsets are deleted by now.
    first = 150 if scan == "fetch" else left[0][0]
    assert 100 < first <= 150
    assert left == [(n,) for n in range(first, 200)]
    assert "the read continues without them" in caplog.text


@pytest.mark.extended
def test_a_count_begins_again_when_a_file_goes_away(stablelog_broker, monkeypatch):
    topic = filled(stablelog_broker)
    once = record_count.files_count
    tries = []

    def failing(files, *more, **named):
        tries.append(files)
        if len(tries) < 3:
            raise GoneError("a segment")
        return once(files, *more, **named)

    monkeypatch.setattr(record_count, "files_count", failing)
    assert record_count.count(given(stablelog_broker, topic)) == 200


def test_without_a_broker_a_file_that_is_gone_is_told(stablelog_broker, tmp_path):
    topic = filled(stablelog_broker)
    copy = shutil.copytree(stablelog_broker.data / f"{topic}-0", tmp_path / f"{topic}-0")
    asked = {"path": str(tmp_path)}
    planned = tasks(asked)
    second = sorted(copy.glob("*.log"))[1]
    second.unlink()
    with pytest.raises(
        DataLossError, match=f"{second}.* was removed while it was read: offsets 0 to 199 of {topic}-0"
    ):
        rows(asked, "offset", planned=planned)
    with pytest.raises(
        UnavailableError, match=r"removed while the read was planned: .* has no file with the offsets"
    ):
        tasks(asked)


@pytest.mark.extended
@pytest.mark.parametrize("scan", ["fetch", "files"])
def test_a_topic_that_was_created_again_is_not_taken_for_the_old_one(stablelog_broker, scan):
    topic = filled(stablelog_broker)
    asked = given(stablelog_broker, topic, scan=scan)
    planned = tasks(asked)
    admin = AdminClient({"bootstrap.servers": stablelog_broker.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    make(stablelog_broker.bootstrap, topic, 1)
    Confluent(stablelog_broker.bootstrap).produce(topic, [b"new"] * 300)
    with pytest.raises(DataLossError, match=f"{topic} was deleted and created again"):
        rows(asked, "value", planned=planned)


@pytest.mark.extended
@pytest.mark.parametrize("told", ["by name", "by partition"])
def test_a_stream_that_bears_losses_goes_on_without_a_topic_that_was_deleted(stablelog_broker, told, caplog):
    stays, goes = (unique("retained") for _ in range(2))
    for topic in (stays, goes):
        make(stablelog_broker.bootstrap, topic, 1)
        Confluent(stablelog_broker.bootstrap).produce(topic, [b"1"] * 5)
    what = {"subscribe": f"{stays},{goes}"} if told == "by name" else {}
    what = what or {"assign": f'{{"{stays}": [0], "{goes}": [0]}}'}

    def reader(**more):
        asked = {"bootstrap": stablelog_broker.bootstrap, "startingOffsets": "earliest", **what, **more}
        return StablelogStreamReader(read_options(asked, STREAM), Columns(StructType([])))

    running, everything = reader(failOnDataLoss="false"), ReadAllAvailable()
    start = running.initialOffset()
    middle = running.latestOffset(start, everything)
    assert {topic for topic in middle if topic[0] != "#"} == {stays, goes}
    admin = AdminClient({"bootstrap.servers": stablelog_broker.bootstrap})
    admin.delete_topics([goes])[goes].result(30)
    Confluent(stablelog_broker.bootstrap).produce(stays, [b"2"] * 5)

    restarted = reader(failOnDataLoss="false")
    for again in (running, restarted):
        end = again.latestOffset(middle, everything)
        assert end == {"#topics": {stays: middle["#topics"][stays]}, stays: {"0": 10}}
        assert [piece.topic for task in again.partitions(middle, end) for piece in task.pieces] == [stays]
        # A micro-batch that was planned before, and is repeated.
        assert [piece.topic for task in again.partitions(start, middle) for piece in task.pieces] == [stays]
        assert again.latestOffset(end, everything) == end
        again.stop()
    assert f"{goes}-0 does not exist any more, but was read before" in caplog.text
    assert f"{goes}-0 does not exist any more, and was not read to its end" in caplog.text
    strict = reader()
    for ask in (lambda: strict.latestOffset(middle, everything), lambda: strict.partitions(start, middle)):
        with pytest.raises((RefusedError, UsageError), match=goes):
            ask()
    strict.stop()


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_without_a_broker_a_file_that_cannot_be_used_is_never_told_as_lost(
    stablelog_broker, tmp_path, fail_on_data_loss
):
    topic = filled(stablelog_broker)
    copy = shutil.copytree(stablelog_broker.data / f"{topic}-0", tmp_path / f"{topic}-0")
    asked = {"path": str(tmp_path), "failOnDataLoss": fail_on_data_loss}
    planned = tasks(asked)
    (copy / "partition.metadata").write_text("version: 0\ntopic_id: ?")
    with pytest.raises(DamageError, match=f"{copy}/partition.metadata contains no valid topic id"):
        rows(asked, "offset", planned=planned)
    for one in (asked, asked | {"assign": json.dumps({topic: [0]})}):
        with pytest.raises(DamageError, match=f"{copy}/partition.metadata contains no valid topic id"):
            tasks(one)
    shutil.copy(stablelog_broker.data / f"{topic}-0" / "partition.metadata", copy)
    second = sorted(copy.glob("*.log"))[1]
    second.unlink()
    second.symlink_to(second)
    with pytest.raises(
        UnavailableError, match=f"{second} cannot be read: Too many levels of symbolic links$"
    ):
        rows(asked, "offset", planned=planned)


def test_a_file_that_compaction_has_put_in_place_of_another_is_noticed(stablelog_broker, tmp_path):
    topic = filled(stablelog_broker)
    copy = shutil.copytree(stablelog_broker.data / f"{topic}-0", tmp_path / f"{topic}-0")
    asked = {"path": str(tmp_path)}
    planned = tasks(asked)
    first = min(copy.glob("*.log"))
    other = first.with_suffix(".swap")
    other.write_bytes(first.read_bytes())
    other.replace(first)
    with pytest.raises(DataLossError, match=f"{first}.* was removed while it was read"):
        rows(asked, "offset", planned=planned)
    assert len(rows(asked, "offset")) == 200


@pytest.mark.parametrize("where", ["header", "record", "length"])
def test_a_damaged_segment_is_named_with_its_place(stablelog_broker, tmp_path, where):
    topic = filled(stablelog_broker)
    copy = shutil.copytree(stablelog_broker.data / f"{topic}-0", tmp_path / f"{topic}-0")
    path = sorted(copy.glob("*.log"))[2]
    content = bytearray(path.read_bytes())
    content[{"header": 16, "record": 70, "length": 9}[where]] ^= 0x55
    path.write_bytes(content)
    base = int(path.stem)
    # The bodies of batches are no part of the segment's proof: the decoder checks them.
    told = (
        f" is damaged, in the part from byte 0 on: .*offset {base}"
        if where == "record"
        else ": .* at byte 0.*Restore the file"
    )
    with pytest.raises(DamageError, match=f"{path}{told}"):
        rows({"path": str(tmp_path)}, "offset")


@pytest.mark.extended
def test_a_segment_that_was_cut_is_named(stablelog_broker, tmp_path):
    topic = filled(stablelog_broker)
    copy = shutil.copytree(stablelog_broker.data / f"{topic}-0", tmp_path / f"{topic}-0")
    path = sorted(copy.glob("*.log"))[2]
    planned = tasks({"path": str(tmp_path)})
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 10)
    with pytest.raises(DamageError, match=f"{path} has .* bytes, but had .* when the read was planned"):
        rows({"path": str(tmp_path)}, "offset", planned=planned)
    with pytest.raises(DamageError, match=f"{path} has .* bytes, but had .* when it was sealed"):
        tasks({"path": str(tmp_path)})


def test_a_directory_that_cannot_be_read_is_named(stablelog_broker, tmp_path):
    with pytest.raises(UnavailableError, match=f"{tmp_path}/nowhere cannot be read: No such file"):
        tasks({"path": str(tmp_path / "nowhere")})
    with pytest.raises(UnavailableError, match=f"{tmp_path} is no data directory"):
        tasks({"path": str(tmp_path)})
    topic = filled(stablelog_broker)
    with pytest.raises(
        UnavailableError, match=f"the files of {topic}-0 are not in {tmp_path}, or cannot be read"
    ):
        tasks(given(stablelog_broker, topic, mount=str(tmp_path)))


@pytest.mark.extended
def test_while_the_broker_writes_and_rolls_and_deletes(stablelog_broker):
    topic, bootstrap = unique("busy"), stablelog_broker.bootstrap
    make(bootstrap, topic, 2, **SMALL)
    writers = Writers(bootstrap, topic, 2, 7)
    stop = threading.Event()
    failures = []

    def write():
        try:
            while not stop.is_set():
                writers.step()
            writers.end_all()
        except Exception as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": unique("g"), "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(2)])
    ledger, reads, read_counts, deleted_count = [], [], {"fetch": 0, "files": 0}, 0
    deadline = time.monotonic() + PATIENCE_S
    writer.start()
    try:
        while (deleted_count < 10 or min(read_counts.values()) <= 250) and not failures:
            assert time.monotonic() < deadline, (deleted_count, read_counts)
            for scan in ("files", "fetch"):
                asked = given(stablelog_broker, topic, scan=scan)
                planned = tasks(asked, TaskLimits(target_size=4000))
                reads.append((planned, rows(asked, "partition", "offset", "value", planned=planned)))
                read_counts[scan] += len(reads[-1][1])
            ledger += [(m.partition(), m.offset(), m.value()) for m in consumer.consume(10_000, 0.05)]
            positions = {at.partition: at.offset for at in consumer.position(consumer.assignment())}
            for index, position in positions.items():
                if position > 60:
                    delete_before(stablelog_broker, topic, position - 50, index)
                    deleted_count += 1
    finally:
        stop.set()
        writer.join()
        consumer.close()
    assert not failures
    settled(bootstrap, topic)
    known = set(ledger) | set(truth(bootstrap, topic, 2))
    assert min(read_counts.values()) > 100
    for planned, found in reads:
        ranges = [(piece.partition, piece.start, piece.end) for pieces in planned for piece in pieces]
        wanted = {
            row for row in known for index, start, end in ranges if row[0] == index and start <= row[1] < end
        }
        assert set(found) == wanted
        assert len(found) == len(wanted)
