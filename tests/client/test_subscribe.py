"""Readers of consumer groups: what they hand out is committed once, by themselves or by a transaction, or handed out again."""

import asyncio
import contextlib
import os

import pytest

import stablelog
from stablelog.client.core import group_reading
from stablelog.client.core.connection import BrokerConnection
from stablelog.errors import OutcomeUnknownError, RefusedError, TransactionAbortedError, UsageError
from stablelog.wire.api import ApiKey
from tests.client.faces import Threads, connected, reading
from tests.client.faults import Proxy
from tests.client.transactions import visible, writing_of
from tests.clients.drivers import unique
from tests.waiting import until

SETTINGS = {"group.consumer.heartbeat.interval.ms": 50, "group.consumer.session.timeout.ms": 1_000}
PATIENT = {"group.consumer.heartbeat.interval.ms": 50, "group.consumer.session.timeout.ms": 60_000}


@pytest.fixture(scope="module")
def broker():
    with stablelog.serve(settings=PATIENT) as running:
        yield running


@pytest.fixture(scope="module")
def impatient():
    """A broker that replaces a silent member after a second."""
    with stablelog.serve(settings=SETTINGS) as running:
        yield running


class Room:
    """Two topics, a group, and a client."""

    def __init__(self, client, bootstrap, partitions=1):
        self.client, self.bootstrap = client, bootstrap
        self.source, self.target, self.group = unique("source"), unique("target"), unique("group")
        self.partitions = partitions

    def subscribe(self, wait=10, **more):
        return self.client.subscribe(self.source, group=self.group, wait=wait, **more)

    def write(self, *values):
        with self.client.transaction() as txn:
            for number, value in enumerate(values):
                txn.write(self.source, value, key=b"k", partition=number % self.partitions)

    def copy(self, reader, records, **more):
        with self.client.transaction(offsets_of=reader, **more) as txn:
            for record in records:
                txn.write(self.target, record.value, key=record.key)

    def copied(self):
        """What readers of committed records see of the copy."""
        return sorted(visible(self.bootstrap, self.target).values())


def made(client, broker, partitions=1):
    room = Room(client, broker.bootstrap, partitions)
    with stablelog.connect(broker.bootstrap) as admin:
        for topic in (room.source, room.target):
            admin.admin.topics.create(topic, partitions=partitions)
    return room


@pytest.fixture
def room(face, broker):
    with connected(face, broker.bootstrap) as client:
        yield made(client, broker)


@pytest.fixture
def short(face, impatient):
    with connected(face, impatient.bootstrap) as client:
        yield made(client, impatient, 2)


def values(records):
    return [record.value for record in records]


def some(reader, count):
    """This many records."""
    return [next(reader) for _ in range(count)]


def collected(reader, count):
    """The next records of a reader whose iterations end soon."""
    found = []
    until(lambda: found.extend(reader) or len(found) >= count, lambda: f"only {values(found)}")
    return found


def nothing(reader):
    """Let the reader send its heartbeats. It gives no record."""
    assert list(reader) == []


@pytest.mark.extended
def test_a_reader_goes_on_after_the_last_commit(room):
    room.write(b"a", b"b", b"c")
    with room.subscribe() as reader:
        assert values(some(reader, 2)) == [b"a", b"b"]
        reader.commit()
        assert next(reader).value == b"c"
    with room.subscribe() as reader:
        assert next(reader).value == b"c"
        reader.commit()
    room.write(b"d")
    with room.subscribe() as reader:
        record = next(reader)
    assert (record.topic, record.partition, record.key, record.value) == (room.source, 0, b"k", b"d")


def test_a_reader_sees_no_aborted_records_and_ends_after_its_wait(room):
    with contextlib.suppress(ZeroDivisionError), room.client.transaction() as txn:
        txn.write(room.source, bytes(1 << 20), key=b"k")  # sent at once
        txn.write(room.source, b"aborted", key=b"k")
        raise ZeroDivisionError
    room.write(b"a")
    with room.subscribe(wait=0.1) as reader:
        assert values(collected(reader, 1)) == [b"a"]
        room.write(b"b")
        assert values(collected(reader, 1)) == [b"b"]  # the end of an iteration leaves the reader alive


@pytest.mark.extended
def test_batches_have_at_most_the_records_that_were_asked_for(room):
    room.write(*[b"%d" % number for number in range(25)])
    with room.subscribe(wait=0.1) as reader:
        sizes = []
        until(
            lambda: sizes.extend(map(len, reader.batches(max_records=10, max_wait=5))) or sum(sizes) == 25,
            lambda: sizes,
        )
    assert max(sizes) == 10


@pytest.mark.extended
def test_a_reader_from_the_latest_record_on_skips_earlier_ones_and_can_go_back(room):
    room.write(b"old")
    with room.subscribe(wait=0.1, start="latest") as reader:
        until(lambda: nothing(reader) or reading(reader).member.owned, "no partition")
        nothing(reader)
        room.write(b"new")
        assert values(collected(reader, 1)) == [b"new"]
        with contextlib.suppress(ZeroDivisionError), room.client.transaction(offsets_of=reader):
            raise ZeroDivisionError
        assert values(collected(reader, 1)) == [b"new"]


@pytest.mark.extended
def test_a_transaction_commits_what_was_handed_out(room):
    room.write(b"a", b"b", b"c")
    with room.subscribe() as reader:
        room.copy(reader, some(reader, 2))
        assert room.copied() == [b"a", b"b"]
    with room.subscribe() as reader:
        assert next(reader).value == b"c"


@pytest.mark.extended
def test_a_transaction_without_records_commits_the_offsets(room):
    room.write(b"a", b"b")
    with room.subscribe() as reader:
        next(reader)
        room.copy(reader, [])
    with room.subscribe() as reader:
        assert next(reader).value == b"b"


@pytest.mark.extended
def test_transaction_version_1_adds_the_group_first(room, monkeypatch):
    monkeypatch.setattr(BrokerConnection, "features", {})
    room.write(b"a", b"b")
    with room.subscribe() as reader:
        room.copy(reader, some(reader, 1))
    with room.subscribe() as reader:
        assert next(reader).value == b"b"
    assert room.copied() == [b"a"]


@pytest.mark.parametrize("end", ["exception", "abort", "timeout"])
def test_after_an_abort_the_reader_goes_back_to_the_committed_offsets(room, end):
    room.write(b"a", b"b", b"c")
    with room.subscribe() as reader:
        room.copy(reader, some(reader, 1))
        records = some(reader, 1)
        if end == "exception":
            with contextlib.suppress(ZeroDivisionError), room.client.transaction(offsets_of=reader) as txn:
                txn.write(room.target, records[0].value, key=b"k")
                raise ZeroDivisionError
        elif end == "abort":
            txn = room.client.transaction(offsets_of=reader)
            txn.write(room.target, records[0].value, key=b"k")
            txn.abort()
        else:
            txn = room.client.transaction(offsets_of=reader, timeout=0.05)
            until(lambda: writing_of(txn).failure is not None, "the transaction is still open")
            assert next(reader).value == b"b"  # handed out while the program does not know of the abort
            with pytest.raises(TransactionAbortedError):
                txn.commit()
        room.copy(reader, some(reader, 2))
    assert room.copied() == [b"a", b"b", b"c"]


@pytest.mark.extended
@pytest.mark.parametrize("fate", ["answer", "request"])
def test_after_a_commit_of_unknown_outcome_nothing_is_lost_or_repeated(face, broker, fate):
    """The client gives up before it learns of the commit. The reader goes on where the group is."""
    losing = []
    lost = {ApiKey.COMMIT_JOINT, ApiKey.ABORT_JOINT}
    with (
        Proxy((broker.host, broker.port), lambda key, _: fate if key in lost and losing else None) as proxy,
        face.through(proxy, broker) as client,
    ):
        room = made(client, broker)
        room.write(b"a", b"b")
        with room.subscribe(wait=30) as reader:
            records = some(reader, 1)
            txn = room.client.transaction(offsets_of=reader, timeout=1)
            txn.write(room.target, records[0].value, key=b"k")
            losing.append(True)
            writing_of(txn).cluster.deadline_s = 0.2
            with pytest.raises(OutcomeUnknownError):
                txn.commit()
            losing.clear()
            records = some(reader, 2 if fate == "request" else 1)
            assert values(records) == ([b"a", b"b"] if fate == "request" else [b"b"])
            room.copy(reader, records)
        assert room.copied() == [b"a", b"b"]


@pytest.mark.extended
def test_a_slow_program_is_replaced_and_its_transaction_aborted(short):
    """The program does not call its reader for longer than the session timeout."""
    short.write(b"a", b"b")
    with short.subscribe() as slow, short.subscribe() as other:
        records = some(slow, 2)
        txn = short.client.transaction(offsets_of=slow)
        for record in records:
            txn.write(short.target, record.value, key=b"k")
        again = some(other, 2)  # the group has replaced the first reader
        with pytest.raises(TransactionAbortedError, match="has replaced this member"):
            txn.commit()
        short.copy(other, again)
        assert short.copied() == [b"a", b"b"]
        short.write(b"c", b"d")
        until(lambda: next(iter(slow.batches())) or True, "the reader joins again")


@pytest.mark.extended
def test_a_commit_after_the_group_has_replaced_the_reader_is_refused(short):
    short.write(b"a", b"b")
    with short.subscribe() as slow, short.subscribe() as other:
        some(slow, 2)
        some(other, 2)
        with pytest.raises(RefusedError, match="has given these partitions to another member"):
            slow.commit()
        slow.commit()  # nothing is left to commit


@pytest.mark.extended
def test_a_commit_of_a_seek_is_refused_after_the_group_has_replaced_the_reader(short):
    short.write(b"a", b"b")
    with short.subscribe() as slow, short.subscribe() as other:
        some(slow, 2)
        slow.seek(short.source, 0, 0)
        short.client.transaction(offsets_of=slow).abort()
        some(other, 2)
        with pytest.raises(RefusedError, match=f"offsets of {short.source}-0 are not committed"):
            slow.commit()
        slow.commit()  # nothing is left to commit


def shared(first, second):
    """Both readers have a partition."""
    return reading(first).member.owned and reading(second).member.owned


@pytest.mark.extended
def test_a_partition_that_is_taken_away_is_kept_until_its_records_are_committed(face, broker):
    with connected(face, broker.bootstrap) as client:
        room = made(client, broker, 2)
        room.write(b"a", b"b")
        with room.subscribe(wait=0.1) as first, room.subscribe(wait=0.1) as second:
            collected(first, 2)
            until(
                lambda: nothing(second) or nothing(first) or reading(first).leaving, "nothing is taken away"
            )
            first.commit()
            until(lambda: nothing(first) or nothing(second) or shared(first, second), "not shared")
            room.write(b"c", b"d")
            got = []
            until(lambda: got.extend(values([*first, *second])) or len(got) >= 2, "no records")
            assert sorted(got) == [b"c", b"d"]


@pytest.mark.extended
def test_a_partition_that_is_given_up_cannot_be_committed(face, broker, monkeypatch):
    monkeypatch.setattr(group_reading, "GRACE_S", 0.0)
    with connected(face, broker.bootstrap) as client:
        room = made(client, broker, 2)
        room.write(b"a", b"b")
        with room.subscribe(wait=0.1) as first, room.subscribe(wait=0.1) as second:
            records = collected(first, 2)
            again = []
            until(lambda: nothing(first) or again.extend(second) or again, "nothing is taken away")
            with pytest.raises(TransactionAbortedError, match="has given these partitions"):
                room.copy(first, records)
            room.copy(second, again)
            room.copy(first, collected(first, 1))
            assert room.copied() == [b"a", b"b"]


def test_a_reader_that_is_closed_gives_its_partitions_to_others_at_once(room):
    room.write(b"a")
    with room.subscribe() as first:
        next(first)
    with room.subscribe() as second:  # the session timeout is a minute
        assert next(second).value == b"a"
    with pytest.raises(UsageError, match="closed"):
        next(first)
    with pytest.raises(UsageError, match="closed"):
        room.client.transaction(offsets_of=first)
    first.close()


def test_one_transaction_of_a_reader_is_open_at_a_time(room):
    with room.subscribe() as reader:
        txn = room.client.transaction(offsets_of=reader)
        with pytest.raises(UsageError, match="another transaction of this reader is open"):
            room.client.transaction(offsets_of=reader)
        with pytest.raises(UsageError, match="and commits the offsets"):
            reader.commit()
        txn.abort()
        room.client.transaction(offsets_of=reader).abort()


@pytest.mark.extended
def test_offsets_are_those_of_a_reader_of_the_same_cluster(broker, impatient):
    with (
        stablelog.connect(broker.bootstrap) as client,
        stablelog.connect(impatient.bootstrap) as other,
        other.subscribe("t", group="g") as reader,
        pytest.raises(UsageError, match="only in one cluster"),
    ):
        client.transaction(offsets_of=reader)


def test_records_that_were_removed_are_named_and_the_reader_goes_on(room, broker):
    room.write(b"a", b"b", b"c")
    with room.subscribe() as reader:
        next(reader)
        reader.commit()
    with stablelog.connect(broker.bootstrap) as client:
        client.admin.topics.delete_records({(room.source, 0): 2})
    with room.subscribe() as reader:
        with pytest.raises(stablelog.DataLossError, match="has no record at offset 1"):
            next(reader)
        assert next(reader).value == b"c"


def test_a_cancelled_call_loses_no_record(broker):
    async def main():
        async with (
            stablelog.aio.connect(broker.bootstrap) as client,
            client.subscribe(room.source, group=room.group) as reader,
        ):
            found = []
            for _ in range(20):
                waiting = asyncio.ensure_future(anext(reader))
                await asyncio.sleep(0.001)
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    found.append(await waiting)
            while len(found) < 20:
                found.append(await asyncio.wait_for(anext(reader), 30))
            return values(found)

    with stablelog.connect(broker.bootstrap) as client:
        room = made(Threads(client), broker)
        wanted = [b"%d" % number for number in range(20)]
        room.write(*wanted)
    assert asyncio.run(main()) == wanted


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_forked_process_leaves_the_reader_of_its_parent_alone(broker):
    with stablelog.connect(broker.bootstrap) as client:
        room = made(Threads(client), broker)
        room.write(b"a", b"b")
        with room.subscribe() as reader:
            next(reader)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    with reader, pytest.raises(UsageError, match="forked"):
                        next(reader)
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            reader.commit()
            assert next(reader).value == b"b"
