"""Cache of a partition's file names and small files, used while the partition is opened.

The checks of format versions, the completion of interrupted operations and recovery all need the same names and files.
With thousands of partitions, repeated system calls would take most of the broker's start.
"""

from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path

from stablelog.env.disk import Disk

SMALL_SIZE = 64 << 10  # the greatest number of bytes of a file that are kept in memory


class Listing:
    """The names of the files in a partition's directory, and the first 64 KiB of each file. Each of them is read only
    once, and then taken from memory.

    No other program may change the directory meanwhile. After a change of a file, the caller must call `reload` before
    it uses the listing again.

    Args:
        disk: the disk of the directory.
        directory: the directory of one partition.

    Raises:
        FileNotFoundError: the directory is missing.

    Attributes:
        path: returns the path of the file with a given name.
        names: the names in the directory, sorted.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self.disk = disk
        self.directory = directory
        self.path: Callable[[str], Path] = cache(directory.joinpath)
        self.reload()

    def reload(self) -> None:
        """Read the names again, and drop the cached contents."""
        self.names = self.disk.list_dir(self.directory)
        self._known = frozenset(self.names)
        self._heads: dict[str, bytes] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def head(self, name: str) -> bytes:
        """Return the first SMALL_SIZE bytes (64 KiB) of a file, or all bytes of a smaller file.

        Raises:
            FileNotFoundError: the file is missing.
        """
        if name not in self._heads:
            self._heads[name] = self.beginning(name, SMALL_SIZE)
        return self._heads[name]

    def beginning(self, name: str, size_max: int) -> bytes:
        """Return the first `size_max` bytes of a file, without caching them. Raises FileNotFoundError if the file is
        missing.
        """
        if name not in self._known:
            raise FileNotFoundError(name)
        with closing(self.disk.open(self.path(name))) as file:
            # The size of the file limits the read, because a read reserves memory for all requested bytes.
            return file.read(0, min(file.size, size_max))

    def read(self, name: str) -> bytes:
        """Return the whole content of a file. Raises FileNotFoundError if the file is missing."""
        found = self.head(name)
        return found if len(found) < SMALL_SIZE else self.disk.read_bytes(self.path(name))
