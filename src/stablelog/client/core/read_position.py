"""The position of a reader of transactions: which transactions its program has got, so that a later reader can continue
after them.

A position has an offset in commit order for each partition: the program has got all transactions before it. A reader
that reads all partitions together has read all of them up to the same commit; its position also has the commit sequence
of this commit, the number that the broker has given to it. If the partitions are read separately, no single commit
sequence would do.

A position also identifies what its offsets belong to: the cluster, the ids of the topics, and the leader epoch of each
partition. A broker that was restored from a copy begins a new leader epoch where the copy ends. So the client
recognises an offset behind that end, even if new records have grown the log beyond it.
"""

import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.partitions import epoch_ends
from stablelog.client.core.steps import Steps
from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.client.topics import TopicDescription
from stablelog.errors import DataLossError, UsageError
from stablelog.json_text import parse_json
from stablelog.types import TopicPartition

VERSION: Final = 1  # of the text of a position
UNKNOWN: Final = -1  # an offset or a leader epoch that is unknown


class Mark(NamedTuple):
    """A reader's mark in one partition: how far it has read the partition.

    Attributes:
        offset: the program has got or skipped all transactions before this offset (in commit order); UNKNOWN if only
            the commit sequence tells where to begin.
        commit_sequence: the reader skips transactions up to this commit sequence (the number of a commit).
        leader_epoch: the partition's leader epoch when the offset was read, or a later one; UNKNOWN if the broker does
            not tell it.
        taken_end: the offset after the last transaction that the program has got. The log must still have the records
            before this offset; it may lack them after a restore from an old copy. UNKNOWN if the reader has not begun:
            `offset` then takes its place.
    """

    offset: int
    commit_sequence: int
    leader_epoch: int = UNKNOWN
    taken_end: int = UNKNOWN

    @property
    def needed_end(self) -> int:
        """The offset before which the log must still have all records, because the program has read or skipped them: if
        some are missing, the broker was restored from an older copy. UNKNOWN if it is unknown.
        """
        return self.offset if self.taken_end == UNKNOWN else self.taken_end


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The position of a reader of transactions. `str(position)` is a text that a program can store. `read(...,
    after=position)`, with the object or the text, continues there.

    Two positions are equal if a reader would continue at the same place. The fields are not part of the public API.
    """

    cluster_id: str | None
    is_cut: bool
    group: str | None
    commit_sequence: int
    topics: Mapping[str, uuid.UUID | None]
    marks: Mapping[TopicPartition, Mark]

    def __str__(self) -> str:
        """Return the position as one line of text."""
        topics: dict[str, dict[str, Any]] = {
            name: {"id": None if topic_id is None else str(topic_id), "partitions": {}}
            for name, topic_id in sorted(self.topics.items())
        }
        for (name, partition), mark in sorted(self.marks.items()):
            topics[name]["partitions"][str(partition)] = list(mark)
        fields = {
            "stablelog_position": VERSION,
            "cluster": self.cluster_id,
            "cut": self.is_cut,
            "group": self.group,
            "commit_sequence": self.commit_sequence,
            "topics": topics,
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> "ReadPosition":
        """Return the position for a text that `str(position)` has returned before.

        Raises:
            UsageError: the text is not a position, or a later release has written it.
        """
        try:
            fields = parse_json(text)
            version = fields["stablelog_position"]
        except (ValueError, TypeError, KeyError):
            raise _no_position(text) from None
        if version != VERSION:
            raise UsageError(
                f"the position has version {version!r}, and this release of stablelog reads version {VERSION}: use the "
                "release that has written it, or a later one"
            )
        try:
            return cls(
                _optional(fields["cluster"]),
                _checked(fields["cut"], bool),
                _optional(fields["group"]),
                _number(fields["commit_sequence"]),
                {
                    name: None if one["id"] is None else uuid.UUID(one["id"])
                    for name, one in fields["topics"].items()
                },
                {
                    (name, int(partition)): Mark(*map(_number, mark))
                    for name, one in fields["topics"].items()
                    for partition, mark in one["partitions"].items()
                },
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            raise _no_position(text) from None


def _no_position(text: str) -> UsageError:
    return UsageError(f"{text[:100]!r} is not the text of a position: `str(reader.position)` makes one")


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(value)
    return value


def _number(value: Any) -> int:
    return _checked(value, int)  # type: ignore[no-any-return]


def _optional(value: Any) -> str | None:
    return None if value is None else _checked(value, str)


def check_fits(position: ReadPosition, topics: Collection[str], group: str | None, *, is_cut: bool) -> None:
    """Check that a reader of these topics can continue at a position.

    Args:
        position: the position.
        topics: the topics of the reader.
        group: the transaction group of the reader, the topics whose commits have one order; None if the program did not
            name one.
        is_cut: whether the reader returns each transaction with its records of all partitions.

    Raises:
        UsageError: the position belongs to a reader with another `is_cut`, other topics or another group.
    """
    if position.is_cut != is_cut:
        modes = {True: "reads all partitions together", False: "reads each partition separately"}
        raise UsageError(
            f"the position is of a reader that {modes[position.is_cut]}, so no reader can begin there that "
            f"{modes[is_cut]}"
        )
    if position.topics and set(position.topics) != set(topics):
        raise UsageError(
            f"the position is of a reader of {', '.join(sorted(position.topics))}, so no reader can begin "
            f"there that reads {', '.join(sorted(topics))}"
        )
    if None not in (position.group, group) and position.group != group:
        raise UsageError(
            f"the position belongs to the transaction group {position.group!r}, but the reader to "
            f"{group!r}: make a reader of the same group (topics whose commits have one order)"
        )


def check_holds(
    cluster: Cluster, position: ReadPosition, topics: Collection[str]
) -> Steps[dict[str, TopicDescription]]:
    """Check that a position still holds: that its topics are still the same topics of the same cluster, and have all
    records before the position. Return the descriptions of the topics by name, so that the caller need not request them
    again.

    Raises:
        UsageError: the position is of another cluster.
        DataLossError: a topic was deleted, or the cluster was restored from a copy that has not all of these records.
        UnavailableError: no response within the deadline.
    """
    try:
        found = yield from cluster.metadata(topics)
    except UnknownTopicOrPartitionError as missing:
        _check_cluster(cluster, position)
        if position.topics and position.cluster_id is not None:  # a reader has read from these topics
            raise DataLossError(
                f"the topic of the position was deleted: {missing}. Begin without a position"
            ) from missing
        raise
    _check_cluster(cluster, position)
    for name, topic_id in position.topics.items():
        if topic_id is not None and found[name].topic_id != topic_id:
            raise DataLossError(
                f"topic {name} was deleted and created again: the position is of the deleted topic. Begin without a position"
            )
    known = {
        target: mark.leader_epoch
        for target, mark in position.marks.items()
        if mark.needed_end > 0 and mark.leader_epoch != UNKNOWN
    }
    for target, ended in (yield from epoch_ends(cluster, known)).items():
        mark = position.marks[target]
        if ended is not None and ended[1] < mark.needed_end:
            raise DataLossError(
                f"{target[0]}-{target[1]} was restored from a copy that ends at offset {ended[1]}, but the "
                f"position is at offset {mark.needed_end}: the records between are gone. Begin without a "
                "position, or seek to an offset"
            )
    return found


def _check_cluster(cluster: Cluster, position: ReadPosition) -> None:
    if None not in (position.cluster_id, cluster.cluster_id) and position.cluster_id != cluster.cluster_id:
        raise UsageError(
            f"the position is of the cluster {position.cluster_id}, and {cluster.bootstrap} is the cluster "
            f"{cluster.cluster_id}: read from the cluster of the position, or begin without a position"
        )
