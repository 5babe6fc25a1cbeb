"""Removal of partition directories that belong to no topic, because of a crash or a deleted topic.

A directory is removed only if it contains nothing but files of a partition. Any other directory belongs to a user,
whatever its name.
"""

import errno
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from stablelog.data_directory.catalog import CATALOG_FILE
from stablelog.data_directory.names import partition_named
from stablelog.env.disk import Disk
from stablelog.errors import DiskError, named
from stablelog.log.files.names import CUT, LOG, is_partition_file

log = logging.getLogger(__name__)

DELETED: Final = "-delete"
NAMED_MAX: Final = 3
_DELETED_DIRECTORY = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-delete")


class Leftovers:
    """Removes partition directories that belong to no topic.

    Args:
        disk: the disk that contains the data directory.
        directory: the data directory.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._warned: set[Path] = set()

    def remove_unlisted(self, partition_counts: Mapping[str, int]) -> None:
        """Remove empty partition directories that a crash has left during the creation of a topic.

        A directory is removed if no topic in the list of topics has this partition, and the directory contains no
        records.

        Args:
            partition_counts: the number of partitions of each topic in the list of topics.
        """
        for name in self._disk.list_dir(self._directory):
            partition = partition_named(name)
            if partition is None or partition[1] < partition_counts.get(partition[0], 0):
                continue
            path = self._directory / name
            if not self._disk.is_dir(path):
                continue
            if holds_records(self._disk, path):
                self._warn(path, f"it belongs to no topic in {CATALOG_FILE} and holds records")
            else:
                self._remove(path)

    def remove_deleted(self) -> None:
        """Remove the directories of deleted topics.

        Raises:
            DiskError: at least one directory cannot be removed; the others are removed. The error is that of the first.
        """
        errors = []
        for name in self._disk.list_dir(self._directory):
            path = self._directory / name
            try:
                if _DELETED_DIRECTORY.fullmatch(name) and self._disk.is_dir(path):
                    self._remove(path)
            except DiskError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _remove(self, path: Path) -> None:
        """Remove a directory that contains only files of a partition. Log a warning for any other directory."""
        if not self._disk.list_dir(path):
            return  # Leave an empty directory: it takes no space, and a user may have created it.
        strange = strange_names(self._disk.list_dir(path))
        if strange:
            self._warn(path, f"it belongs to no topic, and has files that no partition has ({strange})")
            return
        try:
            self._disk.remove_dir(path)
            log.info("%s belonged to no topic and was removed", path)
        except DiskError as error:
            if error.number not in (errno.ENOTDIR, errno.ENOTEMPTY):
                raise
            self._warn(
                path, f"it belongs to no topic, and it is a symbolic link or holds a directory ({error})"
            )

    def _warn(self, path: Path, why: str) -> None:
        """Log a warning that a directory is not removed. Each directory is logged once."""
        if path not in self._warned:
            self._warned.add(path)
            log.warning(
                "the directory %s is not removed: %s. Move or remove it if it is not needed", path, why
            )


def strange_names(names: Iterable[str]) -> str:
    """Return the strange names, those that no file of a partition can have, joined to one text for a message; an empty
    text if there are none.
    """
    return named([name for name in names if not is_partition_file(name)], NAMED_MAX)


def holds_records(disk: Disk, path: Path) -> bool:
    """Return whether a directory contains records: a non-empty log file, or a non-empty file of bytes that recovery cut
    off.
    """
    return any(
        disk.size(path / name)
        for name in disk.list_dir(path)
        if is_partition_file(name) and name[20:].startswith((LOG, CUT))
    )
