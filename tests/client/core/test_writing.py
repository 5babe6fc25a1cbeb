"""A transaction over a broker in memory: what becomes of it whatever is lost, late or cancelled."""

import asyncio
import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i64

from stablelog.client.core import writing as core
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.keys import RETENTION_S, WriterKey
from stablelog.client.core.outcomes import Committed
from stablelog.client.core.producer import BatchProducer
from stablelog.client.core.steps import Receive, Send
from stablelog.client.core.writing import Writing
from stablelog.errors import (
    DataLossError,
    OutcomeUnknownError,
    RefusedError,
    TransactionAbortedError,
    UnavailableError,
    UsageError,
)
from stablelog.wire.api import ApiKey
from tests.client import model_broker
from tests.client.model_broker import ADDRESS, TOPIC, ModelBroker, ModelShell
from tests.scale import examples


class Transaction:
    """A transaction over a broker in memory, and what was said of it."""

    def __init__(self, shell, key=None, deadline_s=3.0, cluster=None):
        self.outcomes, self.released, self.places = [], [], []
        self.shell = shell
        self.writing = Writing(
            cluster or Cluster(ADDRESS, deadline_s=deadline_s),
            key=key or WriterKey(""),
            timeout_s=1000,
            now=shell.now,
            on_end=self.outcomes.append,
            release=self.released.append,
        )

    def write(self, partition, value):
        self.shell.run(self.writing.make_ready(TOPIC))
        records = self.writing.records
        self.places.append(records.add_record(TOPIC, value, None, (), partition, 0))

    def positions(self):
        """The positions of the records of a committed transaction."""
        return [records.position(number) for records, number in self.places]


def test_a_commit_makes_visible_what_was_written_at_the_positions_that_are_told():
    shell = ModelShell(ModelBroker())
    txn = Transaction(shell)
    for number in range(6):
        txn.write(number % 2, b"%d" % number)
        if number % 2:
            shell.run(txn.writing.flush())
    committed = shell.run(txn.writing.commit())
    assert committed.commit_sequence == 1
    assert txn.outcomes == [committed]
    positions = txn.positions()
    assert shell.broker.visible == {tuple(one): b"%d" % n for n, one in enumerate(positions)}
    assert (committed.first, committed.last) == (positions[0], positions[-1])
    assert shell.run(txn.writing.commit()) == committed
    assert txn.released == [txn.writing]


def test_a_call_that_was_dropped_after_it_took_records_aborts_the_transaction():
    """An exception of a signal handler drops the steps between two effects. A part of the records is in no batch then."""
    shell = ModelShell(ModelBroker())
    txn = Transaction(shell)
    txn.write(0, b"lost")
    steps = txn.writing.flush()
    answer = None
    while txn.writing.records.partitions[TOPIC, 0].unsent[-1].count:
        answer = shell.perform(steps.send(answer))
    steps.close()
    with pytest.raises(TransactionAbortedError, match="an exception has interrupted a call"):
        txn.write(0, b"next")
    with pytest.raises(TransactionAbortedError):
        shell.run(txn.writing.commit())
    assert shell.broker.visible == {}


@pytest.mark.parametrize("lost", [None, "answer"])
def test_the_positions_in_all_partitions_are_asked_at_once(lost):
    """If a response is lost, the client asks for each partition again."""
    fates = [lost] if lost else []
    shell = ModelShell(
        ModelBroker(), lambda key: fates.pop() if fates and key == ApiKey.DESCRIBE_COMMITS else None
    )
    txn, effects = Transaction(shell), []
    for number in range(6):
        txn.write(number % 2, b"%d" % number)
    perform = shell.perform

    def note(effect):
        if isinstance(effect, Send | Receive):
            effects.append(type(effect))
        return perform(effect)

    shell.perform = note
    shell.run(txn.writing.commit())
    assert shell.broker.visible == {tuple(one): b"%d" % n for n, one in enumerate(txn.positions())}
    asked = shell.broker.asked.count(ApiKey.DESCRIBE_COMMITS)
    if not lost:
        assert asked == 2
        assert effects[-6:] == [Send, Send, *[Receive] * 4]
    else:
        assert asked == 4


def test_the_key_s_next_transaction_gets_the_next_version():
    shell, key = ModelShell(ModelBroker()), WriterKey("")
    for number in range(3):
        txn = Transaction(shell, key)
        txn.write(0, b"%d" % number)
        shell.run(txn.writing.commit())
        assert (key.version, txn.writing.is_key_free) == (number + 1, True)
    assert list(shell.broker.visible.values()) == [b"0", b"1", b"2"]


def test_a_writer_above_a_quota_waits_after_its_batches():
    broker, sent = ModelBroker(), []
    shell = ModelShell(broker, lambda key: sent.append((key, shell.now)))
    txn = Transaction(shell, WriterKey(""))
    txn.write(0, b"1")
    broker.throttle_ms = 4_000
    shell.run(txn.writing.flush())
    at = shell.now
    broker.throttle_ms = 0
    txn.write(0, b"2")
    shell.run(txn.writing.commit())
    produced = [time for key, time in sent if key == ApiKey.PRODUCE]
    assert produced[-1] >= at + 4
    assert len(broker.visible) == 2


# What becomes of some of the requests, by their number.
FATES = st.dictionaries(
    st.integers(0, 30), st.sampled_from(["request", "answer", "late", "away"]), max_size=5
)
STEPS = st.sampled_from(["write 0", "write 1", "flush", "flush"])
ENDS = st.sampled_from(["commit", "abort", "leave", "raise", "expire"])
COMMIT = 7  # the number of the request for the commit after one write


@settings(max_examples=examples(400), deadline=None)
@example(["write 0"], ["commit", "expire"], {COMMIT: "answer"}, None, 0)
@example(["write 0"], ["commit", "abort"], {COMMIT: "late"}, None, 0)
@example(["write 0"], ["commit", "abort"], {COMMIT: "request"}, None, 0)
@given(
    st.lists(STEPS, max_size=8),
    st.lists(ENDS, min_size=1, max_size=3),
    FATES,
    st.one_of(st.none(), st.integers(0, 80)),
    st.sampled_from([0, 0.1, 3]),
)
def test_whatever_is_lost_late_or_cancelled_all_is_visible_or_nothing(
    steps, ends, fates, cancelled_at, deadline_s
):
    """And what the client says of the transaction is what readers see, also after requests that arrive late."""
    numbers, effects = itertools.count(), [0]

    def at_effect():
        effects[0] += 1
        if effects[0] == cancelled_at:
            txn.writing.cancel()

    broker = ModelBroker()
    shell = ModelShell(broker, lambda _key: fates.get(next(numbers)), at_effect)
    txn = Transaction(shell, deadline_s=deadline_s)
    written, aborted = [], []
    errors = {
        "leave": lambda: txn.writing.end_with_block(None),
        "raise": lambda: txn.writing.end_with_block(KeyError("mine")),
        "commit": txn.writing.commit,
        "abort": txn.writing.abort,
    }
    try:
        for step in steps:
            if step == "flush":
                shell.run(txn.writing.flush())
            else:
                value = b"%d" % len(written)
                txn.write(int(step[-1]), value)
                written.append(value)
    except (RefusedError, UnavailableError):
        pass
    for end in ends:
        try:
            if end == "expire":
                txn.writing.expire()
            else:
                shell.run(errors[end]())
        except UnavailableError as repeatable:
            aborted.append(repeatable)  # so the program writes the records again
        except (RefusedError, OutcomeUnknownError):
            pass
        _check(txn, broker, written)
    if cancelled_at is not None and cancelled_at <= effects[0]:
        shell.run(txn.writing.end_with_block(asyncio.CancelledError()))
        _check(txn, broker, written)
    # Whatever was in doubt is known once the broker answers again, and nothing changes it later.
    fates.clear()
    shell.arrive()
    txn.writing.cluster.allow_retries()
    txn.writing.cluster.deadline_s = 3
    if not txn.outcomes:
        try:
            shell.run(txn.writing.commit())
        except RefusedError as refused:
            assert refused.code is not ErrorCode.none  # noqa: PT017 - a success is possible, too
    shell.arrive()
    assert len(txn.outcomes) == 1
    _check(txn, broker, written)
    assert not (aborted and broker.visible), "the program has written them twice"


def _check(txn, broker, written):
    assert len(txn.outcomes) == len(txn.released) <= 1
    values = sorted(broker.visible.values())
    assert values in ([], sorted(written)), "a part of a transaction"
    for outcome in txn.outcomes:
        if isinstance(outcome, Committed):
            assert broker.visible == dict(zip(map(tuple, txn.positions()), written, strict=True))
        else:
            assert values == []


def test_the_batches_of_all_partitions_are_sent_in_one_request():
    shell = ModelShell(ModelBroker())
    txn = Transaction(shell)
    for number in range(6):
        txn.write(number % 2, b"%d" % number)
    shell.run(txn.writing.commit())
    assert shell.broker.asked.count(ApiKey.PRODUCE) == 1
    assert list(map(type, txn.outcomes)) == [Committed]
    assert shell.broker.visible == {tuple(one): b"%d" % n for n, one in enumerate(txn.positions())}


# -- the state of the transaction and of its key -----------------------------------------------------------------------


def written(shell=None, **settings):
    txn = Transaction(shell or ModelShell(ModelBroker()), **settings)
    txn.write(0, b"v")
    return txn


@pytest.mark.parametrize("end", ["late", "torn", "cancelled", "aborted", "another topic"])
def test_a_transaction_that_cannot_go_on_is_not_ready_for_a_record(end):
    txn = written()
    writing, now, topic = txn.writing, txn.shell.now, TOPIC
    assert writing.is_ready(TOPIC, now)
    match end:
        case "late":
            assert writing.is_ready(TOPIC, writing.deadline)
            now = writing.deadline + 1
        case "torn":
            writing.mark_interrupted()
        case "cancelled":
            writing.cancel()
        case "aborted":
            txn.shell.run(writing.abort())
        case _:
            topic = "another"
    assert not writing.is_ready(topic, now)


@pytest.mark.parametrize(("topic", "error"), [(5, TypeError), ("a b", UsageError)])
def test_a_topic_that_cannot_exist_is_refused_without_a_request(topic, error):
    shell = ModelShell(ModelBroker())
    with pytest.raises(error):
        shell.run(Transaction(shell).writing.make_ready(topic))
    assert shell.broker.asked == []


def test_a_transaction_that_is_open_for_too_long_is_aborted_by_the_next_call():
    txn = written()
    txn.shell.now = txn.writing.deadline + 1
    with pytest.raises(TransactionAbortedError, match="it was open for longer than its timeout of 1000 s"):
        txn.shell.run(txn.writing.flush())
    assert txn.writing.status == "aborted"


def test_the_state_in_words_has_the_commit_sequence_if_there_is_one():
    empty = Transaction(ModelShell(ModelBroker()))
    assert empty.writing.status == "open"
    empty.shell.run(empty.writing.commit())
    assert empty.writing.status == "committed"
    txn = written()
    txn.shell.run(txn.writing.commit())
    assert txn.writing.status == "committed as 1"
    assert not txn.writing.is_in_doubt


def test_an_abort_within_a_block_leaves_the_block_without_an_error():
    txn = written()
    txn.shell.run(txn.writing.abort())
    txn.shell.run(txn.writing.end_with_block(None))
    assert txn.shell.broker.visible == {}


def test_after_an_abort_the_key_waits_for_the_markers_and_no_bytes_of_records_are_kept():
    txn = written()
    txn.shell.run(txn.writing.flush())
    txn.write(0, b"unsent")
    kept = txn.writing.records.partitions[TOPIC, 0]
    txn.shell.run(txn.writing.abort())
    assert (txn.writing.is_key_free, txn.writing.key.may_be_ending) == (True, True)
    assert [batch.count for batch in kept.unsent] == [0]


def test_a_transaction_that_expires_leaves_its_key_to_wait_for_the_markers():
    txn = written()
    txn.shell.run(txn.writing.flush())
    txn.writing.expire()
    assert (txn.writing.is_key_free, txn.writing.key.may_be_ending) == (True, True)
    assert [type(one) for one in txn.outcomes] == [TransactionAbortedError]


def test_a_key_whose_producer_has_few_epochs_left_is_dropped(monkeypatch):
    monkeypatch.setattr(core, "EPOCH_MAX", 0)
    txn = written()
    txn.shell.run(txn.writing.commit())
    assert not txn.writing.is_key_free


def test_a_key_that_another_producer_uses_is_dropped():
    txn = written()
    shell, writing = txn.shell, txn.writing
    shell.run(writing.flush())
    other = BatchProducer(Cluster(ADDRESS), writing.transactional_id)
    shell.run(other.begin())
    txn.write(0, b"fenced")
    with pytest.raises(TransactionAbortedError):
        shell.run(writing.flush())
    assert not writing.is_key_free


def test_a_key_under_which_another_writer_has_committed_is_told():
    """A virtual machine was cloned with a running client."""
    shell = ModelShell(ModelBroker())
    first, second = (written(shell, key=WriterKey("", "same")) for _ in range(2))
    shell.run(first.writing.commit())
    with pytest.raises(
        TransactionAbortedError, match="another writer uses the key 'same' of this transaction"
    ):
        shell.run(second.writing.commit())
    assert len(shell.broker.visible) == 1
    assert [type(one) for one in second.outcomes] == [TransactionAbortedError]


def test_at_kafka_a_committed_key_waits_for_the_markers(monkeypatch):
    """Kafka responds to EndTxn before it has written them. A stablelog broker does not."""
    txn = written()
    txn.shell.run(txn.writing.commit())
    assert not txn.writing.key.may_be_ending
    monkeypatch.delitem(model_broker.SERVED, ApiKey.COMMIT_JOINT)
    monkeypatch.setitem(model_broker.SERVED, ApiKey.END_TXN, 5)
    txn = written(ModelShell(KafkaBroker()))
    txn.shell.run(txn.writing.commit())
    assert (txn.writing.status, txn.writing.is_key_free) == ("committed", True)
    assert txn.writing.key.may_be_ending


class KafkaBroker(ModelBroker):
    """A broker without joint commits."""

    def end_txn(self, request, response):
        return response(
            throttle_time=model_broker.NO_TIME,
            error_code=ErrorCode.none,
            producer_id=i64(request.producer_id),
            producer_epoch=i16(request.producer_epoch + 1),
        )


# -- a broker that does not answer -----------------------------------------------------------------------------------


def test_no_abort_is_requested_of_a_broker_that_does_not_respond():
    """The call would only wait twice as long."""
    is_silent = False
    txn = written(ModelShell(ModelBroker(), lambda key: "request" if is_silent and key is not None else None))
    txn.shell.run(txn.writing.flush())
    is_silent = True
    txn.write(0, b"lost")
    began = txn.shell.now
    with pytest.raises(TransactionAbortedError):
        txn.shell.run(txn.writing.flush())
    deadline_s = txn.writing.cluster.deadline_s
    assert deadline_s / 2 < txn.shell.now - began < 1.5 * deadline_s


def test_the_abort_of_a_cancelled_transaction_waits_for_a_moment_only():
    limits = []
    shell = ModelShell(ModelBroker(), at_effect=lambda: limits.append(txn.writing.cluster.until))
    txn = Transaction(shell)
    txn.write(0, b"v")
    shell.run(txn.writing.flush())
    txn.writing.cancel()
    limits.clear()
    shell.run(txn.writing.end_with_block(asyncio.CancelledError()))
    assert ApiKey.ABORT_JOINT in shell.broker.asked
    assert max(limit for limit in limits if limit is not None) <= shell.now + core.CANCEL_S


def test_a_commit_that_is_in_doubt_for_half_the_time_of_a_key_stays_so():
    lost = ["answer"]
    txn = written(
        ModelShell(ModelBroker(), lambda key: lost.pop() if lost and key == ApiKey.COMMIT_JOINT else None),
        deadline_s=0,
    )
    with pytest.raises(OutcomeUnknownError, match="Call commit"):
        txn.shell.run(txn.writing.commit())
    assert txn.writing.is_in_doubt
    assert not txn.writing.is_key_free
    txn.shell.now += RETENTION_S
    txn.shell.broker.commit_joint = lambda _request, response: response(
        error_code=ErrorCode.invalid_txn_state, error_message="the child is not open"
    )
    with pytest.raises(OutcomeUnknownError, match="the broker no longer knows the outcome"):
        txn.shell.run(txn.writing.commit())


def test_a_cancelled_transaction_tells_whether_it_was_cancelled_before_and_lets_later_calls_retry():
    txn = written()
    txn.shell.run(txn.writing.flush())
    assert [txn.writing.cancel() for _ in range(2)] == [True, False]
    assert txn.writing.cluster.are_retries_cancelled
    txn.shell.run(txn.writing.end_with_block(asyncio.CancelledError()))
    assert not txn.writing.cluster.are_retries_cancelled
    assert txn.writing.status == "aborted"


def test_a_topic_that_is_denied_is_told_with_the_group_of_the_transaction():
    class Denying(ModelBroker):
        def _append(self, _transactional_id, _partition, _records):
            return ErrorCode.topic_authorization_failed

    txn = written(ModelShell(Denying()), key=WriterKey("g"))
    with pytest.raises(RefusedError, match="the transaction was begun with group='g': appending to"):
        txn.shell.run(txn.writing.flush())


def test_a_cancelled_commit_in_doubt_can_be_repeated_with_retries():
    lost = (ApiKey.COMMIT_JOINT, ApiKey.ABORT_JOINT)
    is_silent = True
    txn = written(
        ModelShell(ModelBroker(), lambda key: "answer" if is_silent and key in lost else None), deadline_s=0
    )
    with pytest.raises(OutcomeUnknownError):
        txn.shell.run(txn.writing.commit())
    txn.writing.cancel()
    txn.shell.run(txn.writing.end_with_block(asyncio.CancelledError()))
    assert txn.writing.is_in_doubt
    assert not txn.writing.cluster.are_retries_cancelled


def test_a_committed_transaction_whose_records_are_removed_stays_committed(monkeypatch):
    def removed(*_arguments):
        raise DataLossError("the records are removed")
        yield

    monkeypatch.setattr(core, "find_offsets", removed)
    txn = written()
    for _ in range(2):
        with pytest.raises(DataLossError, match="the records are removed"):
            txn.shell.run(txn.writing.commit())
    assert txn.writing.status == "committed as 1"
    assert [type(one) for one in txn.outcomes] == [DataLossError]
    with pytest.raises(RefusedError, match="the transaction is committed"):
        txn.shell.run(txn.writing.abort())
