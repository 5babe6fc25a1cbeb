"""Check of a commit-ordered view's files for versions of a later release. Runs before anything is written to it.

Format: docs/formats.md, "How formats change".
"""

import contextlib
from pathlib import Path

from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, naming
from stablelog.log.log_start import read_log_start
from stablelog.log.names import VIEW_START_FILE
from stablelog.views.commit_index import SUMMARY_SUFFIX, CommitSummary


def check_formats(disk: Disk, directory: Path) -> None:
    """Check the files of the view in a partition's directory. Writes nothing.

    A damaged summary is left to recovery, which rebuilds it.

    Args:
        disk: where the partition lies.
        directory: the partition's own. It may have no view.

    Raises:
        NewerFormat: a later release has written one; names it.
        Corrupt: the file that says where the view begins is damaged.
    """
    read_log_start(disk, directory / VIEW_START_FILE)
    summaries = [name for name in disk.list_dir(directory) if name.endswith(SUMMARY_SUFFIX)]
    if summaries:
        path = directory / summaries[-1]
        with contextlib.suppress(Corrupt), naming(path):
            CommitSummary.decode(disk.read_bytes(path))
