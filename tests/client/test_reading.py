"""Whole transactions, as their writers wrote them: by partition, and over all of them from cut to cut."""

import dataclasses
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from kio.schema.errors import ErrorCode

import stablelog
from stablelog.client.blocking import joint
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.core import reader_start, transaction_stream
from stablelog.client.core import transaction_reader as reader_room
from stablelog.client.core.cuts import describe_cut
from stablelog.errors import DataLossError, RefusedError, UnavailableError, UsageError
from tests.client.blocking.test_joint import Child
from tests.client.transactions import create, flush
from tests.clients.drivers import Confluent, unique


@pytest.fixture
def topics(stablelog_broker):
    return [create(stablelog_broker.bootstrap) for _ in range(2)]


def write(client, topics, name, count=8):
    """One transaction over the partitions. Returns its commit sequence."""
    with client.transaction() as txn:
        for number in range(count):
            topic, partition = topics[number % len(topics)], number // len(topics) % 2
            txn.write(topic, f"{name}:{number}", key=name, partition=partition)
    return txn.commit().commit_sequence


def assert_whole(transaction, names, count=8):
    """All records of one writer, each partition's in the order of their writing."""
    name = names[transaction.commit_sequence]
    assert {record.key for record in transaction.records} == {name.encode()}
    numbers = [int(record.value.split(b":")[1]) for record in transaction.records]
    assert sorted(numbers) == list(range(count))
    offsets = defaultdict(list)
    for record, number in zip(transaction.records, numbers, strict=True):
        offsets[record.topic, record.partition].append((record.offset, number))
    for found in offsets.values():
        assert found == sorted(found)
        assert [number for _, number in found] == sorted(number for _, number in found)
        assert found[-1][0] - found[0][0] == len(found) - 1
    assert transaction.time_ms > 0


@pytest.mark.extended
def test_from_cut_to_cut_transactions_are_whole_while_they_are_written(client, topics):
    names, lock = {}, threading.Lock()

    def write_some(writer):
        for number in range(12):
            name = f"w{writer}.{number}"
            sequence = write(client, topics, name)
            with lock:
                names[sequence] = name

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write_some, writer) for writer in range(3)]
        reader = client.read(topics, cut=True, wait=60)
        live = [next(reader) for _ in range(3 * 12)]
        for future in writing:
            future.result()
    reader.close()
    for transaction in live:
        assert_whole(transaction, names)
    assert [transaction.commit_sequence for transaction in live] == sorted(names)
    assert list(client.read(topics, cut=True, wait=0)) == live
    for place in (0, 10, 35):
        after = live[place].commit_sequence
        assert list(client.read(topics, cut=True, after=after, wait=0)) == live[place + 1 :]


def test_each_partition_by_itself(client, topics, monkeypatch):
    monkeypatch.setattr(transaction_stream, "LISTED_MAX", 2)
    names = {write(client, topics, f"t{number}"): f"t{number}" for number in range(5)}
    parts = list(client.read(topics, order="commit", wait=0, cut=False))
    assert len(parts) == 5 * 4
    for partition in range(4):
        assert [part.commit_sequence for part in parts[partition::4]] == sorted(names)
    together = defaultdict(list)
    for part in parts:
        assert len({record[:2] for record in part.records}) == 1
        together[part.commit_sequence] += part.records
    whole = list(client.read(topics, cut=True, wait=0))
    assert [list(one.records) for one in whole] == [
        sorted(together[sequence]) for sequence in sorted(together)
    ]
    (last,) = {
        part.commit_sequence for part in client.read(topics[0], after=parts[-5].commit_sequence, wait=0)
    }
    assert last == max(names)


@pytest.mark.extended
@pytest.mark.parametrize("listed_max", [1, 2, 3, 200])
def test_a_joint_commit_of_several_children_is_one_transaction(
    stablelog_broker, client, topics, monkeypatch, listed_max
):
    """Also where its children share a partition, and where a list of transactions ends between two of them."""
    monkeypatch.setattr(transaction_stream, "LISTED_MAX", listed_max)
    at, key = stablelog_broker.bootstrap, unique("query")
    names = {write(client, topics, "before"): "before"}
    with BlockingCluster(at, deadline_s=60) as cluster:
        children = [Child(at, key, 0, part) for part in range(3)]
        for part, child in enumerate(children):
            for number, topic in enumerate(topics):
                child.write(topic, f"child {part}".encode(), partition=(part + number) % 2)
        done = joint.commit(cluster, key, 0, [child.shown for child in children])
    names[write(client, topics, "after")] = "after"
    order = sorted([*names, done.commit_sequence])
    whole = list(client.read(topics, cut=True, wait=0))
    assert [one.commit_sequence for one in whole] == order
    values = [record.value for record in whole[1].records]
    assert sorted(values) == sorted(f"child {part}".encode() for part in range(3) for _ in topics)
    for one in (whole[0], whole[2]):
        assert_whole(one, names)
    assert list(client.read(topics, cut=True, after=order[0], wait=0)) == whole[1:]
    assert list(client.read(topics, cut=True, after=order[1], wait=0)) == whole[2:]
    parts = list(client.read(topics, wait=0, cut=False))
    for target in {record[:2] for record in whole[1].records}:
        mine = [part for part in parts if part.records[0][:2] == target]
        assert [part.commit_sequence for part in mine] == order
        assert mine[1].records == tuple(record for record in whole[1].records if record[:2] == target)


def test_what_is_larger_than_a_fetch_is_whole(client, topics, monkeypatch):
    monkeypatch.setattr(transaction_stream, "FETCH_SIZE_MAX", 2000)
    names = {write(client, topics, f"t{number}", 400): f"t{number}" for number in range(3)}
    for transaction in client.read(topics, cut=True, wait=0):
        assert_whole(transaction, names, 400)
        names.pop(transaction.commit_sequence)
    assert names == {}


@pytest.mark.parametrize("cut", [True, False])
def test_a_transaction_of_which_nothing_comes_is_not_read_without_its_records(
    client, topics, monkeypatch, cut
):
    write(client, topics, "whole")
    fetch = transaction_stream.fetch

    def fetch_nothing(*arguments, **named):
        fetched = yield from fetch(*arguments, **named)
        return dataclasses.replace(fetched, records=memoryview(b""))

    with monkeypatch.context() as patched:
        patched.setattr(transaction_stream, "fetch", fetch_nothing)
        with pytest.raises(UnavailableError, match=r"returns no records at offset 3, .* that ends at 5"):
            list(client.read(topics, cut=cut, wait=0))
    assert sum(len(txn.records) for txn in client.read(topics, cut=cut, wait=0)) == 8


@pytest.mark.extended
def test_aborted_open_and_other_records_are_passed_over(stablelog_broker, client, topics):
    outside = Confluent(stablelog_broker.bootstrap)
    first = write(client, topics, "first")
    outside.produce(topics[0], [b"outside"])
    aborted = client.transaction()
    aborted.write(topics[0], b"aborted", partition=0)
    flush(aborted)
    aborted.abort()
    still_open = client.transaction()
    still_open.write(topics[0], b"open", partition=0)
    flush(still_open)
    second = write(client, topics, "second")
    for cut in (True, False):
        read = list(client.read(topics, cut=cut, wait=0))
        assert [one.commit_sequence for one in read] == [first] * (1 if cut else 4) + [second] * (
            1 if cut else 4
        )
        assert {record.key for one in read for record in one.records} == {b"first", b"second"}
    still_open.abort()


def test_from_now_on_and_until_another_comes(client, topics):
    write(client, topics, "before")
    assert list(client.read(topics, cut=True, after=None, wait=0)) == []
    reader = client.read(topics, cut=True, after=write(client, topics, "known"), wait=60)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, reader)
        names = {write(client, topics, "new"): "new"}
        assert_whole(waiting.result(60), names)
    reader.close()


def test_partitions_that_are_added_are_in_the_next_cut(stablelog_broker, client, topics):
    names = {write(client, topics, "old"): "old"}
    reader = client.read(topics, cut=True, wait=60)
    assert_whole(next(reader), names)
    admin = AdminClient({"bootstrap.servers": stablelog_broker.bootstrap, "log_level": 0})
    admin.create_partitions([NewPartitions(topics[0], 3)])[topics[0]].result(30)
    with stablelog.connect(stablelog_broker.bootstrap) as other, other.transaction() as txn:
        txn.write(topics[0], b"v", key=b"k", partition=2)
        txn.write(topics[1], b"v", key=b"k", partition=0)
    new = next(reader)
    assert {record[:2] for record in new.records} == {(topics[0], 2), (topics[1], 0)}
    reader.close()


def test_what_was_removed_before_it_was_read_is_told(stablelog_broker, client, topics):
    topic = topics[0]
    write(client, [topic], "first")
    reader = client.read(topic, cut=True, wait=60)
    next(reader)
    assert list(client.read(topic, cut=True, wait=0))
    write(client, [topic], "second")
    write(client, [topic], "third")
    last = [
        one.records[0].offset
        for one in client.read(topic, wait=0, cut=False)
        if one.records[0].partition == 0
    ][-1]
    admin = AdminClient({"bootstrap.servers": stablelog_broker.bootstrap, "log_level": 0})
    removed = admin.delete_records([TopicPartition(topic, 0, last)])
    removed[next(iter(removed))].result(30)
    with pytest.raises(DataLossError, match=r"were removed|was removed"):
        next(reader)
    assert [one.records[0].key for one in client.read(topic, wait=0, cut=False)].count(b"third") == 2


def test_a_transaction_that_has_lost_a_part_in_one_topic_is_not_read_from_another(
    stablelog_broker, client, topics
):
    names = {write(client, topics, f"t{number}"): f"t{number}" for number in range(4)}
    parts = [
        one.records[0] for one in client.read(topics[0], wait=0, cut=False) if one.records[0].partition == 1
    ]
    admin = AdminClient({"bootstrap.servers": stablelog_broker.bootstrap, "log_level": 0})
    removed = admin.delete_records([TopicPartition(topics[0], 1, parts[1].offset + 1)])
    removed[next(iter(removed))].result(30)
    left = list(client.read(topics, cut=True, wait=0))
    assert [one.commit_sequence for one in left] == sorted(names)[2:]
    for transaction in left:
        assert_whole(transaction, names)


def test_a_transaction_that_was_torn_before_it_was_read_is_told(client, topics, monkeypatch):
    write(client, topics, "first")
    reader = client.read(topics, cut=True, wait=60)
    next(reader)
    sequence = write(client, topics, "second")

    def torn(*args, **named):
        cut = yield from describe_cut(*args, **named)
        return dataclasses.replace(cut, torn={(topics[0], 0): sequence})

    monkeypatch.setattr(reader_room, "describe_cut", torn)
    with pytest.raises(DataLossError, match=f"up to commit sequence {sequence} were removed"):
        next(reader)


def test_who_comes_back_is_told_of_what_was_removed_meanwhile(stablelog_broker, client, topics):
    sequences = [write(client, topics, f"t{number}") for number in range(4)]
    parts = [
        one.records[0] for one in client.read(topics[0], wait=0, cut=False) if one.records[0].partition == 1
    ]
    admin = AdminClient({"bootstrap.servers": stablelog_broker.bootstrap, "log_level": 0})
    removed = admin.delete_records([TopicPartition(topics[0], 1, parts[2].offset)])
    removed[next(iter(removed))].result(30)
    with pytest.raises(DataLossError, match=f"only after {sequences[1]} are all transactions whole"):
        next(client.read(topics, after=sequences[0], wait=0))
    left = list(client.read(topics, after=sequences[1], wait=0))
    assert {one.commit_sequence for one in left} == set(sequences[2:])


def test_who_comes_back_is_told_of_segments_that_are_gone(client, topics, monkeypatch):
    """They leave nothing behind that is torn."""
    sequences = [write(client, topics, f"t{number}") for number in range(3)]

    def gone(*args, **named):
        cut = yield from describe_cut(*args, **named)
        return dataclasses.replace(cut, removed={(topics[0], 0): sequences[1]})

    monkeypatch.setattr(reader_start, "describe_cut", gone)
    with pytest.raises(DataLossError, match=f"only after {sequences[1]} are all transactions whole"):
        next(client.read(topics, cut=True, after=sequences[0], wait=0))
    assert [one.commit_sequence for one in client.read(topics, cut=True, wait=0)] == sequences[2:]


def test_what_was_removed_from_a_partition_that_was_seen_empty_is_told(stablelog_broker, client, topics):
    topic = topics[0]
    with client.transaction() as txn:
        txn.write(topic, "first", key="k", partition=0)
    reader = client.read(topic, wait=60, cut=False)
    next(reader)
    admin = AdminClient({"bootstrap.servers": stablelog_broker.bootstrap, "log_level": 0})
    with client.transaction() as txn:
        txn.write(topic, "second", key="k", partition=0)
    next(reader)  # by now the other partition was seen, and nothing was in it
    with client.transaction() as txn:
        place = txn.write(topic, "third", key="k", partition=1)
        txn.write(topic, "third", key="k", partition=1)
    removed = admin.delete_records([TopicPartition(topic, 1, place.result().offset + 1)])
    removed[next(iter(removed))].result(30)
    with pytest.raises(DataLossError, match="were removed"):
        next(reader)


@pytest.mark.parametrize("written", [1, 6], ids=["shorter", "longer"])
@pytest.mark.parametrize("cut", [True, False], ids=["cut", "partitions"])
def test_a_topic_that_was_created_again_is_not_gone_on_with(stablelog_broker, client, topics, cut, written):
    topic = topics[0]
    write(client, [topic], "before")
    reader = client.read(topic, cut=cut, wait=0)
    next(reader)
    write(client, [topic], "read up to here")
    assert [next(reader) for _ in range(1 if cut else 3)]
    admin = AdminClient({"bootstrap.servers": stablelog_broker.bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(30)
    create(stablelog_broker.bootstrap, name=topic)
    with stablelog.connect(stablelog_broker.bootstrap, deadline=60) as other:
        for _ in range(written):
            with other.transaction() as txn:
                for partition in range(2):
                    txn.write(topic, "of another topic", key="k", partition=partition)
    with pytest.raises(DataLossError, match="was deleted and created again"):
        list(reader)


def test_what_cannot_be_read_so_is_refused(stablelog_broker, client, topics):
    ordinary = create(stablelog_broker.bootstrap, "offset")
    for cut in (True, False):
        with pytest.raises(RefusedError, match=r"stablelog\.order=commit") as refused:
            next(client.read([*topics, ordinary], cut=cut))
        assert refused.value.code is ErrorCode.invalid_request
    with pytest.raises(UsageError, match="order 'offset'"):
        client.read(topics, order="offset")


@pytest.mark.parametrize("cut", [True, False])
def test_a_missing_topic_is_named_with_the_command_that_makes_it_readable(
    stablelog_broker, client, topics, cut
):
    missing = unique("missing")
    with pytest.raises(RefusedError) as refused:
        next(client.read([*topics, missing], cut=cut))
    made = f"`stablelog topics create {missing} --config stablelog.order=commit` creates it"
    assert f"there is no topic {missing!r} at {stablelog_broker.bootstrap}. {made}" in str(refused.value)
    assert refused.value.code is ErrorCode.unknown_topic_or_partition
