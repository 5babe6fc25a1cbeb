"""Has a later release written to a partition? Asked before this one writes anything into its directory.

A release writes each kind of file in one version. So the newest file of a kind tells of any later release that has
written the kind, but for what compaction writes anew: of that, all files are looked at.

Format: docs/formats.md, "How formats change".
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, naming, refuse_newer
from stablelog.log.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.interrupted import CLEANED, SWAP
from stablelog.log.log_start import LOG_START_FILE, read_log_start
from stablelog.log.names import PRODUCERS, SNAPSHOT, SUMMARY, TXNINDEX, is_partition_file
from stablelog.log.snapshots import PRODUCERS_VERSION, SNAPSHOT_VERSION
from stablelog.log.summary import VERSION as SUMMARY_VERSION
from stablelog.log.transaction_index import VERSION as TXNINDEX_VERSION

COMPACTED: Final = (SUMMARY, TXNINDEX)
HEAD_SIZE: Final = 64  # bytes, in which each of these files says its version
INT16: Final = slice(0, 2)

Check = Callable[[Disk, Path], object]


def check_formats(disk: Disk, directory: Path) -> None:
    """Look at a partition's files. Nothing is written.

    What is damaged is left to recovery.

    Raises:
        NewerFormat: a later release has written one; names it.
    """
    found: dict[str, list[str]] = {}
    for name in disk.list_dir(directory):  # in the order of their offsets
        kind = name.lstrip("0123456789").removesuffix(CLEANED).removesuffix(SWAP)
        if kind in _CHECKS and is_partition_file(name):
            found.setdefault(kind, []).append(name)
    for kind, names in found.items():
        for name in names if kind in COMPACTED else names[-1:]:
            with contextlib.suppress(Corrupt, FileNotFoundError), naming(directory / name):
                _CHECKS[kind](disk, directory / name)


def _head(disk: Disk, path: Path) -> bytes:
    file = disk.open(path)
    try:
        return file.read(0, HEAD_SIZE)
    finally:
        file.close()


def _by_number(what: str, known: int) -> Check:
    """A check of a file that begins with its version in two bytes."""

    def check(disk: Disk, path: Path) -> None:
        refuse_newer(what, int.from_bytes(_head(disk, path)[INT16], "big"), known)

    return check


_CHECKS: Final[dict[str, Check]] = {
    SUMMARY: _by_number("a segment summary", SUMMARY_VERSION),
    SNAPSHOT: _by_number("a producer snapshot", SNAPSHOT_VERSION),
    TXNINDEX: _by_number("a transaction index", TXNINDEX_VERSION),
    # A file of version 1 begins with "{": read as a number, that is no version that a release can have.
    PRODUCERS: _by_number("a file of producers", PRODUCERS_VERSION),
    EPOCH_FILE: lambda disk, path: LeaderEpochs.decode(disk.read_bytes(path)),
    LOG_START_FILE: read_log_start,
}
