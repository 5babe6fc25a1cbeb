"""Repair of a damaged partition: shows what a truncation of its log loses, and truncates the log.

A partition whose durable log is damaged stays offline, because only its owner can decide to continue without the
records after the damage. `examine` finds the damage and counts the records that a truncation would remove.
`truncate_at_damage` truncates the log, and keeps the removed bytes in `.cut` files, as recovery does.
"""

import sys
from contextlib import closing
from pathlib import Path

from stablelog.env.disk import Disk
from stablelog.errors import DamageError, adding_path
from stablelog.log.directory import PartitionDirectory
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start, read_log_start
from stablelog.log.files.names import (
    LOG,
    OFFSET_DIGITS,
    SEGMENT_SUFFIXES,
    SUMMARY,
    VIEW_START_FILE,
    SegmentName,
    file_path,
    has_offset,
    is_snapshot,
    log_offsets,
    offset_of,
)
from stablelog.log.indexes.summary import Summary
from stablelog.log.recovery.damage import Damage, Expected
from stablelog.log.recovery.examine import Examination
from stablelog.log.recovery.formats import check_formats
from stablelog.log.recovery.tail import RemovedTail, keep_tail, lost_batches
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.replacement import finish_interrupted
from stablelog.log.segments.scan import scan_batches


def examine(disk: Disk, directory: Path, expected: Expected | None = None) -> Damage | None:
    """Find the first damage of a partition's log; None if there is none.

    A start of the broker may open the log in spite of this damage, if it does not read the damaged bytes
    (`Damage.is_passed_over`). An operation that a crash has interrupted is finished first, as at each start. Nothing
    else is written.

    Args:
        disk: the disk of the partition. No broker may have the partition open.
        directory: the partition's directory.
        expected: what the data directory records about the partition.

    Raises:
        UnknownFormatError: a later release has written to the directory; nothing was changed.
        DamageError: the directory is damaged in a way that no truncation can repair.
        DiskError: a file cannot be read.
    """
    listing = Listing(disk, directory)
    check_formats(listing)
    finish_interrupted(listing)
    with adding_path(directory):
        examination = Examination(PartitionDirectory(listing), expected or Expected())
        damage = examination.run()
    for found in () if damage is None else (damage, damage.refused):
        if found is not None:
            found.durable_end = max(examination.durable_end, found.end_offset)
            _count_lost(disk, found)
    return damage


def _count_lost(disk: Disk, damage: Damage) -> None:
    for path, position, base_offset in damage.lost_files():
        with closing(disk.open(path)) as lost:
            damage.size += lost.size - max(position, 0)
            if position < lost.size:
                for _, header in lost_batches(lost, position, base_offset):
                    damage.count_batch(header)


def truncate_at_damage(disk: Disk, directory: Path, damage: Damage) -> list[RemovedTail]:
    """Truncate the log at the damage, and keep the removed bytes in `.cut` files. All changes are durable on return.

    The truncation has several steps. Before the first log file changes, the truncated segment gets a summary (the file
    with its sizes and checksums) that describes more bytes than its log file will have; the last step replaces this
    summary. So a start of the broker never opens a log that is truncated in part: it refuses such a summary. After a
    crash or an error, `examine` finds the same damage, and this function can be called again.

    The caller must then lower the recovery point in the data directory to `damage.end_offset`.

    Args:
        disk: the disk of the partition. No broker may have the partition open.
        directory: the partition's directory.
        damage: the damage that `examine` has found.

    Returns:
        The removed parts, in the order of the log.
    """
    _check_unchanged(disk, directory, damage)
    kept = keep_tail(disk, damage.path, damage.position, damage.end_offset, damage.why)
    for base in damage.later:
        why = f"it follows {damage.path.name}, which was truncated"
        kept += keep_tail(disk, file_path(directory, base, LOG), 0, base, why)
    _lower_log_starts(disk, directory, damage.end_offset)
    _refuse_starts(disk, damage)
    with closing(disk.open(damage.path)) as file:
        file.truncate(damage.position)
        file.sync()
    _remove_behind(disk, directory, damage)
    _settle(disk, damage)
    return kept


def _lower_log_starts(disk: Disk, directory: Path, end_offset: int) -> None:
    """Move the recorded starts of the log and of its commit-ordered view (the committed batches in the order of their
    commits) back to the new end of the log, if they are after it.
    """
    for name in (LOG_START_FILE, VIEW_START_FILE):
        start = read_log_start(disk, directory / name)
        if start is not None and start > end_offset:
            disk.write_atomic(directory / name, encode_log_start(end_offset))


def _refuse_starts(disk: Disk, damage: Damage) -> None:
    """Make sure that starts of the broker refuse the log until the repair is complete: write a summary that describes
    more bytes than the truncated log file will have, unless there is one already.

    By this summary, `examine` also finds the damage again. It is not needed if the truncated segment is the last one
    and has no gaps: then the truncation of its log file is the only step.
    """
    path = damage.path.with_suffix(SUMMARY)
    try:
        summary = Summary.decode(disk.read_bytes(path))
    except (FileNotFoundError, DamageError):
        if not damage.later and not damage.has_gaps:
            return
    else:
        if summary.base_offset == offset_of(path.name) and summary.log_size > damage.position:
            # This summary must stay: the damage may be visible only by the CRC over the headers in this summary.
            return
    size = disk.size(damage.path) + 1
    summary = Summary(offset_of(path.name), max(damage.end_offset, damage.durable_end), log_size=size)
    disk.write_atomic(path, summary.encode())


def _remove_behind(disk: Disk, directory: Path, damage: Damage) -> None:
    """Remove the segments behind the truncated one, and all files that describe removed records, except the summary of
    the truncated segment. By this summary, starts of the broker refuse the log until the repair is complete.
    """
    base = offset_of(damage.path.name)
    for name in disk.list_dir(directory):
        if not has_offset(name):
            continue
        offset, suffix = offset_of(name), name[OFFSET_DIGITS:]
        is_behind = suffix in SEGMENT_SUFFIXES and (
            offset > base or (offset == base and suffix not in (LOG, SUMMARY))
        )
        if is_behind or (is_snapshot(name) and offset > damage.end_offset):
            disk.remove(directory / name)
    disk.sync_dir(directory)


def _settle(disk: Disk, damage: Damage) -> None:
    """Write the final summary of the truncated segment, in place of the one that makes starts refuse the log; or remove
    it if the segment continues to grow.

    A segment with gaps from compaction must not grow, because a start of the broker takes gaps in the growing segment
    for lost batches. So a new segment begins after it. The next start builds its indexes and a new summary.
    """
    path = damage.path.with_suffix(SUMMARY)
    if not damage.has_gaps:
        disk.remove(path)
        disk.sync_dir(path.parent)
        return
    disk.open(file_path(path.parent, damage.end_offset, LOG), create=True).close()
    disk.sync_dir(path.parent)
    disk.write_atomic(path, _summary_of(disk, damage).encode())


def _summary_of(disk: Disk, damage: Damage) -> Summary:
    """Return a summary of the truncated segment (its offsets, timestamps, sizes and checksums), computed from its
    batches.

    The summary gives the index files the size 0, so that it describes a segment without indexes: the indexes of the
    untruncated segment also have entries of the removed batches. The next start of the broker builds new indexes.
    """
    segment = GrowingSegment(disk, SegmentName.of(damage.path.parent, offset_of(damage.path.name)))
    with closing(disk.open(damage.path)) as file:
        for position, header, head in scan_batches(file.read, 0, file.size, with_bodies=False):
            segment.index_batch(header, position, head, sys.maxsize)
    segment.end_offset = damage.end_offset
    return segment.make_summary(damage.end_offset)


def _check_unchanged(disk: Disk, directory: Path, damage: Damage) -> None:
    """Raise DamageError if the log files have changed since `examine` found the damage, because the truncation would
    then remove other bytes.
    """
    bases = log_offsets(disk.list_dir(directory))
    size = sum(
        disk.size(path) - max(position, 0)
        for path, position, _ in damage.lost_files()
        if offset_of(path.name) in bases
    )
    if tuple(base for base in bases if base > int(damage.path.stem)) != damage.later or size != damage.size:
        raise DamageError(
            f"{directory} has changed since it was examined; nothing was truncated. Stop the program that writes to it, and run "
            "`stablelog repair` again"
        )
