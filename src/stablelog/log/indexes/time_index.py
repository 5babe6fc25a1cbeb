"""The time index of a segment: a sparse map from timestamps to offsets.

An entry (T, O) means: T is the greatest timestamp in the segment up to and including the batch whose last offset is O.
Timestamps grow from entry to entry.

Format: docs/reference/formats.md, "Time index".
"""

import struct

from stablelog.log.indexes.index_entries import SparseIndex

ENTRY = struct.Struct(
    ">"
    "q"  # timestamp, ms
    "i"  # last offset of the batch with this timestamp, relative to the segment's base offset
)
TIMESTAMP = struct.Struct(">q")
NO_TIMESTAMP = -1  # the timestamp of batches without records, which get no entry


class TimeIndex(SparseIndex):
    """The time index of one segment: growing, or read from its file."""

    ENTRY = ENTRY

    def __getitem__(self, place: int) -> tuple[int, int]:
        """Return (timestamp, offset) of an entry. `place` is its number, counted from 0."""
        timestamp, offset = self._row(place)
        return timestamp, self._base_offset + offset

    @property
    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset of the segment) if there is no entry."""
        return self[self._count - 1] if self._count else (NO_TIMESTAMP, self._base_offset)

    def append_if_later(self, timestamp: int, last_offset: int) -> None:
        """Add an entry if its timestamp is later than those of all entries before it; otherwise do nothing."""
        if timestamp > self.last[0]:
            self._add(ENTRY.pack(timestamp, last_offset - self._base_offset))

    def offset_before(self, timestamp: int) -> int | None:
        """Return the offset at which a search for this timestamp may begin; None if it must begin at the segment's
        start.
        """
        count = self._count_below(TIMESTAMP, timestamp)
        return self[count - 1][1] if count else None
