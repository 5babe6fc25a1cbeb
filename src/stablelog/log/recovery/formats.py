"""Check of the format versions of a partition's files, before this release writes anything into the directory.

A release writes each kind of file in one version. So it is enough to check the newest file of a kind, except for the
kinds that compaction writes anew for old segments: of these, all files are checked.

Format: docs/reference/formats.md, "How formats change".
"""

import contextlib
from collections.abc import Callable
from functools import partial
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


def check_formats(listing: Listing) -> None:
    """Check that this release reads the versions of a partition's files. Nothing is written. Damage is ignored here,
    because recovery handles it.

    Args:
        listing: the names of the files in the partition's directory, with a cache of their contents.

    Raises:
        UnknownFormatError: this release does not read the version of a file. The message names the file.
    """
    found: dict[str, list[str]] = {}
    for name in listing.names:  # the names are in the order of the offsets
        kind = name.lstrip("0123456789").removesuffix(CLEANED).removesuffix(SWAP)
        if kind in _CHECKS and is_partition_file(name):
            found.setdefault(kind, []).append(name)
    for kind, names in found.items():
        for name in names if kind in COMPACTED else names[-1:]:
            path = listing.path(name)
            with contextlib.suppress(DamageError, FileNotFoundError), adding_path(path):
                # A log may have thousands of transaction indexes, and recovery reads only the last one. The listing
                # caches only this last index.
                is_kept = kind != TXNINDEX or name == names[-1]
                head = listing.head(name) if is_kept else listing.beginning(name, HEAD_SIZE)
                _CHECKS[kind](head, path)


def _check_number(what: str, known: int, head: bytes, _path: Path) -> None:
    """Check a version that is a number in the first two bytes of a file. `head` is the beginning of the file, and
    `known` the version that this release reads.
    """
    refuse_unknown_version(what, int.from_bytes(head[:2], "big"), known)


# By kind of file: the function that checks the version at the beginning of the file, called with these bytes and the
# path. It raises UnknownFormatError, or DamageError for damage.
_CHECKS: Final[dict[str, Callable[[bytes, Path], object]]] = {
    SUMMARY: partial(_check_number, "a segment summary", SUMMARY_VERSION),
    SNAPSHOT: partial(_check_number, "a producer snapshot", SNAPSHOT_VERSION),
    TXNINDEX: partial(_check_number, "a transaction index", TXNINDEX_VERSION),
    PRODUCERS: lambda head, _path: check_producers_version(head),
    # The version is in the first line, and the caller passes at least this line. If the file is longer, its end is
    # missing here, and the decoder raises DamageError, which the caller ignores.
    EPOCH_FILE: lambda head, _path: LeaderEpochs.decode(head),
    LOG_START_FILE: decode_log_start,
}
