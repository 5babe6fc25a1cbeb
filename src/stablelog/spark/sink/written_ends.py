"""The end offsets of a stream's rows in the partitions of its target, so that a later start of the query notices lost
rows.

A restore of the broker can lose committed micro-batches. The checkpoint of the query still says that they are
committed, so without a check the loss would go unnoticed. The driver therefore stores, with each commit, the end offset
of the query's rows in each partition, and the leader epoch of the broker, beside the digest that identifies the plan of
the micro-batch. If the log has this leader epoch or earlier ones only up to an offset before that end, the rows after
it are gone, as for a consumer that detects a truncation (KIP-320).

The text that is stored with a commit is `<digest of the plan> <leader epoch>
<topic>:<partition>=<end>,...;<topic>:...`, or the digest alone.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from stablelog.client.blocking.cluster import EARLIEST, LATEST, BlockingCluster
from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.types import TopicPartition

TEXT_SIZE_MAX: Final = 1000  # the maximum of the broker
_TOPIC: Final = r"[a-zA-Z0-9._-]+:\d+=\d+(,\d+=\d+)*"
_TEXT: Final = re.compile(rf"(?P<plan>.*) (?P<epoch>-?\d+) (?P<topics>{_TOPIC}(;{_TOPIC})*)")


@dataclass(frozen=True, slots=True)
class WrittenEnds:
    """The end offsets of a query's rows in the partitions of its target.

    Attributes:
        leader_epoch: the leader epoch of the broker after the last rows were written; -1 if it is unknown.
        offsets: the offset after the last row, by partition.
    """

    leader_epoch: int = -1
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    def with_written(
        self, cluster: BlockingCluster, written: Iterable[tuple[str, int, int]]
    ) -> "WrittenEnds":
        """Return the end offsets after further rows were written.

        Args:
            cluster: the brokers.
            written: topic, partition and end offset of the rows of each task.
        """
        offsets: dict[TopicPartition, int] = {}
        for topic, partition, end in written:
            offsets[topic, partition] = max(end, offsets.get((topic, partition), 0))
        if not offsets:
            return self
        listed = cluster.list_offsets(dict.fromkeys(offsets, EARLIEST))
        epoch = max(one.leader_epoch for one in listed.values())
        return WrittenEnds(epoch, {**self.offsets, **offsets})

    def lost_rows(self, cluster: BlockingCluster) -> dict[TopicPartition, int]:
        """Return the partitions that have lost rows of the query, each with the offset from which on they are gone."""
        found = {}
        for place, end in self.offsets.items():
            try:
                left = cluster.epoch_end(*place, self.leader_epoch)
                if left is None:  # The partition has no record of this leader epoch or a later one.
                    left = -1, cluster.list_offsets({place: LATEST}, "read_uncommitted")[place].offset
            except UnknownTopicOrPartitionError:
                left = -1, 0
            if left[1] < end:
                found[place] = left[1]
        return found


def text_of(plan: str, ends: WrittenEnds) -> str:
    """Return the text that is stored with the commit of a micro-batch: the digest of its plan (`plan`), and the end
    offsets of the query's rows in the partitions. End offsets that do not fit into the text are left out.
    """
    text, last = f"{plan} {ends.leader_epoch} ", None
    for (topic, index), end in sorted(ends.offsets.items()):
        if topic == last:
            more = f",{index}={end}"
        else:
            more = f"{';' if last is not None else ''}{topic}:{index}={end}"
        if len(text) + len(more) > TEXT_SIZE_MAX:
            break
        text, last = text + more, topic
    return text if last is not None else plan


def read_text(text: str) -> tuple[str, WrittenEnds]:
    """Decode the text that `text_of` has made for the commit of a micro-batch. Return a pair: the digest of the
    micro-batch's plan, and the end offsets of the query's rows. If the text is the digest alone, the end offsets are
    empty.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        return text, WrittenEnds()
    offsets = {}
    for one in match["topics"].split(";"):
        topic, _, indexes = one.partition(":")
        for pair in indexes.split(","):
            index, _, end = pair.partition("=")
            offsets[topic, int(index)] = int(end)
    return match["plan"], WrittenEnds(int(match["epoch"]), offsets)
