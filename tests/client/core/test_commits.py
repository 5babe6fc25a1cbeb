"""DescribeCommits: the bounds of transactions in a commit-ordered partition."""

import uuid

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.commits import Commit, Commits, commits_request, describe_commits
from stablelog.client.core.long_poll import WAIT_MAX_S
from stablelog.errors import RefusedError
from stablelog.wire.extension.commits import COUNT_MAX
from tests.client.core.scripted import NONE, Brokers, part, reply


def listed(*commits, code=NONE, message=None):
    """An answer with these (start, end, commit sequence, time)."""

    def answer(request):
        names = ("start_offset", "end_offset", "commit_sequence", "time_ms")
        return reply(
            request,
            error_code=code,
            error_message=message,
            topic_id=uuid.UUID(int=7),
            log_start_offset=2,
            end_offset=90,
            commits=tuple(
                part(request, "DescribedCommit", **dict(zip(names, one, strict=True))) for one in commits
            ),
        )

    return answer


def test_transactions_are_listed_by_the_leader_of_the_partition():
    brokers = Brokers({"DescribeCommits": listed((5, 8, 3, 1000), (8, 9, -1, 1001))}, {"t": 3})
    found = brokers.run(describe_commits(brokers.cluster(), "t", 1, offset=5, with_outside=True))
    assert found == Commits(uuid.UUID(int=7), 2, 90, (Commit(5, 8, 3, 1000), Commit(8, 9, -1, 1001)))
    ((host, request),) = brokers.requests("DescribeCommits")
    assert host == "two"
    assert (request.topic, request.partition_index, request.offset, request.with_outside) == ("t", 1, 5, True)


def test_a_request_asks_for_everything_from_the_beginning_by_default():
    request = commits_request("t", 0)
    assert (request.offset, request.commit_sequence, request.count_max) == (0, -1, COUNT_MAX)
    assert (request.with_outside, request.max_wait_ms) == (False, 0)


@pytest.mark.parametrize(
    ("wait_s", "wait_ms"), [(0, 0), (0.0001, 1), (0.5, 500), (1, 1000), (60, 1000 * WAIT_MAX_S)]
)
def test_the_broker_waits_for_whole_milliseconds_and_for_a_second_at_most(wait_s, wait_ms):
    assert commits_request("t", 0, wait_s=wait_s).max_wait_ms == wait_ms


def test_a_topic_that_is_not_commit_ordered_is_refused_with_the_brokers_words():
    answer = listed(code=ErrorCode.invalid_request, message="t is not commit-ordered")
    brokers = Brokers({"DescribeCommits": answer}, {"t": 1})
    with pytest.raises(RefusedError, match="t is not commit-ordered") as refused:
        brokers.run(describe_commits(brokers.cluster(), "t", 0))
    assert refused.value.code is ErrorCode.invalid_request
