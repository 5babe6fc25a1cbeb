"""The positions of a transaction's records after its commit. They are computed when a program asks for them."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.commits import describe_commits
from stablelog.client.core.steps import NOW, Steps
from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.errors import DataLossError, RefusedError, UnavailableError
from stablelog.types import TopicPartition


class Position(NamedTuple):
    """The place of a record: in a commit-ordered topic its position in commit order, in other topics its offset.

    The offset is -1 if it is unknown: the client sent a batch twice, and the broker recognised it but no longer knew its
    offset; or the topic is commit-ordered, and the client has the right to write it but not to read it.
    """

    topic: str
    partition: int
    offset: int


class Offsets(Protocol):
    """The offsets of a transaction's records in a partition, by the numbers of the records from 0."""

    def __getitem__(self, number: int, /) -> int:
        """Return the offset of a record; -1 if it is unknown."""


class BatchOffsets:
    """Offsets that are computed from those of the batches.

    Args:
        firsts: the number of the first record of each batch, rising.
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


def offsets_after_commit(
    cluster: Cluster,
    target: TopicPartition,
    commit_sequence: int,
    firsts: Sequence[int],
    bases: Sequence[int],
    count: int,
) -> Steps[Offsets]:
    """Return the offsets of a transaction's records in a partition, in the order in which they were written.

    Args:
        cluster: the brokers.
        target: the partition.
        commit_sequence: the transaction's commit sequence.
        firsts: the number of the first record of each batch.
        bases: the base offset of each batch, -1 if unknown.
        count: how many records there are.

    Raises:
        DataLossError: the transaction has been removed, or its topic was deleted.
        RefusedError: the broker refuses to list the transaction.
        UnavailableError: the broker did not list the transaction within the deadline.
    """
    try:
        start = yield from _start_in_commit_order(cluster, target, commit_sequence)
    except UnknownTopicOrPartitionError as missing:
        raise DataLossError(
            f"commit {commit_sequence} in {target[0]}-{target[1]}: it is committed, and the topic was deleted before the "
            f"positions of its records were read: {missing}"
        ) from missing
    except RefusedError as refused:
        if refused.code is ErrorCode.topic_authorization_failed:
            # DescribeCommits needs the right to read. The transaction is committed: this is no failure of the commit.
            return NO_OFFSETS
        if refused.code is not ErrorCode.invalid_request:
            raise
        # The topic is not commit-ordered, so each record has the offset at which it was appended.
        return BatchOffsets(firsts, bases)
    return range(start, start + count)


def _start_in_commit_order(cluster: Cluster, target: TopicPartition, commit_sequence: int) -> Steps[int]:
    """Wait until the commit marker is durable, and return the position of the transaction's first record in a
    partition.

    Raises:
        DataLossError: the transaction has been removed.
        RefusedError: with the code invalid_request, the topic is not commit-ordered.
        UnavailableError: the broker did not list the transaction within the deadline.
    """
    what = f"commit {commit_sequence} in {target[0]}-{target[1]}"
    now = yield NOW
    left_s = cluster.left_s(now)
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
            raise DataLossError(f"{what}: its records were removed before their positions were read")
        left_s = deadline - (yield NOW)
        if left_s < 0:
            raise UnavailableError(
                f"{what}: it is committed, but its commit marker is not durable yet, so its positions are unknown"
            )
