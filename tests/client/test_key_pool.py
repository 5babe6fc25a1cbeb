"""Keys of joint commits pass from one transaction of a client to the next, and leave nothing else at the broker."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import stablelog
from stablelog import embedded
from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.client import key_pool
from stablelog.client.internals import keys_of
from stablelog.client.key_pool import WriterKeyPool
from stablelog.coordinators.transactions.records import JointKey, TransactionKey, read_key
from stablelog.errors import OutcomeUnknownError, RefusedError, UnavailableError
from stablelog.processes import Process
from stablelog.wire.api import ApiKey
from tests.client.faults import Proxy
from tests.client.transactions import (
    assert_failed,
    create,
    flush,
    settled,
    state_of,
    through,
    visible,
    write_everywhere,
    writing_of,
)

MARKERS_FAIL = """
from stablelog.errors import UnavailableError
from stablelog.log.partition import Partition

append_markers = Partition.append_markers

def append_or_fail(self, writes, **more):
    if self.topic == "failing":
        raise UnavailableError("input/output error")
    return append_markers(self, writes, **more)

Partition.append_markers = append_or_fail
"""


def remembered(data):
    """What the commit log of a stopped broker remembers: keys of joint commits, and transactional ids."""
    values = {}
    for path in sorted((data / "__transaction_state-0").glob("*.log")):
        content = memoryview(path.read_bytes())
        for at, header in headers_in(content):
            for record in () if header.is_control else decode_records(content, at):
                values[record.key] = record.value
    subjects = [read_key(key) for key, value in values.items() if value is not None]
    return (
        [subject.name for subject in subjects if isinstance(subject, JointKey)],
        [subject.transactional_id for subject in subjects if isinstance(subject, TransactionKey)],
    )


@pytest.mark.extended
def test_transactions_one_after_the_other_leave_one_key_and_no_transactional_id(tmp_path):
    with stablelog.serve(tmp_path) as broker:
        topics = create(broker.bootstrap), create(broker.bootstrap, "offset")
        with stablelog.connect(broker.bootstrap) as client:
            sequences = []
            for number in range(12):
                txn, _ = write_everywhere(client, *topics)
                if number % 3 == 2:
                    flush(txn)
                    txn.abort()
                else:
                    sequences.append(txn.commit().commit_sequence)
        assert sequences == list(range(1, 9))
        broker.stop()
    joints, transactional_ids = remembered(tmp_path)
    assert len(joints) == 1
    assert len(transactional_ids) <= 1, "more than that of the last abort"


def test_writers_at_the_same_time_have_keys_of_their_own(client, stablelog_broker):
    topic = create(stablelog_broker.bootstrap)
    first, second = client.transaction(), client.transaction()
    names = {writing_of(txn).key.name for txn in (first, second)}
    assert len(names) == 2
    for txn in (first, second):
        txn.write(topic, b"v", key=b"k")
        txn.commit()
    again = [client.transaction() for _ in range(3)]
    found = [writing_of(txn).key.name for txn in again]
    assert len(set(found)) == 3
    assert names < set(found)
    assert all(writing_of(txn).key.version == (writing_of(txn).key.name in names) for txn in again)
    for txn in again:
        txn.abort()


def test_a_key_is_of_its_transaction_group(client):
    first = client.transaction(group="one")
    first.abort()
    second = client.transaction(group="two")
    third = client.transaction(group="one")
    assert writing_of(third).key is writing_of(first).key
    assert writing_of(second).key is not writing_of(first).key
    for txn in (second, third):
        txn.abort()


@pytest.mark.extended
@pytest.mark.parametrize("then", ["commit", "abort"])
def test_a_commit_in_doubt_keeps_its_key_until_its_outcome_is_known(then):
    with stablelog.serve() as broker:
        topic = create(broker.bootstrap)
        lost = {"answer": 3}  # of the third commit, which repeats nothing by itself

        def lose(key, count):
            return "answer" if key == ApiKey.COMMIT_JOINT and count == lost["answer"] else None

        with Proxy((broker.host, broker.port), lose) as proxy, through(proxy, broker) as client:
            for _ in range(2):
                write_everywhere(client, topic)[0].commit()
            txn, futures = write_everywhere(client, topic)
            key, version = writing_of(txn).key, writing_of(txn).key.version
            assert version == 2
            flush(txn)
            writing_of(txn).cluster.deadline_s = 0
            with pytest.raises(OutcomeUnknownError):
                txn.commit()
            others = [write_everywhere(client, topic) for _ in range(2)]
            assert all(writing_of(other).key is not key for other, _ in others)
            for other, _ in others:
                other.commit()
            broker.kill()
            broker.start()
            writing_of(txn).cluster.deadline_s = 60
            if then == "commit":
                done = txn.commit()
                assert txn.commit() == done
                assert done.commit_sequence == 3, "of its own commit, though others have come since"
            else:
                with pytest.raises(RefusedError, match="is committed"):
                    txn.abort()
            assert settled(list(futures))
            assert key.version == version + 1
            following = [client.transaction() for _ in range(3)]
            assert any(writing_of(one).key is key for one in following)
            for one in following:
                one.abort()


@pytest.mark.extended
def test_a_key_whose_transaction_was_refused_in_doubt_is_not_used_again():
    """Neither the commit nor the abort was answered well: an earlier copy of the commit may still be on its way."""
    with stablelog.serve() as broker:
        topic = create(broker.bootstrap)

        def lose(key, count):
            if key == ApiKey.COMMIT_JOINT and count == 0:
                return "request"
            return "request" if key == ApiKey.ABORT_JOINT else None

        with Proxy((broker.host, broker.port), lose) as proxy, through(proxy, broker) as client:
            txn, futures = write_everywhere(client, topic)
            flush(txn)
            writing_of(txn).producer.producer_epoch += 1  # which the broker never gave
            writing_of(txn).cluster.deadline_s = 1
            with pytest.raises((RefusedError, UnavailableError)):
                txn.commit()
            if not all(future.done() for future in futures):
                with pytest.raises((RefusedError, UnavailableError)):
                    txn.commit()
            assert_failed(list(futures))
            following = client.transaction()
            assert writing_of(following).key is not writing_of(txn).key
            following.abort()


@pytest.mark.parametrize("order", ["commit", "offset"])
def test_an_abort_leaves_version_and_transactional_id_to_the_next_transaction(
    client, stablelog_broker, order
):
    topic = create(stablelog_broker.bootstrap, order)
    ids, epochs = [], []
    for _ in range(3):
        txn = client.transaction()
        txn.write(topic, b"aborted", key=b"k")
        flush(txn)
        ids.append(writing_of(txn).transactional_id)
        epochs.append(writing_of(txn).producer.producer_epoch)
        txn.abort()
    assert len(set(ids)) == 1
    assert epochs == sorted(set(epochs)), "each is fenced by the next"
    with client.transaction() as txn:
        future = txn.write(topic, b"committed", key=b"k")
    assert visible(stablelog_broker.bootstrap, topic) == {future.result(): b"committed"}


def test_what_another_writer_has_committed_under_the_key_is_not_taken_for_the_own_commit(
    client, stablelog_broker
):
    """As it may be with a copy of a virtual machine."""
    topic = create(stablelog_broker.bootstrap)
    txn, copy = client.transaction(), client.transaction()
    writing_of(copy).key = key_pool.WriterKey("", writing_of(txn).key.name, writing_of(txn).key.version)
    lost = [txn.write(topic, b"first", key=b"k")]
    flush(txn)
    with copy:  # which fences it
        copy.write(topic, b"copy", key=b"k")
    with pytest.raises(RefusedError, match="another writer uses the key"):
        txn.commit()
    assert_failed(lost)
    assert list(visible(stablelog_broker.bootstrap, topic).values()) == [b"copy"]


def test_a_copied_client_takes_new_keys_where_the_broker_refuses_its_own(client, stablelog_broker):
    topic = create(stablelog_broker.bootstrap)
    with client.transaction() as txn:
        future = txn.write(topic, b"before", key=b"k")
    written = {future: b"before"}
    with stablelog.connect(stablelog_broker.bootstrap) as copy:
        name, version = writing_of(txn).key.name, writing_of(txn).key.version
        keys_of(copy).take_key("")
        keys_of(copy).return_key(key_pool.WriterKey("", name, version))
        for number in range(4):
            one = (client, copy)[number % 2]
            with one.transaction() as txn:
                written[txn.write(topic, b"%d" % number, key=b"k")] = b"%d" % number
            assert (writing_of(txn).key.name == name) == (one is client)
    assert visible(stablelog_broker.bootstrap, topic) == {
        future.result(): value for future, value in written.items()
    }


def test_a_key_whose_transaction_was_fenced_is_left_to_the_other_writer(client, stablelog_broker):
    topic = create(stablelog_broker.bootstrap)
    txn, copy = client.transaction(), client.transaction()
    writing_of(copy).key = key_pool.WriterKey("", writing_of(txn).key.name, writing_of(txn).key.version)
    futures = []
    for one in (txn, copy):
        futures.append(one.write(topic, b"first", key=b"k"))
        flush(one)
    txn.write(topic, b"second", key=b"k")
    with pytest.raises(RefusedError):
        txn.commit()
    assert_failed(futures[:1])
    with client.transaction() as following:
        assert writing_of(following).key.name != writing_of(copy).key.name
        following.write(topic, b"following", key=b"k")
    copy.commit()
    assert sorted(visible(stablelog_broker.bootstrap, topic).values()) == [b"first", b"following"]


@pytest.mark.extended
def test_a_failed_partition_does_not_stop_transactions_to_other_topics(monkeypatch):
    """Its marker waits for a restart of the broker, and so does the end of the aborted transaction."""
    monkeypatch.setattr(embedded, "PROCESS", MARKERS_FAIL + embedded.PROCESS)
    with stablelog.serve() as broker:
        failing = create(broker.bootstrap, name="failing", partitions=1)
        healthy = create(broker.bootstrap)
        with stablelog.connect(broker.bootstrap, deadline=5) as client:
            txn = client.transaction()
            txn.write(failing, b"v", key=b"k")
            flush(txn)
            transactional_id = writing_of(txn).key.transactional_id
            txn.abort()
            found = {}
            for number in range(3):
                with client.transaction() as txn:
                    found[txn.write(healthy, b"%d" % number, key=b"k")] = b"%d" % number
            assert state_of(broker.bootstrap, transactional_id) == "PrepareAbort"
        assert visible(broker.bootstrap, healthy) == {
            future.result(): value for future, value in found.items()
        }


def test_a_key_whose_abort_was_not_answered_is_not_used_again(stablelog_broker):
    topic = create(stablelog_broker.bootstrap)

    def lose(key, _count):
        return "request" if key == ApiKey.ABORT_JOINT else None

    with (
        Proxy((stablelog_broker.host, stablelog_broker.port), lose) as proxy,
        through(proxy, stablelog_broker) as client,
    ):
        txn, futures = write_everywhere(client, topic)
        flush(txn)
        writing_of(txn).cluster.deadline_s = 0
        txn.abort()
        assert_failed(list(futures))
        following = client.transaction()
        assert writing_of(following).key is not writing_of(txn).key
        following.abort()


def test_an_expired_transaction_leaves_its_key_to_the_next_one(client, stablelog_broker):
    topic = create(stablelog_broker.bootstrap)
    txn = client.transaction()
    futures = [txn.write(topic, b"expired", key=b"k")]
    flush(txn)
    client.set_deadline(txn, 0)
    assert not settled(futures, 60)
    with client.transaction() as following:
        future = following.write(topic, b"following", key=b"k")
    assert writing_of(following).key is writing_of(txn).key
    assert visible(stablelog_broker.bootstrap, topic) == {future.result(): b"following"}


def test_a_key_of_another_process_is_not_pooled():
    pool = WriterKeyPool()
    key = key_pool.WriterKey("", process=Process())  # as in a process that was forked
    own = pool.take_key("")
    pool.return_key(key)
    assert pool.take_key("") is not key
    pool.return_key(own)
    assert pool.take_key("") is own


def test_a_forked_process_makes_keys_of_its_own():
    pool = WriterKeyPool()
    key = pool.take_key("")
    pool.return_key(key)
    assert pool.take_key("") is key
    pool.return_key(key)
    pool.after_fork()
    assert pool.take_key("") is not key


def test_idle_keys_are_bounded(monkeypatch):
    monkeypatch.setattr(key_pool, "IDLE_MAX", 3)
    pool = WriterKeyPool()
    taken = [pool.take_key("ab"[number % 2]) for number in range(12)]
    for key in taken:
        pool.return_key(key)
    kept = [pool.take_key("ab"[number % 2]) for number in range(12)]
    assert sum(key in taken for key in kept) == 2 * 3


def test_keys_are_never_shared_between_threads(client, stablelog_broker):
    topic = create(stablelog_broker.bootstrap)
    used = []

    def write(number):
        txn = client.transaction()
        txn.write(topic, b"%d" % number)
        used.append((writing_of(txn).key.name, writing_of(txn).key.version))
        txn.commit()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(24)))
    assert len(set(used)) == 24
    assert len({name for name, _ in used}) <= 4 + 1
