"""The base class of the three indexes of a segment: entries of equal size, in memory or mapped from a file."""

import struct
from bisect import bisect_left
from typing import ClassVar

from stablelog.env.disk import Buffer


class IndexEntries:
    """The entries of one index. A mapped index is copied into memory when the first entry is added."""

    ENTRY: ClassVar[struct.Struct]

    def __init__(self, entries: Buffer, count: int) -> None:
        self._entries = entries
        self._count = count

    def __len__(self) -> int:
        return self._count

    def _row(self, place: int) -> tuple[int, ...]:
        if not 0 <= place < self._count:
            raise IndexError(place)
        return self.ENTRY.unpack_from(self._entries, place * self.ENTRY.size)

    def _add(self, row: bytes) -> None:
        if not isinstance(self._entries, bytearray):
            self._entries = bytearray(self.content())
        self._entries += row
        self._count += 1

    def _count_below(self, field: struct.Struct, bound: int) -> int:
        """Count the entries whose field is less than `bound`, by binary search. The field must not decrease from entry
        to entry.
        """
        entries, unpack, size = self._entries, field.unpack_from, self.ENTRY.size
        return bisect_left(range(self._count), bound, key=lambda place: unpack(entries, place * size)[0])

    def content(self) -> memoryview:
        """Return the bytes of all entries, as the file has them. This is a memoryview: until the caller releases it, no
        entry can be added.
        """
        return memoryview(self._entries)[: self._count * self.ENTRY.size]


class SparseIndex(IndexEntries):
    """The entries of the offset index or the time index. The offsets are relative to the base offset of the segment.

    Kafka preallocates these files, so zeros may follow the last entry.
    """

    def __init__(self, base_offset: int, entries: Buffer = b"") -> None:
        unpack, size = self.ENTRY.unpack_from, self.ENTRY.size
        places = range(len(entries) // size)
        count = bisect_left(places, True, key=lambda place: not any(unpack(entries, place * size)))
        super().__init__(entries, count)
        self._base_offset = base_offset
