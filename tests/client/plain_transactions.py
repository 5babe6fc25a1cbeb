"""What transactions do at a broker without joint commits. `test_endings` tells it of our broker, and tests/java of Kafka."""

import contextlib

import pytest

from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.errors import OutcomeUnknownError, RefusedError, TransactionAbortedError
from tests.client.blocking.test_producer import END_TXN, committed
from tests.client.faults import Proxy
from tests.client.transactions import flush, settled, writing_of
from tests.clients.drivers import unique

BRIEF_S, LONG_S = 0.3, 60
END_TXN_CODE = (
    4 + 4 + 1 + 4
)  # in the frame: after the size, the correlation id, the tags and the throttle time


class Case:
    """A transaction through a proxy that loses requests or answers.

    Args:
        face: of the client.
        broker: the broker.
        made: makes a topic with as many partitions.
    """

    def __init__(self, face, broker, made):
        self.face, self.broker = face, broker
        self.topic, self.source = made("t", 2), made("s", 1)
        self.fate = None
        self.answers = []  # what the client gets for the next EndTxn that are carried out: a code, or None for nothing

    @contextlib.contextmanager
    def client(self):
        def lose(key, _count):
            return self.fate if key == END_TXN else None

        def spoil(key, answer):
            if key != END_TXN or not self.answers:
                return answer
            code = self.answers.pop(0)
            if code is None:
                raise ConnectionError("the answer is lost")
            return (
                answer[:END_TXN_CODE]
                + code.value.to_bytes(2, "big", signed=True)
                + answer[END_TXN_CODE + 2 :]
            )

        address = ("127.0.0.1", self.broker.port)
        with Proxy(address, lose, spoil) as proxy, self.face.through(proxy, self.broker) as client:
            yield client

    def begin(self, client, *values, **more):
        txn = client.transaction(timeout=60, **more)
        futures = [txn.write(self.topic, key=b"k", value=value, partition=0) for value in values]
        flush(txn)
        return txn, futures

    def in_doubt(self, client, fate, *values, **more):
        """A transaction whose commit is in doubt, because its requests or their answers are lost."""
        txn, futures = self.begin(client, *values, **more)
        self.fate = fate
        writing_of(txn).cluster.deadline_s = BRIEF_S
        with pytest.raises(OutcomeUnknownError):
            txn.commit()
        assert not any(future.done() for future in futures)
        self.fate = None
        writing_of(txn).cluster.deadline_s = LONG_S
        return txn, futures

    def fence(self, txn):
        """What an operator does who ends the transaction."""
        with BlockingCluster(self.broker.bootstrap) as cluster:
            BlockingProducer(cluster, writing_of(txn).transactional_id).begin()

    def sees(self, *values):
        assert committed(self.broker.bootstrap, self.topic) == list(values)


def commits_and_aborts(case):
    with case.client() as client:
        ids = set()
        for number in range(3):
            txn, futures = case.begin(client, b"%d" % number, b"%d" % number)
            ids.add(writing_of(txn).transactional_id)
            found = txn.commit()
            assert found.commit_sequence == -1
            assert (found.first, found.last) == (futures[0].result(), futures[1].result())
            assert found.last.offset == found.first.offset + 1
            aborted, futures = case.begin(client, b"aborted")
            aborted.abort()
            assert not settled(futures)
        assert len(ids) == 1, "one id is used again and again"
        assert ids.pop().startswith("stablelog-")
    case.sees(b"0", b"0", b"1", b"1", b"2", b"2")


def offsets_alone(case, group):
    """A transaction without records commits the offsets."""
    with case.client() as client:
        txn, _ = case.begin(client)
        txn.write(case.source, value=b"a")
        txn.commit()
        with client.subscribe(case.source, group=group, wait=30) as reader:
            assert next(reader).value == b"a"
            with client.transaction(offsets_of=reader):
                pass
            with client.transaction() as txn:
                txn.write(case.source, value=b"b")
        with client.subscribe(case.source, group=group, wait=30) as reader:
            assert next(reader).value == b"b"


def a_copy_goes_on_after_an_abort(case, group):
    with case.client() as client:
        with client.transaction() as txn:
            for value in (b"a", b"b"):
                txn.write(case.source, value=value)
        with client.subscribe(case.source, group=group, wait=30) as reader:
            with pytest.raises(ZeroDivisionError), client.transaction(offsets_of=reader) as txn:
                txn.write(case.topic, value=next(reader).value, partition=0)
                flush(txn)
                _ = 1 / 0
            for _ in range(2):
                with client.transaction(offsets_of=reader) as txn:
                    txn.write(case.topic, value=next(reader).value, partition=0)
    case.sees(b"a", b"b")


def the_outcome_is_asked_again(case, fate):
    with case.client() as client:
        txn, futures = case.in_doubt(client, fate, b"v")
        assert txn.commit().first == futures[0].result()
        with pytest.raises(RefusedError):
            txn.abort()
    case.sees(b"v")


def an_abort_in_doubt_says_what_has_happened(case, fate):
    with case.client() as client:
        txn, futures = case.in_doubt(client, fate, b"v")
        if fate == "answer":
            with pytest.raises(RefusedError, match="is committed"):
                txn.abort()
            assert settled(futures)
        else:
            txn.abort()
            assert not settled(futures)
    case.sees(*[b"v"] * (fate == "answer"))


def the_log_says_what_the_coordinator_cannot(case, fate):
    with case.client() as client:
        txn, futures = case.in_doubt(client, fate, b"v")
        case.fence(txn)
        if fate == "answer":
            txn.commit()
            assert settled(futures)
        else:
            with pytest.raises(TransactionAbortedError):
                txn.commit()
            assert not settled(futures)
        next_one, _ = case.begin(client, b"w")
        next_one.commit()
    case.sees(*[b"v"] * (fate == "answer"), b"w")


def an_abort_of_a_fenced_transaction_in_doubt(case, fate):
    with case.client() as client:
        txn, futures = case.in_doubt(client, fate, b"v")
        case.fence(txn)
        if fate == "answer":
            with pytest.raises(RefusedError, match="is committed"):
                txn.abort()
        else:
            txn.abort()
        assert settled(futures) == (fate == "answer")
    case.sees(*[b"v"] * (fate == "answer"))


def a_fenced_transaction_is_aborted(case):
    with case.client() as client:
        txn, futures = case.begin(client, b"v")
        case.fence(txn)
        with pytest.raises(TransactionAbortedError):
            txn.commit()
        assert not settled(futures)
    case.sees()


def there_are_no_transaction_groups(case):
    with case.client() as client:
        txn = client.transaction(group="bank")
        future = txn.write(case.topic, value=b"v", partition=0)
        with pytest.raises(RefusedError, match="in the default group") as refused:
            txn.commit()
        assert not isinstance(refused.value, TransactionAbortedError)
        assert not settled([future])
    case.sees()


ALWAYS = (commits_and_aborts, a_fenced_transaction_is_aborted, there_are_no_transaction_groups)
WITH_FATES = (
    the_outcome_is_asked_again,
    an_abort_in_doubt_says_what_has_happened,
    the_log_says_what_the_coordinator_cannot,
    an_abort_of_a_fenced_transaction_in_doubt,
)
WITH_GROUPS = (offsets_alone, a_copy_goes_on_after_an_abort)


def name_of(scenario):
    return scenario.__name__


def group():
    return unique("group")
