"""Check of the format versions of a commit-ordered partition's files, before a start of the broker writes to the
partition.

Format: docs/reference/formats.md, "How formats change".
"""

import contextlib

from stablelog.commit_order.index_format import SUMMARY_SUFFIX, CommitSummary
from stablelog.errors import DamageError, adding_path
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import decode_log_start
from stablelog.log.files.names import VIEW_START_FILE


def check_formats(listing: Listing) -> None:
    """Check the format versions of the files of commit order: `view-start-offset`, and the newest `.commitsummary`
    file, which describes the commit index of a segment.

    A damaged `.commitsummary` file is ignored here, because the broker rebuilds the commit index.

    Args:
        listing: the names of the files in the partition's directory, with a cache of their contents. These files may be
            missing.

    Raises:
        UnknownFormatError: this release does not read the version of a file. The message names the file.
        DamageError: `view-start-offset` is damaged.
    """
    with contextlib.suppress(FileNotFoundError):
        decode_log_start(listing.read(VIEW_START_FILE), listing.path(VIEW_START_FILE))
    summaries = [name for name in listing.names if name.endswith(SUMMARY_SUFFIX)]
    if summaries:
        with contextlib.suppress(DamageError), adding_path(listing.path(summaries[-1])):
            CommitSummary.decode(listing.read(summaries[-1]))
