"""Replacement of segments by a compacted one, and the completion of file operations that a crash has interrupted.

The suffix of a file shows how far the operation had come, and what the next open of the partition does:
    .tmp        A file was being written. This file is removed; the file that it was to replace still exists.
    .cleaned    Compaction was writing a segment. Its files are removed; the original segments still exist.
    .swap       Compaction had finished a segment, and was putting it in place of the original ones. The open
                finishes this replacement. The log file gets the suffix after all other files durably have it. It
                loses the suffix after all other files except the summary are in place. While the log file has the
                suffix, it shows which segments are replaced: those that begin within the offsets of the new
                segment. The summary of the new segment gives the end of these offsets; without a summary, the last
                batch does. The new summary is put in place last, because it describes the other files.
    .deleted    A segment was deleted or replaced. Its files are removed.

Source: Kafka's file suffixes.
"""

import contextlib
from pathlib import Path

from stablelog.batch.header import headers_in
from stablelog.env.disk import Disk
from stablelog.errors import DamageError
from stablelog.log.files.listing import Listing
from stablelog.log.files.names import (
    DELETED,
    INDEX_SUFFIXES,
    LOG,
    OFFSET_DIGITS,
    PRODUCERS,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SUMMARY,
    TXNINDEX,
    has_offset,
    is_partition_file,
    offset_of,
)
from stablelog.log.indexes.summary import Summary

CLEANED, SWAP, TMP = ".cleaned", ".swap", ".tmp"


def finish_interrupted(listing: Listing) -> None:
    """Finish or undo the file operations of compaction and deletion that a crash has interrupted. `listing`, the cached
    names of the partition's files, is up to date afterwards.
    """
    if any(name.endswith((DELETED, CLEANED, TMP, SWAP)) for name in listing.names):
        _finish(listing.disk, listing.directory)
        listing.reload()


def _finish(disk: Disk, directory: Path) -> None:
    names = _names(disk, directory)
    cleaned = [offset_of(name) for name in names if name.endswith(LOG + CLEANED)]
    # Compaction renames the files of a new segment from `.cleaned` to `.swap`, the log file last. If a log file still
    # has the suffix `.cleaned`, the replacement by this segment has not begun, and the segment's `.swap` files are
    # removed. The `.swap` files of segments before it belong to other replacements, and stay.
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
    for name in sorted(name for name in _names(disk, directory) if name.endswith(LOG + SWAP)):
        finish_swap(disk, directory, offset_of(name))
    for name in _names(disk, directory):
        if name.endswith(SWAP):
            disk.rename(directory / name, directory / name.removesuffix(SWAP))
    disk.sync_dir(directory)


def _names(disk: Disk, directory: Path) -> list[str]:
    """Return the names of the partition's files in a directory, without other files."""
    return [name for name in disk.list_dir(directory) if is_partition_file(name)]


def begin_swap(disk: Disk, directory: Path, base_offset: int) -> None:
    """Begin to put a compacted segment in place of the original ones: rename its files from `.cleaned` to `.swap`. They
    must all be durable. From now on, recovery finishes the replacement after a crash.
    """
    for suffix in (*SEGMENT_SUFFIXES[1:], LOG):
        path = directory / f"{base_offset:020d}{suffix}{CLEANED}"
        if suffix == LOG:
            disk.sync_dir(directory)
        if disk.exists(path):
            disk.rename(path, path.with_name(path.name.removesuffix(CLEANED) + SWAP))
    disk.sync_dir(directory)


def finish_swap(disk: Disk, directory: Path, base_offset: int) -> None:
    """Put a compacted segment in place of the original ones. All its files must durably have the suffix `.swap`.

    After a crash, a second call does the remaining steps: the log file keeps the suffix until the original segments are
    removed and the indexes are in place.

    The snapshots within the original segments are removed, too, because they describe the bytes and indexes of those
    segments. A replay of the new segment must not begin at them.
    """
    stem = f"{base_offset:020d}"
    summary = _summary_of_swap(disk, directory, base_offset)
    end_offset = _end_of_swap(disk, directory, base_offset) if summary is None else summary.end_offset
    disk.remove(directory / f"{stem}{SUMMARY}")
    if summary is not None and not summary.txnindex_size:
        disk.remove(directory / f"{stem}{TXNINDEX}")
    for name in disk.list_dir(directory):
        is_of_log = has_offset(name) and name[OFFSET_DIGITS:] in (*SEGMENT_SUFFIXES, SNAPSHOT, PRODUCERS)
        if is_of_log and base_offset < offset_of(name) < end_offset:
            disk.remove(directory / name)
    disk.sync_dir(directory)
    for suffixes in (INDEX_SUFFIXES, (LOG,), (SUMMARY,)):
        for suffix in suffixes:
            path = directory / f"{stem}{suffix}{SWAP}"
            if disk.exists(path):
                disk.rename(path, directory / f"{stem}{suffix}")
        disk.sync_dir(directory)


def _summary_of_swap(disk: Disk, directory: Path, base_offset: int) -> Summary | None:
    """Read the summary of a compacted segment (its offsets, file sizes and checksums) while its files have the suffix
    `.swap`. Return None if Kafka has written the segment, because Kafka has no summaries.
    """
    with contextlib.suppress(FileNotFoundError, DamageError):
        return Summary.decode(disk.read_bytes(directory / f"{base_offset:020d}{SUMMARY}{SWAP}"))
    return None


def _end_of_swap(disk: Disk, directory: Path, base_offset: int) -> int:
    """Return the end offset, exclusive, of a segment that Kafka has compacted. It is computed from the batches of the
    segment's `.swap` file, because Kafka writes no summary that has it.
    """
    content = disk.read_bytes(directory / f"{base_offset:020d}{LOG}{SWAP}")
    return max((header.next_offset for _, header in headers_in(content)), default=base_offset + 1)
