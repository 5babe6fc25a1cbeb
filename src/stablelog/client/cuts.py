"""Cuts as a client asks for them: which transactions are whole in all partitions, and where they end in each."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kio.static.primitive import i64

from stablelog.client.cluster import Cluster
from stablelog.wire.extension.cut import NOT_KNOWN, RESOLVED, DescribeCutRequest


class Holder(NamedTuple):
    """A marker that a cut waits for. `transactional_id` is empty where the broker does not know it any more."""

    commit_sequence: int
    transactional_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut through some topics.

    Attributes:
        group: the transaction group whose commits are numbered; empty for the default one.
        commit_sequence: R: every commit up to it is whole below the offsets.
        offsets: by topic and partition, the first position that is not in the cut.
        last_commit_sequence: of the last commit that was decided.
        holders: what R waits for, if it is behind that.
        removed: by topic and partition, the greatest commit sequence of a transaction of which something may have been
            removed there; -1 if nothing was, -2 if that is not known.
        torn: the same of those that were removed though positions before them may be left.
    """

    group: str
    commit_sequence: int
    offsets: dict[tuple[str, int], int]
    last_commit_sequence: int
    holders: tuple[Holder, ...]
    removed: dict[tuple[str, int], int]
    torn: dict[tuple[str, int], int]

    def whole_after(self) -> int:
        """The commit sequence behind which nothing was removed from any partition; R if that is not known."""
        removed = (self.commit_sequence if one == NOT_KNOWN else one for one in self.removed.values())
        return max([0, *removed])


def describe_cut(
    cluster: Cluster, topics: Iterable[str], commit_sequence: int = RESOLVED, *, group: str | None = None
) -> Cut:
    """The cut at a commit sequence, or at the last one that is resolved.

    Args:
        cluster: where.
        topics: commit-ordered ones, all of one transaction group.
        commit_sequence: R; it must be resolved.
        group: the transaction group; None for the one that the topics belong to.

    Raises:
        Refused: a topic is not there, not in commit order or of another group, or R is not resolved.
        Unavailable: no answer within the deadline, or the broker knows no cuts.
    """
    request = DescribeCutRequest(group=group, commit_sequence=i64(commit_sequence), topics=tuple(topics))

    def ask() -> Cut:
        connection = cluster.any_connection()
        answer = cluster.ask_extension(connection, request, "cuts")
        return Cut(
            answer.group,
            answer.commit_sequence,
            {(topic.name, p.partition_index): p.offset for topic in answer.topics for p in topic.partitions},
            answer.last_commit_sequence,
            tuple(
                Holder(one.commit_sequence, one.transactional_id, one.topic, one.partition_index)
                for one in answer.holders
            ),
            {
                (topic.name, p.partition_index): p.removed_commit_sequence
                for topic in answer.topics
                for p in topic.partitions
            },
            {
                (topic.name, p.partition_index): p.torn_commit_sequence
                for topic in answer.topics
                for p in topic.partitions
            },
        )

    return cluster.retrying("asking for a cut", ask)
