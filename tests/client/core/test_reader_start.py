"""Where a reader of transactions begins, and which starts are refused because transactions were removed."""

import pytest

from stablelog.client.core.cuts import Cut
from stablelog.client.core.read_position import UNKNOWN, Mark, ReadPosition
from stablelog.client.core.reader_start import (
    check_nothing_removed,
    mark_in,
    place_in_cut,
    start_of_cuts,
    start_of_partitions,
)
from stablelog.errors import DataLossError, UsageError
from stablelog.wire.extension.cut import NOT_KNOWN, CutPartition, CutTopic
from tests.client.core.scripted import NONE, Brokers, reply

T0, T1 = ("t", 0), ("t", 1)


def cut(removed=-1, torn=-1, commit_sequence=10, last=12):
    return Cut("g", commit_sequence, {T0: 50, T1: 60}, last, (), {T0: removed, T1: -1}, {T0: torn, T1: -1})


def position(marks, commit_sequence=0):
    return ReadPosition(None, False, None, commit_sequence, {"t": None}, marks)


# --- a commit sequence in a cut ---


def test_a_reader_of_cuts_begins_after_its_commit_sequence_up_to_the_last_one():
    assert [place_in_cut(after, cut(removed=3)) for after in (3, 10, 12)] == [3, 10, 12]
    assert place_in_cut(position({}, 5), cut()) == 5
    with pytest.raises(DataLossError, match="there is no commit 13: the last one is 12"):
        place_in_cut(13, cut())


@pytest.mark.parametrize(("removed", "after"), [(-1, 0), (4, 4), (NOT_KNOWN, 10)])
def test_the_beginning_is_after_the_transactions_that_have_lost_records(removed, after):
    assert place_in_cut(0, cut(removed)) == after


def test_a_start_before_removed_transactions_is_refused():
    check_nothing_removed(cut(removed=4), 4)
    with pytest.raises(
        DataLossError, match=r"sequence 3 .* may have been removed: only after 4 are all transactions whole"
    ):
        check_nothing_removed(cut(removed=4), 3)
    # Transactions after the cut are not read yet.
    check_nothing_removed(cut(removed=12), 10)


# --- the mark of one partition in a position ---


def test_a_partition_that_was_added_later_begins_at_its_beginning():
    assert mark_in(position({}), T0, cut()) == Mark(UNKNOWN, 0)


def test_a_mark_before_a_torn_transaction_is_refused():
    mark = Mark(40, 5)
    for torn in (-1, 4, 5):
        assert mark_in(position({T0: mark}), T0, cut(NOT_KNOWN, torn)) == mark
    with pytest.raises(
        DataLossError,
        match="up to commit sequence 6 were removed from t-0, but the position is after commit 5",
    ):
        mark_in(position({T0: mark}), T0, cut(NOT_KNOWN, 6))
    unsequenced = Mark(40, 0)
    assert mark_in(position({T0: unsequenced}), T0, cut(NOT_KNOWN, 6)) == unsequenced


@pytest.mark.parametrize(
    ("removed", "sequence", "offset"),
    [(5, 5, UNKNOWN), (4, 5, UNKNOWN), (6, 5, 40), (NOT_KNOWN, 5, 40), (-1, 5, UNKNOWN), (-1, 0, 40)],
)
def test_an_offset_does_not_matter_if_no_later_transaction_was_removed(removed, sequence, offset):
    assert mark_in(position({T0: Mark(40, sequence)}), T0, cut(removed)) == Mark(offset, sequence)


# --- requests ---


def cut_response(request):
    found = cut()
    partitions = tuple(
        CutPartition(
            partition_index=index,
            offset=found.offsets["t", index],
            removed_commit_sequence=-1,
            torn_commit_sequence=-1,
        )
        for index in (0, 1)
    )
    return reply(
        request,
        error_code=NONE,
        group="g",
        commit_sequence=10,
        last_commit_sequence=12,
        topics=(CutTopic(name="t", partitions=partitions),),
    )


@pytest.fixture
def brokers():
    return Brokers({"DescribeCut": cut_response}, {"t": 2})


def partitions(brokers, start, sought=()):
    steps = start_of_partitions(brokers.cluster(), ("t",), None, start, sought)
    return brokers.run(steps)[1]


def test_new_commits_begin_at_the_cut(brokers):
    marks = {T0: Mark(50, 10), T1: Mark(60, 10)}
    assert partitions(brokers, None) == marks
    begun = brokers.run(start_of_cuts(brokers.cluster(), ("t",), None, None))
    assert (begun.after, begun.marks, begun.cut.group) == (10, marks, "g")


def test_the_beginning_of_partitions_needs_no_cut(brokers):
    assert partitions(brokers, 0) == dict.fromkeys((T0, T1), Mark(UNKNOWN, 0))
    assert brokers.requests("DescribeCut") == []


def test_all_partitions_of_a_cut_begin_after_the_same_commit(brokers):
    begun = brokers.run(start_of_cuts(brokers.cluster(), ("t",), None, 7))
    assert (begun.after, begun.marks) == (7, dict.fromkeys((T0, T1), Mark(UNKNOWN, 7)))
    assert begun.topics["t"].partitions.keys() == {0, 1}


def test_a_commit_sequence_has_no_meaning_for_several_partitions_that_are_read_separately(brokers):
    with pytest.raises(
        UsageError,
        match=r"the commit sequence 7 \(the number of a commit\) is no position in the 2 partitions of t",
    ):
        partitions(brokers, 7)


def test_the_marks_of_partitions_that_a_seek_moves_do_not_matter(brokers):
    """They are not compared with the log, which may lack the records before them."""
    start = position({T0: Mark(40, 0, 3), T1: Mark(30, 0)})
    assert partitions(brokers, start, {T0}) == {T0: Mark(UNKNOWN, 0), T1: Mark(30, 0)}
    assert brokers.requests("OffsetForLeaderEpoch") == []
