"""Tells which markers of a transaction group (topics and producers with one order of commits) are durable.

This is needed for two decisions. A commit counts as resolved only when its markers, and those of all earlier commits,
are durable: readers in commit order may then rely on it. And the producer id of a forgotten transaction can be used
again only when the markers of that transaction are durable.

This module remembers the end offset of each written marker. The marker is durable when the high watermark of its
partition has reached this offset.
"""

from collections.abc import Sequence
from functools import partial
from weakref import WeakKeyDictionary

from stablelog.broker.topics.open_partitions import OpenPartitions
from stablelog.coordinators.transactions.spare_ids import Barrier
from stablelog.log.partition import Partition

# With this number of partitions or fewer, `MarkerDurability.add_markers` does not look for partitions whose markers are
# durable, to forget them.
MARKER_ENDS_MIN = 64
# The maximum number of durable markers that one call of `MarkerDurability.forget_durable` forgets.
FORGOTTEN_AT_ONCE = 2_000


class MarkerDurability:
    """The markers of one transaction group (topics and producers with one order of commits) that are written and may
    not be durable yet.

    `len` is the number of commits with such markers.

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
        """Remember markers that were just appended to a partition, until they are durable.

        Args:
            partition: the partition, whose last batch is the last one of these markers.
            commit_sequences: the numbers of the commits whose markers are among them.
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
        """Return the commits of the group with markers that are written and not durable yet.

        Returns:
            By commit sequence (number of the commit), a list with one (partition, end offset) for each of these
            markers.
        """
        self._commits = {
            sequence: left
            for sequence, ends in self._commits.items()
            if (left := [(partition, end) for partition, end in ends if self._is_undurable(partition, end)])
        }
        return dict(self._commits)

    def forget_durable(self) -> None:
        """Forget markers that are durable, oldest first and at most FORGOTTEN_AT_ONCE of them, so that
        `undurable_commits` has few markers to check.
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
        return self._partitions.is_in_use(partition) and partition.high_watermark < end

    def barrier(self) -> Barrier:
        """Return a *barrier*: a function that returns whether all markers that were written before this call of
        `barrier` are durable. `coordinators.transactions.spare_ids` uses it to decide when a producer id can be used
        again.
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
        """Return whether each partition is durable up to the end offset that is given with it.

        The entries of partitions that are durable are removed from the list, so that a later call need not check them
        again.

        Args:
            ends: (partition, end offset) of each partition to check.

        Returns:
            True if all are durable, and False if one is not durable yet. None if the broker can never know this,
            because one of the partitions has failed, or was reopened or deleted.
        """
        while ends:
            partition, end = ends[-1]
            if partition.high_watermark < end:
                may_still_be = partition.failure is None and self._partitions.is_in_use(partition)
                return False if may_still_be else None
            ends.pop()
        return True
