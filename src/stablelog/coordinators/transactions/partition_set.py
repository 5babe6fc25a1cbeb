"""The set of partitions of a transaction.

A transaction can have thousands of partitions. The decision to end it needs them sorted for the lookup of their end
offsets, for the record in the commit log, and for the markers. The set is therefore sorted and encoded once, when the
partitions are added.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from stablelog.coordinators.record_fields import compact_string
from stablelog.types import TopicPartition
from stablelog.varint import encode_uvarint


class PartitionSet(frozenset[TopicPartition]):
    """An immutable set of partitions. It computes the sorted list of the partitions and their encoded form when they
    are first needed, and keeps them.
    """

    __slots__ = ("_encoded", "_in_order")

    _in_order: list[TopicPartition]
    _encoded: bytes

    @property
    def in_order(self) -> list[TopicPartition]:
        """The partitions sorted by topic, then by index: the order in the record of a decision. The caller must not
        change the list.
        """
        try:
            return self._in_order
        except AttributeError:
            # Two sorts by one field each are faster than one sort by both fields.
            self._in_order = sorted(sorted(self, key=itemgetter(1)), key=itemgetter(0))
            return self._in_order

    @property
    def encoded(self) -> bytes:
        """The encoded partitions in the order of `in_order`, as a record of the commit log contains them."""
        try:
            return self._encoded
        except AttributeError:
            self._encoded = encode_partitions(self.in_order)
            return self._encoded

    def with_added(self, partitions: Iterable[TopicPartition]) -> "PartitionSet":
        """Return a set that contains the partitions of this set and also `partitions`."""
        return PartitionSet(self.union(partitions))


def encode_partitions(partitions: Sequence[TopicPartition]) -> bytes:
    """Encode partitions as a record of the coordinator's log contains them. Partitions of one topic must follow each
    other.
    """
    topics = [
        (topic, [index for _, index in those]) for topic, those in groupby(partitions, key=itemgetter(0))
    ]
    parts = [encode_uvarint(len(topics) + 1)]
    for topic, indexes in topics:
        parts += (
            compact_string(topic),
            encode_uvarint(len(indexes) + 1),
            struct.pack(f">{len(indexes)}ix", *indexes),  # The last byte: no tagged fields.
        )
    return b"".join(parts)


NO_PARTITIONS: Final = PartitionSet()
