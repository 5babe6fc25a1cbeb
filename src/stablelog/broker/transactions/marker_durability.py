"""Which markers of a transaction group are durable.

A commit is resolved only when its markers, and those of all earlier commits, are durable. The producer id of a
forgotten transaction can be reused only when its markers are durable. This module notes the end offset of each written
marker, and compares it with the high watermark of its partition.
"""

from collections.abc import Sequence
from functools import partial
from weakref import WeakKeyDictionary

from stablelog.broker.topics.open_partitions import OpenPartitions
from stablelog.coordinators.transactions.spare_ids import Barrier
from stablelog.log.partition import Partition

# Up to this number of partitions with written markers, `MarkerDurability.add_markers` does not forget the durable markers.
MARKER_ENDS_MIN = 64
# The number of durable markers that one `MarkerDurability.forget_durable` forgets, at most.
FORGOTTEN_AT_ONCE = 2_000


class MarkerDurability:
    """The written markers of one transaction group that may not be durable yet. `len` is the number of commits with
    such markers.

    Args:
        partitions: the open partitions of the broker.
    """

    def __init__(self, partitions: OpenPartitions) -> None:
        self._partitions = partitions
        # By commit sequence: the end offsets of markers that were not durable when they were written.
        self._commits: dict[int, list[tuple[Partition, int]]] = {}
        # By partition: the end offset of its last marker, until the marker is durable. `_barrier` caches the function
        # that checks whether the partitions are durable up to these end offsets. A deleted partition is not kept.
        self._ends: WeakKeyDictionary[Partition, int] = WeakKeyDictionary()
        self._ends_max = MARKER_ENDS_MIN
        self._barrier: Barrier | None = None

    def add_markers(self, partition: Partition, commit_sequences: Sequence[int]) -> None:
        """Note that markers were appended to a partition. The last of these markers is now the last batch of the
        partition.

        Args:
            partition: the partition.
            commit_sequences: the commit sequences of those markers that are commit markers.
        """
        end = partition.end_offset
        self._ends[partition] = end
        if len(self._ends) > self._ends_max:
            self._forget_durable_ends()
        self._barrier = None
        if partition.high_watermark < end:
            for sequence in dict.fromkeys(commit_sequences):
                self._commits.setdefault(sequence, []).append((partition, end))

    def undurable_commits(self) -> dict[int, list[tuple[Partition, int]]]:
        """Return the markers that are not durable, by commit sequence, as (partition, end offset)."""
        self._commits = {
            sequence: left
            for sequence, ends in self._commits.items()
            if (left := [(partition, end) for partition, end in ends if self._is_undurable(partition, end)])
        }
        return dict(self._commits)

    def forget_durable(self) -> None:
        """Forget the oldest markers that are durable, at most FORGOTTEN_AT_ONCE, so that few markers are left to
        check.
        """
        for _ in range(FORGOTTEN_AT_ONCE):
            if not self._commits:
                return
            sequence, ends = next(iter(self._commits.items()))
            if self._is_undurable(*ends[-1]):
                return
            ends.pop()
            if not ends:
                del self._commits[sequence]

    def __len__(self) -> int:
        return len(self._commits)

    def _is_undurable(self, partition: Partition, end: int) -> bool:
        return self._partitions.has(partition) and partition.high_watermark < end

    def barrier(self) -> Barrier:
        """Return a function that tells whether all markers that were written before this call are durable. Such a
        function is called a marker *barrier*: see `transactions.spare_ids`.
        """
        if self._barrier is None:
            self._forget_durable_ends()
            self._barrier = partial(self._are_durable, list(self._ends.items()))
        return self._barrier

    def _forget_durable_ends(self) -> None:
        for partition, end in list(self._ends.items()):
            if not self._is_undurable(partition, end):
                del self._ends[partition]
        self._ends_max = MARKER_ENDS_MIN + 2 * len(self._ends)

    def _are_durable(self, ends: list[tuple[Partition, int]]) -> bool | None:
        """Whether partitions are durable up to these end offsets.

        None if the broker can never know this, because one of the partitions has failed, or was reopened or deleted.
        """
        while ends:
            partition, end = ends[-1]
            if partition.high_watermark < end:
                may_still_be = partition.failure is None and self._partitions.has(partition)
                return False if may_still_be else None
            ends.pop()
        return True
