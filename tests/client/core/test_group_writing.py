"""Offsets of a consumer group in the transaction of a producer: what the coordinator gets, and what it refuses."""

from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.group_writing import add_offsets
from stablelog.errors import RefusedError, TransactionAbortedError, UnavailableError
from tests.client.core.scripted import NONE, Brokers, part, reply

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
    with pytest.raises(RefusedError, match=r"^adding offsets to the transaction of x: producer_fenced"):
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
        TransactionAbortedError, match=rf"group 'g', t-1: {code.name}: the group has replaced this member"
    ) as aborted:
        add({"TxnOffsetCommit": committed(NONE, code)})
    assert aborted.value.code is code


def test_another_refusal_names_the_partition():
    with pytest.raises(RefusedError, match="group 'g', t-0: offset_metadata_too_large") as refused:
        add({"TxnOffsetCommit": committed(ErrorCode.offset_metadata_too_large, NONE)})
    assert not isinstance(refused.value, TransactionAbortedError)


def test_a_coordinator_that_stays_away_ends_the_call_at_the_deadline():
    with pytest.raises(
        UnavailableError, match=r"^adding offsets to the transaction did not succeed within 5 s"
    ):
        add({"TxnOffsetCommit": committed(*[ErrorCode.coordinator_load_in_progress] * 2)})
