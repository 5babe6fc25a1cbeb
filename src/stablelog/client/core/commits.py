"""Requests for the bounds of transactions in a commit-ordered partition (DescribeCommits): between which positions the
records of each transaction are.
"""

import uuid
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from kio.static.primitive import i32, i64

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.extension import request_about_topics
from stablelog.client.core.long_poll import WAIT_MAX_S
from stablelog.client.core.steps import Steps
from stablelog.wire.extension.commits import COUNT_MAX, DescribeCommitsRequest


class Commit(NamedTuple):
    """A committed transaction in one partition. Its records have the positions (offsets in commit order) from
    `start_offset` to before `end_offset`.

    `commit_sequence` is the number of the commit in its transaction group, the topics whose commits have one order. If
    it is -1, this is no transaction, and the positions are those of adjacent records outside transactions.
    """

    start_offset: int
    end_offset: int
    commit_sequence: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Commits:
    """The response to `describe_commits`.

    Attributes:
        topic_id: the id of the topic. A topic that is deleted and created again has another id.
        start_offset: the position (offset in commit order) of the first record that is still stored.
        end_offset: the position after the last record that consumers can read.
        commits: the transactions, in commit order.
    """

    topic_id: uuid.UUID | None
    start_offset: int
    end_offset: int
    commits: tuple[Commit, ...]


def describe_commits(
    cluster: Cluster,
    topic: str,
    partition: int,
    *,
    offset: int = 0,
    commit_sequence: int = -1,
    count_max: int = COUNT_MAX,
    with_outside: bool = False,
    wait_s: float = 0,
) -> Steps[Commits]:
    """Return the next transactions of a commit-ordered partition that consumers can read already, in the order of their
    commits, at most `count_max`. A position is the offset of a record in commit order.

    Args:
        cluster: the brokers.
        topic: a commit-ordered topic.
        partition: the partition's index.
        offset: transactions that end at or before this position are skipped.
        commit_sequence: transactions with a lower commit sequence are skipped. It is the number of a commit in its
            transaction group, the topics whose commits have one order.
        count_max: the maximum number of transactions to return.
        with_outside: whether records outside transactions are listed, too.
        wait_s: how long the broker may wait for a transaction to list if there is none, at most a second.

    Raises:
        RefusedError: the partition does not exist; or, with the code invalid_request, the topic is not commit-ordered.
        UnavailableError: no response within the deadline.
    """
    request = commits_request(
        topic,
        partition,
        offset=offset,
        commit_sequence=commit_sequence,
        count_max=count_max,
        with_outside=with_outside,
        wait_s=wait_s,
    )
    answer = yield from request_about_topics(
        cluster,
        lambda: cluster.leader_connection(topic, partition),
        request,
        f"asking for the transactions of {topic}-{partition}",
    )
    return Commits(
        answer.topic_id,
        answer.log_start_offset,
        answer.end_offset,
        tuple(
            Commit(one.start_offset, one.end_offset, one.commit_sequence, one.time_ms)
            for one in answer.commits
        ),
    )


def commits_request(
    topic: str,
    partition: int,
    *,
    offset: int = 0,
    commit_sequence: int = -1,
    count_max: int = COUNT_MAX,
    with_outside: bool = False,
    wait_s: float = 0,
) -> DescribeCommitsRequest:
    """Build the DescribeCommits request of `describe_commits`, which explains the arguments."""
    return DescribeCommitsRequest(
        topic=topic,
        partition_index=i32(partition),
        offset=i64(offset),
        commit_sequence=i64(commit_sequence),
        count_max=i32(count_max),
        with_outside=with_outside,
        max_wait_ms=i32(ceil(1000 * min(wait_s, WAIT_MAX_S))),
    )
