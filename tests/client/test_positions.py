"""A program that stores the position of its reader, and ends anywhere, goes on without loss or repetition."""

import contextlib
import dataclasses
import json
import os
import uuid

import pytest

import stablelog
from stablelog.client.core import read_position
from stablelog.client.core.read_position import Mark, ReadPosition
from stablelog.client.core.steps import NOW
from stablelog.errors import DataLossError, UsageError
from tests.client.core.test_transaction_reader import rows
from tests.client.faces import FACES, connected
from tests.client.transactions import create
from tests.scale import randomness, seeds

STEP_COUNT = int(os.environ.get("STABLELOG_POSITION_STEPS", "8"))
by = pytest.mark.parametrize("cut", [True, False], ids=["cut", "partitions"])


@contextlib.contextmanager
def admin_of(broker):
    with stablelog.connect(broker.bootstrap) as client:
        yield client.admin


def write(client, topic, value, *partitions, group=""):
    with client.transaction(group) as txn:
        for partition in partitions:
            for number in range(2):
                txn.write(topic, f"{value}:{number}", partition=partition)


def took(client, topics, count, **more):
    """Read so many transactions, all if there are fewer. Return them, and the text of the position."""
    reader = client.read(topics, wait=0, **more)
    found = []
    while len(found) < count and (one := next(reader, None)) is not None:
        found.append(one)
    text = str(reader.position)
    reader.close()
    return found, text


# --- over the model ---


# --- over a broker ---


@pytest.mark.extended
@by
def test_a_reader_goes_on_after_each_transaction(stablelog_broker, client, cut):
    """The commits of the partitions are far apart, and a transaction has parts in several partitions and topics."""
    one, other = create(stablelog_broker.bootstrap), create(stablelog_broker.bootstrap)
    write(client, one, "a0", 0)
    for number in range(5):
        write(client, one, f"b{number}", 1)
    with client.transaction() as txn:
        for topic in (one, other):
            for partition in range(2):
                txn.write(topic, "over all", key="k", partition=partition)
    write(client, one, "a1", 0)
    everything, _ = took(client, [one, other], 100, cut=cut)
    for count in range(len(everything) + 1):
        begun, text = took(client, [one, other], count, cut=cut)
        assert begun == everything[:count]
        rest, end = took(client, [other, one], 100, cut=cut, after=text)
        assert sorted(rows(begun + rest)) == sorted(rows(everything))
        assert took(client, [one, other], 100, cut=cut, after=end)[0] == []
    write(client, one, "later", 1)
    assert len(took(client, [one, other], 100, cut=cut, after=end)[0]) == 1


def test_a_reader_of_two_groups_goes_on_after_each_transaction(stablelog_broker, client):
    one = create(stablelog_broker.bootstrap)
    other = create(stablelog_broker.bootstrap, group="other")
    for number in range(5):
        write(client, one, f"a{number}", number % 2)
    for number in range(3):
        write(client, other, f"z{number}", 0, group="other")
    everything, _ = took(client, [one, other], 100, cut=False)
    assert len(everything) == 8
    for count in range(9):
        begun, text = took(client, [one, other], count, cut=False)
        rest, _ = took(client, [one, other], 100, cut=False, after=text)
        assert sorted(rows(begun + rest)) == sorted(rows(everything))
    reader = client.read([one, other], cut=False, after=None, wait=0)
    assert list(reader) == []
    write(client, other, "new", 1, group="other")
    assert [
        value for *_, value in rows(took(client, [one, other], 9, cut=False, after=reader.position)[0])
    ] == [
        b"new:0",
        b"new:1",
    ]


def test_one_number_is_accepted_where_it_means_one_thing(stablelog_broker, client):
    two, single = create(stablelog_broker.bootstrap), create(stablelog_broker.bootstrap, partitions=1)
    for name in ("first", "second"):
        write(client, two, name, 0, 1)
        write(client, single, name, 0)
    (first, second), _ = took(client, single, 9, cut=False)
    assert took(client, single, 9, cut=False, after=first.commit_sequence)[0] == [second]
    assert len(took(client, [two, single], 9, after=first.commit_sequence)[0]) == 2
    for topics in (two, [two, single]):
        with pytest.raises(UsageError, match="is no position in the"):
            next(client.read(topics, cut=False, after=first.commit_sequence, wait=0))
    with pytest.raises(DataLossError, match="there is no commit 1000000000"):
        next(client.read(two, after=10**9, wait=0))


@by
def test_a_reader_lives_on_after_its_time_limit(stablelog_broker, client, cut):
    topic = create(stablelog_broker.bootstrap)
    reader = client.read(topic, cut=cut, wait=0)
    for name in ("a", "b", "c"):
        assert list(reader) == []
        write(client, topic, name, 1)
        assert [value for *_, value in rows(list(reader))] == [f"{name}:0".encode(), f"{name}:1".encode()]
    reader.close()
    with pytest.raises(UsageError, match="this reader is closed"):
        next(reader)


@by
def test_batches_are_whole_transactions_up_to_a_number_of_records(stablelog_broker, client, cut):
    topic = create(stablelog_broker.bootstrap)
    for number in range(7):
        write(client, topic, number, 0)  # of two records each
    everything, _ = took(client, topic, 9, cut=cut)
    for max_records, sizes in ((1, [1] * 7), (2, [1] * 7), (5, [2, 2, 2, 1]), (100, [7])):
        reader, got = client.read(topic, cut=cut, wait=0), []
        for batch in reader.batches(max_records, 0):
            got += batch
            sizes, (size, *_) = sizes[1:], sizes
            assert len(batch) == size
            assert took(client, topic, 9, cut=cut, after=reader.position)[0] == everything[len(got) :]
        assert got == everything
        assert sizes == []
        reader.close()


@pytest.mark.extended
@by
def test_a_waiting_reader_sees_a_new_partition(stablelog_broker, client, cut):
    topic = create(stablelog_broker.bootstrap)
    reader = client.read(topic, cut=cut, wait=60)
    write(client, topic, "old", 0)
    next(reader)
    with admin_of(stablelog_broker) as admin:
        admin.topics.add_partitions(topic, 3)
    write(client, topic, "new", 2)
    assert [one[1] for one in rows([next(reader)])] == [2, 2]
    write(client, topic, "later", 2)
    rest = took(client, topic, 9, cut=cut, after=reader.position)[0]
    assert [one[3] for one in rows(rest)] == [b"later:0", b"later:1"]


@by
def test_a_position_of_another_reader_is_refused_by_name(stablelog_broker, client, cut):
    topic = create(stablelog_broker.bootstrap)
    write(client, topic, "v", 0)
    _, text = took(client, topic, 1, cut=cut)
    position = ReadPosition.parse(text)
    assert str(position) == text
    for after in (text, position):
        with pytest.raises(UsageError, match="so no reader can begin there that reads"):
            client.read(topic, cut=not cut, after=after)
        with pytest.raises(
            UsageError, match=f"a reader of {topic}, so no reader can begin there that reads {topic}, x"
        ):
            client.read([topic, "x"], cut=cut, after=after)
    if cut:
        with pytest.raises(UsageError, match="the transaction group '', but the reader to 'x'"):
            client.read(topic, after=text, group="x")
    foreign = dataclasses.replace(position, cluster_id="other")
    with pytest.raises(UsageError, match="the position is of the cluster other"):
        next(client.read(topic, cut=cut, after=foreign, wait=0))
    missing = dataclasses.replace(foreign, topics={"none": uuid.uuid4()}, marks={})
    with pytest.raises(UsageError, match="the position is of the cluster other"):
        next(client.read("none", cut=cut, after=missing, wait=0))


def test_a_text_that_is_no_position_is_refused_by_name(client):
    text = str(ReadPosition("c", True, "", 3, {"t": uuid.uuid4()}, {("t", 0): Mark(1, 2, 3)}))
    fields = json.loads(text)
    for wrong in ("", "17", "{}", text[:-1], json.dumps({**fields, "commit_sequence": "3"})):
        with pytest.raises(UsageError, match="is not the text of a position"):
            client.read("t", after=wrong)
    with pytest.raises(UsageError, match="has version 2, and this release of stablelog reads version 1"):
        client.read("t", after=json.dumps({**fields, "stablelog_position": 2}))


@by
def test_a_position_of_a_deleted_topic_is_refused_by_name(stablelog_broker, client, cut):
    topic = create(stablelog_broker.bootstrap)
    write(client, topic, "v", 0)
    _, text = took(client, topic, 1, cut=cut)
    with admin_of(stablelog_broker) as admin:
        admin.topics.delete(topic)
    with pytest.raises(DataLossError, match="the topic of the position was deleted"):
        next(client.read(topic, cut=cut, after=text, wait=0))
    create(stablelog_broker.bootstrap, name=topic)
    write(client, topic, "new", 0)
    with pytest.raises(DataLossError, match=f"{topic} was deleted and created again"):
        next(client.read(topic, cut=cut, after=text, wait=0))


@by
def test_a_position_after_the_end_of_a_restored_copy_is_refused(stablelog_broker, cut, monkeypatch):
    """The broker says where the leader epoch of the position ends: before the position, if a restore has cut it."""
    topic = create(stablelog_broker.bootstrap)
    with connected(FACES[0], stablelog_broker.bootstrap) as client:
        write(client, topic, "v", 0)
        _, text = took(client, topic, 1, cut=cut)
        (mark,) = [mark for mark in ReadPosition.parse(text).marks.values() if mark.needed_end > 0]
        assert mark.leader_epoch >= 0
        write(client, topic, "new", 0)

        def ends(_cluster, leader_epochs):
            assert leader_epochs == {(topic, 0): mark.leader_epoch}
            yield NOW
            return {(topic, 0): (mark.leader_epoch, end)}

        monkeypatch.setattr(read_position, "epoch_ends", ends)
        end = mark.needed_end
        assert len(took(client, topic, 9, cut=cut, after=text)[0]) == 1
        end = mark.needed_end - 1
        with pytest.raises(DataLossError, match=f"restored from a copy that ends at offset {end}"):
            took(client, topic, 9, cut=cut, after=text)


@by
def test_what_was_removed_after_a_position_is_told(stablelog_broker, client, cut):
    topic = create(stablelog_broker.bootstrap)
    for name in ("a", "b", "c"):
        write(client, topic, name, 0, 1)
    everything, end = took(client, topic, 100, cut=cut)
    (last,) = [one[2] for one in rows(everything) if one[1] == 1 and one[3] == b"b:1"]
    texts = [took(client, topic, count, cut=cut)[1] for count in range(len(everything) + 1)]
    with admin_of(stablelog_broker) as admin:
        admin.topics.delete_records({(topic, 1): last + 1})
    assert took(client, topic, 9, cut=cut, after=end)[0] == []
    for text in texts[1 : 2 if cut else 4]:
        with pytest.raises(DataLossError, match="removed"):
            took(client, topic, 9, cut=cut, after=text)
    assert took(client, topic, 9, cut=cut, after=texts[-2])[0] == everything[-1:]


@pytest.mark.extended
@pytest.mark.parametrize("seed", seeds(1))
@by
def test_positions_outlive_restarts_retention_and_new_partitions(tmp_path, cut, seed):
    """Each transaction is got once. Only what the program has got is removed."""
    rng = randomness("positions", cut, seed)
    with stablelog.serve(tmp_path) as broker:
        topic, partition_count, number = create(broker.bootstrap), 2, 0
        wanted, got, text = [], [], 0
        for step in [
            "write",
            "read",
            "restart",
            *(rng.choice(STEPS_OF_A_BROKER) for _ in range(STEP_COUNT)),
            "read",
        ]:
            if step == "restart":
                (broker.kill if rng.random() < 0.5 else broker.stop)()
                broker.start()
            elif step == "partition":
                partition_count += 1
                with admin_of(broker) as admin:
                    admin.topics.add_partitions(topic, partition_count)
            elif step == "remove":
                ends = {one[:2]: one[2] + 1 for one in got}
                if ends:
                    with admin_of(broker) as admin:
                        admin.topics.delete_records(ends)
            else:
                with connected(rng.choice(FACES), broker.bootstrap) as client:
                    if step == "write":
                        for _ in range(rng.randrange(1, 6)):
                            number += 1
                            targets = rng.sample(range(partition_count), rng.randrange(1, 3))
                            write(client, topic, number, *targets)
                            wanted += [
                                (target, f"{number}:{record}".encode())
                                for target in targets
                                for record in range(2)
                            ]
                    else:
                        found, text = took(client, topic, rng.randrange(8), cut=cut, after=text)
                        got += rows(found)
        with connected(FACES[0], broker.bootstrap) as client:
            got += rows(took(client, topic, 10**6, cut=cut, after=text)[0])
        assert sorted((partition, value) for _, partition, _, value in got) == sorted(wanted)


STEPS_OF_A_BROKER = ["write", "write", "read", "read", "read", "restart", "partition", "remove"]
