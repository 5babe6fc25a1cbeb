"""Names and small files of one partition's directory, each read once while the partition is opened.

An open asks for the same names and files several times: for their versions, for what a crash interrupted, for the plan
of recovery. With thousands of partitions the system calls of that are most of a start.
"""

from pathlib import Path

from stablelog.env.disk import Disk

SMALL_SIZE = 64 << 10  # bytes of a file that are read at once and kept


class Listing:
    """The names in a directory, and the beginnings of files that were asked for.

    Nobody else may change the directory meanwhile. A caller that changes it calls `reload`, unless nobody asks for what
    it has changed.

    Args:
        disk: where the directory lies.
        directory: a partition's own.

    Raises:
        FileNotFoundError: there is no such directory.

    Attributes:
        names: in the directory, sorted.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self.disk = disk
        self.directory = directory
        self.reload()

    def reload(self) -> None:
        """Read the names again, and forget what was read of files."""
        self.names = self.disk.list_dir(self.directory)
        self._known = frozenset(self.names)
        self._heads: dict[str, bytes] = {}
        self._paths: dict[str, Path] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def path(self, name: str) -> Path:
        """The path of a file with this name."""
        found = self._paths.get(name)
        if found is None:
            found = self._paths[name] = self.directory / name
        return found

    def head(self, name: str) -> bytes:
        """The first SMALL_SIZE bytes of a file, or all of a smaller one.

        Raises:
            FileNotFoundError: there is no such file.
        """
        found = self._heads.get(name)
        if found is None:
            found = self._heads[name] = self.beginning(name, SMALL_SIZE)
        return found

    def beginning(self, name: str, size_max: int) -> bytes:
        """The first bytes of a file, which are not kept. Raises as `head`."""
        if name not in self._known:
            raise FileNotFoundError(name)
        file = self.disk.open(self.path(name))
        try:
            # No more than there is: a read reserves memory for all that is asked for.
            return file.read(0, min(file.size, size_max))
        finally:
            file.close()

    def read(self, name: str) -> bytes:
        """All of a file. Raises as `head`."""
        found = self.head(name)
        return found if len(found) < SMALL_SIZE else self.disk.read_bytes(self.path(name))
