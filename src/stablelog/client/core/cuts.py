"""Requests for a cut of commit-ordered topics (DescribeCut). A cut is a commit sequence R, the number of a commit, with
one offset for each partition. All commits of the partition up to R lie before the offset, and all later ones behind it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kio.static.primitive import i64

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.extension import request_about_topics
from stablelog.client.core.steps import Steps
from stablelog.types import TopicPartition
from stablelog.wire.extension.cut import NOT_KNOWN, RESOLVED, DescribeCutRequest


class PendingMarker(NamedTuple):
    """A commit marker that is not durable yet. No cut (a position between two commits in all partitions) can include
    this commit until the marker is durable.

    `transactional_id` is empty if the broker has forgotten it.
    """

    commit_sequence: int
    transactional_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut of some topics: a commit sequence R, the number of a commit, and one offset for each partition. All commits
    of the partition up to R lie before the offset, and all later ones behind it.

    Attributes:
        group: the transaction group of the topics, whose commits have one order; empty for the default group.
        commit_sequence: the commit sequence R of the last commit in the cut.
        offsets: by topic and partition, the first position (offset in commit order) that is after the cut.
        last_commit_sequence: the commit sequence of the last commit that the coordinator has decided.
        holders: the commit markers that are not durable yet. They hold the cut back: their commits are not in it, and R
            is below `last_commit_sequence`. Empty if no marker is missing.
        removed: by topic and partition, the greatest commit sequence of a transaction that may have lost records to
            retention; -1 if there is none, -2 if it is unknown.
        torn: by topic and partition, the greatest commit sequence of a torn transaction, one whose beginning retention
            has removed. A torn transaction can no longer be read, although records at earlier positions may be left; -1
            if there is none.
    """

    group: str
    commit_sequence: int
    offsets: dict[TopicPartition, int]
    last_commit_sequence: int
    holders: tuple[PendingMarker, ...]
    removed: dict[TopicPartition, int]
    torn: dict[TopicPartition, int]

    def whole_after(self) -> int:
        """Return the commit sequence (number of a commit) after which every transaction is whole in all partitions: the
        greatest one of a transaction of which retention may have removed records. If this is unknown, return the commit
        sequence of the cut (a position between two commits in all partitions), because every transaction before the cut
        may have lost records.
        """
        removed = (self.commit_sequence if one == NOT_KNOWN else one for one in self.removed.values())
        return max([0, *removed])


def describe_cut(
    cluster: Cluster, topics: Iterable[str], commit_sequence: int = RESOLVED, *, group: str | None = None
) -> Steps[Cut]:
    """Request a cut: for each partition the offset that divides its commits up to a commit sequence from the later
    ones. By default, this is the last *resolved* commit sequence. A commit sequence is resolved when the markers of all
    commits up to it are durable in all their partitions.

    Args:
        cluster: the brokers.
        topics: commit-ordered topics of one transaction group, whose commits have one order.
        commit_sequence: the commit sequence (number of a commit) at which to cut; it must be resolved.
        group: the transaction group; None for the group of the topics.

    Raises:
        RefusedError: a topic does not exist, is not commit-ordered or is in another transaction group, or the commit
            sequence is not resolved.
        UnavailableError: no response within the deadline.
    """
    request = DescribeCutRequest(group=group, commit_sequence=i64(commit_sequence), topics=tuple(topics))
    answer = yield from request_about_topics(cluster, cluster.any_connection, request, "asking for a cut")
    partitions = {(topic.name, p.partition_index): p for topic in answer.topics for p in topic.partitions}
    return Cut(
        answer.group,
        answer.commit_sequence,
        {target: p.offset for target, p in partitions.items()},
        answer.last_commit_sequence,
        tuple(
            PendingMarker(one.commit_sequence, one.transactional_id, one.topic, one.partition_index)
            for one in answer.holders
        ),
        {target: p.removed_commit_sequence for target, p in partitions.items()},
        {target: p.torn_commit_sequence for target, p in partitions.items()},
    )
