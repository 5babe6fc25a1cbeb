"""Names in a data directory: that of the disk reserve (a file whose space the broker uses when the disk is full), and
those of partitions' directories.
"""

import re
from pathlib import Path
from typing import Final

from stablelog.env.disk import Disk
from stablelog.types import TopicPartition

RESERVE_FILE: Final = "disk-reserve"
_PARTITION_DIRECTORY: Final = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9][0-9]{0,9})")


def partition_named(name: str) -> TopicPartition | None:
    """Return the topic and the number of the partition whose directory has this name; None if this is not the name of a
    partition's directory.
    """
    match = _PARTITION_DIRECTORY.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


def partition_directories(disk: Disk, directory: Path) -> list[Path]:
    """Return the directories of partitions in a data directory, sorted. Those of deleted topics are left out."""
    names = [name for name in disk.list_dir(directory) if partition_named(name) is not None]
    return [directory / name for name in names if disk.is_dir(directory / name)]
