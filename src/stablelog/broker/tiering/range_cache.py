"""A cache of byte ranges of objects, in memory and on the local disk. Both parts are bounded.

Reads use the part in memory. A range that memory has no more room for may still be on the disk, so that the store is not
asked again. The part on the disk is empty after a start. A disk that is full, or fails, is not written to: the ranges
are then only in memory.
"""

import contextlib
import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from crc32c import crc32c

from stablelog.env.disk import Disk
from stablelog.errors import DiskError
from stablelog.types import ObjectRange

log = logging.getLogger(__name__)

INDEX_SIZE_MIN = 64  # Bytes that an empty range counts in memory.


class RangeCache:
    """Byte ranges of objects. `get` and `put` belong to the event loop; `load` may run in any thread.

    Args:
        disk: the disk of `directory`.
        directory: the directory of the ranges on the disk. The cache removes everything in it.
        memory_size_max: the greatest size of the ranges in memory, in bytes.
        disk_size_max: the greatest size of the ranges on the disk, in bytes; 0 for none.

    Attributes:
        memory_size: the size of the ranges in memory, in bytes.
        disk_size: the size of the ranges on the disk, in bytes.
    """

    def __init__(self, disk: Disk, directory: Path, memory_size_max: int, disk_size_max: int) -> None:
        self._disk = disk
        self._directory = directory
        self._memory_size_max = memory_size_max
        self._disk_size_max = disk_size_max
        self._memory: OrderedDict[ObjectRange, bytes] = OrderedDict()
        self.memory_size = 0
        # By range: the name of its file, its size and its CRC-32C. The range that was used longest ago is the first.
        self._files: OrderedDict[ObjectRange, tuple[str, int, int]] = OrderedDict()
        self.disk_size = 0
        self._lock = threading.Lock()
        self._is_told = (
            False  # Whether a failure of the disk was logged since the disk has last accepted a range.
        )

    def clear(self) -> None:
        """Make the directory, and remove the files of an earlier start. A failure is logged: the disk is then not used."""
        if not self._disk_size_max:
            return
        try:
            self._disk.make_dir(self._directory)
            for name in self._disk.list_dir(self._directory):
                self._disk.remove(self._directory / name)
        except DiskError as error:
            log.warning("%s is not used as a cache of remote segments: %s", self._directory, error)
            self._disk_size_max = 0

    # -- memory ------------------------------------------------------------------------------------------------

    def get(self, wanted: ObjectRange) -> bytes | None:
        """Return the bytes of a range in memory; None if they are not there."""
        content = self._memory.get(wanted)
        if content is not None:
            self._memory.move_to_end(wanted)
        return content

    def put(self, wanted: ObjectRange, content: bytes) -> None:
        """Keep a range in memory, and drop those that were used longest ago. The new range is kept whatever its size."""
        if wanted in self._memory:
            return
        self._memory[wanted] = content
        self.memory_size += max(len(content), INDEX_SIZE_MIN)
        while self.memory_size > self._memory_size_max and len(self._memory) > 1:
            _, dropped = self._memory.popitem(last=False)
            self.memory_size -= max(len(dropped), INDEX_SIZE_MIN)

    # -- disk --------------------------------------------------------------------------------------------------

    def load(self, wanted: ObjectRange, fetch: Callable[[], bytes]) -> bytes:
        """Return the bytes of a range from the disk, or by calling `fetch`. Raises the errors of `fetch`."""
        content = self._from_disk(wanted)
        if content is None:
            content = fetch()
            self._to_disk(wanted, content)
        return content

    def _from_disk(self, wanted: ObjectRange) -> bytes | None:
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
            self._forget(wanted)
        return None

    def _to_disk(self, wanted: ObjectRange, content: bytes) -> None:
        if not 0 < len(content) <= self._disk_size_max:
            return
        name = uuid.uuid4().hex
        try:
            with self._lock:
                while self._files and self.disk_size + len(content) > self._disk_size_max:
                    self._forget(next(iter(self._files)))
            self._disk.write_unsynced(self._directory / name, content)
        except (DiskError, FileNotFoundError) as error:
            if not self._is_told:
                self._is_told = True
                log.warning("%s accepts no ranges of remote segments: %s", self._directory, error)
            return
        self._is_told = False
        with self._lock:
            if wanted in self._files:
                self._forget(wanted)
            self._files[wanted] = name, len(content), crc32c(content)
            self.disk_size += len(content)

    def _forget(self, wanted: ObjectRange) -> None:
        known = self._files.pop(wanted, None)
        if known is not None:
            self.disk_size -= known[1]
            # A file that cannot be removed is removed at the next start.
            with contextlib.suppress(DiskError):
                self._disk.remove(self._directory / known[0])
