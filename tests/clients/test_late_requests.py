"""Requests that the network delays and repeats, against a running broker: guarantee 6, and EndTxn said twice."""

import contextlib
import json
import random

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

import stablelog
from stablelog.testing.history import Fate, History, check
from tests.broker.desk import ABORT, COMMIT, batch, end_fields, init_fields, part, produce_fields
from tests.clients.drivers import Confluent, unique
from tests.clients.proxy import ADD_PARTITIONS, END_TXN, PRODUCE, Peer, Proxy
from tests.waiting import until

NONE = ErrorCode.none
FENCED = {ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced}
WRITE_TXN_MARKERS = 27


@pytest.fixture(scope="module")
def proxied():
    proxy = Proxy()
    with stablelog.serve(advertised_listeners=f"PLAINTEXT://127.0.0.1:{proxy.port}") as broker:
        proxy.upstream = broker.port
        yield broker, proxy
        proxy.close()
    assert proxy.errors == []


@pytest.fixture
def peer(proxied):
    made = Peer(proxied[0].port)
    yield made
    made.close()


@pytest.fixture
def topic(proxied):
    name = unique("late")
    admin = AdminClient({"bootstrap.servers": proxied[0].bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    return name


def producer_of(broker, transactional_id, **settings):
    made = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "log_level": 0,
            "error_cb": lambda _error: None,
            **settings,
        }
    )
    made.init_transactions(30)
    return made


def codes_of(request, answer):
    """What an answer says of each partition, or as a whole."""
    if request.api_key == END_TXN:
        return {answer.error_code}
    if request.api_key == ADD_PARTITIONS:
        results = [p for topic in answer.results_by_topic_v3_and_below for p in topic.results_by_partition]
        return {result.partition_error_code for result in results}
    return {p.error_code for topic in answer.responses for p in topic.partition_responses}


def offsets_of(answer):
    return [p.base_offset for topic in answer.responses for p in topic.partition_responses]


@pytest.mark.extended
def test_requests_that_are_repeated_and_come_late_change_nothing(proxied, peer, topic):
    """A real producer; every request of its transactions is sent again at once, and old ones all along."""
    broker, proxy = proxied
    chance = random.Random(5)
    old, current, transactions, findings = [], [], [], []

    def answered(request):
        if codes_of(request, request.answer) != {NONE}:
            return
        again = peer.repeat(request)
        if codes_of(request, again) != {NONE}:
            findings.append(f"asked again, API {request.api_key} answered {codes_of(request, again)}")
        if request.api_key == PRODUCE and offsets_of(again) != offsets_of(request.answer):
            findings.append(f"a batch was at {offsets_of(request.answer)}, then at {offsets_of(again)}")
        if request.api_key == PRODUCE:
            current.append(request)
            for late in chance.sample(old, min(2, len(old))):
                written = peer.repeat(late)
                if NONE in codes_of(late, written):
                    findings.append(f"a write of an ended transaction was taken: {offsets_of(written)}")
        if request.api_key == END_TXN:
            for late in current:  # the transaction has ended just now
                written = peer.repeat(late)
                if NONE in codes_of(late, written):
                    findings.append(f"a write after the end was taken: {offsets_of(written)}")
            old.extend(current)
            current.clear()

    proxy.answered = answered
    producer = producer_of(broker, unique("txn"))
    for number in range(40):
        values = tuple(b"%d-%d" % (number, n) for n in range(chance.randint(1, 4)))
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
            producer.flush(30)
        commit = chance.random() < 0.6
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
        transactions.append((Fate.COMMITTED if commit else Fate.ABORTED, values))
    proxy.answered = lambda _request: None
    assert findings == []
    assert len(old) >= 40
    read = Confluent(broker.bootstrap).read(topic)
    assert check(History(transactions, {0: read})) == []


def delivered(producer, topic, value):
    """Whether a value has come to the broker before the client gave it up."""
    errors = []
    producer.produce(topic, value, partition=0, on_delivery=lambda error, _message: errors.append(error))
    assert producer.flush(30) == 0
    return errors[0] is None


def held_back(proxy, producer, topic):
    """The requests of a batch that its client gave up, in a transaction that has been aborted since.

    The client gives up soon, and a machine may stand still for longer: then nothing was held back, and it is done again.
    """
    late = []
    while not late:
        producer.begin_transaction()
        if delivered(producer, topic, b"before"):
            proxy.hold = lambda request: request.api_key == PRODUCE
            assert not delivered(producer, topic, b"held back")
            late = list(proxy.held)
            proxy.hold = lambda _request: False
            proxy.held.clear()
        producer.abort_transaction(30)
    return late


@pytest.mark.extended
@pytest.mark.parametrize("same_sequence_later", [False, True], ids=["alone", "after the next transaction"])
def test_a_write_that_was_held_back_until_its_transaction_was_aborted_is_refused(
    proxied, peer, topic, same_sequence_later
):
    """Guarantee 6: the client gave the batch up; it arrives all the same."""
    broker, proxy = proxied
    producer = producer_of(broker, unique("txn"), **{"message.timeout.ms": 1500, "socket.timeout.ms": 1000})
    late = held_back(proxy, producer, topic)
    while same_sequence_later:
        producer.begin_transaction()
        if delivered(producer, topic, b"next"):
            producer.commit_transaction(30)
            break
        producer.abort_transaction(30)
    for request in late:
        codes = codes_of(request, peer.repeat(request))
        assert NONE not in codes, codes
    client = Confluent(broker.bootstrap)
    assert [value for _, value in client.read(topic)] == ([b"next"] if same_sequence_later else [])
    assert b"held back" not in [value for _, value in client.read(topic, committed=False)]


def purged_after_its_answer_was_lost(proxy, producer, topic, seen):
    """Abort a transaction whose only record is in the log and, its answer lost, in the client's queue of retries.

    The client may retry it before it aborts, on a slow machine: then nothing was purged, and it is done again.

    Args:
        seen: the client's newest statistics.
    """

    def queued():
        return seen.get("topics", {}).get(topic, {}).get("partitions", {}).get("0", {}).get("msgq_cnt")

    purged = False
    while not purged:
        written, delivery = [], []

        def lose_the_answer(request, written=written):
            if request.api_key == PRODUCE:
                written.append(codes_of(request, request.answer))
                raise ConnectionResetError  # the proxy closes both connections

        proxy.answered = lose_the_answer
        producer.begin_transaction()
        producer.produce(
            topic,
            b"aborted",
            partition=0,
            on_delivery=lambda error, _message, delivery=delivery: delivery.append(error),
        )
        # What poll() itself answers is how many callbacks it served, those of statistics too.
        until(lambda written=written: (producer.poll(0), written)[1], "the record reaches the broker")
        assert written[0] == {NONE}
        seen.clear()  # what the client told before that
        until(
            lambda delivery=delivery: (producer.poll(0), queued() or delivery)[1],
            "the client sees the loss",
        )
        proxy.answered = lambda _request: None
        producer.abort_transaction(30)
        purged = delivery[0] is not None


@contextlib.contextmanager
def kafka_error_suppressed():
    """Suppress a KafkaException.

    After a fatal error the client sets the exception, and may then call `stats_cb`. If Python code runs there with an
    exception set, Python raises a SystemError, whose cause is that exception.
    """
    try:
        yield
    except KafkaException:
        pass
    except SystemError as error:
        if not isinstance(error.__cause__, KafkaException):
            raise


@pytest.mark.extended
def test_a_record_with_the_sequence_of_an_aborted_one_is_not_taken_for_its_repetition(proxied, topic):
    """librdkafka gives the sequence of a batch that its abort purged to the next record."""
    broker, proxy = proxied
    seen = {}
    producer = producer_of(
        broker,
        unique("txn"),
        **{
            "retry.backoff.ms": 3000,
            "retry.backoff.max.ms": 3000,
            "statistics.interval.ms": 20,
            "stats_cb": lambda text: seen.update(json.loads(text)),
        },
    )
    producer.begin_transaction()
    assert delivered(producer, topic, b"first")
    producer.commit_transaction(30)
    purged_after_its_answer_was_lost(proxy, producer, topic, seen)
    committed = [b"first"]
    with kafka_error_suppressed():
        producer.begin_transaction()
        producer.produce(topic, b"next", partition=0)
        producer.flush(30)
        producer.commit_transaction(30)
        committed.append(b"next")
    assert [value for _, value in Confluent(broker.bootstrap).read(topic)] == committed


@pytest.mark.extended
def test_a_request_for_the_end_that_comes_again_answers_the_same_and_its_opposite_is_refused(
    proxied, peer, topic
):
    """Scenario 41, over the wire and with a real producer."""
    broker, proxy = proxied
    ends = []
    proxy.answered = lambda request: ends.append(request) if request.api_key == END_TXN else None
    name = unique("txn")
    producer = producer_of(broker, name)
    for commit in (COMMIT, ABORT):
        producer.begin_transaction()
        producer.produce(topic, b"c" if commit else b"a", partition=0)
        assert producer.flush(30) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
        request = ends[-1]
        asked = request.fields()
        who = (asked.producer_id, asked.producer_epoch)
        assert codes_of(request, peer.repeat(request)) == {NONE}
        opposite = peer.ask(END_TXN, 1, **end_fields(name, who, not commit))
        assert opposite.error_code is ErrorCode.invalid_txn_state
        assert codes_of(request, peer.repeat(request)) == {NONE}
    proxy.answered = lambda _request: None
    assert [value for _, value in Confluent(broker.bootstrap).read(topic)] == [b"c"]


def markers(peer, who, topic, *, commit, coordinator_epoch, transaction_version=0):
    version = 2 if transaction_version else 1
    topics = (part(27, version, "request", "WritableTxnMarkerTopic", name=topic, partition_indexes=(0,)),)
    fields = {
        "producer_id": who[0],
        "producer_epoch": who[1],
        "transaction_result": commit,
        "topics": topics,
        "coordinator_epoch": coordinator_epoch,
    }
    if version == 2:
        fields["transaction_version"] = transaction_version
    marker = part(27, version, "request", "WritableTxnMarker", **fields)
    answer = peer.ask(WRITE_TXN_MARKERS, version, markers=(marker,))
    return answer.markers[0].topics[0].partitions[0].error_code


def test_late_markers_of_an_older_epoch_or_coordinator_end_nothing(proxied, peer, topic):
    broker, proxy = proxied
    asked = []
    proxy.answered = lambda request: asked.append(request) if request.api_key == END_TXN else None
    producer = producer_of(broker, unique("txn"))
    producer.begin_transaction()
    producer.produce(topic, b"first", partition=0)
    producer.commit_transaction(30)
    proxy.answered = lambda _request: None
    fields = asked[-1].fields()
    who = (fields.producer_id, fields.producer_epoch)
    producer.begin_transaction()
    producer.produce(topic, b"second", partition=0)
    assert producer.flush(30) == 0
    for commit in (COMMIT, ABORT):
        older = markers(peer, who, topic, commit=commit, coordinator_epoch=-1)
        assert older is ErrorCode.transaction_coordinator_fenced
        earlier = (who[0], who[1] - 1)
        refused = markers(peer, earlier, topic, commit=commit, coordinator_epoch=1 << 20)
        assert refused is ErrorCode.invalid_producer_epoch
        version = {"coordinator_epoch": 1 << 20, "transaction_version": 2}
        of_its_own = markers(peer, who, topic, commit=commit, **version)
        assert of_its_own is ErrorCode.invalid_producer_epoch, (
            "in the second dialect a marker has the next epoch"
        )
    producer.commit_transaction(30)
    assert [value for _, value in Confluent(broker.bootstrap).read(topic)] == [b"first", b"second"]


# -- the second dialect, by hand: no client in Python speaks it --------------------------------------------------


class SecondDialect:
    """A producer of the second dialect that keeps what it has sent, to send it again."""

    def __init__(self, peer, name, topic):
        self.peer, self.name, self.topic = peer, name, topic
        answer = peer.ask(22, 5, **init_fields(5, name))
        assert answer.error_code is NONE
        self.who = (answer.producer_id, answer.producer_epoch)
        self.sequence = 0
        self.ends, self.writes = [], []

    def write(self, value):
        data = batch(value, producer=self.who, sequence=self.sequence)
        fields = produce_fields(12, self.topic, 0, data, transactional_id=self.name)
        answer = self.peer.ask(PRODUCE, 12, **fields).responses[0].partition_responses[0]
        if answer.error_code is NONE:
            self.sequence += 1
            self.writes.append((fields, answer))
        return answer

    def end(self, commit):
        fields = end_fields(self.name, self.who, commit)
        answer = self.peer.ask(END_TXN, 5, **fields)
        assert answer.error_code is NONE, answer.error_code
        self.ends.append((fields, answer))
        self.who, self.sequence = (answer.producer_id, answer.producer_epoch), 0


@pytest.mark.extended
def test_in_the_second_dialect_what_belongs_to_an_earlier_transaction_is_told_apart(proxied, peer, topic):
    """Scenario 44: a delayed EndTxn of transaction n arrives in n+1, and so do its writes and its markers."""
    broker, _proxy = proxied
    chance = random.Random(9)
    producer = SecondDialect(peer, unique("txn"), topic)
    transactions = []
    for number in range(30):
        values = tuple(b"%d-%d" % (number, n) for n in range(chance.randint(1, 3)))
        for value in values:
            assert producer.write(value).error_code is NONE
            for fields, _ in producer.ends[-3:]:
                assert peer.ask(END_TXN, 5, **fields).error_code in FENCED, "the next transaction has begun"
            for fields, written in producer.writes[:-4][-3:]:
                late = peer.ask(PRODUCE, 12, **fields).responses[0].partition_responses[0]
                assert late.error_code is not NONE or late.base_offset == written.base_offset
        commit = chance.random() < 0.6
        producer.end(commit)
        transactions.append((Fate.COMMITTED if commit else Fate.ABORTED, values))
        fields, _ = producer.ends[-1]
        again = peer.ask(END_TXN, 5, **fields)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, *producer.who)
        opposite = peer.ask(END_TXN, 5, **{**fields, "committed": not commit})
        assert opposite.error_code is ErrorCode.invalid_txn_state
        for fields, _ in producer.writes[-2:]:
            late = peer.ask(PRODUCE, 12, **fields).responses[0].partition_responses[0]
            assert late.error_code in FENCED
        # A late copy of the marker itself: nothing is open at its epoch, and nothing happens.
        repeated = markers(
            peer, producer.who, topic, commit=not commit, coordinator_epoch=1 << 20, transaction_version=2
        )
        assert repeated is NONE
    read = Confluent(broker.bootstrap).read(topic)
    assert check(History(transactions, {0: read})) == []


@pytest.mark.extended
def test_strict_mode_closes_the_hole_of_the_first_dialect():
    """Scenario 44, first dialect: a late EndTxn would end the next transaction, so the dialect can be refused."""
    with (
        stablelog.serve(stablelog_transaction_strict=True) as broker,
        contextlib.closing(Peer(broker.port)) as peer,
    ):
        answer = peer.ask(22, 4, **init_fields(4, "t"))
        assert answer.error_code is ErrorCode.policy_violation
        assert peer.ask(22, 5, **init_fields(5, "t")).error_code is NONE
