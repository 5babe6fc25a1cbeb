"""Readers go on at an offset or at a time, and pass over paused partitions, without loss or repetition."""

import re
import time
from datetime import UTC, datetime

import pytest

import stablelog
from stablelog.client.core.connection import BrokerConnection
from stablelog.errors import (
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    RefusedError,
    UsageError,
)
from stablelog.wire.api import ApiKey
from tests.client.faces import connected
from tests.client.faults import Proxy
from tests.client.test_subscribe import PATIENT, made
from tests.client.transactions import create, writing_of
from tests.clients.drivers import unique
from tests.waiting import until

HOUR_MS = 3_600_000
WAIT_S = 0.3
BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)  # -1 ms, which is the end for Kafka
COMMIT_JOINT = int(ApiKey.COMMIT_JOINT)
by = pytest.mark.parametrize("cut", [True, False], ids=["cut", "partitions"])


def values(transactions):
    return [record.value for one in transactions for record in one.records]


def write(client, topic, *records):
    """A transaction of (partition, value)."""
    with client.transaction() as txn:
        futures = [txn.write(topic, value=value, partition=partition) for partition, value in records]
    return [future.result() for future in futures]


@pytest.fixture
def topic(stablelog_broker):
    return create(stablelog_broker.bootstrap)


# --- readers of transactions ---


@by
def test_a_reader_begins_at_a_time(client, topic, cut):
    times = []
    for value in (b"a", b"b", b"c"):
        write(client, topic, (0, value), (1, value))
        # The times of the markers in both partitions; each commit has times of its own.
        times.append([one.time_ms for one in client.read(topic, cut=False, wait=0)][-2:])
        wait_until_after(max(times[-1]))
    first, second, third = map(min, times)
    reader = client.read(topic, cut=cut, wait=0)
    for begin, wanted in (
        (0, b"abc"),
        (first, b"abc"),
        (max(times[0]) + 1, b"bc"),
        (second, b"bc"),
        (datetime.fromtimestamp(second / 1000, UTC), b"bc"),
        (third, b"c"),
        (third + HOUR_MS, b""),
    ):
        reader.seek_to_time(begin)
        found = values(reader)
        assert sorted(found) == sorted(2 * [bytes([value]) for value in wanted]), begin
        text = str(reader.position)
        assert values(client.read(topic, cut=cut, after=text, wait=0)) == []
    reader.close()


def wait_until_after(time_ms):
    """The broker has the same clock."""
    until(lambda: time.time_ns() // 1_000_000 > time_ms, "the clock stands still")


def test_a_time_before_what_is_left_means_the_first_commit_that_is_left(client, topic, stablelog_broker):
    (early,) = write(client, topic, (0, b"a"))
    write(client, topic, (0, b"b"))
    with stablelog.connect(stablelog_broker.bootstrap) as admin:
        admin.admin.topics.delete_records({(topic, 0): early.offset + 1})
    for cut in (True, False):
        reader = client.read(topic, cut=cut, wait=0)
        reader.seek_to_time(0)
        assert values(reader) == [b"b"]


def test_records_outside_transactions_do_not_mislead_a_time(client, topic, stablelog_broker):
    from confluent_kafka import Producer

    outside = Producer({"bootstrap.servers": stablelog_broker.bootstrap})
    (at,) = [one.time_ms for one in _written(client, topic, b"a")]
    outside.produce(topic, b"outside", partition=0, timestamp=at + HOUR_MS // 2)
    assert outside.flush(30) == 0
    wait_until_after(at)
    *_, last = _written(client, topic, b"b")
    for cut in (True, False):
        reader = client.read(topic, cut=cut, wait=0)
        reader.seek_to_time(last.time_ms)
        assert values(reader) == [b"b"], "one partition, so one time"
        reader.seek_to_time(last.time_ms + 1)
        assert values(reader) == []


def _written(client, topic, value):
    write(client, topic, (0, value))
    return list(client.read(topic, wait=0))


def test_a_reader_of_partitions_goes_on_at_an_offset(client, topic):
    (_, second), (third,) = write(client, topic, (0, b"a"), (0, b"b")), write(client, topic, (0, b"c"))
    write(client, topic, (1, b"x"))
    reader = client.read(topic, cut=False, wait=0)
    assert sorted(values(reader)) == [b"a", b"b", b"c", b"x"]
    reader.seek_to_offset(topic, 0, third.offset)
    text = str(reader.position)
    assert values(reader) == [b"c"], "the other partition goes on where it was"
    reader.seek_to_offset(topic, 0, second.offset)
    assert values(reader) == [b"a", b"b", b"c"], "a transaction is whole"
    assert values(client.read(topic, cut=False, wait=0, after=text)) == [b"c"]
    fresh = client.read(topic, cut=False, wait=0)
    fresh.seek_to_offset(topic, 0, third.offset)
    fresh.seek_to_offset(topic, 1, 0)
    assert sorted(values(fresh)) == [b"c", b"x"]
    fresh.seek_to_offset(topic, 0, third.offset + 1000)
    with pytest.raises(OffsetOutOfRangeError, match=f"{topic}-0 has no offset"):
        next(fresh)
    assert values(fresh) == [], "it goes on where it was"
    fresh.seek(0)
    assert len(values(fresh)) == 4


def test_a_refused_seek_leaves_the_reader_where_it_was(client, topic):
    write(client, topic, (0, b"a"), (1, b"x"))
    reader = client.read(topic, after=0, cut=False, wait=0)
    for partition, offset in ((0, 999), (1, 0), (7, 0)):
        reader.seek_to_offset(topic, partition, offset)
    for error, what in ((OffsetOutOfRangeError, "has no offset 999"), (RefusedError, "has no partition 7")):
        with pytest.raises(error, match=what):
            next(reader)
    assert sorted(values(reader)) == [b"a", b"x"]
    before = reader.position
    reader.seek_to_offset(topic, 0, 999)
    with pytest.raises(OffsetOutOfRangeError):
        next(reader)
    assert reader.position == before
    write(client, topic, (0, b"b"))
    assert values(reader) == [b"b"]


def test_a_seek_before_the_first_request_has_a_position(client, topic):
    write(client, topic, (0, b"a"), (1, b"x"))
    (second,) = write(client, topic, (0, b"b"))
    reader = client.read(topic, after=0, cut=False, wait=0)
    reader.seek_to_offset(topic, 0, second.offset)
    later = client.read(topic, after=str(reader.position), cut=False, wait=0)
    for one in (reader, later):
        assert sorted(values(one)) == [b"b", b"x"]


def test_a_reader_of_partitions_passes_over_what_is_paused(client, topic, stablelog_broker):
    other = create(stablelog_broker.bootstrap)
    reader = client.read([topic, other], cut=False, wait=0)
    for value in (b"a", b"b"):
        for target in (topic, other):
            write(client, target, (0, value + b"0"), (1, value + b"1"))
    next(reader)
    reader.pause(topic)
    reader.pause(other, 1)
    found = [(record.topic, record.partition) for one in reader for record in one.records]
    assert set(found) == {(other, 0)}
    text = str(reader.position)
    reader.resume(other, 1)
    with pytest.raises(UsageError, match="were paused: resume"):
        reader.resume(topic, 0)
    found = [(record.topic, record.partition) for one in reader for record in one.records]
    assert found == [(other, 1)] * 2
    reader.pause(other)
    assert list(reader) == []
    write(client, topic, (0, b"c0"))
    assert list(reader) == []
    for name in (topic, other):
        reader.resume(name)
    rest = values(reader)
    assert len(rest) == 4, "one of five was read before the pause"
    assert len(values(client.read([topic, other], cut=False, wait=0, after=text))) == len(rest) + 2


def test_a_reader_of_cuts_refuses_by_name_what_would_tear_transactions(client, topic):
    write(client, topic, (0, b"a"), (1, b"b"))
    reader = client.read(topic, wait=0)
    for call in (
        lambda: reader.pause(topic),
        lambda: reader.resume(topic, 0),
        lambda: reader.seek_to_offset(topic, 0, 0),
    ):
        with pytest.raises(UsageError, match=r"reads all partitions together.* Make a reader with cut=False"):
            call()
    assert len(next(reader).records) == 2


def test_arguments_of_a_seek_are_checked_at_the_call(client, topic):
    reader = client.read(topic, cut=False, wait=0)
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - it is refused
    for wrong, error in (
        (naive, UsageError),
        (BEFORE_1970, UsageError),
        (datetime(1, 1, 1, tzinfo=UTC), UsageError),
        (-1, UsageError),
        (1.5, TypeError),
        ("now", TypeError),
        (True, TypeError),
    ):
        with pytest.raises(error, match="a datetime with a time zone, or milliseconds since 1970"):
            reader.seek_to_time(wrong)
    for call in (reader.pause, reader.resume):
        with pytest.raises(TypeError, match="topic must be the name of a topic"):
            call(5)
        with pytest.raises(TypeError, match="partition must be the number of a partition"):
            call(topic, 1.0)
    with pytest.raises(TypeError, match=r"offset must be an offset \(int\)"):
        reader.seek_to_offset(topic, 0, "5")
    with pytest.raises(UsageError, match="and not nope"):
        reader.seek_to_offset("nope", 0, 0)
    with pytest.raises(UsageError, match="numbers from 0 on"):
        reader.seek_to_offset(topic, 0, -1)


# --- readers of consumer groups ---


@pytest.fixture(scope="module")
def broker():
    with stablelog.serve(settings=PATIENT) as running:
        yield running


@pytest.fixture
def room(face, broker):
    with connected(face, broker.bootstrap) as client:
        yield made(client, broker, 2)


def read(reader, count):
    return [next(reader).value for _ in range(count)]


def rest(reader, count):
    """So many records and no other one. The reader waits for a moment only, and is asked again."""
    found = []
    until(lambda: found.extend(reader) or len(found) >= count, lambda: f"{len(found)} of {count}")
    assert list(reader) == []
    return [record.value for record in found]


@pytest.mark.extended
def test_a_reader_of_a_group_goes_on_at_an_offset_and_the_commit_is_of_it(room):
    room.write(b"a0", b"a1", b"b0", b"b1")
    with room.subscribe() as reader:
        assert sorted(read(reader, 4)) == [b"a0", b"a1", b"b0", b"b1"]
        reader.commit()
        assert reader.assignment == {(room.source, 0), (room.source, 1)}
        reader.seek(room.source, 0, 1)
        assert read(reader, 1) == [b"b0"]
        reader.seek(room.source, 0, 0)
        reader.commit()
    with room.subscribe(wait=WAIT_S) as reader:
        assert rest(reader, 2) == [b"a0", b"b0"]


@pytest.mark.extended
def test_a_reader_of_a_group_goes_to_the_beginning_the_end_and_a_time(room):
    room.write(b"a0", b"a1", b"b0", b"b1")
    with room.subscribe(wait=WAIT_S) as reader:
        rest(reader, 4)
        reader.seek_to_end()
        room.write(b"c0")
        assert rest(reader, 1) == [b"c0"]
        reader.seek_to_beginning(room.source, 1)
        assert rest(reader, 2) == [b"a1", b"b1"]
        reader.seek_to_beginning()
        assert sorted(rest(reader, 5)) == [b"a0", b"a1", b"b0", b"b1", b"c0"]
        reader.seek_to_time(time.time_ns() // 1_000_000 + HOUR_MS)
        assert list(reader) == []
        reader.seek_to_time(datetime.fromtimestamp(0, UTC), room.source)
        assert len(rest(reader, 5)) == 5
        for wrong, error in (("x", TypeError), (-1, UsageError), (BEFORE_1970, UsageError)):
            with pytest.raises(error, match="a datetime with a time zone"):
                reader.seek_to_time(wrong)


@pytest.mark.extended
def test_a_failed_transaction_goes_back_to_the_seek_and_not_to_the_offset_before(room):
    room.write(b"a", b"x", b"b", b"y")
    with room.subscribe() as reader:
        read(reader, 4)
        reader.commit()
        reader.seek(room.source, 0, 0)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), room.client.transaction(offsets_of=reader) as txn:
                txn.write(room.target, value=next(reader).value)
                _ = 1 / 0
        for _ in range(2):
            room.copy(reader, [next(reader)])
    assert room.copied() == [b"a", b"b"]


@pytest.mark.extended
@pytest.mark.parametrize("fate", ["request", "answer"])
def test_after_a_commit_of_unknown_outcome_the_group_says_whether_it_was_after_the_seek(face, broker, fate):
    lost = []

    def lose(key, _count):
        return fate if lost and key == COMMIT_JOINT else None

    with (
        connected(face, broker.bootstrap) as direct,
        Proxy((broker.host, broker.port), lose) as proxy,
        face.through(proxy, broker) as client,
    ):
        room = made(direct, broker)
        room.write(b"a", b"b")
        room.client = client
        with room.subscribe() as reader:
            read(reader, 2)
            reader.commit()
            reader.seek(room.source, 0, 0)
            record = next(reader)
            next(reader)
            txn = client.transaction(offsets_of=reader, timeout=2)
            txn.write(room.target, value=record.value)
            writing_of(txn).cluster.deadline_s = 0.3
            lost.append(True)
            # The same offset is committed as before the seek.
            with pytest.raises(OutcomeUnknownError):
                txn.commit()
            lost.clear()
            with direct.transaction() as later:
                later.write(room.source, value=b"c")
            wanted = [b"c"] if fate == "answer" else [b"a", b"b", b"c"]
            assert read(reader, len(wanted)) == wanted


@pytest.mark.extended
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_after_an_aborted_transaction_commits_the_seek(room, when):
    room.write(b"a", b"x", b"b", b"y")
    with room.subscribe() as reader:
        read(reader, 4)
        reader.commit()
        if when == "before":
            reader.seek(room.source, 0, 0)
        txn = room.client.transaction(offsets_of=reader)
        txn.write(room.target, value=b"no")
        txn.abort()
        if when == "after":
            reader.seek(room.source, 0, 0)
        reader.commit()
    with room.subscribe(wait=WAIT_S) as reader:
        assert rest(reader, 2) == [b"a", b"b"]


@pytest.mark.extended
def test_a_paused_partition_is_kept_and_handed_out_later(room):
    room.write(b"a0", b"a1", b"b0", b"b1", b"c0", b"c1")
    with room.subscribe(wait=WAIT_S) as reader:
        reader.pause(room.source, 1)
        assert rest(reader, 3) == [b"a0", b"b0", b"c0"]
        reader.pause(room.source)
        reader.resume(room.source)
        (first,) = next(reader.batches(max_records=1))
        reader.pause(room.source)
        assert list(reader) == []
        assert len(reader.assignment) == 2
        reader.commit()
        reader.resume(room.source)
        assert [first.value, *rest(reader, 2)] == [b"a1", b"b1", b"c1"]


def test_records_that_were_read_ahead_are_not_handed_out_of_a_paused_partition(room):
    room.write(*[b"%d" % number for number in range(20)])
    with room.subscribe(wait=10) as reader:
        first = next(reader)
        reader.pause(room.source, first.partition)
        assert {record.partition for record in (next(reader) for _ in range(10))} == {1 - first.partition}
        reader.pause(room.source, 1 - first.partition)
        reader.resume(room.source, first.partition)
        assert [next(reader).offset for _ in range(9)] == list(range(1, 10))


def test_a_seek_is_refused_by_name(room):
    room.write(b"a0", b"a1")
    with room.subscribe() as reader:
        with pytest.raises(UsageError, match="has assigned no partition to this reader now"):
            reader.seek_to_beginning()
        with pytest.raises(UsageError, match="without a topic"):
            reader.seek_to_end(None, 1)
        read(reader, 2)
        with pytest.raises(UsageError, match=f"has assigned not {room.source}-7"):
            reader.seek(room.source, 7, 0)
        for offset in (-1, 1000):
            with pytest.raises(OffsetOutOfRangeError, match=f"{room.source}-0 has no offset"):
                reader.seek(room.source, 0, offset)
        txn = room.client.transaction(offsets_of=reader)
        with pytest.raises(UsageError, match="transaction of this reader is open"):
            reader.seek(room.source, 0, 0)
        txn.abort()
        reader.seek(room.source, 0, 0)


# --- regular expressions ---


def test_a_reader_of_an_expression_sees_new_topics(client, room, broker):
    prefix = unique("re")
    with connected(type(room.client), broker.bootstrap) as client:
        for name in ("orders", "other"):
            create(broker.bootstrap, "offset", 1, name=f"{prefix}-{name}")
        with client.subscribe(re.compile(f"{prefix}-or.*"), group=room.group, wait=60) as reader:
            write(client, f"{prefix}-other", (0, b"no"))
            write(client, f"{prefix}-orders", (0, b"a"))
            assert read(reader, 1) == [b"a"]
            create(broker.bootstrap, "offset", 1, name=f"{prefix}-orders-new")
            write(client, f"{prefix}-orders-new", (0, b"new"))
            assert read(reader, 1) == [b"new"]


def test_an_expression_is_refused_by_name(room, monkeypatch):
    for wrong in (re.compile("a", re.IGNORECASE), re.compile(b"a")):
        with pytest.raises(UsageError, match="compile the pattern from a text and without flags"):
            room.client.subscribe(wrong, group=room.group)
    with room.client.subscribe(re.compile("(?=a)b"), group=room.group) as reader:
        with pytest.raises(RefusedError) as refused:
            next(reader)
        assert refused.value.code_name == "INVALID_REGULAR_EXPRESSION"
    speaks = BrokerConnection.supports_api
    monkeypatch.setattr(
        BrokerConnection,
        "supports_api",
        lambda self, api, version=0: (
            speaks(self, api, version) and not (api == ApiKey.CONSUMER_GROUP_HEARTBEAT and version)
        ),
    )
    with room.client.subscribe(re.compile("a.*"), group=room.group) as reader:
        with pytest.raises(
            RefusedError, match="does not know subscriptions by regular expressions"
        ) as refused:
            next(reader)
        assert refused.value.code_name == "UNSUPPORTED_VERSION"


def test_a_broker_without_groups_of_this_kind_is_named(room, monkeypatch):
    speaks = BrokerConnection.supports_api
    monkeypatch.setattr(
        BrokerConnection,
        "supports_api",
        lambda self, api, version=0: api != ApiKey.CONSUMER_GROUP_HEARTBEAT and speaks(self, api, version),
    )
    with room.subscribe() as reader, pytest.raises(RefusedError, match="has no consumer groups of KIP-848"):
        next(reader)
