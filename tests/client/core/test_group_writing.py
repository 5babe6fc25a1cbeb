"""Offsets of a consumer group in the transaction of a producer: what the coordinator gets, and what it refuses."""

from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.group_writing import GroupWriting, add_offsets
from stablelog.client.core.keys import WriterKey
from stablelog.errors import OutcomeUnknownError, RefusedError, TransactionAbortedError, UnavailableError
from stablelog.wire.api import ApiKey
from tests.client import model_broker
from tests.client.core.scripted import NONE, Brokers, part, reply
from tests.client.model_broker import ADDRESS, NO_TIME, TOPIC, ModelBroker, ModelShell

OFFSETS = {("t", 0): 5, ("t", 1): 7}
MEMBER = SimpleNamespace(group_id="g", epoch=3, member_id="m", instance_id="i")


def committed(*codes):
    """An answer with these error codes, for the partitions of the request in their order."""

    def answer(request):
        (topic,) = request.topics
        partitions = tuple(
            part(
                request,
                "TxnOffsetCommitResponsePartition",
                partition_index=one.partition_index,
                error_code=code,
            )
            for one, code in zip(topic.partitions, codes, strict=True)
        )
        return reply(
            request,
            topics=(part(request, "TxnOffsetCommitResponseTopic", name=topic.name, partitions=partitions),),
        )

    return answer


def added(*codes):
    return [lambda request, code=code: reply(request, error_code=code) for code in codes]


def add(answers, *, is_tv2=True):
    brokers = Brokers(answers)
    producer = SimpleNamespace(producer_id=41, producer_epoch=2, is_tv2=is_tv2)
    brokers.run(add_offsets(brokers.cluster(), "x", producer, MEMBER, OFFSETS, {("t", 1): "seek:1"}))
    return brokers


def test_offsets_are_written_with_the_member_and_the_producer():
    request = add({"TxnOffsetCommit": committed(NONE, NONE)}).request("TxnOffsetCommit")
    assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("x", 41, 2)
    assert (request.group_id, request.generation_id, request.member_id, request.group_instance_id) == (
        "g",
        3,
        "m",
        "i",
    )
    found = [
        (one.partition_index, one.committed_offset, one.committed_metadata)
        for one in request.topics[0].partitions
    ]
    assert found == [(0, 5, None), (1, 7, "seek:1")]


def test_in_the_first_transaction_version_the_group_is_added_before():
    brokers = add(
        {
            "AddOffsetsToTxn": added(ErrorCode.concurrent_transactions, NONE),
            "TxnOffsetCommit": committed(NONE, NONE),
        },
        is_tv2=False,
    )
    first, second = (request for _, request in brokers.requests("AddOffsetsToTxn"))
    assert first == second
    assert (first.transactional_id, first.group_id, first.producer_epoch) == ("x", "g", 2)
    assert brokers.request("TxnOffsetCommit").__version__ == 4


def test_a_transaction_that_is_refused_the_group_is_named():
    with pytest.raises(
        RefusedError, match=r"^adding offsets to the transaction of x failed: producer_fenced"
    ):
        add({"AddOffsetsToTxn": added(ErrorCode.producer_fenced)}, is_tv2=False)


def test_only_offsets_that_were_not_accepted_are_written_again():
    brokers = add(
        {"TxnOffsetCommit": [committed(NONE, ErrorCode.coordinator_load_in_progress), committed(NONE)]}
    )
    first, second = (request for _, request in brokers.requests("TxnOffsetCommit"))
    assert [one.partition_index for one in first.topics[0].partitions] == [0, 1]
    assert [one.partition_index for one in second.topics[0].partitions] == [1]


@pytest.mark.parametrize("code", [ErrorCode.unknown_member_id, ErrorCode.stale_member_epoch])
def test_a_member_that_was_replaced_aborts_the_transaction(code):
    """Another member reads the records again."""
    with pytest.raises(
        TransactionAbortedError,
        match=rf"group 'g' for t-1 to the transaction failed: {code.name}: the group has replaced this member",
    ) as aborted:
        add({"TxnOffsetCommit": committed(NONE, code)})
    assert aborted.value.code is code


def test_another_refusal_names_the_partition():
    with pytest.raises(
        RefusedError, match="group 'g' for t-0 to the transaction failed: offset_metadata_too_large"
    ) as refused:
        add({"TxnOffsetCommit": committed(ErrorCode.offset_metadata_too_large, NONE)})
    assert not isinstance(refused.value, TransactionAbortedError)


def test_a_coordinator_that_stays_away_ends_the_call_at_the_deadline():
    with pytest.raises(
        UnavailableError, match=r"^adding offsets to the transaction did not succeed within 5 s"
    ):
        add({"TxnOffsetCommit": committed(*[ErrorCode.coordinator_load_in_progress] * 2)})


# -- the transaction -------------------------------------------------------------------------------------------------


class GroupBroker(ModelBroker):
    """A broker that takes offsets into transactions.

    Attributes:
        offsets: the offsets of all requests.
    """

    def __init__(self):
        super().__init__()
        self.offsets = {}

    def txn_offset_commit(self, request, response):
        from kio.schema.txn_offset_commit.v5.response import (
            TxnOffsetCommitResponsePartition,
            TxnOffsetCommitResponseTopic,
        )

        self.open_transaction(request.transactional_id)
        for topic in request.topics:
            self.offsets |= {
                (topic.name, one.partition_index): one.committed_offset for one in topic.partitions
            }
        topics = tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(partition_index=one.partition_index, error_code=NONE)
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        )
        return response(throttle_time=NO_TIME, topics=topics)


class FakeReading:
    """A reader of a group with offsets to commit.

    Attributes:
        ended: the offsets that each end of the transaction has committed; None for none.
    """

    member = MEMBER

    def __init__(self, offsets):
        self.offsets, self.ended = offsets, []

    def offsets_to_commit(self, _writer):
        return self.offsets

    def seek_tokens(self):
        return {}

    def end_transaction(self, _writer, committed):
        self.ended.append(committed)


class GroupTransaction:
    def __init__(self, offsets=OFFSETS, fate=lambda _key: None, deadline_s=3):
        self.broker, self.reading = GroupBroker(), FakeReading(offsets)
        self.shell = ModelShell(self.broker, fate)
        self.writing = GroupWriting(
            self.reading,
            Cluster(ADDRESS, deadline_s=deadline_s),
            key=WriterKey(""),
            timeout_s=1000,
            now=0,
            on_end=lambda _: None,
            release=lambda _: None,
        )

    def write(self):
        self.shell.run(self.writing.make_ready(TOPIC))
        self.writing.records.add_record(TOPIC, b"v", None, (), 0, 0)


@pytest.fixture(autouse=True)
def with_offsets(monkeypatch):
    monkeypatch.setitem(model_broker.SERVED, ApiKey.TXN_OFFSET_COMMIT, 5)


@pytest.mark.parametrize("has_records", [True, False])
def test_a_commit_has_the_offsets_of_the_reader_with_or_without_records(has_records):
    txn = GroupTransaction()
    if has_records:
        txn.write()
    assert txn.shell.run(txn.writing.commit()).commit_sequence == 1
    assert txn.broker.offsets == OFFSETS
    assert len(txn.broker.visible) == has_records
    assert set(map(str, txn.reading.ended)) == {str(OFFSETS)}


def test_a_transaction_without_records_and_offsets_asks_no_broker():
    txn = GroupTransaction({})
    assert txn.shell.run(txn.writing.commit()).commit_sequence == -1
    assert txn.broker.asked == []
    assert {} in txn.reading.ended


def test_after_an_abort_the_reader_has_committed_nothing():
    txn = GroupTransaction()
    txn.shell.run(txn.writing.flush())
    txn.shell.run(txn.writing.abort())
    assert set(txn.reading.ended) == {None}


def test_the_reader_learns_of_an_abort_that_came_by_itself_and_again_when_the_program_does():
    txn = GroupTransaction()
    txn.write()
    txn.writing.expire()
    assert txn.reading.ended == [None]
    for call in (txn.writing.flush, txn.writing.commit):
        before = len(txn.reading.ended)
        with pytest.raises(TransactionAbortedError):
            txn.shell.run(call())
        assert len(txn.reading.ended) > before
    assert set(txn.reading.ended) == {None}


@pytest.mark.parametrize("end", ["commit", "abort", "leave the block"])
def test_the_reader_goes_back_while_the_outcome_is_unknown(end):
    txn = GroupTransaction(
        fate=lambda key: "request" if key in (ApiKey.COMMIT_JOINT, ApiKey.ABORT_JOINT) else None,
        deadline_s=0.2,
    )
    txn.write()
    with pytest.raises(OutcomeUnknownError):
        txn.shell.run(txn.writing.commit())
    assert txn.reading.ended == [None]
    steps = {
        "commit": txn.writing.commit,
        "abort": txn.writing.abort,
        "leave the block": lambda: txn.writing.end_with_block(None),
    }[end]
    with pytest.raises(OutcomeUnknownError):
        txn.shell.run(steps())
    assert len(txn.reading.ended) > 1
    assert set(txn.reading.ended) == {None}
