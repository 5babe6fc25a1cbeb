"""The offsets that a reader of a consumer group has to commit: those of the records that its program has got, and those
of seeks.
"""

import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stablelog.client.core.admin.groups import CommittedOffset
from stablelog.types import TopicPartition


class SeekTarget(NamedTuple):
    """The offset to which a seek has moved a partition, until an offset is committed after it.

    Attributes:
        offset: the next offset to read.
        token: the metadata of the next committed offset. If the coordinator returns it, an offset was committed after the
            seek, even if the response to that commit was lost.
    """

    offset: int
    token: str


class UncommittedOffsets:
    """The offsets that are handed out and not committed, with the partitions of which they may not be committed any more.

    Attributes:
        offsets: by partition, the offset after the last record that the program has got, or the offset of a seek.
        seeks: the partitions that a seek has moved, until an offset is committed after it.
        given_up: partitions with uncommitted offsets that the group has given to other members, which read the records
            again.
    """

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {}
        self.seeks: dict[TopicPartition, SeekTarget] = {}
        self.given_up: set[TopicPartition] = set()

    def offsets_of(self, targets: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the uncommitted offset of each of these partitions, for `undo_hand_out`; None for none."""
        return {target: self.offsets.get(target) for target in targets}

    def hand_out(self, ends: Mapping[TopicPartition, int]) -> None:
        """Record, by partition, the offset after the last record that the program gets."""
        self.offsets |= ends

    def undo_hand_out(self, before: Mapping[TopicPartition, int | None]) -> None:
        """Undo the last call of `hand_out`. `before` is what `offsets_of` has returned before the call."""
        for target, offset in before.items():
            if offset is None:
                self.offsets.pop(target, None)
            else:
                self.offsets[target] = offset

    def seek(self, target: TopicPartition, offset: int) -> None:
        """Record that a seek has moved a partition to an offset, which is to be committed."""
        self.offsets[target] = offset
        self.seeks[target] = SeekTarget(offset, f"seek:{uuid.uuid4().hex}")

    def rewind(
        self, targets: Iterable[TopicPartition], committed: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, int]:
        """Forget what was handed out, because the reader goes back to the committed offsets. A seek stays if no offset
        was committed after it.

        Args:
            targets: the partitions of the reader.
            committed: the committed offsets of those that have one.

        Returns:
            The offsets of the seeks that stay.
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
        """Stop committing offsets of these partitions: other members may read their records again."""
        for target in targets:
            if self.offsets.pop(target, None) is not None:
                self.given_up.add(target)

    def take_given_up(self) -> list[TopicPartition]:
        """Return the partitions that were given up, in their order, and forget them."""
        taken, self.given_up = sorted(self.given_up), set()
        return taken
