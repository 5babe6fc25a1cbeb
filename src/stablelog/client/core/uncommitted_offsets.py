"""The offsets that a reader of a consumer group has still to commit: the offsets after the records that its program has
got, and the offsets to which the program has moved the reader (seeks).
"""

import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stablelog.client.core.admin.groups import CommittedOffset
from stablelog.types import TopicPartition


class SeekTarget(NamedTuple):
    """The offset to which a seek of the program has moved a partition. It is kept until the group has committed an
    offset of the partition after the seek.

    Attributes:
        offset: the next offset to read.
        token: the metadata of the next committed offset. If the coordinator returns it, an offset was committed after the
            seek, even if the response to that commit was lost.
    """

    offset: int
    token: str


class UncommittedOffsets:
    """The offsets that a reader of a consumer group has still to commit: those after the records that its program has
    got. The object also lists the partitions whose offsets the reader may not commit any more.

    Attributes:
        offsets: by partition, the offset after the last record that the program has got, or the offset of a seek.
        seeks: the partitions that a seek has moved, until an offset is committed after the seek.
        given_up: partitions with uncommitted offsets that the group has given to other members, which read the records
            again. The reader may not commit these offsets.
    """

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {}
        self.seeks: dict[TopicPartition, SeekTarget] = {}
        self.given_up: set[TopicPartition] = set()

    def offsets_of(self, targets: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the uncommitted offset of each of these partitions; None for a partition without one. `undo_hand_out`
        takes this result.
        """
        return {target: self.offsets.get(target) for target in targets}

    def hand_out(self, ends: Mapping[TopicPartition, int]) -> None:
        """Record that records are handed out to the program: `ends` has, by partition, the offset after the last
        one.
        """
        self.offsets |= ends

    def undo_hand_out(self, before: Mapping[TopicPartition, int | None]) -> None:
        """Undo the last call of `hand_out`. `before` is what `offsets_of` has returned before the call."""
        for target, offset in before.items():
            if offset is None:
                self.offsets.pop(target, None)
            else:
                self.offsets[target] = offset

    def seek(self, target: TopicPartition, offset: int) -> None:
        """Record that a seek has moved a partition to an offset. The next commit commits this offset or a later one."""
        self.offsets[target] = offset
        self.seeks[target] = SeekTarget(offset, f"seek:{uuid.uuid4().hex}")

    def rewind(
        self, targets: Iterable[TopicPartition], committed: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, int]:
        """Rewind: forget which records the program has got, because the reader goes back to the committed offsets. In a
        partition with a seek after which no offset was committed, the reader goes back to the offset of the seek.

        Args:
            targets: the partitions of the reader.
            committed: the committed offsets of those partitions that have one.

        Returns:
            The offsets of such seeks, by partition.
        """
        self.offsets.clear()
        self.given_up.clear()
        for target in self.seeks.keys() & targets:
            sought = self.seeks[target]
            if target in committed and committed[target].metadata == sought.token:
                del self.seeks[target]
            else:
                self.offsets[target] = sought.offset
        return dict(self.offsets)

    def mark_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record that these offsets are committed, so that the next commit leaves them out."""
        for target, offset in offsets.items():
            self.seeks.pop(target, None)
            if self.offsets.get(target, offset + 1) <= offset:
                del self.offsets[target]

    def give_up(self, targets: Iterable[TopicPartition]) -> None:
        """Give these partitions up: their offsets are not committed, because the group has given them to other members,
        which may read the records again.
        """
        for target in targets:
            if self.offsets.pop(target, None) is not None:
                self.given_up.add(target)

    def take_given_up(self) -> list[TopicPartition]:
        """Return the partitions that were given up since the last call, sorted."""
        taken, self.given_up = sorted(self.given_up), set()
        return taken
