"""A cache of byte ranges of objects, in memory and on the local disk. Both parts are bounded.

Reads use the part in memory. If the memory is full, the cache first drops ranges that a reader has read to the end:
most readers read a log only once. A range is written to the disk if the cache drops it before a reader has read it to
the end, or if it is loaded a second time, so that the store gets no further request for this range. A reader does not
wait for these writes. The part on the disk is empty after a start. A disk that is full, or fails, is not written to.
"""

import contextlib
import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from stablelog.crc32c import crc32c
from stablelog.env.disk import Buffer, Disk
from stablelog.errors import DiskError
from stablelog.types import ObjectRange

log = logging.getLogger(__name__)

DROPPED_MAX = 4096  # The number of ranges that are remembered after they were dropped.
INDEX_SIZE_MIN = 64  # Bytes that an empty range counts in memory.


class RangeCache:
    """Cache of byte ranges of objects in the store, in memory and on the local disk. `load_range` and `write_to_disk`
    may run in any thread; all other methods belong to the event loop.

    Args:
        disk: the disk of `directory`.
        directory: the directory of the ranges on the disk. The cache removes everything in it.
        memory_size_max: the greatest size of the ranges in memory, in bytes. It is exceeded if one read needs more
            bytes at once.
        disk_size_max: the greatest size of the ranges on the disk, in bytes; 0 for none.
        is_disk_full: returns whether the disk is full. If so, the cache writes nothing, because other work needs the
            space more.

    Attributes:
        memory_size: the size of the ranges in memory, in bytes.
        disk_size: the size of the ranges on the disk, in bytes.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        memory_size_max: int,
        disk_size_max: int,
        *,
        is_disk_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._disk = disk
        self._is_disk_full = is_disk_full
        self._directory = directory
        self._memory_size_max = self._least_size_max = memory_size_max
        self._disk_size_max = disk_size_max
        self._memory: OrderedDict[ObjectRange, Buffer] = OrderedDict()
        self.memory_size = 0
        self._consumed: set[ObjectRange] = set()  # the ranges in memory that a reader has read to the end
        # The ranges that were dropped from memory, and are not on the disk. The one that was dropped last is the last.
        self._dropped: OrderedDict[ObjectRange, None] = OrderedDict()
        # By range: the name of its file, its size and its CRC-32C. The range that was used longest ago is the first.
        self._files: OrderedDict[ObjectRange, tuple[str, int, int]] = OrderedDict()
        self.disk_size = 0
        self._lock = threading.Lock()
        # Whether a failure of the disk was logged since the last range that the disk accepted.
        self._is_told = False

    def clear(self) -> None:
        """Make the directory on the disk, and remove the files of an earlier start from it. A failure is logged and
        not raised: the cache then keeps ranges in memory only.
        """
        if not self._disk_size_max:
            return
        try:
            self._disk.make_dir(self._directory)
            for name in self._disk.list_dir(self._directory):
                self._disk.remove(self._directory / name)
        except DiskError as error:
            log.warning(
                "the cache of remote segments does not use the directory %s: %s", self._directory, error
            )
            self._disk_size_max = 0

    # -- memory ------------------------------------------------------------------------------------------------

    def get(self, wanted: ObjectRange) -> Buffer | None:
        """Return the bytes of a range of an object in the store; None if they are not in memory."""
        content = self._memory.get(wanted)
        if content is not None:
            self._memory.move_to_end(wanted)
        return content

    def has(self, wanted: ObjectRange) -> bool:
        """Return whether the bytes of a range of an object in the store are in memory."""
        return wanted in self._memory

    def put(self, wanted: ObjectRange, content: Buffer) -> list[tuple[ObjectRange, Buffer]]:
        """Keep a loaded range of an object in memory, whatever its size. If there is no space, other ranges are dropped
        from memory.

        Returns:
            The ranges that should be kept on the disk, with their bytes: those that were dropped before a reader has
            read them to the end, and this range if it was loaded before. The caller passes each of them to
            `write_to_disk`.
        """
        if wanted in self._memory:
            return []
        # A range that is loaded a second time may be needed a third time.
        kept = [(wanted, content)] if wanted in self._dropped else []
        self._dropped.pop(wanted, None)
        self._memory[wanted] = content
        self.memory_size += max(len(content), INDEX_SIZE_MIN)
        while self.memory_size > self._memory_size_max and len(self._memory) > 1:
            oldest, dropped = self._memory.popitem(last=False)
            self.memory_size -= max(len(dropped), INDEX_SIZE_MIN)
            if oldest in self._consumed:
                self._consumed.discard(oldest)
                self._dropped[oldest] = None
                if len(self._dropped) > DROPPED_MAX:
                    self._dropped.popitem(last=False)
            else:
                kept.append((oldest, dropped))
        return kept

    def mark_consumed(self, wanted: ObjectRange) -> None:
        """Mark a range of an object that a reader has read to its end. The cache drops such ranges first, because most
        readers read a log only once.
        """
        if wanted in self._memory:
            self._consumed.add(wanted)
            self._memory.move_to_end(wanted, last=False)

    def make_room(self, size: int) -> None:
        """Raise the limit of memory, if needed, so that one read can have `size` bytes in memory at once beside what
        the cache keeps otherwise. Without that, each load could drop a range that the same read needs next, and the
        read would never end.
        """
        self._memory_size_max = max(self._memory_size_max, self._least_size_max + size)

    def drop(self, wanted: ObjectRange) -> None:
        """Drop a range, from memory and from the disk, whose bytes do not match the manifest (the list of a partition's
        segments, with their checksums). The next read loads the range from the store again.
        """
        content = self._memory.pop(wanted, None)
        if content is not None:
            self.memory_size -= max(len(content), INDEX_SIZE_MIN)
            self._consumed.discard(wanted)
        with self._lock:
            self._remove_file(wanted)

    # -- disk --------------------------------------------------------------------------------------------------

    def load_range(self, wanted: ObjectRange, fetch: Callable[[], Buffer]) -> Buffer:
        """Return the bytes of a range of an object from the local disk; if they are not there, call `fetch`, which
        downloads them from the store. Raises the errors of `fetch`.
        """
        content = self._read_from_disk(wanted)
        return fetch() if content is None else content

    def _read_from_disk(self, wanted: ObjectRange) -> bytes | None:
        with self._lock:
            known = self._files.get(wanted)
            if known is None:
                return None
            self._files.move_to_end(wanted)
        name, size, crc = known
        try:
            content = self._disk.read_bytes(self._directory / name)
        except (DiskError, FileNotFoundError):
            content = b""
        if len(content) == size and crc32c(content) == crc:
            return content
        with self._lock:
            self._remove_file(wanted)
        return None

    def write_to_disk(self, wanted: ObjectRange, content: Buffer) -> None:
        """Write a range of an object to the cache on the local disk, if there is space. A failure of the disk is logged
        once, and not raised.
        """
        if not 0 < len(content) <= self._disk_size_max or wanted in self._files or self._is_disk_full():
            return
        name = uuid.uuid4().hex
        try:
            with self._lock:
                while self._files and self.disk_size + len(content) > self._disk_size_max:
                    self._remove_file(next(iter(self._files)))
            self._disk.write_unsynced(self._directory / name, bytes(content))
        except (DiskError, FileNotFoundError) as error:
            if not self._is_told:
                self._is_told = True
                log.warning(
                    "the cache of remote segments in %s cannot be written, and keeps only what fits into memory: %s",
                    self._directory,
                    error,
                )
            return
        self._is_told = False
        with self._lock:
            if wanted in self._files:
                self._remove_file(wanted)
            self._files[wanted] = name, len(content), crc32c(content)
            self.disk_size += len(content)

    def _remove_file(self, wanted: ObjectRange) -> None:
        known = self._files.pop(wanted, None)
        if known is not None:
            self.disk_size -= known[1]
            # A file that cannot be removed is removed at the next start.
            with contextlib.suppress(DiskError):
                self._disk.remove(self._directory / known[0])
