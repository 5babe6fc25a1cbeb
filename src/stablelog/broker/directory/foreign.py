"""Directories that are no data directory: a wrong path must not fill a user's directory with a broker's files."""

import re
from pathlib import Path
from typing import Final

from stablelog.broker.directory.catalog import CATALOG_FILE
from stablelog.broker.directory.checkpoints import (
    FIRST_DIRTY_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from stablelog.broker.directory.noted_file import NOTED_FILES
from stablelog.broker.durability.disk_reserve import RESERVE_FILE
from stablelog.env.disk import Disk
from stablelog.errors import UsageError
from stablelog.log.files.kafka_files import LOG_START_CHECKPOINT, META_FILE

# A broker writes one of these files first, perhaps with the ending .tmp. Damage may leave any one of them.
OWN_FILES: Final = (
    CATALOG_FILE,
    META_FILE,
    *(kind.name for kind in NOTED_FILES),
    RESERVE_FILE,
    FIRST_DIRTY_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
)
PARTITION: Final = re.compile(r".+-\d+")  # The name of a partition's directory.
MOUNTED: Final = "lost+found"  # An empty file system of its own may have this directory.


def refuse_foreign(disk: Disk, directory: Path) -> None:
    """Refuse a directory that has files, none of which a broker writes. Hidden files do not count.

    Raises:
        UsageError: the directory is no data directory.
    """
    if not disk.is_dir(directory):
        return
    names = sorted(name for name in disk.list_dir(directory) if not name.startswith(".") and name != MOUNTED)
    if names and not any(name.startswith(OWN_FILES) or PARTITION.fullmatch(name) for name in names):
        raise UsageError(
            f"{directory} is not empty and no data directory: it has {names[0]!r} and no file of a broker. Use another "
            "directory, or an empty one"
        )
