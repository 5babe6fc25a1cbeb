"""Seeks of a reader: the offset at which a time begins, and the check that an offset exists."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stablelog.client.core.cluster import EARLIEST, LATEST, Cluster
from stablelog.client.core.commits import describe_commits
from stablelog.client.core.partitions import list_offsets
from stablelog.client.core.steps import Steps
from stablelog.errors import OffsetOutOfRangeError
from stablelog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class StartTime:
    """A time at which a reader of transactions begins: it reads from the first commit at or after this time on.

    Attributes:
        time_ms: milliseconds since 1970, by the broker's clock.
    """

    time_ms: int


def offsets_since(
    cluster: Cluster, targets: Iterable[TopicPartition], time_ms: int
) -> Steps[dict[TopicPartition, tuple[int, int | None]]]:
    """Find in each commit-ordered partition the first commit at or after a time.

    Returns:
        For each partition a pair: the offset at which the transaction of this commit begins, and its commit sequence
        (number of the commit). If there is no such commit, the end of the partition, and None.

    Raises:
        RefusedError: a partition does not exist, or is not commit-ordered.
        UnavailableError: no response within the deadline.
    """
    wanted = list(targets)
    # The ends first: a commit that comes meanwhile is read.
    ends = yield from list_offsets(cluster, dict.fromkeys(wanted, LATEST))
    found = yield from list_offsets(cluster, dict.fromkeys(wanted, time_ms))
    starts: dict[TopicPartition, tuple[int, int | None]] = {}
    for target in wanted:
        offset, end = found[target].offset, ends[target].offset
        starts[target] = (end, None)
        if offset >= 0:
            starts[target] = yield from _first_commit(cluster, target, offset, end, time_ms)
    return starts


def _first_commit(
    cluster: Cluster, target: TopicPartition, offset: int, end: int, time_ms: int
) -> Steps[tuple[int, int | None]]:
    """Find the first commit at or after a time, and search for it from `offset` on. The broker has found `offset` by
    the timestamps of records, and a record outside transactions may have any timestamp. So the commit may come later.

    Args:
        cluster: the brokers.
        target: the commit-ordered partition.
        offset: where the search begins.
        end: the end of the partition.
        time_ms: the time in milliseconds since 1970.

    Returns:
        The offset at which the commit's transaction begins, and the commit sequence (number of the commit). If no such
        commit exists, the end of the partition, and None.
    """
    while True:
        listed = yield from describe_commits(cluster, *target, offset=offset)
        for commit in listed.commits:
            if commit.time_ms >= time_ms:
                return commit.start_offset, commit.commit_sequence
        if not listed.commits or listed.commits[-1].end_offset <= offset:
            return max(offset, end), None
        offset = listed.commits[-1].end_offset


def check_offsets(
    cluster: Cluster, sought: Mapping[TopicPartition, int], isolation: str = "read_committed"
) -> Steps[None]:
    """Check that offsets to which a program seeks exist: each is in the log of its partition, or at its end.

    Raises:
        OffsetOutOfRangeError: an offset is before the start of its log or past its end.
        RefusedError: a partition does not exist.
        UnavailableError: no response within the deadline.
    """
    starts = yield from list_offsets(cluster, dict.fromkeys(sought, EARLIEST), isolation)
    ends = yield from list_offsets(cluster, dict.fromkeys(sought, LATEST), isolation)
    for (topic, partition), offset in sought.items():
        start, end = starts[topic, partition].offset, ends[topic, partition].offset
        if not start <= offset <= end:
            raise OffsetOutOfRangeError(
                f"{topic}-{partition} has no offset {offset}: it begins at {start} and ends at {end}"
            )
