"""Check of the format versions of a partition's files, before this release writes anything into the directory.

A release writes each kind of file in one version. So it is enough to check the newest file of a kind, except for the
kinds that compaction writes anew for old segments: of these, all files are checked.

Format: docs/formats.md, "How formats change".
"""

import contextlib
from pathlib import Path
from typing import Final

from stablelog.errors import DamageError, adding_path, refuse_unknown_version
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import LOG_START_FILE, decode_log_start
from stablelog.log.files.names import PRODUCERS, SNAPSHOT, SUMMARY, TXNINDEX, is_partition_file
from stablelog.log.indexes.summary import VERSION as SUMMARY_VERSION
from stablelog.log.indexes.transaction_index import VERSION as TXNINDEX_VERSION
from stablelog.log.producer_state.snapshots import SNAPSHOT_VERSION, check_producers_version
from stablelog.log.segments.replacement import CLEANED, SWAP

COMPACTED: Final = (SUMMARY, TXNINDEX)
HEAD_SIZE: Final = 64  # bytes at the beginning of a transaction index, which include its version
INT16: Final = slice(0, 2)


def check_formats(listing: Listing) -> None:
    """Check that this release reads the versions of a partition's files. Nothing is written. Damage is ignored here,
    because recovery handles it.

    Args:
        listing: the listing of the partition's directory.

    Raises:
        UnknownFormatError: this release does not read the version of a file. The message names the file.
    """
    found: dict[str, list[str]] = {}
    for name in listing.names:  # the names are in the order of the offsets
        kind = name.lstrip("0123456789").removesuffix(CLEANED).removesuffix(SWAP)
        if kind in _CHECKED and is_partition_file(name):
            found.setdefault(kind, []).append(name)
    for kind, names in found.items():
        for name in names if kind in COMPACTED else names[-1:]:
            path = listing.path(name)
            with contextlib.suppress(DamageError, FileNotFoundError), adding_path(path):
                # A log may have thousands of transaction indexes, and recovery reads only the last one. The listing
                # caches only this last index.
                is_kept = kind != TXNINDEX or name == names[-1]
                head = listing.head(name) if is_kept else listing.beginning(name, HEAD_SIZE)
                _check(kind, head, path)


def _check(kind: str, head: bytes, path: Path) -> None:
    """Check the version at the beginning of a file. Raises UnknownFormatError, or DamageError for damage."""
    if kind in _NUMBERED:  # the version is the first two bytes
        what, known = _NUMBERED[kind]
        refuse_unknown_version(what, int.from_bytes(head[INT16], "big"), known)
    elif kind == PRODUCERS:
        check_producers_version(head)
    elif kind == EPOCH_FILE:
        # The version is in the first line, and `head` has at least this line. If the file is longer than `head`, its
        # end is missing here, and the decoder raises DamageError. The caller ignores DamageError and sees only
        # UnknownFormatError.
        LeaderEpochs.decode(head)
    else:
        decode_log_start(head, path)


_NUMBERED: Final = {
    SUMMARY: ("a segment summary", SUMMARY_VERSION),
    SNAPSHOT: ("a producer snapshot", SNAPSHOT_VERSION),
    TXNINDEX: ("a transaction index", TXNINDEX_VERSION),
}
_CHECKED: Final = {*_NUMBERED, PRODUCERS, EPOCH_FILE, LOG_START_FILE}
