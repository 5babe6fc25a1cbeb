"""Transactions: list, describe, find and abort them."""

from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.admin.transactions import (
    ActiveProducer,
    DescribedTransaction,
    ListedTransaction,
    abort_hanging,
    abort_transaction,
    describe_producers,
    describe_transaction,
    list_transactions,
)
from stablelog.errors import RefusedError, UnavailableError, UsageError
from tests.client.core.scripted import NONE, Brokers, part, reply

TOPICS = {"t": 4}


def listed(*names, unknown=()):
    def answer(request):
        return reply(
            request,
            error_code=NONE,
            unknown_state_filters=unknown,
            transaction_states=tuple(
                part(
                    request,
                    "TransactionState",
                    transactional_id=name,
                    producer_id=7,
                    transaction_state="Ongoing",
                )
                for name in names
            ),
        )

    return answer


def test_every_broker_is_asked_for_its_transactions():
    brokers = Brokers({"ListTransactions": [listed("b"), listed("c"), listed("a")]})
    found = brokers.run(list_transactions(brokers.cluster(), states=["Ongoing"], longer_than_ms=5))
    assert found == [ListedTransaction(name, 7, "Ongoing") for name in "abc"]
    assert [host for host, _ in brokers.requests("ListTransactions")] == ["one", "two", "three"]
    request = brokers.requests("ListTransactions")[0][1]
    assert (request.state_filters, request.duration_filter) == (("Ongoing",), 5)


def test_a_state_that_does_not_exist_is_refused_with_those_that_do():
    brokers = Brokers({"ListTransactions": listed(unknown=("Sleeping",))})
    with pytest.raises(UsageError, match=r"^there is no state Sleeping: the states are Empty, Ongoing, "):
        brokers.run(list_transactions(brokers.cluster(), states=["Sleeping"]))


def described(state="Ongoing", timeout_s=60, code=NONE, started_ms=1000):
    def answer(request):
        one = part(
            request,
            "TransactionState",
            error_code=code,
            transactional_id="x",
            transaction_state=state,
            transaction_timeout=timedelta(seconds=timeout_s),
            transaction_start_time=started_ms,
            producer_id=7,
            producer_epoch=3,
            topics=(part(request, "TopicData", topic="t", partitions=(0, 2)),),
        )
        return reply(request, transaction_states=(one,))

    return answer


def test_the_coordinator_describes_a_transactional_id():
    brokers = Brokers({"DescribeTransactions": described()})
    found = brokers.run(describe_transaction(brokers.cluster(), "x"))
    assert found == DescribedTransaction("x", "Ongoing", 7, 3, 60_000, 1000, (("t", 0), ("t", 2)))


def test_an_id_that_is_not_known_is_named():
    brokers = Brokers({"DescribeTransactions": described(code=ErrorCode.transactional_id_not_found)})
    with pytest.raises(RefusedError, match=r"^transactional id 'x': transactional id not found"):
        brokers.run(describe_transaction(brokers.cluster(), "x"))


def producers(*open_at, code=NONE):
    """An answer with a producer for each of these first offsets of its open transaction; -1 for none."""

    def answer(request):
        def partition(index):
            return part(
                request,
                "PartitionResponse",
                partition_index=index,
                error_code=code,
                active_producers=tuple(
                    part(
                        request,
                        "ProducerState",
                        producer_id=number,
                        producer_epoch=2,
                        last_sequence=9,
                        last_timestamp=1000,
                        coordinator_epoch=-1,
                        current_txn_start_offset=offset,
                    )
                    for number, offset in enumerate(open_at)
                ),
            )

        topics = tuple(
            part(
                request,
                "TopicResponse",
                name=topic.name,
                partitions=tuple(map(partition, topic.partition_indexes)),
            )
            for topic in request.topics
        )
        return reply(request, topics=topics)

    return answer


def test_the_leaders_tell_the_producers_of_partitions():
    brokers = Brokers({"DescribeProducers": producers(5, -1)}, TOPICS)
    known = [ActiveProducer(0, 2, 9, 1000, -1, 5), ActiveProducer(1, 2, 9, 1000, -1, -1)]
    assert brokers.run(describe_producers(brokers.cluster(), iter([("t", 0), ("t", 1)]))) == {
        ("t", 0): known,
        ("t", 1): known,
    }
    assert [host for host, _ in brokers.requests("DescribeProducers")] == ["one", "two"]


def test_a_partition_that_may_not_be_read_is_named():
    brokers = Brokers({"DescribeProducers": producers(code=ErrorCode.topic_authorization_failed)}, TOPICS)
    with pytest.raises(RefusedError, match=r"^the producers of t-0: this user lacks a right to the topic"):
        brokers.run(describe_producers(brokers.cluster(), [("t", 0)]))


def initialized(code=NONE):
    return lambda request: reply(request, error_code=code, producer_id=7, producer_epoch=4)


@pytest.mark.parametrize(("timeout_s", "asked_s"), [(5, 5), (60, 60), (900, 60)])
def test_an_open_transaction_is_aborted_by_a_later_producer_with_a_timeout_that_the_broker_accepts(
    timeout_s, asked_s
):
    answers = {"DescribeTransactions": described(timeout_s=timeout_s), "InitProducerId": initialized()}
    brokers = Brokers(answers)
    brokers.run(abort_transaction(brokers.cluster(), "x"))
    request = brokers.request("InitProducerId")
    assert (request.transactional_id, request.transaction_timeout) == ("x", timedelta(seconds=asked_s))


def test_an_id_without_an_open_transaction_is_refused_with_its_state_and_its_producer_lives_on():
    brokers = Brokers({"DescribeTransactions": described("CompleteCommit")})
    with pytest.raises(
        RefusedError, match=r"^the transactional id x has no open transaction: its state is CompleteCommit"
    ) as refused:
        brokers.run(abort_transaction(brokers.cluster(), "x"))
    assert refused.value.code is ErrorCode.invalid_txn_state
    assert not brokers.requests("InitProducerId")


def test_a_transaction_that_is_being_ended_is_waited_for():
    answers = {
        "DescribeTransactions": described(),
        "InitProducerId": [initialized(ErrorCode.concurrent_transactions), initialized()],
    }
    brokers = Brokers(answers)
    brokers.run(abort_transaction(brokers.cluster(), "x"))
    assert len(brokers.requests("InitProducerId")) == 2


def marked(*codes):
    def answer(request):
        markers = tuple(
            part(
                request,
                "WritableTxnMarkerResult",
                producer_id=1,
                topics=(
                    part(
                        request,
                        "WritableTxnMarkerTopicResult",
                        name="t",
                        partitions=(
                            part(
                                request,
                                "WritableTxnMarkerPartitionResult",
                                partition_index=1,
                                error_code=code,
                            ),
                        ),
                    ),
                ),
            )
            for code in codes
        )
        return reply(request, markers=markers)

    return answer


def test_a_hanging_transaction_is_aborted_by_a_marker_to_the_leader():
    answers = {"DescribeProducers": producers(3, 5, -1), "WriteTxnMarkers": marked(NONE)}
    brokers = Brokers(answers, TOPICS)
    brokers.run(abort_hanging(brokers.cluster(), "t", 1, 5))
    ((host, request),) = brokers.requests("WriteTxnMarkers")
    (marker,) = request.markers
    assert host == "two"
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (1, 2, False)
    assert marker.coordinator_epoch == 0, "no marker of the producer is there"
    assert [(one.name, one.partition_indexes) for one in marker.topics] == [("t", (1,))]


@pytest.mark.parametrize(("open_at", "starts"), [((7, 3, -1), "3, 7"), ((-1,), "none")])
def test_another_offset_is_refused_with_those_of_open_transactions(open_at, starts):
    brokers = Brokers({"DescribeProducers": producers(*open_at)}, TOPICS)
    with pytest.raises(
        RefusedError, match=f"^no transaction is open in t-1 from offset 5; open ones begin at: {starts}$"
    ):
        brokers.run(abort_hanging(brokers.cluster(), "t", 1, 5))


def test_a_marker_that_is_refused_or_not_answered_for_is_named():
    answers = {"DescribeProducers": producers(5), "WriteTxnMarkers": marked(ErrorCode.invalid_producer_epoch)}
    brokers = Brokers(answers, TOPICS)
    with pytest.raises(RefusedError, match=r"^ending the transaction at t-1@5: invalid producer epoch"):
        brokers.run(abort_hanging(brokers.cluster(), "t", 1, 5))
    brokers = Brokers({"DescribeProducers": producers(5), "WriteTxnMarkers": marked()}, TOPICS)
    with pytest.raises(UnavailableError, match="two:9092 did not answer for the partition t-1"):
        brokers.run(abort_hanging(brokers.cluster(), "t", 1, 5))
