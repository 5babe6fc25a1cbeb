"""The set of partitions of a transaction.

A transaction can have thousands of partitions. Its decision needs them sorted for the lookup of their end offsets, for
the record in the commit log, and for the markers. The set is therefore sorted once, when the partitions are added.
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import Final

from stablelog.types import TopicPartition


class PartitionSet(frozenset[TopicPartition]):
    """An immutable set of partitions that keeps its order after the first use of `in_order`."""

    __slots__ = ("_in_order",)

    _in_order: list[TopicPartition]

    @property
    def in_order(self) -> list[TopicPartition]:
        """The partitions in the order in which a decision's record has them: by topic, then by index. Only read it."""
        try:
            return self._in_order
        except AttributeError:
            # Two sorts by one field each are faster than one sort by both fields.
            self._in_order = sorted(sorted(self, key=itemgetter(1)), key=itemgetter(0))
            return self._in_order

    def adding(self, partitions: Iterable[TopicPartition]) -> "PartitionSet":
        """Return a set of the partitions of this set and of `partitions`."""
        return PartitionSet(self.union(partitions))


NO_PARTITIONS: Final = PartitionSet()
