"""Check of the format versions in a commit-ordered partition. It runs before a start writes to the partition.

Format: docs/formats.md, "How formats change".
"""

import contextlib

from stablelog.errors import Corrupt, naming
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import decode_log_start
from stablelog.log.files.names import VIEW_START_FILE
from stablelog.views.index_format import SUMMARY_SUFFIX, CommitSummary


def check_formats(listing: Listing) -> None:
    """Check the files of the view in a partition's directory.

    The check ignores a damaged commit index, because the start rebuilds it.

    Args:
        listing: the listing of the partition's directory. The partition may have no view.

    Raises:
        NewerFormat: a later release wrote a file. The message names it.
        Corrupt: `view-start-offset` is damaged.
    """
    with contextlib.suppress(FileNotFoundError):
        decode_log_start(listing.read(VIEW_START_FILE), listing.path(VIEW_START_FILE))
    summaries = [name for name in listing.names if name.endswith(SUMMARY_SUFFIX)]
    if summaries:
        with contextlib.suppress(Corrupt), naming(listing.path(summaries[-1])):
            CommitSummary.decode(listing.read(summaries[-1]))
