"""Which batch first reached a time: a sparse map from timestamps to offsets.

An entry (T, O) says that the greatest timestamp of the segment up to and including the batch whose last offset
is O is T. Timestamps only grow.

Format: docs/formats.md, "Time index".
"""

import struct

from stablelog.env.disk import Buffer

ENTRY = struct.Struct(
    ">"
    "q"  # timestamp, ms
    "i"  # last offset of the batch that has it, relative to the segment's base offset
)
NO_TIMESTAMP = -1  # of batches without records: no entry says so


class TimeIndex:
    """The time index of one segment: growing, or read from its file."""

    def __init__(self, base_offset: int, entries: Buffer = b"") -> None:
        self._base_offset = base_offset
        self._entries: Buffer = entries
        self._count = _count_used(entries)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[int, int]:
        """The (timestamp, offset) of an entry."""
        if not 0 <= index < self._count:
            raise IndexError(index)
        timestamp, offset = ENTRY.unpack_from(self._entries, index * ENTRY.size)
        return timestamp, self._base_offset + offset

    @property
    def last_timestamp(self) -> int:
        """The greatest timestamp of an entry, ms; NO_TIMESTAMP without one."""
        return self[self._count - 1][0] if self._count else NO_TIMESTAMP

    def append_if_later(self, timestamp: int, last_offset: int) -> None:
        """Add an entry if the timestamp is greater than all before it."""
        if self.last_timestamp >= timestamp:
            return
        if not isinstance(self._entries, bytearray):
            self._entries = bytearray(self._entries[: self._count * ENTRY.size])
        self._entries += ENTRY.pack(timestamp, last_offset - self._base_offset)
        self._count += 1

    def offset_before(self, timestamp: int) -> int | None:
        """An offset at or before the first batch that reaches the timestamp; None: begin at the segment's start."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if self[middle][0] < timestamp:
                low = middle + 1
            else:
                high = middle
        return self[low - 1][1] if low else None

    def content(self) -> memoryview:
        """The bytes of the file. While the view exists, nothing can be added: see `memoryview.release`."""
        return memoryview(self._entries)[: self._count * ENTRY.size]


def _count_used(entries: Buffer) -> int:
    """How many entries there are: Kafka preallocates the file, and the rest of it is zeros."""
    count = len(entries) // ENTRY.size
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if any(ENTRY.unpack_from(entries, middle * ENTRY.size)):
            low = middle + 1
        else:
            high = middle
    return low
