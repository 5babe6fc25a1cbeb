"""The bounds of transactions as a client asks for them: which transaction stands where in a commit-ordered partition."""

import uuid
from dataclasses import dataclass
from typing import NamedTuple

from kio.static.primitive import i32, i64

from stablelog.client.cluster import Cluster
from stablelog.wire.extension.commits import COUNT_MAX, DescribeCommitsRequest


class Commit(NamedTuple):
    """A transaction: its records of the partition stand at [start_offset, end_offset).

    With -1 for a commit sequence, a run of records outside transactions.
    """

    start_offset: int
    end_offset: int
    commit_sequence: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Commits:
    """What `describe_commits` found.

    Attributes:
        topic_id: tells the topic from a later one of the same name.
        start_offset: the first position of the partition that can be read.
        end_offset: the position behind the last one that can be read.
        commits: the transactions, in order.
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
) -> Commits:
    """The next transactions of a partition that can be read: at most 1,000.

    Args:
        cluster: where.
        topic: a commit-ordered one.
        partition: of the topic.
        offset: transactions that end at or before it are passed over.
        commit_sequence: so are those with a lesser commit sequence.
        count_max: how many are wanted.
        with_outside: whether runs of records outside transactions are listed, too.

    Raises:
        Refused: the partition is not there; or, with the code invalid_request, the topic is not in commit order.
        Unavailable: no answer within the deadline.
    """
    request = DescribeCommitsRequest(
        topic=topic,
        partition_index=i32(partition),
        offset=i64(offset),
        commit_sequence=i64(commit_sequence),
        count_max=i32(count_max),
        with_outside=with_outside,
    )

    def ask() -> Commits:
        connection = cluster.connection_to(cluster.leader(topic, partition))
        answer = cluster.ask_extension(connection, request, "bounds of transactions")
        return Commits(
            answer.topic_id,
            answer.log_start_offset,
            answer.end_offset,
            tuple(
                Commit(one.start_offset, one.end_offset, one.commit_sequence, one.time_ms)
                for one in answer.commits
            ),
        )

    return cluster.retrying(f"asking for the transactions of {topic}-{partition}", ask)
