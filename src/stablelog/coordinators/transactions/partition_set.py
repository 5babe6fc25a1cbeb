"""The set of partitions of a transaction.

A transaction can have thousands of partitions. Its decision needs them sorted for the lookup of their end offsets, for
the record in the commit log, and for the markers. The set is therefore sorted and encoded once, when the partitions are
added.
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
    """An immutable set of partitions that keeps its order and its encoding after their first use."""

    __slots__ = ("_encoded", "_in_order")

    _in_order: list[TopicPartition]
    _encoded: bytes

    @property
    def in_order(self) -> list[TopicPartition]:
        """The partitions in the order in which a decision's record has them: by topic, then by index. Only read it."""
        try:
            return self._in_order
        except AttributeError:
            # Two sorts by one field each are faster than one sort by both fields.
            self._in_order = sorted(sorted(self, key=itemgetter(1)), key=itemgetter(0))
            return self._in_order

    @property
    def encoded(self) -> bytes:
        """The partitions in this order, as a record of the commit log has them."""
        try:
            return self._encoded
        except AttributeError:
            self._encoded = encode_partitions(self.in_order)
            return self._encoded

    def adding(self, partitions: Iterable[TopicPartition]) -> "PartitionSet":
        """Return a set of the partitions of this set and of `partitions`."""
        return PartitionSet(self.union(partitions))


def encode_partitions(partitions: Sequence[TopicPartition]) -> bytes:
    """Encode partitions as a record of the commit log has them. Those of one topic have to follow each other."""
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
