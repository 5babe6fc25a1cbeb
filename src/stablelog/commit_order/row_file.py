"""A file of rows of equal size, such as the entries or the extents of a commit index.

New rows stay in memory, and are written in pieces of TAIL_SIZE bytes. While the disk does not accept them, as on a full
disk, they are read from memory.
"""

import contextlib
import struct
from pathlib import Path

from stablelog.crc32c import crc32c
from stablelog.env.disk import Buffer, Disk, File
from stablelog.errors import DiskError

TAIL_SIZE = 64 << 10


class RowFile:
    """The rows of one file: first those that are in the file, then those that are only in memory. Each row is in one of
    the two as a whole.

    Args:
        disk: the disk of the file.
        path: the path of the file.
        row: the `struct.Struct` of one row.
        written_size: the size in bytes of the rows that are already in the file.

    Attributes:
        crc: CRC-32C over the rows that were appended to this object.
    """

    def __init__(self, disk: Disk, path: Path, row: struct.Struct, written_size: int = 0) -> None:
        self._disk = disk
        self._path = path
        self._row = row
        self._written_size = written_size
        self._tail = bytearray()
        self._file: File | None = None
        # Whether the file may end with a part of a failed write. `open_for_writing` removes this part before the next write.
        self._is_torn = False
        self.crc = 0

    def open_for_writing(self) -> None:
        """Open the file, and truncate it after the last complete row, because a crash may have left a part of the next
        one.

        Raises:
            DiskError: the file cannot be opened or truncated. The rows stay in memory, and `write` tries again.
        """
        file = self._disk.open(self._path, create=not self._written_size)
        try:
            file.truncate(self._written_size)
        except DiskError:
            file.close()
            raise
        self.close()
        self._file, self._is_torn = file, False

    @property
    def size(self) -> int:
        """The size in bytes of all rows: those in the file, and those that are only in memory."""
        return self._written_size + len(self._tail)

    def __len__(self) -> int:
        return self.size // self._row.size

    def append(self, rows: Buffer) -> None:
        """Add whole rows at the end. They are kept in memory until they are written to the file: by `write`, or here
        when there are TAIL_SIZE bytes.
        """
        assert len(rows) % self._row.size == 0, "only whole rows can be added"
        self._tail += rows
        self.crc = crc32c(rows, self.crc)
        if len(self._tail) >= TAIL_SIZE:
            with contextlib.suppress(DiskError):
                self.write()

    def write(self) -> None:
        """Write to the file the rows that are only in memory.

        Raises:
            DiskError: the file cannot be written. The rows stay in memory.
        """
        if self._file is None or self._is_torn:
            self.open_for_writing()
        assert self._file is not None
        if self._tail:
            try:
                # Pass a copy of the rows, not a view of `_tail`. If the write fails, the traceback of the error may
                # keep the view alive, and a bytearray cannot grow while a view of it exists.
                self._file.append(bytes(self._tail))
            except DiskError as error:
                self._is_torn = not error.undone
                raise
            self._written_size += len(self._tail)
            self._tail = bytearray()

    def __getitem__(self, place: int) -> tuple[int, ...]:
        return self._row.unpack(self.between(place, place + 1))

    def between(self, first: int, end: int) -> Buffer:
        """Return the bytes of the rows with the numbers [first, end), from the file or from memory."""
        begin, end = first * self._row.size, end * self._row.size
        written = self._written_size
        if end <= written:
            return self._view(begin, end - begin)
        new = self._tail[max(begin - written, 0) : end - written]
        return new if begin >= written else b"".join((self._view(begin, written - begin), new))

    def _view(self, position: int, size: int) -> memoryview:
        if self._file is None:
            self._file = self._disk.open(self._path)
        return self._file.view(position, size)

    def close(self) -> None:
        """Close the file, if it is open. After that, this object can no longer read the rows that are in the file."""
        if self._file is not None:
            self._file.close()
