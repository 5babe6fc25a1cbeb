"""The end offsets of a transaction's partitions at the time when the transaction was decided.

A transaction can have thousands of partitions, and its decision must not occupy the event loop for long. The end
offsets are therefore kept in encoded form, in one byte string as in the commit log (the log of the transaction
coordinator). They are decoded only when the broker has started and looks for transactions that a crash has left open.

Format: docs/reference/formats.md, "Commit log".
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from stablelog.errors import DamageError
from stablelog.types import TopicPartition

# Stands for an end offset that is not known. Every offset of the same leader epoch counts as before this end.
OFFSET_UNKNOWN: Final = 2**63 - 1

END: Final = struct.Struct(
    ">"
    "i"  # leader_epoch
    "q"  # end_offset
)


class LogEnd(NamedTuple):
    """The end of a partition: its end offset, and the leader epoch in which the partition ended at this offset.

    Two different records can have the same offset: if a crash loses a record, another record gets its offset after the
    restart. The leader epoch tells them apart, because it grows with each start of the broker.
    """

    leader_epoch: int
    end_offset: int


class LogEnds(Mapping[TopicPartition, LogEnd]):
    """The end of each partition of a transaction, at the time when the transaction was decided. Immutable.

    Args:
        partitions: the partitions, in the order of the decision's record.
        content: for each partition its leader epoch and end offset, encoded with `END`.

    Raises:
        DamageError: the number of ends differs from the number of partitions.
    """

    __slots__ = ("_found", "content", "partitions")

    def __init__(self, partitions: Sequence[TopicPartition], content: bytes) -> None:
        if len(content) != END.size * len(partitions):
            raise DamageError(
                f"the commit log has {len(content)} bytes of partition ends for {len(partitions)} partitions"
            )
        self.partitions = partitions
        self.content = content
        self._found: dict[TopicPartition, LogEnd] | None = None

    @classmethod
    def from_offsets(
        cls, leader_epoch: int, partitions: Sequence[TopicPartition], end_offsets: Iterable[int]
    ) -> "LogEnds":
        """Return the ends of partitions, each an end offset and a leader epoch, given the end offsets and the leader
        epoch that their last batches have in common.

        Args:
            leader_epoch: the leader epoch of all ends.
            partitions: the partitions.
            end_offsets: the end offsets, in the order of `partitions`.
        """
        return cls(partitions, b"".join(map(partial(END.pack, leader_epoch), end_offsets)))

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the first partition's end. There must be at least one partition."""
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
