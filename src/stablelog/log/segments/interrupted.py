"""What a crash interrupted: deleting segments, replacing them by what compaction made of them, writing a file.

A name tells how far it had come:

    .tmp        a file was being written: it goes, the one it was to replace is there
    .cleaned    compaction was writing a segment: it goes, those it was made of are there
    .swap       compaction had written a segment and was putting it in place of others: it is finished. Its log
                file gets the name when all its other files durably have it, and loses it when all but the summary
                are in place; in between it says which segments are replaced: those that begin within its offsets,
                to the end that its summary tells or else to that of its last batch. A summary is in place only
                while the files that it tells of are
    .deleted    a segment was deleted, or replaced: it goes

Source: Kafka's file suffixes.
"""

import contextlib
from pathlib import Path

from stablelog.batch.header import headers_in
from stablelog.env.disk import Disk
from stablelog.errors import Corrupt
from stablelog.log.files.listing import Listing
from stablelog.log.files.names import (
    DELETED,
    INDEX_SUFFIXES,
    LOG,
    OFFSET_DIGITS,
    SEGMENT_SUFFIXES,
    SUMMARY,
    TXNINDEX,
    has_offset,
    is_partition_file,
    offset_of,
)
from stablelog.log.indexes.summary import Summary

CLEANED, SWAP, TMP = ".cleaned", ".swap", ".tmp"


def finish_interrupted(listing: Listing) -> None:
    """Finish or undo what a crash interrupted. The listing is of the partition's directory; it is right afterwards."""
    if any(name.endswith((DELETED, CLEANED, TMP, SWAP)) for name in listing.names):
        _finish(listing.disk, listing.directory)
        listing.reload()


def _finish(disk: Disk, directory: Path) -> None:
    names = _names(disk, directory)
    cleaned = [offset_of(name) for name in names if name.endswith(LOG + CLEANED)]
    # While its log file has its first name, a swap has not begun. That name goes last: it tells the others apart.
    not_begun = [
        name for name in names if name.endswith(SWAP) and cleaned and offset_of(name) >= min(cleaned)
    ]
    for name in not_begun:
        disk.remove(directory / name)
    if not_begun:
        disk.sync_dir(directory)
    for name in names:
        if name.endswith((DELETED, CLEANED, TMP)):
            disk.remove(directory / name)
    swaps = sorted(name for name in _names(disk, directory) if name.endswith(LOG + SWAP))
    for name in swaps:
        finish_swap(disk, directory, offset_of(name))
    for name in _names(disk, directory):
        if name.endswith(SWAP):
            disk.rename(directory / name, directory / name.removesuffix(SWAP))
    if any(name.endswith((DELETED, CLEANED, TMP, SWAP)) for name in names):
        disk.sync_dir(directory)


def _names(disk: Disk, directory: Path) -> list[str]:
    """The names of a partition's files; any other file in the directory is left alone."""
    return [name for name in disk.list_dir(directory) if is_partition_file(name)]


def begin_swap(disk: Disk, directory: Path, base_offset: int) -> None:
    """Let a cleaned segment, all of whose files are durable, take the place of others. After this it will, come what may."""
    for suffix in (*SEGMENT_SUFFIXES[1:], LOG):
        path = directory / f"{base_offset:020d}{suffix}{CLEANED}"
        if suffix == LOG:
            disk.sync_dir(directory)
        if disk.exists(path):
            disk.rename(path, path.with_name(path.name.removesuffix(CLEANED) + SWAP))
    disk.sync_dir(directory)


def finish_swap(disk: Disk, directory: Path, base_offset: int) -> None:
    """Put a compacted segment in place of those it was made of.

    Its files have the suffix .swap, all of them, and that is durable. Done again after a crash, it does what is left:
    the log file is renamed when all else is durable.
    """
    stem = f"{base_offset:020d}"
    summary = _summary_of_swap(disk, directory, base_offset)
    end_offset = _end_of_swap(disk, directory, base_offset) if summary is None else summary.end_offset
    disk.remove(directory / f"{stem}{SUMMARY}")
    if summary is not None and not summary.txnindex_size:
        disk.remove(directory / f"{stem}{TXNINDEX}")
    for name in disk.list_dir(directory):
        is_of_segment = has_offset(name) and name[OFFSET_DIGITS:] in SEGMENT_SUFFIXES
        if is_of_segment and base_offset < offset_of(name) < end_offset:
            disk.remove(directory / name)
    disk.sync_dir(directory)
    for suffixes in (INDEX_SUFFIXES, (LOG,), (SUMMARY,)):
        for suffix in suffixes:
            path = directory / f"{stem}{suffix}{SWAP}"
            if disk.exists(path):
                disk.rename(path, directory / f"{stem}{suffix}")
        disk.sync_dir(directory)


def _summary_of_swap(disk: Disk, directory: Path, base_offset: int) -> Summary | None:
    """The summary of a swap; None if it is Kafka's, which has none."""
    with contextlib.suppress(FileNotFoundError, Corrupt):
        return Summary.decode(disk.read_bytes(directory / f"{base_offset:020d}{SUMMARY}{SWAP}"))
    return None


def _end_of_swap(disk: Disk, directory: Path, base_offset: int) -> int:
    """Where the offsets end that a swap of Kafka's replaces, exclusive."""
    content = disk.read_bytes(directory / f"{base_offset:020d}{LOG}{SWAP}")
    last = max((header.last_offset for _, header in headers_in(content)), default=base_offset)
    return last + 1
