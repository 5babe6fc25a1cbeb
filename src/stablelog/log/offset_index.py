"""Where in a segment is an offset: a sparse map from offsets to byte positions.

An entry (last offset of a batch, position where the batch begins) is written whenever more than
`index.interval.bytes` were appended since the last one. So "the greatest entry at or below the target" never
lies past it, and a short walk over headers does the rest.

Format: docs/formats.md, "Offset index".
"""

import struct

from stablelog.env.disk import Buffer

ENTRY = struct.Struct(
    ">"
    "i"  # offset of the batch's last record, relative to the segment's base offset
    "i"  # position of the batch in the log file
)


class OffsetIndex:
    """The offset index of one segment: growing, or read from its file."""

    def __init__(self, base_offset: int, entries: Buffer = b"") -> None:
        self._base_offset = base_offset
        self._entries: Buffer = entries
        self._count = _count_used(entries)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[int, int]:
        """The (offset, position) of an entry."""
        if not 0 <= index < self._count:
            raise IndexError(index)
        offset, position = ENTRY.unpack_from(self._entries, index * ENTRY.size)
        return self._base_offset + offset, position

    def append(self, last_offset: int, position: int) -> None:
        """Add the entry of a batch. Offsets and positions only grow."""
        assert not self._count or self[self._count - 1] < (last_offset, position)
        if not isinstance(self._entries, bytearray):
            self._entries = bytearray(self._entries[: self._count * ENTRY.size])
        self._entries += ENTRY.pack(last_offset - self._base_offset, position)
        self._count += 1

    def position_before(self, offset: int) -> int:
        """The position of a batch that does not begin after the one with this offset."""
        return self._position_of_last(0, offset - self._base_offset)

    def position_at_or_before(self, position: int) -> int:
        """The greatest known beginning of a batch that is not past `position`."""
        return self._position_of_last(1, position)

    def _position_of_last(self, field: int, bound: int) -> int:
        """The position in the last entry whose field is not greater than `bound`; 0 if there is none."""
        entries, unpack = self._entries, ENTRY.unpack_from
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if unpack(entries, middle * ENTRY.size)[field] <= bound:
                low = middle + 1
            else:
                high = middle
        return int(unpack(entries, (low - 1) * ENTRY.size)[1]) if low else 0

    def content(self) -> memoryview:
        """The bytes of the file. While the view exists, nothing can be added: see `memoryview.release`."""
        return memoryview(self._entries)[: self._count * ENTRY.size]


def _count_used(entries: Buffer) -> int:
    """How many entries there are: Kafka preallocates the file, and the rest of it is zeros."""
    count = len(entries) // ENTRY.size
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        # A used entry is all zeros only for a first batch of one record, and such a one needs no entry.
        if any(ENTRY.unpack_from(entries, middle * ENTRY.size)):
            low = middle + 1
        else:
            high = middle
    return low
