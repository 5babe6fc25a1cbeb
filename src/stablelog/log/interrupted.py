"""What a crash interrupted: deleting segments, replacing them by what compaction made of them, writing a file.

A name tells how far it had come:

    .tmp        a file was being written: it goes, the one it was to replace is there
    .cleaned    compaction was writing a segment: it goes, those it was made of are there
    .swap       compaction had written a segment and was putting it in place of others: it is finished. The log
                file of a swap is renamed last; until then, it says which segments it replaces: those that begin
                within its offsets, to the end that its summary tells or else to that of its last batch
    .deleted    a segment was deleted, or replaced: it goes

Source: Kafka's file suffixes.
"""

import contextlib
from pathlib import Path

from stablelog.batch.header import headers_in
from stablelog.env.disk import Disk
from stablelog.errors import Corrupt
from stablelog.log.retention import DELETED, offset_of
from stablelog.log.segment import LOG, SEGMENT_SUFFIXES, SUMMARY
from stablelog.log.summary import Summary

CLEANED, SWAP, TMP = ".cleaned", ".swap", ".tmp"


def finish_interrupted(disk: Disk, directory: Path) -> None:
    """Finish or undo what a crash interrupted."""
    names = disk.list_dir(directory)
    cleaned = [offset_of(name) for name in names if name.endswith(LOG + CLEANED)]
    for name in names:
        # While a part of it has its first name, a swap is not complete.
        half_swap = name.endswith(SWAP) and cleaned and offset_of(name) >= min(cleaned)
        if name.endswith((DELETED, CLEANED, TMP)) or half_swap:
            disk.remove(directory / name)
    swaps = sorted(name for name in disk.list_dir(directory) if name.endswith(LOG + SWAP))
    for name in swaps:
        finish_swap(disk, directory, offset_of(name))
    for name in disk.list_dir(directory):
        if name.endswith(SWAP):
            disk.rename(directory / name, directory / name.removesuffix(SWAP))
    if any(name.endswith((DELETED, CLEANED, TMP, SWAP)) for name in names):
        disk.sync_dir(directory)


def finish_swap(disk: Disk, directory: Path, base_offset: int) -> None:
    """Put a compacted segment in place of those it was made of.

    Its files have the suffix .swap, all of them, and that is durable. Done again after a crash, it does what is left:
    the log file is renamed when all else is durable.
    """
    end_offset = _end_of_swap(disk, directory, base_offset)
    for name in disk.list_dir(directory):
        number, _, suffix = name.partition(".")
        if number.isdigit() and base_offset < int(number) < end_offset and f".{suffix}" in SEGMENT_SUFFIXES:
            disk.remove(directory / name)
    for suffix in (*SEGMENT_SUFFIXES[1:], LOG):
        path = directory / f"{base_offset:020d}{suffix}{SWAP}"
        if suffix == LOG:
            disk.sync_dir(directory)
        if disk.exists(path):
            disk.rename(path, path.with_name(path.name.removesuffix(SWAP)))
    disk.sync_dir(directory)


def _end_of_swap(disk: Disk, directory: Path, base_offset: int) -> int:
    """Where the offsets end that a swap replaces, exclusive."""
    for name in (f"{base_offset:020d}{SUMMARY}{SWAP}", f"{base_offset:020d}{SUMMARY}"):
        with contextlib.suppress(FileNotFoundError, Corrupt):
            return Summary.decode(disk.read_bytes(directory / name)).end_offset
    content = disk.read_bytes(directory / f"{base_offset:020d}{LOG}{SWAP}")
    last = max((header.last_offset for _, header in headers_in(content)), default=base_offset)
    return last + 1
