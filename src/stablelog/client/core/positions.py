"""The positions of a transaction's records after its commit: in a commit-ordered topic their offsets in commit order,
in other topics their offsets in the log. The client computes them when a program asks for them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.commits import commits_request, describe_commits
from stablelog.client.core.connection import BrokerConnection
from stablelog.client.core.steps import NOW, Steps
from stablelog.client.responses import RetriableError, UnknownTopicOrPartitionError
from stablelog.errors import DataLossError, RefusedError, UnavailableError
from stablelog.types import TopicPartition

AT_ONCE_MAX: Final = 50  # requests that are sent to a leader before its first response is received


class Position(NamedTuple):
    """The place of a record: its topic, its partition, and its offset. In a commit-ordered topic, this is the offset in
    commit order, as read-committed readers see it.

    The offset is -1 if it is unknown. There are two reasons. The client sent a batch twice, because the first response
    was lost, and the broker recognised it but had forgotten the offset. Or the topic is commit-ordered, and the user
    may write but not read it.
    """

    topic: str
    partition: int
    offset: int


class RecordOffsets(Protocol):
    """The offsets of a transaction's records in one partition, by their numbers: 0 is the first record there."""

    def __getitem__(self, number: int, /) -> int:
        """Return the offset of a record; -1 if it is unknown."""


class BatchOffsets:
    """The offsets of a transaction's records in one partition, computed from the base offsets of their batches.

    Args:
        firsts: for each batch, the number of its first record among the transaction's records in the partition; in
            ascending order.
        bases: the base offset of each batch; -1 if it is unknown.
    """

    __slots__ = ("_bases", "_firsts")

    def __init__(self, firsts: Sequence[int], bases: Sequence[int]) -> None:
        self._firsts, self._bases = firsts, bases

    def __getitem__(self, number: int) -> int:
        place = bisect_right(self._firsts, number) - 1
        base = self._bases[place]
        return base + number - self._firsts[place] if base >= 0 else -1


NO_OFFSETS: Final = BatchOffsets((0,), (-1,))  # all are unknown


class SentBatches(NamedTuple):
    """The batches that a transaction has sent to one partition.

    Attributes:
        target: the partition.
        firsts: for each batch, the number of its first record among the transaction's records in the partition.
        bases: the base offset of each batch, -1 if unknown.
        record_count: how many records the batches have together.
    """

    target: TopicPartition
    firsts: Sequence[int]
    bases: Sequence[int]
    record_count: int

    def from_start(self, start: int) -> RecordOffsets:
        """Return the offsets of the records for a commit-ordered topic. In commit order a transaction's records are
        adjacent, so the position of the first one (`start`) is enough.
        """
        return range(start, start + self.record_count)

    def as_appended(self) -> RecordOffsets:
        """Return the offsets of the records for a topic without commit order: each record stays at the offset at which
        its batch was appended.
        """
        return BatchOffsets(self.firsts, self.bases)


def offsets_after_commit(
    cluster: Cluster, commit_sequence: int, partitions: Sequence[SentBatches]
) -> Steps[list[RecordOffsets]]:
    """Return the offsets of a transaction's records in each partition, in the order in which they were written.

    Args:
        cluster: the brokers.
        commit_sequence: the transaction's commit sequence, the number of its commit in its transaction group (topics
            whose commits have one order).
        partitions: the batches that were sent to each partition.

    Raises:
        DataLossError: the transaction has been removed, or its topic was deleted.
        RefusedError: the broker refuses to tell the positions of the transaction.
        UnavailableError: the broker did not list the transaction within the deadline.
    """
    found = yield from _ask_at_once(cluster, commit_sequence, partitions)
    for sent in partitions:
        if sent.target not in found:
            found[sent.target] = yield from _offsets(cluster, commit_sequence, sent)
    return [found[sent.target] for sent in partitions]


def _ask_at_once(
    cluster: Cluster, commit_sequence: int, partitions: Sequence[SentBatches]
) -> Steps[dict[TopicPartition, RecordOffsets]]:
    """Request the positions of the transaction's records in all partitions at the same time, without a retry. Return
    the offsets of the records in those partitions for which the response is complete. The caller requests the positions
    in the other partitions again.
    """
    found: dict[TopicPartition, RecordOffsets] = {}
    if len(partitions) < 2:
        return found
    by_leader: dict[BrokerConnection, list[SentBatches]] = {}
    with suppress(RetriableError, RefusedError, UnavailableError):  # `_offsets` asks again
        left_s = cluster.time_left_s((yield NOW))
        for sent in partitions:
            connection = yield from cluster.leader_connection(*sent.target)
            by_leader.setdefault(connection, []).append(sent)
        for connection, asked in by_leader.items():
            for at in range(0, len(asked), AT_ONCE_MAX):
                some = asked[at : at + AT_ONCE_MAX]
                requests = [
                    commits_request(*sent.target, commit_sequence=commit_sequence, count_max=1, wait_s=left_s)
                    for sent in some
                ]
                answers = yield from connection.request_all_steps(requests)
                for sent, answer in zip(some, answers, strict=True):
                    if answer.error_code is ErrorCode.invalid_request:
                        found[sent.target] = sent.as_appended()
                    elif answer.commits and answer.commits[0].commit_sequence == commit_sequence:
                        found[sent.target] = sent.from_start(answer.commits[0].start_offset)
    return found


def _offsets(cluster: Cluster, commit_sequence: int, sent: SentBatches) -> Steps[RecordOffsets]:
    topic, partition = sent.target
    try:
        start = yield from _start_in_commit_order(cluster, sent.target, commit_sequence)
    except UnknownTopicOrPartitionError as missing:
        raise DataLossError(
            f"the positions of the records of commit {commit_sequence} in {topic}-{partition} are unknown, "
            f"because the topic was deleted after the commit: {missing}"
        ) from missing
    except RefusedError as refused:
        if refused.code is ErrorCode.topic_authorization_failed:
            # DescribeCommits needs the right to read. The transaction is committed: this is no failure of the commit.
            return NO_OFFSETS
        if refused.code is not ErrorCode.invalid_request:
            raise
        return sent.as_appended()  # the topic is not commit-ordered
    return sent.from_start(start)


def _start_in_commit_order(cluster: Cluster, target: TopicPartition, commit_sequence: int) -> Steps[int]:
    """Return the position in commit order of the transaction's first record in a partition. Wait until the commit
    marker in this partition is durable, because only then is the position known.

    Raises:
        DataLossError: the transaction has been removed.
        RefusedError: with the code invalid_request, the topic is not commit-ordered.
        UnavailableError: the broker did not list the transaction within the deadline.
    """
    what = f"commit {commit_sequence} in {target[0]}-{target[1]}"
    now = yield NOW
    left_s = cluster.time_left_s(now)
    deadline = now + left_s
    while True:
        # The wait is not cancelled with the call: the commit is decided, and its marker is durable within moments.
        listed = yield from describe_commits(
            cluster, *target, commit_sequence=commit_sequence, count_max=1, wait_s=left_s
        )
        found = listed.commits
        if found and found[0].commit_sequence == commit_sequence:
            return found[0].start_offset
        if found:
            raise DataLossError(
                f"the positions of the records of {what} are unknown, because the records were removed "
                "before their positions were read"
            )
        left_s = deadline - (yield NOW)
        if left_s < 0:
            raise UnavailableError(
                f"the positions of the records of {what} are unknown: the transaction is committed, but its "
                "commit marker is not durable yet"
            )
