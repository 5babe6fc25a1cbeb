"""The ends of a transaction's partitions at its decision.

A transaction can have thousands of partitions, and its decision is made in one turn of the event loop. So the ends
are kept as the commit log has them, in one string of bytes, and are looked up only after a start.

Format: docs/formats.md, "Commit log".
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple

from stablelog.errors import Corrupt
from stablelog.types import TopicPartition

OFFSET_UNKNOWN: Final = 2**63 - 1  # as an end: everything under the leader epoch lies before it

END: Final = struct.Struct(
    ">"
    "i"  # leader_epoch
    "q"  # end_offset
)


class LogEnd(NamedTuple):
    """Where a partition ended. Lost and rewritten offsets have another leader epoch, so no two ends are confused."""

    leader_epoch: int
    end_offset: int


class LogEnds(Mapping[TopicPartition, LogEnd]):
    """The ends of the partitions of one decision. Does not change.

    Args:
        partitions: in the order in which the decision's record names them.
        content: an `END` for each.

    Raises:
        Corrupt: there is not one end for each partition.
    """

    __slots__ = ("_found", "content", "partitions")

    def __init__(self, partitions: Sequence[TopicPartition], content: bytes) -> None:
        if len(content) != END.size * len(partitions):
            raise Corrupt(
                f"commit log: {len(content)} bytes of partition ends for {len(partitions)} partitions"
            )
        self.partitions = partitions
        self.content = content
        self._found: dict[TopicPartition, LogEnd] | None = None

    @classmethod
    def under(
        cls, leader_epoch: int, partitions: Sequence[TopicPartition], end_offsets: Iterable[int]
    ) -> "LogEnds":
        """The partitions end at these offsets, all under one leader epoch."""
        return cls(partitions, b"".join(map(partial(END.pack, leader_epoch), end_offsets)))

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the first partition. There has to be one."""
        return LogEnd(*END.unpack_from(self.content)).leader_epoch

    def __getitem__(self, partition: TopicPartition) -> LogEnd:
        if self._found is None:
            ends = map(LogEnd._make, END.iter_unpack(self.content))
            self._found = dict(zip(self.partitions, ends, strict=True))
        return self._found[partition]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self.partitions)

    def __len__(self) -> int:
        return len(self.partitions)

    def __repr__(self) -> str:
        return f"LogEnds({dict(self)})"


NO_ENDS: Final = LogEnds((), b"")


def in_order(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """The partitions in the order in which they are written: sorted. Two sorts by one field take less time than one by both."""
    return sorted(sorted(partitions, key=itemgetter(1)), key=itemgetter(0))
