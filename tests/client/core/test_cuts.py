"""DescribeCut: for each partition the offset before which it has all commits up to a commit sequence."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.cuts import Cut, PendingMarker, describe_cut
from stablelog.errors import RefusedError
from stablelog.wire.extension.cut import NOT_KNOWN, RESOLVED
from tests.client.core.scripted import NONE, Brokers, part, reply


def cut(request):
    def partition(index, offset, removed, torn):
        return part(
            request,
            "CutPartition",
            partition_index=index,
            offset=offset,
            removed_commit_sequence=removed,
            torn_commit_sequence=torn,
        )

    holder = part(request, "CutHolder", commit_sequence=6, transactional_id="x", topic="t", partition_index=1)
    topic = part(request, "CutTopic", name="t", partitions=(partition(0, 10, -1, -1), partition(1, 20, 3, 2)))
    return reply(
        request,
        error_code=NONE,
        group="g",
        commit_sequence=5,
        last_commit_sequence=7,
        holders=(holder,),
        topics=(topic,),
    )


def test_a_cut_has_an_offset_for_each_partition_and_names_the_markers_that_are_not_durable():
    brokers = Brokers({"DescribeCut": cut}, {"t": 2})
    assert brokers.run(describe_cut(brokers.cluster(), ["t"])) == Cut(
        "g",
        5,
        {("t", 0): 10, ("t", 1): 20},
        7,
        (PendingMarker(6, "x", "t", 1),),
        {("t", 0): -1, ("t", 1): 3},
        {("t", 0): -1, ("t", 1): 2},
    )


def test_by_default_it_is_the_last_resolved_cut_of_the_group_of_the_topics():
    brokers = Brokers({"DescribeCut": cut}, {"t": 2})
    brokers.run(describe_cut(brokers.cluster(), iter(["t", "u"])))
    request = brokers.request("DescribeCut")
    assert (request.group, request.commit_sequence, request.topics) == (None, RESOLVED, ("t", "u"))


def test_a_cut_that_is_not_resolved_is_refused():
    def refuse(request):
        return reply(request, error_code=ErrorCode.invalid_request, error_message="9 is not resolved")

    brokers = Brokers({"DescribeCut": refuse}, {"t": 2})
    with pytest.raises(RefusedError, match="9 is not resolved"):
        brokers.run(describe_cut(brokers.cluster(), ["t"], 9, group="g"))
    assert brokers.request("DescribeCut").commit_sequence == 9


@pytest.mark.parametrize(("removed", "after"), [([], 0), ([-1, -1], 0), ([-1, 3, 2], 3), ([NOT_KNOWN, 3], 5)])
def test_transactions_are_whole_after_the_greatest_that_may_have_lost_records(removed, after):
    found = Cut("", 5, {}, 5, (), {("t", number): one for number, one in enumerate(removed)}, {})
    assert found.whole_after() == after
