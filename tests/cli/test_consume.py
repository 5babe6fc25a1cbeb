"""`stablelog consume` as a reader of partitions and as a member of a group."""

import os
import signal
import subprocess
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from stablelog.cli import record_reader
from stablelog.cli.output import OutputError
from stablelog.cli.partition_watch import PartitionWatch
from stablelog.cli.record_format import render_plain
from stablelog.cli.record_reader import Reader
from stablelog.errors import UnavailableError
from tests.cli.test_cli import answer, begun
from tests.clients.drivers import unique
from tests.commands import run
from tests.waiting import until


class Message:
    """A message of librdkafka: a record, or with `code` the end of a partition."""

    def __init__(self, offset, partition=0, code=None):
        self.offset = lambda: offset
        self.partition = lambda: partition
        self.error = lambda: KafkaError(code) if code is not None else None
        self.key = lambda: None
        self.value = lambda: b"%d" % offset


class FakeConsumer:
    """A consumer with these messages. `commits` has what it commits, and what was written before."""

    def __init__(self, messages=(), written=None):
        self.messages = list(messages)
        self.commits = []
        self._written = written if written is not None else []

    def poll(self, _timeout_s):
        return self.messages.pop(0) if self.messages else None

    def assignment(self):
        return []

    def list_topics(self, timeout):
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def commit(self, *, offsets, asynchronous):
        self.commits.append(({at.partition: at.offset for at in offsets}, asynchronous, len(self._written)))


@pytest.fixture
def written(monkeypatch):
    """What was written to standard output when it was last flushed."""
    flushed, buffered = [], []

    class Stdout:
        def flush(self):
            flushed.extend(buffered)
            buffered.clear()

    monkeypatch.setattr(record_reader, "print_bytes", buffered.append)
    monkeypatch.setattr(record_reader, "sys", SimpleNamespace(stdout=Stdout()))
    return flushed


def reader(consumer, group="g", **others):
    watch = PartitionWatch("here:1", "t", [0], {}, "read_committed")
    return Reader(consumer, group, watch, render_plain, **{"follow": False, **others})


@pytest.mark.parametrize("group", [None, "g"])
def test_a_reader_whose_broker_goes_away_ends(monkeypatch, group):
    monkeypatch.setattr(record_reader, "TIMEOUT_S", 0.0)
    with pytest.raises(UnavailableError, match="no broker responds at here:1"):
        reader(FakeConsumer(), group).print_records(1, None)


def test_offsets_are_committed_in_batches_after_their_records_are_written(written, monkeypatch):
    monkeypatch.setattr(record_reader, "COMMIT_S", 1000.0)
    monkeypatch.setattr(record_reader, "COMMIT_COUNT", 10)
    end = Message(26, code=KafkaError._PARTITION_EOF)  # a marker follows the last record
    consumer = FakeConsumer([*map(Message, range(25)), end], written)
    reader(consumer).print_records(1, None)
    assert consumer.commits == [({0: 10}, True, 10), ({0: 20}, True, 20), ({0: 26}, False, 25)]


def test_nothing_is_committed_twice_while_a_reader_waits(written, monkeypatch):
    monkeypatch.setattr(record_reader, "COMMIT_S", 0.0)
    consumer = FakeConsumer([Message(0), None, None, None, Message(1), None], written)
    made = reader(consumer, follow=True)
    made.print_records(1, 2)
    assert [offsets for offsets, asynchronous, _ in consumer.commits if asynchronous] == [{0: 1}, {0: 2}]


def test_a_reader_that_is_stopped_commits_what_it_has_written(written):
    consumer = FakeConsumer(map(Message, range(9)), written)
    made = reader(consumer, follow=True)

    def poll(_timeout_s, poll=consumer.poll):
        assert consumer.messages, "the reader goes on"
        made.is_stopped = len(consumer.messages) == 5
        return poll(0)

    consumer.poll = poll
    made.print_records(1, None)
    assert consumer.commits == [({0: 5}, False, 5)]


def test_nothing_is_committed_that_cannot_be_written(written, monkeypatch):
    monkeypatch.setattr(record_reader, "COMMIT_COUNT", 1)

    def flush():
        raise OutputError(BrokenPipeError(32, "Broken pipe"))

    monkeypatch.setattr(record_reader.sys.stdout, "flush", flush)
    consumer = FakeConsumer(map(Message, range(9)), written)
    with pytest.raises(OutputError):
        reader(consumer).print_records(1, None)
    assert consumer.commits == []


@pytest.mark.parametrize("is_lost", [False, True])
def test_partitions_that_another_member_gets_are_committed_once_unless_they_are_lost(written, is_lost):
    consumer = FakeConsumer([Message(0), Message(7, partition=1)], written)
    made = reader(consumer)
    made.print_records(1, 2)
    consumer.commits.clear()
    made.give_up([0], is_lost=is_lost)
    made.give_up([0, 1], is_lost=is_lost)
    assert consumer.commits == ([] if is_lost else [({0: 1}, False, 2), ({1: 8}, False, 2)])


# -- with a broker ---------------------------------------------------------------------------------------------------


@pytest.fixture
def topic(stablelog_broker):
    name = unique("consume")
    answer("topics", "create", name, "--partitions", "2", bootstrap=stablelog_broker.bootstrap)
    producer = Producer({"bootstrap.servers": stablelog_broker.bootstrap, "log_level": 0})
    for number in range(10):
        producer.produce(name, b"%d" % number, partition=number % 2, headers=[("h", b"\xff")])
    assert producer.flush(60) == 0
    return name


def committed(at, topic, group):
    consumer = Consumer({"bootstrap.servers": at, "group.id": group, "log_level": 0})
    found = consumer.committed([TopicPartition(topic, index) for index in range(2)], timeout=60)
    consumer.close()
    return [at.offset for at in found]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("-p", "1"), "13579"),
        (("--partition", "0", "--partition", "1", "--offset", "-1"), "89"),
        (("-p", "1", "-o", "2", "-c", "2", "-e"), "57"),
        (("-p", "0", "-o", "end"), ""),
        (("-p", "0", "-o", "beginning"), "02468"),
        (("-p", "0", "-o", "@0"), "02468"),
        (("-p", "0", "-o", "@2100-01-01"), ""),
    ],
)
def test_records_are_chosen_by_partition_offset_and_count(stablelog_broker, topic, words, values):
    done = run("consume", topic, "-f", "%v", *words, bootstrap=stablelog_broker.bootstrap)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout) == list(values)


def test_a_partition_that_does_not_exist_is_refused(stablelog_broker, topic):
    done = run("consume", topic, "-p", "2", bootstrap=stablelog_broker.bootstrap)
    assert (done.returncode, done.stderr) == (2, f"stablelog: {topic} has no partition 2, only 0 to 1\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("group", [None, "group"])
def test_a_signal_ends_a_reader_after_a_commit_and_without_a_word(stablelog_broker, topic, number, group):
    at, group = stablelog_broker.bootstrap, group and unique(group)
    words = ["--group", group] if group else []
    with begun("consume", topic, "--follow", *words, bootstrap=at, stdout=subprocess.PIPE) as reading:
        lines = [reading.stdout.readline() for _ in range(10)]
        reading.send_signal(number)
        assert (reading.wait(60), reading.stderr.read(), reading.stdout.read()) == (0, "", "")
    assert sorted(lines) == [f"{number}\n" for number in range(10)]
    if group:
        assert committed(at, topic, group) == [5, 5]
        assert answer("groups", "describe", group, bootstrap=at)[0]["state"] == "empty"


def test_a_member_whose_output_is_closed_commits_no_record_that_was_not_written(stablelog_broker, topic):
    at, group = stablelog_broker.bootstrap, unique("group")
    reading, writing = os.pipe()
    with begun("consume", topic, "--follow", "--group", group, bootstrap=at, stdout=writing) as member:
        os.close(writing)
        with os.fdopen(reading) as lines:
            assert len([lines.readline() for _ in range(10)]) == 10
        until(lambda: committed(at, topic, group) == [5, 5], "nothing is committed")
        answer("produce", topic, bootstrap=at, given="lost\n" * 5000)
        assert (member.wait(60), member.stderr.read()) == (141, "")
    assert committed(at, topic, group) == [5, 5]
