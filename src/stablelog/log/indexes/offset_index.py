"""The offset index of a segment: a sparse map from offsets to byte positions.

An entry (last offset of a batch, position where the batch begins) is written whenever more than `index.interval.bytes`
were appended since the last one. A search takes the entry with the greatest offset that is not above the searched
offset, and then reads a few batch headers from the entry's position on.

Format: docs/reference/formats.md, "Offset index".
"""

import struct

from stablelog.log.indexes.index_entries import SparseIndex

ENTRY = struct.Struct(
    ">"
    "i"  # the last offset of the batch, relative to the segment's base offset
    "i"  # position of the batch in the log file
)
OFFSET, POSITION = struct.Struct(">i"), struct.Struct(">4xi")


class OffsetIndex(SparseIndex):
    """The offset index of one segment: growing, or read from its file.

    Zeros at the end of the file are no entries. A real entry would be all zeros only for a first batch of one record,
    and such a batch gets no entry.
    """

    ENTRY = ENTRY

    def __getitem__(self, place: int) -> tuple[int, int]:
        """Return (offset, position in the log file) of an entry. `place` is its number, counted from 0."""
        offset, position = self._row(place)
        return self._base_offset + offset, position

    @property
    def last_position(self) -> int:
        """The position in the log file that the last entry has; 0 if there is no entry."""
        return self[self._count - 1][1] if self._count else 0

    def append(self, last_offset: int, position: int) -> None:
        """Add the entry of a batch. Offset and position must be greater than those of the last entry."""
        assert not self._count or self[self._count - 1] < (last_offset, position)
        self._add(ENTRY.pack(last_offset - self._base_offset, position))

    def position_before(self, offset: int) -> int:
        """Return the position, in the log file, of the batch with this offset or of an earlier batch. A search for the
        offset may begin there.
        """
        return self._last_position_of(self._count_below(OFFSET, offset - self._base_offset + 1))

    def position_at_or_before(self, position: int) -> int:
        """Return the greatest position of an entry that is not after `position` in the log file; 0 if there is none."""
        return self._last_position_of(self._count_below(POSITION, position + 1))

    def _last_position_of(self, count: int) -> int:
        """Return the position in the log file that the last of the first `count` entries has; 0 if `count` is 0."""
        return int(POSITION.unpack_from(self._entries, (count - 1) * ENTRY.size)[0]) if count else 0
