"""The file that marks an incomplete restore: a data directory that has it lacks files, and no broker may use it."""

from pathlib import Path
from typing import Final

from stablelog.env.disk import Disk
from stablelog.errors import UsageError

RESTORING_FILE: Final = "restoring"


def check_is_restored(disk: Disk, directory: Path) -> None:
    """Refuse the data directory of an incomplete restore.

    Raises:
        UsageError: the restore was interrupted, or still runs.
    """
    if disk.exists(directory / RESTORING_FILE):
        raise UsageError(
            f"{directory} is an incomplete restore, and lacks files: when no `stablelog restore` runs, remove the "
            "directory, and run the command again"
        )
