"""Where a reader of transactions begins: its first mark in each partition (the offset, or the number of a commit, from
which it reads), found from what the program has passed as `after`.

A reader begins after the position of an earlier reader, after a commit sequence, at a time, or with new commits (None).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.cuts import Cut, describe_cut
from stablelog.client.core.read_position import UNKNOWN, Mark, ReadPosition, check_holds
from stablelog.client.core.seeking import StartTime, offsets_since
from stablelog.client.core.steps import Steps
from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.client.topics import TopicDescription, missing_topic
from stablelog.errors import DataLossError, UsageError
from stablelog.types import TopicPartition
from stablelog.wire.extension.cut import NOT_KNOWN

After = ReadPosition | StartTime | int | None
StartT = TypeVar("StartT")


def naming_missing(cluster: Cluster, names: Sequence[str], steps: Steps[StartT]) -> Steps[StartT]:
    """Run the steps by which a reader of the topics `names` begins. If they find that a topic does not exist, look which
    one, and raise an error whose message has the command that creates it as the reader needs it: commit-ordered.

    Raises:
        UnknownTopicOrPartitionError: a topic does not exist.
    """
    try:
        return (yield from steps)
    except UnknownTopicOrPartitionError as missing:
        failure = missing
    for name in names:
        try:
            yield from cluster.metadata((name,))
        except UnknownTopicOrPartitionError:
            raise UnknownTopicOrPartitionError(
                missing_topic(name, cluster.bootstrap, ordered=True)
            ) from failure
    raise failure


def start_of_partitions(
    cluster: Cluster,
    names: Sequence[str],
    group: str | None,
    start: After,
    sought: Collection[TopicPartition],
) -> Steps[tuple[dict[str, TopicDescription], dict[TopicPartition, Mark]]]:
    """Find where a reader begins that reads each partition separately.

    Args:
        cluster: the brokers.
        names: the names of the topics.
        group: the transaction group (topics whose commits have one order) to which all topics must belong; None if each
            topic may have another one.
        start: where to begin: after a position, after a commit sequence (the number of a commit), at a time, or with
            new commits (None).
        sought: partitions that a seek moves afterwards, so that it is not checked whether the log still has the records
            before their marks.

    Returns:
        A pair: the topics by name, and for each partition the mark (offset and commit sequence) at which to begin.

    Raises:
        UsageError: the position is of another cluster, or `start` is a commit sequence and several partitions are read:
            in each it would stand for another place.
        RefusedError: a topic does not exist, is not commit-ordered or is in another group.
        DataLossError: transactions after the start were removed.
        UnavailableError: no response within the deadline.
    """
    topics: dict[str, TopicDescription] | None = None
    if isinstance(start, ReadPosition):
        kept = {target: mark for target, mark in start.marks.items() if target not in sought}
        start = replace(start, marks=kept)
        topics = yield from check_holds(cluster, start, names)
    cuts: dict[str, Cut] = {}
    if start is None or group is not None or start != 0:
        for name in names:  # one request for each topic, because their transaction groups may differ
            cuts[name] = yield from describe_cut(cluster, (name,), group=group)
    if topics is None:
        topics = yield from cluster.metadata(names)  # after the cuts: its leader epochs are not older
    targets = [(name, partition) for name in names for partition in topics[name].partitions]
    if start is None:
        return topics, {
            target: mark for cut in cuts.values() for target, mark in _marks_at_end(cut, topics).items()
        }
    if isinstance(start, StartTime):
        found = yield from offsets_since(cluster, targets, start.time_ms)
        return topics, {
            target: Mark(offset, 0, topics[target[0]].leader_epoch(target[1]))
            for target, (offset, _) in found.items()
        }
    if isinstance(start, ReadPosition):
        return topics, {target: mark_in(start, target, cuts[target[0]]) for target in targets}
    if start > 0:
        if len(targets) > 1:
            raise UsageError(
                f"the commit sequence {start} (the number of a commit) is no position in the {len(targets)} "
                f"partitions of {', '.join(names)}, which are read separately: pass the `position` of a "
                "reader, or read with cut=True"
            )
        check_nothing_removed(cuts[names[0]], start)
    return topics, dict.fromkeys(targets, Mark(UNKNOWN, start))


class StartOfCuts(NamedTuple):
    """Where a reader begins that reads all partitions together, from cut to cut. A cut is a position between two
    commits in all partitions.

    Attributes:
        cut: the present cut: after the last commit whose markers are durable in all partitions.
        topics: the topics by name.
        after: the commit sequence (number of a commit) after which the reader begins.
        marks: by partition, the mark at which to begin: an offset and a commit sequence.
    """

    cut: Cut
    topics: dict[str, TopicDescription]
    after: int
    marks: dict[TopicPartition, Mark]


def start_of_cuts(
    cluster: Cluster, names: Sequence[str], group: str | None, start: After
) -> Steps[StartOfCuts]:
    """Find where a reader begins that reads all partitions together, from cut to cut (a cut is a position between two
    commits in all partitions). Arguments and errors are those of `start_of_partitions`.
    """
    topics = (yield from check_holds(cluster, start, names)) if isinstance(start, ReadPosition) else None
    cut = yield from describe_cut(cluster, names, group=group)
    if topics is None:
        topics = yield from cluster.metadata(names)
    if isinstance(start, StartTime):
        since = yield from offsets_since(cluster, cut.offsets, start.time_ms)
        firsts = (sequence - 1 for _, sequence in since.values() if sequence is not None)
        # A commit after the cut may not be durable in all its partitions yet.
        start = max(cut.whole_after(), min([cut.commit_sequence, *firsts]))
    if start is None:
        return StartOfCuts(cut, topics, cut.commit_sequence, _marks_at_end(cut, topics))
    after = place_in_cut(start, cut)
    return StartOfCuts(cut, topics, after, dict.fromkeys(cut.offsets, Mark(UNKNOWN, after)))


def _marks_at_end(cut: Cut, topics: Mapping[str, TopicDescription]) -> dict[TopicPartition, Mark]:
    """Return the marks, one for each partition, of a reader that begins with the commits after a cut (a position
    between two commits in all partitions). Each mark has the offset and the commit sequence (number of the last commit)
    of the cut, and the present leader epoch of the partition.
    """
    return {
        target: Mark(offset, cut.commit_sequence, topics[target[0]].leader_epoch(target[1]))
        for target, offset in cut.offsets.items()
    }


def place_in_cut(start: ReadPosition | int, cut: Cut) -> int:
    """Return the commit sequence (number of a commit) after which a reader begins that reads all partitions together,
    from cut to cut.

    Args:
        start: the position of an earlier reader, or a commit sequence; 0 stands for the oldest transaction that is
            whole.
        cut: the present cut of the topics, a position between two commits in all partitions.

    Raises:
        DataLossError: transactions after the start may have been removed, or the start is after the last commit.
    """
    after = start.commit_sequence if isinstance(start, ReadPosition) else start
    if after == 0:
        after = cut.whole_after()  # skip transactions that have lost records in some partition
    check_nothing_removed(cut, after)
    if after > cut.last_commit_sequence:
        raise DataLossError(
            f"there is no commit {after}: the last one is {cut.last_commit_sequence}. The broker was restored from a copy, or "
            "the given commit sequence (the number of a commit) is of another transaction group, which counts its own commits"
        )
    return after


def check_nothing_removed(cut: Cut, after: int) -> None:
    """Before the first read, check that retention has removed no transaction after the commit sequence (the number of a
    commit) `after`. `cut` is the present cut of the topics: a position between two commits in all partitions, with what
    retention has removed.

    Raises:
        DataLossError: records of such transactions may have been removed. If the broker does not know exactly which
            commits were in the deleted segments, it counts all commits before the first one that is left as removed.
    """
    whole_after = min(cut.whole_after(), cut.commit_sequence)
    if whole_after > after:
        raise DataLossError(
            f"records of transactions after commit sequence {after} (the number of a commit) may have been "
            f"removed: only after {whole_after} are all transactions whole. Pass {whole_after} as `after`"
        )


def mark_in(position: ReadPosition, target: TopicPartition, cut: Cut) -> Mark:
    """Return the mark that a position has for one partition: how far the reader has read it. For a partition that was
    added to its topic after the position was made, return a mark at the beginning of the partition. `cut` is the
    present cut (a position between two commits in all partitions), which says what retention has removed.

    Raises:
        DataLossError: a transaction after the mark has lost some of its records to retention.
    """
    mark = position.marks.get(target, Mark(UNKNOWN, 0))
    torn, removed = cut.torn.get(target, -1), cut.removed.get(target, NOT_KNOWN)
    if 0 < mark.commit_sequence < torn:
        raise DataLossError(
            f"records of transactions up to commit sequence {torn} were removed from "
            f"{target[0]}-{target[1]}, but the position is after commit {mark.commit_sequence}. Begin "
            "without a position"
        )
    if NOT_KNOWN < removed <= mark.commit_sequence and mark.commit_sequence > 0:
        # No transaction after the mark was removed, although the partition may begin after it.
        return mark._replace(offset=UNKNOWN)
    return mark
