"""The names of the entries of a data directory that no other module of this package defines."""

import re
from pathlib import Path
from typing import Final

from stablelog.env.disk import Disk
from stablelog.types import TopicPartition

RESERVE_FILE: Final = "disk-reserve"
_PARTITION_DIRECTORY: Final = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9][0-9]{0,9})")


def partition_named(name: str) -> TopicPartition | None:
    """Return the partition whose directory has this name; None if no partition's directory has it."""
    match = _PARTITION_DIRECTORY.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


def partition_directories(disk: Disk, directory: Path) -> list[Path]:
    """Return the partition directories in a data directory, sorted, without those of deleted topics."""
    names = [name for name in disk.list_dir(directory) if partition_named(name) is not None]
    return [directory / name for name in names if disk.is_dir(directory / name)]
