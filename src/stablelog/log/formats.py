"""Has a later release written to a partition? Asked before this one writes anything into its directory.

A release writes each kind of file in one version. So the newest file of a kind tells of any later release that has
written the kind, but for what compaction writes anew: of that, all files are looked at.

Format: docs/formats.md, "How formats change".
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stablelog.errors import Corrupt, naming, refuse_newer
from stablelog.log.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.interrupted import CLEANED, SWAP
from stablelog.log.listing import Listing
from stablelog.log.log_start import LOG_START_FILE, decode_log_start
from stablelog.log.names import PRODUCERS, SNAPSHOT, SUMMARY, TXNINDEX, is_partition_file
from stablelog.log.snapshots import PRODUCERS_VERSION, SNAPSHOT_VERSION
from stablelog.log.summary import VERSION as SUMMARY_VERSION
from stablelog.log.transaction_index import VERSION as TXNINDEX_VERSION

COMPACTED: Final = (SUMMARY, TXNINDEX)
HEAD_SIZE: Final = 64  # bytes, in which an index of aborts says its version
INT16: Final = slice(0, 2)

Check = Callable[[bytes, Path], object]  # the beginning of a file, and its path for the message


def check_formats(listing: Listing) -> None:
    """Check the files of a partition. Writes nothing.

    A damaged file is left to recovery.

    Args:
        listing: of the partition's directory.

    Raises:
        NewerFormat: a later release has written one; names it.
    """
    found: dict[str, list[str]] = {}
    for name in listing.names:  # in the order of their offsets
        kind = name.lstrip("0123456789").removesuffix(CLEANED).removesuffix(SWAP)
        if kind in _CHECKS and is_partition_file(name):
            found.setdefault(kind, []).append(name)
    for kind, names in found.items():
        for name in names if kind in COMPACTED else names[-1:]:
            path = listing.path(name)
            with contextlib.suppress(Corrupt, FileNotFoundError), naming(path):
                # A log may have thousands of indexes of aborts, of which recovery reads the last.
                is_kept = kind != TXNINDEX or name == names[-1]
                head = listing.head(name) if is_kept else listing.beginning(name, HEAD_SIZE)
                _CHECKS[kind](head, path)


def _by_number(what: str, known: int) -> Check:
    """A check of a file that begins with its version in two bytes."""

    def check(head: bytes, _path: Path) -> None:
        refuse_newer(what, int.from_bytes(head[INT16], "big"), known)

    return check


_CHECKS: Final[dict[str, Check]] = {
    SUMMARY: _by_number("a segment summary", SUMMARY_VERSION),
    SNAPSHOT: _by_number("a producer snapshot", SNAPSHOT_VERSION),
    TXNINDEX: _by_number("a transaction index", TXNINDEX_VERSION),
    # A file of version 1 begins with "{": read as a number, that is no version that a release can have.
    PRODUCERS: _by_number("a file of producers", PRODUCERS_VERSION),
    # The version stands in the first line. Of a file that is longer than a head, the rest is missing: Corrupt, if it is known.
    EPOCH_FILE: lambda head, _path: LeaderEpochs.decode(head),
    LOG_START_FILE: decode_log_start,
}
