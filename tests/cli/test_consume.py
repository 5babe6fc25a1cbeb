"""`stablelog consume` as a reader of partitions and as a member of a group."""

import os
import signal
import subprocess
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from stablelog.batch.header import HEADER, read_header
from stablelog.batch.records import Record, encode_batch
from stablelog.cli import consume, record_reader
from stablelog.cli.exit_codes import NoBrokerError
from stablelog.cli.output import OutputError
from stablelog.cli.partition_watch import PartitionWatch
from stablelog.cli.record_format import render_plain
from stablelog.cli.record_reader import RecordPrinter
from stablelog.client.blocking.connection import SocketConnection
from stablelog.client.core.membership import Change
from stablelog.client.core.record_reader import ReadBatch, Round
from stablelog.errors import RefusedError
from stablelog.wire.api import ApiKey
from tests.cli.test_cli import answer, begun
from tests.clients.drivers import unique
from tests.commands import run
from tests.waiting import until


def read(first, count, partition=0):
    """A batch of records whose values are their offsets, as a reader gets it."""
    batch = encode_batch(
        [Record(0, 1, None, b"%d" % offset) for offset in range(first, first + count)], base_offset=first
    )
    header = read_header(batch)
    return ReadBatch(("t", partition), header, batch[HEADER.size :], first)


class FakeSource:
    """A group's partitions that give these rounds: lists of batches. `commits` has what is committed, and how many
    records were written before.
    """

    def __init__(self, rounds=(), written=None, *, group="g", ends=None, changes=()):
        self.rounds = list(rounds)
        self.group = group
        self.commits = []
        self.follow_assignment = iter([*changes, *[Change()] * 1000]).__next__
        self._ends = ends or {}
        self._positions = {("t", 0): 0}
        self._written = written if written is not None else []

    def begin_reading(self, change):
        for target in (*change.revoked, *change.lost):
            self._positions.pop(target)

    def has_no_partition(self):
        return False

    def positions(self):
        return self._positions

    def read_round(self, _wait_s):
        batches = self.rounds.pop(0) if self.rounds else []
        for batch in batches:
            self._positions[batch.target] = batch.header.next_offset
        if not self.rounds:
            self._positions |= self._ends
        at_end = set() if self.rounds else set(self._positions)
        return Round(batches, at_end, {}, {})

    def commit_offsets(self, offsets):
        self.commits.append(({index: at for (_, index), at in offsets.items()}, len(self._written)))


class SilentSource(FakeSource):
    """Its broker does not answer."""

    def read_round(self, _wait_s):
        return Round([], set(), dict.fromkeys(self._positions, "no broker"), {})


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


def reader(source, **others):
    watch = PartitionWatch("here:1", "t", [0], {}, "read_committed")
    return RecordPrinter(source, watch, render_plain, **{"follow": False, **others})


@pytest.mark.parametrize("group", [None, "g"])
def test_a_reader_whose_broker_goes_away_ends(monkeypatch, group):
    monkeypatch.setattr(record_reader, "TIMEOUT_S", 0.0)
    with pytest.raises(NoBrokerError, match="no broker responds at here:1"):
        reader(SilentSource(group=group)).print_records(None)


def test_offsets_are_committed_in_batches_after_their_records_are_written(written, monkeypatch):
    monkeypatch.setattr(record_reader, "COMMIT_S", 1000.0)
    monkeypatch.setattr(record_reader, "COMMIT_COUNT", 10)
    # A marker follows the last record.
    source = FakeSource([[read(0, 5), read(5, 5), read(10, 10)], [read(20, 5)]], written, ends={("t", 0): 26})
    reader(source).print_records(None)
    assert [offsets for offsets, _ in source.commits] == [{0: 10}, {0: 20}, {0: 26}]
    assert b"".join(written).split() == [b"%d" % offset for offset in range(25)]


def test_records_are_written_before_their_offsets_are_committed(written, monkeypatch):
    monkeypatch.setattr(record_reader, "COMMIT_COUNT", 1)
    source = FakeSource([[read(0, 5)], [read(5, 5)]], written)
    reader(source).print_records(None)
    assert source.commits == [({0: 5}, 1), ({0: 10}, 2), ({0: 10}, 2)]


def test_nothing_is_committed_twice_while_a_reader_waits(written, monkeypatch):
    monkeypatch.setattr(record_reader, "COMMIT_S", 0.0)
    source = FakeSource([[read(0, 1)], [], [], [], [read(1, 1)], []], written)
    reader(source, follow=True).print_records(2)
    assert [offsets for offsets, _ in source.commits] == [{0: 1}, {0: 2}, {0: 2}]


def test_a_reader_stops_within_a_batch_and_commits_what_it_has_written(written):
    source = FakeSource([[read(0, 9)]], written)
    reader(source, follow=True).print_records(4)
    assert source.commits[-1] == ({0: 4}, 1)
    assert b"".join(written).split() == [b"0", b"1", b"2", b"3"]


def test_a_reader_that_is_stopped_commits_what_it_has_written(written):
    source = FakeSource([[read(0, 5)], [read(5, 4)]], written)
    made = reader(source, follow=True)
    read_round = source.read_round

    def stopping(wait_s):
        found = read_round(wait_s)
        made.is_stopped = len(source.rounds) == 0
        return found

    source.read_round = stopping
    made.print_records(None)
    assert source.commits == [({0: 5}, 1)]


def test_nothing_is_committed_that_cannot_be_written(written, monkeypatch):
    monkeypatch.setattr(record_reader, "COMMIT_COUNT", 1)

    def flush():
        raise OutputError(BrokenPipeError(32, "Broken pipe"))

    monkeypatch.setattr(record_reader.sys.stdout, "flush", flush)
    source = FakeSource([[read(0, 9)]], written)
    with pytest.raises(OutputError):
        reader(source).print_records(None)
    assert source.commits == []


@pytest.mark.parametrize("is_lost", [False, True])
def test_partitions_that_another_member_gets_are_committed_once_unless_they_are_lost(written, is_lost):
    taken = Change(lost=(("t", 0),)) if is_lost else Change(revoked=(("t", 0),))
    source = FakeSource([[read(0, 1), read(7, 1, 1)], []], written, changes=[Change(), taken])
    made = reader(source, follow=True)
    made.print_records(2)
    source.commits.clear()
    made.is_stopped = False
    source.rounds = [[read(8, 1, 1)]]
    made.print_records(3)
    assert source.commits == ([] if is_lost else [({0: 1}, 2)]) + [({1: 9}, 3)]


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


@pytest.mark.sampled(3)
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


@pytest.mark.extended
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


@pytest.mark.extended
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


def test_a_group_at_a_broker_without_consumer_groups_is_refused_by_name(stablelog_broker, monkeypatch):
    topic, speaks = unique("t"), SocketConnection.supports_api

    def speaks_the_rest(connection, api_key, version=0):
        return api_key != ApiKey.CONSUMER_GROUP_HEARTBEAT and speaks(connection, api_key, version)

    monkeypatch.setattr(SocketConnection, "supports_api", speaks_the_rest)
    assert run("topics", "create", topic, bootstrap=stablelog_broker.bootstrap).returncode == 0
    with pytest.raises(RefusedError, match=r"has no consumer groups of KIP-848, which this client needs"):
        consume.consume(topic, group="g", bootstrap=[stablelog_broker.bootstrap])
