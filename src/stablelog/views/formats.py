"""Check of a commit-ordered view's files for versions of a later release. Runs before anything is written to it.

Format: docs/formats.md, "How formats change".
"""

import contextlib

from stablelog.errors import Corrupt, naming
from stablelog.log.listing import Listing
from stablelog.log.log_start import decode_log_start
from stablelog.log.names import VIEW_START_FILE
from stablelog.views.commit_index import SUMMARY_SUFFIX, CommitSummary


def check_formats(listing: Listing) -> None:
    """Check the files of the view in a partition's directory. Writes nothing.

    A damaged summary is left to recovery, which rebuilds it.

    Args:
        listing: of the partition's directory. It may have no view.

    Raises:
        NewerFormat: a later release has written one; names it.
        Corrupt: the file that says where the view begins is damaged.
    """
    with contextlib.suppress(FileNotFoundError):
        decode_log_start(listing.read(VIEW_START_FILE), listing.path(VIEW_START_FILE))
    summaries = [name for name in listing.names if name.endswith(SUMMARY_SUFFIX)]
    if summaries:
        with contextlib.suppress(Corrupt), naming(listing.path(summaries[-1])):
            CommitSummary.decode(listing.read(summaries[-1]))
