"""Futures of a transaction: all true or all failed, through aborts, fencing, lost answers and kill -9."""

import contextlib
import gc
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
from kio.schema.errors import ErrorCode

import stablelog
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.client.core import record_buffer
from stablelog.client.core.outcomes import Committed
from stablelog.client.core.record_buffer import BATCH_SIZE_MAX
from stablelog.errors import OutcomeUnknownError, RefusedError
from stablelog.wire.api import ApiKey
from tests.client.faults import Proxy
from tests.client.transactions import (
    assert_failed,
    create,
    flush,
    settled,
    state_of,
    visible,
    write_everywhere,
    writing_of,
)
from tests.waiting import until

PRODUCE = 0


@pytest.fixture
def topic(stablelog_broker):
    return create(stablelog_broker.bootstrap)


@pytest.fixture
def ordinary(stablelog_broker):
    return create(stablelog_broker.bootstrap, "offset")


def test_on_commit_all_come_true_with_their_positions(stablelog_broker, client, topic, ordinary):
    before, now = client.transaction(), client.transaction()
    futures = {}
    for number in range(40):  # two at once, in each other's way in every partition
        for name, txn in (("before", before), ("now", now)):
            value = f"{name}-{number}"
            where = {"partition": number % 2} if number % 3 else {}
            futures[value.encode()] = txn.write(
                (topic, ordinary)[number % 7 == 0], value, key=f"k{number}", **where
            )
            if number == 20:
                flush(txn)
    assert not any(future.done() for future in futures.values())
    second = now.commit()
    first = before.commit()
    assert settled(list(futures.values()))
    assert visible(stablelog_broker.bootstrap, topic, ordinary) == {
        future.result(0): value for value, future in futures.items()
    }
    assert first.commit_sequence > second.commit_sequence
    for name, done in (("before", first), ("now", second)):
        assert done.first == futures[f"{name}-0".encode()].result()
        assert done.last == futures[f"{name}-39".encode()].result()
    assert now.commit() == second
    with pytest.raises(RefusedError, match="is committed"):
        now.abort()
    with pytest.raises(RefusedError, match="has ended"):
        now.write(topic, b"v", key=b"k")


@pytest.mark.extended
def test_records_are_as_they_were_written(stablelog_broker, client, topic):
    large = bytes(BATCH_SIZE_MAX)
    with client.transaction() as txn:
        txn.write(topic, None, headers=[("a", b"1"), ("b", None)], timestamp_ms=7, partition=0)
        txn.write(topic, None, headers={"ab": "1", "c": None}, partition=0)
        futures = [txn.write(topic, large, key=b"k", partition=0) for _ in range(3)]
        assert not any(future.done() for future in futures)
    (read,) = client.read(topic, wait=1)
    assert read.records[0][3:] == (7, None, None, (("a", b"1"), ("b", None)))
    assert read.records[1].headers == (("ab", b"1"), ("c", None))
    assert [record.value for record in read.records[2:]] == [large] * 3
    assert [record.offset for record in read.records[2:]] == [future.result().offset for future in futures]


@pytest.mark.extended
def test_a_key_is_not_taken_for_a_value(client, topic):
    with client.transaction() as txn:
        with pytest.raises(TypeError, match="positional arguments"):
            txn.write(topic, b"key", b"value")
        with pytest.raises(TypeError, match="'value'"):
            txn.write(topic, key=b"key")
        txn.write(topic, None, key=b"key")
    (read,) = client.read(topic, wait=1)
    assert [(record.key, record.value) for record in read.records] == [(b"key", None)]


def test_nothing_written_is_committed_without_asking(client):
    with client.transaction() as txn:
        pass
    assert txn.commit() == Committed(-1, None, None)


def test_on_abort_all_fail(stablelog_broker, client, topic, ordinary):
    with client.transaction() as txn:
        futures = [txn.write(name, b"v", key=b"k") for name in (topic, ordinary)]
        flush(txn)
        futures += [txn.write(name, b"v", key=b"k") for name in (topic, ordinary)]
        txn.abort()
    assert_failed(futures, ErrorCode.transaction_abortable)
    txn.abort()
    with pytest.raises(RefusedError, match="was aborted"):
        txn.commit()
    with pytest.raises(RefusedError, match="was aborted"):
        txn.write(topic, b"v", key=b"k")
    assert visible(stablelog_broker.bootstrap, topic, ordinary) == {}


def test_an_exception_aborts(stablelog_broker, client, topic):
    futures = []
    with pytest.raises(KeyError), client.transaction() as txn:
        futures.append(txn.write(topic, b"v", key=b"k"))
        flush(txn)
        raise KeyError("mine")
    assert_failed(futures, ErrorCode.transaction_abortable)
    assert isinstance(futures[0].exception().__cause__, KeyError)
    assert visible(stablelog_broker.bootstrap, topic) == {}


def test_a_block_that_hides_a_failed_write_does_not_end_well(client, topic):
    futures = []
    with pytest.raises(RefusedError, match=r"max\.message\.bytes"), client.transaction() as txn:
        futures.append(txn.write(topic, b"v", key=b"k", partition=0))
        with contextlib.suppress(RefusedError):
            while True:  # until more than may be under way without an answer is
                txn.write(topic, bytes(2 << 20), key=b"k", partition=0)
    assert_failed(futures)


def test_what_is_not_there_cannot_be_written(client, topic):
    with client.transaction() as txn:
        future = txn.write(topic, b"v", key=b"k")
        with pytest.raises(RefusedError, match="has no partition 2, only 0 to 1"):
            txn.write(topic, b"v", key=b"k", partition=2)
        with pytest.raises(RefusedError, match="`stablelog topics create nope` creates it"):
            txn.write("nope", b"v", key=b"k")
    assert settled([future])


def test_after_its_timeout_it_is_aborted(stablelog_broker, client, topic):
    txn = client.transaction(timeout=60)
    futures = [txn.write(topic, b"v", key=b"k") for _ in range(3)]
    flush(txn)
    writing_of(txn).deadline = 0  # whose passing nobody has noticed
    with pytest.raises(RefusedError, match=r"timeout of 60 s"):
        txn.commit()
    assert_failed(futures)
    assert visible(stablelog_broker.bootstrap, topic) == {}


def test_after_its_timeout_its_futures_fail_though_nobody_asks(stablelog_broker, client, topic):
    brief, long = client.transaction(timeout=60), client.transaction(timeout=60)
    futures = [brief.write(topic, b"v", key=b"k") for _ in range(3)]
    others = [long.write(topic, b"kept", key=b"k")]
    flush(brief)
    client.set_deadline(brief, time.monotonic() + 0.01)
    assert not settled(futures, 30)
    assert_failed(futures, ErrorCode.transaction_abortable)
    for late in (brief.commit, lambda: brief.write(topic, b"v", key=b"k")):
        with pytest.raises(RefusedError, match=r"timeout of 60 s"):
            late()
    long.commit()
    assert settled(others, 30)
    assert list(visible(stablelog_broker.bootstrap, topic).values()) == [b"kept"]


@pytest.mark.extended
def test_a_commit_that_comes_after_the_broker_s_timeout_is_refused(stablelog_broker, topic, face):
    arrive = threading.Event()

    def lose(key, _count):
        return "request" if key == ApiKey.COMMIT_JOINT and not arrive.is_set() else None

    address = (stablelog_broker.host, stablelog_broker.port)
    with Proxy(address, lose) as proxy, face.through(proxy, stablelog_broker) as client:
        txn = client.transaction(timeout=600)
        writing_of(txn).timeout_s = 1  # for the broker, whose clock counts here
        futures = [txn.write(topic, b"v", key=b"k") for _ in range(3)]
        with ThreadPoolExecutor(1) as pool:
            committing = pool.submit(txn.commit)
            until(lambda: proxy.count(ApiKey.COMMIT_JOINT) or committing.done(), "nobody commits")
            transactional_id = writing_of(txn).transactional_id
            until(
                lambda: state_of(stablelog_broker.bootstrap, transactional_id) != "Ongoing",
                "the broker's clock does not count",
            )
            # On a slow machine it may have been too late for the batches already: then it is told so.
            until(
                lambda: committing.done() or not any(f.done() for f in futures),
                "nothing is known yet, and futures are done",
            )
            arrive.set()
            with pytest.raises(RefusedError):
                committing.result(90)
    assert_failed(futures)
    assert visible(stablelog_broker.bootstrap, topic) == {}


@pytest.mark.parametrize("step", ["write", "commit"])
def test_a_fenced_one_fails_whole(stablelog_broker, client, topic, step):
    txn = client.transaction()
    futures = [txn.write(topic, b"v", key=b"k", partition=0)]
    flush(txn)
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        BlockingProducer(cluster, writing_of(txn).transactional_id).begin()
    with pytest.raises(RefusedError):
        if step == "write":
            futures.append(txn.write(topic, b"v", key=b"k", partition=1))
        txn.commit()
    assert_failed(futures)
    assert visible(stablelog_broker.bootstrap, topic) == {}


@pytest.mark.extended
@pytest.mark.parametrize("fate", ["request", "answer"])
def test_lost_requests_and_answers_neither_lose_nor_repeat(stablelog_broker, topic, ordinary, fate, face):
    def lose(key, count):
        return (
            fate
            if (key == PRODUCE and count % 3 == 1) or (key == ApiKey.COMMIT_JOINT and count < 3)
            else None
        )

    address = (stablelog_broker.host, stablelog_broker.port)
    with Proxy(address, lose) as proxy, face.through(proxy, stablelog_broker) as client:
        with client.transaction() as txn:
            futures = {}
            for number in range(20):
                value = b"%d" % number
                futures[txn.write((topic, ordinary)[number % 2], value)] = value
                flush(txn)
        assert proxy.count(ApiKey.COMMIT_JOINT) == 3
    assert settled(list(futures))
    assert visible(stablelog_broker.bootstrap, topic, ordinary) == {
        future.result(): value for future, value in futures.items()
    }


@pytest.mark.extended
def test_kill_between_the_decision_and_its_answer(face):
    """The commit is decided and its answer lost; before it is asked again the broker is killed."""
    with stablelog.serve() as broker:
        topics = create(broker.bootstrap), create(broker.bootstrap, "offset")

        def lose(key, count):
            if key != ApiKey.COMMIT_JOINT or count > 2:
                return None
            if count == 2:
                broker.kill()
                broker.start()
                return "request"
            return "answer"

        with Proxy((broker.host, broker.port), lose) as proxy, face.through(proxy, broker) as client:
            txn, futures = write_everywhere(client, *topics)
            done = txn.commit()
            assert proxy.count(ApiKey.COMMIT_JOINT) == 3
            assert done.commit_sequence == 1
            assert txn.commit() == done
            assert settled(list(futures))
            assert visible(broker.bootstrap, *topics) == {f.result(): value for f, value in futures.items()}


@pytest.mark.extended
@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.parametrize("then", ["commit", "abort"])
def test_a_commit_in_doubt_is_asked_again_after_a_restart(decided, then, face):
    with stablelog.serve() as broker:
        topics = create(broker.bootstrap), create(broker.bootstrap, "offset")

        def lose(key, count):
            if key != ApiKey.COMMIT_JOINT or count > 1:
                return None
            if not decided:
                broker.kill()
            return "answer" if decided else "request"

        with (
            Proxy((broker.host, broker.port), lose) as proxy,
            face.through(proxy, broker) as client,
        ):
            txn, futures = write_everywhere(client, *topics)
            flush(txn)
            writing_of(txn).cluster.deadline_s = 0  # nobody asks again by itself
            with pytest.raises(OutcomeUnknownError):
                txn.commit()
            writing_of(txn).cluster.deadline_s = 60
            assert not any(future.done() for future in futures), "nothing is known yet"
            if decided:
                broker.kill()
            broker.start()
            if then == "commit":
                assert txn.commit().commit_sequence == 1
            elif decided:
                with pytest.raises(RefusedError, match="is committed"):
                    txn.abort()
            else:
                txn.abort()
            is_committed = decided or then == "commit"
            assert settled(list(futures)) == is_committed
            expected = {f.result(): value for f, value in futures.items()} if is_committed else {}
            assert visible(broker.bootstrap, *topics) == expected


def test_kill_at_any_moment_leaves_all_or_nothing():
    """Without a proxy; `test_programs` has more, from both faces."""
    with stablelog.serve() as broker, stablelog.connect(broker.bootstrap, deadline=60) as client:
        topics = create(broker.bootstrap), create(broker.bootstrap, "offset")
        expected, outcomes = {}, []
        for delay_s in (0, 0.01, 0.03):
            with ThreadPoolExecutor(1) as pool:
                txn, futures = write_everywhere(client, *topics)
                committing = pool.submit(txn.commit)
                time.sleep(delay_s)
                broker.kill()
                broker.start()
                assert committing.exception(180) is None or isinstance(committing.exception(), RefusedError)
            outcomes.append(settled(list(futures)))
            assert outcomes[-1] == (committing.exception() is None)
            if outcomes[-1]:
                expected |= {future.result(): value for future, value in futures.items()}
            assert visible(broker.bootstrap, *topics) == expected


def test_several_threads_share_a_client(stablelog_broker, client, topic):
    def write(number):
        with client.transaction() as txn:
            return [txn.write(topic, b"%d-%d" % (number, n), key=b"k%d" % n) for n in range(20)]

    with ThreadPoolExecutor(4) as pool:
        futures = [future for written in pool.map(write, range(12)) for future in written]
    assert settled(futures)
    assert set(visible(stablelog_broker.bootstrap, topic)) == {future.result() for future in futures}


def test_several_threads_write_into_one_transaction(stablelog_broker, client, topic, monkeypatch):
    monkeypatch.setattr(record_buffer, "BATCH_SIZE_MAX", 200)
    txn = client.transaction(timeout=120)

    def write(number):
        return [txn.write(topic, b"%d-%d" % (number, n), partition=0) for n in range(30)]

    with ThreadPoolExecutor(4) as pool:
        written = list(pool.map(write, range(4)))
    txn.commit()
    found = visible(stablelog_broker.bootstrap, topic)
    for number, futures in enumerate(written):
        positions = [future.result() for future in futures]
        assert positions == sorted(positions)
        assert [found.pop(position) for position in positions] == [b"%d-%d" % (number, n) for n in range(30)]
    assert found == {}


def test_the_future_of_an_aborted_transaction_keeps_no_records(face, stablelog_broker):
    topic = create(stablelog_broker.bootstrap)
    with face.connect(stablelog_broker.bootstrap, 60) as client:
        kept = []
        tracemalloc.start()
        try:
            for _ in range(10):
                txn = client.transaction()
                kept.append(txn.write(topic, bytes(100_000)))
                txn.abort()
            del txn
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 500_000
        finally:
            tracemalloc.stop()
