"""The positions of a transaction's records after its commit."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as some
from kio.schema.errors import ErrorCode

from stablelog.client.core import positions
from stablelog.client.core.positions import NO_OFFSETS, BatchOffsets, SentBatches, offsets_after_commit
from stablelog.errors import DataLossError, RefusedError, UnavailableError
from tests.client.core.scripted import NONE, Brokers, part, reply

T0, T1 = ("t", 0), ("t", 1)
SENT = [SentBatches(T0, (0, 2), (70, 90), 5), SentBatches(T1, (0,), (30,), 1)]


@given(some.lists(some.tuples(some.integers(1, 4), some.integers(-1, 1000)), min_size=1, max_size=8))
def test_the_offset_of_a_record_is_counted_from_the_base_offset_of_its_batch(batches):
    firsts, bases, wanted = [], [], []
    for count, base in batches:
        firsts.append(len(wanted))
        bases.append(base)
        wanted += [base + number if base >= 0 else -1 for number in range(count)]
    offsets = BatchOffsets(firsts, bases)
    assert [offsets[number] for number in range(len(wanted))] == wanted


def test_unknown_offsets_are_minus_1():
    assert {NO_OFFSETS[number] for number in range(5)} == {-1}


def test_in_commit_order_the_records_of_a_transaction_follow_each_other():
    assert list(SENT[0].from_start(100)) == [100, 101, 102, 103, 104]


def test_in_another_topic_each_record_is_where_it_was_appended():
    offsets = SENT[0].as_appended()
    assert [offsets[number] for number in range(5)] == [70, 71, 90, 91, 92]


def starts(by_partition):
    """An answer: by partition an error code, or (start, commit sequence) of the only transaction; None for no transaction."""

    def answer(request):
        found = by_partition[request.partition_index]
        code = found if isinstance(found, ErrorCode) else NONE
        commits = ()
        if isinstance(found, tuple):
            start, sequence = found
            commits = (
                part(
                    request,
                    "DescribedCommit",
                    start_offset=start,
                    end_offset=start + 9,
                    commit_sequence=sequence,
                    time_ms=0,
                ),
            )
        return reply(
            request,
            error_code=code,
            topic_id=uuid.UUID(int=7),
            log_start_offset=0,
            end_offset=99,
            commits=commits,
        )

    return answer


def found(*answers, sent=SENT, topics=None):
    brokers = Brokers({"DescribeCommits": list(answers)}, topics or {"t": 2})
    offsets = brokers.run(offsets_after_commit(brokers.cluster(), 7, sent))
    counts = [one.record_count for one in sent]
    return [
        [at[number] for number in range(count)] for at, count in zip(offsets, counts, strict=True)
    ], brokers


def test_the_start_of_the_transaction_is_asked_of_each_partition_once():
    offsets, brokers = found(starts({0: (200, 7), 1: (300, 7)}))
    assert offsets == [[200, 201, 202, 203, 204], [300]]
    requests = brokers.requests("DescribeCommits")
    assert [(request.commit_sequence, request.count_max) for _, request in requests] == [(7, 1)] * 2


def test_a_topic_that_is_not_commit_ordered_has_its_records_where_they_were_appended():
    offsets, _ = found(starts({0: ErrorCode.invalid_request, 1: (300, 7)}))
    assert offsets == [[70, 71, 90, 91, 92], [300]]
    offsets, _ = found(starts({0: ErrorCode.invalid_request}), sent=SENT[:1])
    assert offsets == [[70, 71, 90, 91, 92]]


def test_without_the_right_to_read_the_positions_are_unknown_and_the_commit_holds():
    offsets, _ = found(starts({0: ErrorCode.topic_authorization_failed, 1: (300, 7)}))
    assert offsets == [[-1] * 5, [300]]


def test_a_marker_that_is_not_durable_yet_is_waited_for():
    offsets, brokers = found(starts({0: None}), starts({0: (200, 7)}), sent=SENT[:1])
    assert offsets == [[200, 201, 202, 203, 204]]
    assert len(brokers.requests("DescribeCommits")) == 2


def test_after_the_deadline_it_is_unknown_where_the_records_are_and_known_that_they_are_committed():
    def late(request):
        brokers.now += 3
        return starts({0: None})(request)

    brokers = Brokers({"DescribeCommits": late}, {"t": 2})
    with pytest.raises(
        UnavailableError,
        match=r"^the positions of the records of commit 7 in t-0 are unknown: .* its commit marker is not durable",
    ):
        brokers.run(offsets_after_commit(brokers.cluster(), 7, SENT[:1]))


def test_records_that_were_removed_meanwhile_are_lost():
    with pytest.raises(
        DataLossError,
        match=r"^the positions of the records of commit 7 in t-0 are unknown, because the records were removed before their positions were read",
    ):
        found(starts({0: (200, 8), 1: (300, 7)}))


def test_a_topic_that_was_deleted_meanwhile_is_named():
    with pytest.raises(
        DataLossError,
        match=r"^the positions of the records of commit 7 in t-0 are unknown, because the topic was deleted after",
    ):
        found(starts({0: ErrorCode.unknown_topic_or_partition}), sent=SENT[:1])


def test_another_refusal_is_that_of_the_broker():
    with pytest.raises(RefusedError) as refused:
        found(starts({0: ErrorCode.cluster_authorization_failed}), sent=SENT[:1])
    assert refused.value.code is ErrorCode.cluster_authorization_failed


def test_many_partitions_are_asked_for_in_several_groups(monkeypatch):
    monkeypatch.setattr(positions, "AT_ONCE_MAX", 2)
    sent = [SentBatches(("t", index), (0,), (0,), 1) for index in range(9)]
    offsets, brokers = found(
        starts({index: (100 + index, 7) for index in range(9)}), sent=sent, topics={"t": 9}
    )
    assert offsets == [[100 + index] for index in range(9)]
    assert len(brokers.requests("DescribeCommits")) == 9
