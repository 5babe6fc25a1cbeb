"""The last commit of a commit-ordered partition that is not open, read from the end of its log.

After a start the coordinator needs the commit sequences that partitions have in their markers before it gives out the
next one, and opening all partitions may take long. So this reads as little as it can: back from the end of the log, in
steps that begin at an entry of the offset index, up to the last commit marker. A sealed commit index says it by itself.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from stablelog.batch.header import HEADER, crc_holds, read_header
from stablelog.batch.markers import read_marker
from stablelog.env.disk import Disk, File
from stablelog.errors import Corrupt
from stablelog.log.names import INDEX, LOG, SUMMARY, is_log, offset_of
from stablelog.log.offset_index import OffsetIndex
from stablelog.log.segment import OpenFiles, Segment
from stablelog.log.summary import Summary
from stablelog.views.commit_index import CommitIndex

NO_COMMIT = -1
STEP_SIZE = 16 << 10  # bytes of the last step; each one before it is twice as long


def last_commit_sequence(disk: Disk, directory: Path) -> int:
    """The commit sequence of a partition's last commit marker; -1 if no marker says one.

    The partition may be damaged: then it is that of the last marker that can be read. Nothing is changed.

    Args:
        disk: where the partition lies.
        directory: the partition's own. No other thread writes to it.

    Raises:
        FileNotFoundError: there is no such directory, or a file of it is gone.
        DiskError: a file cannot be read.
    """
    bases = sorted((offset_of(name) for name in disk.list_dir(directory) if is_log(name)), reverse=True)
    for base in bases:
        index = CommitIndex(disk, directory, base)
        if base != bases[0] and _is_whole(disk, index):
            return index.latest_sequence
        found = _last_in_segment(disk, directory, base)
        if found != NO_COMMIT:
            return found
    return NO_COMMIT


def _is_whole(disk: Disk, index: CommitIndex) -> bool:
    """Whether a sealed commit index is the one of its segment. It is loaded then."""
    with contextlib.suppress(FileNotFoundError, Corrupt):
        summary = Summary.decode(disk.read_bytes(index.path(SUMMARY)))
        return index.open_sealed(summary.end_offset, summary.log_crc)
    return False


def _last_in_segment(disk: Disk, directory: Path, base_offset: int) -> int:
    """The commit sequence of the last commit marker in a log file; -1 if there is none."""
    segment = Segment(disk, directory, base_offset, OpenFiles())
    segment.size = disk.size(segment.path(LOG))
    try:
        end = segment.size
        for begin in _beginnings(disk, segment):
            found = _last_between(segment, begin, end)
            if found != NO_COMMIT:
                return found
            end = begin
    finally:
        segment.close()
    return NO_COMMIT


def _beginnings(disk: Disk, segment: Segment) -> Iterator[int]:
    """Positions of batches from which to read, back from the end of a log file; the last one is 0."""
    try:
        index = OffsetIndex(segment.base_offset, disk.read_bytes(segment.path(INDEX)))
    except FileNotFoundError:
        index = OffsetIndex(segment.base_offset)
    begin, step = segment.size, STEP_SIZE
    while begin:
        known = index.position_at_or_before(begin - step)
        # An index that was not synced may hold anything after a crash.
        is_batch = known < begin and _is_batch(segment.growing_log, known, segment.base_offset)
        begin = known if is_batch else 0
        step *= 2
        yield begin


def _is_batch(log: File, position: int, base_offset: int) -> bool:
    try:
        header = read_header(log.read(position, HEADER.size))
    except Corrupt:
        return False
    if header.base_offset < base_offset or position + header.size > log.size:
        return False
    return crc_holds(log.read(position, header.size), 0, header)


def _last_between(segment: Segment, begin: int, end: int) -> int:
    """The commit sequence of the last commit marker between two positions, up to damage or a torn end; -1 if there is none."""
    log = segment.growing_log
    controls: list[int] = []  # of many markers only the last one is decoded
    with contextlib.suppress(Corrupt):
        for position, header in segment.walk_unproven(begin):
            if position + header.size > end:
                break
            if header.is_control:
                controls.append(position)
    for position in reversed(controls):
        header = read_header(log.read(position, HEADER.size))
        batch = log.read(position, header.size)
        with contextlib.suppress(Corrupt):
            marker = read_marker(batch) if crc_holds(batch, 0, header) else None
            if marker is not None and marker.commit_sequence != NO_COMMIT:
                return marker.commit_sequence
    return NO_COMMIT
