"""Where a reader of transactions begins after a seek: at an offset of a partition, or at a time."""

import uuid

import pytest

from stablelog.client.core.seeking import check_offsets, offsets_since
from stablelog.errors import OffsetOutOfRangeError
from tests.client.core.leader_answers import listed_offsets
from tests.client.core.scripted import NONE, Brokers, part, reply

TOPICS = {"t": 2}
START, END = 10, 90


def listed(by_time):
    """An answer to ListOffsets: the start and the end of each partition, or the first offset at or after a time."""
    return listed_offsets(
        lambda _, time: {-2: START, -1: END}.get(time, by_time), timestamp=-1, leader_epoch=0
    )


def commits(*rows, at_once=2):
    """An answer to DescribeCommits with the first of these (start, end, commit sequence, time) that end after an offset."""

    def answer(request):
        found = [row for row in rows if row[1] > request.offset][:at_once]
        names = ("start_offset", "end_offset", "commit_sequence", "time_ms")
        return reply(
            request,
            error_code=NONE,
            topic_id=uuid.UUID(int=7),
            log_start_offset=START,
            end_offset=END,
            commits=tuple(
                part(request, "DescribedCommit", **dict(zip(names, row, strict=True))) for row in found
            ),
        )

    return answer


def since(time_ms, by_time, *rows):
    brokers = Brokers({"ListOffsets": listed(by_time), "DescribeCommits": commits(*rows)}, TOPICS)
    found = brokers.run(offsets_since(brokers.cluster(), iter([("t", 0)]), time_ms))
    return found["t", 0], brokers


ROWS = [(20, 30, 1, 1000), (30, 40, 2, 2000), (50, 60, 3, 3000), (60, 70, 4, 3000)]


@pytest.mark.parametrize(
    ("time_ms", "found"), [(500, (20, 1)), (1000, (20, 1)), (1001, (30, 2)), (3000, (50, 3))]
)
def test_a_time_means_the_first_commit_at_or_after_it(time_ms, found):
    """The broker finds the first record of the time, which may be one outside transactions: the commits are looked through."""
    assert since(time_ms, 15, *ROWS)[0] == found


def test_commits_are_listed_in_several_requests_if_there_are_many():
    found, brokers = since(3000, 15, *ROWS)
    assert found == (50, 3)
    assert [request.offset for _, request in brokers.requests("DescribeCommits")] == [15, 40]


def test_without_a_commit_of_the_time_the_reader_begins_at_the_end():
    assert since(9999, -1)[0] == (END, None), "no record is as late"
    assert since(9999, 15, *ROWS)[0] == (END, None), "only records outside transactions are as late"


def test_the_end_is_asked_for_before_the_time_so_that_a_commit_in_between_is_read():
    _, brokers = since(9999, -1)
    times = [request.topics[0].partitions[0].timestamp for _, request in brokers.requests("ListOffsets")]
    assert times == [-1, 9999]


def check(offset):
    brokers = Brokers({"ListOffsets": listed(0)}, TOPICS)
    brokers.run(check_offsets(brokers.cluster(), {("t", 0): START, ("t", 1): offset}))


@pytest.mark.parametrize("offset", [START, START + 1, END])
def test_an_offset_between_the_start_and_the_end_can_be_sought(offset):
    check(offset)


@pytest.mark.parametrize("offset", [START - 1, END + 1, -1])
def test_another_offset_is_refused_with_the_bounds_of_its_partition(offset):
    with pytest.raises(
        OffsetOutOfRangeError, match=rf"^t-1 has no offset {offset}: it begins at 10 and ends at 90$"
    ):
        check(offset)
