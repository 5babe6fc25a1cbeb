"""Search for the last commit sequence (the number of a commit, counted over all topics of its transaction group) in a
commit-ordered partition that is not open yet.

After a start of the broker, the coordinator of a transaction group rejects commits until it knows the last commit
sequence in all partitions of the group. Opening all of them may take long, so this module reads as little as possible:
from the end of the log back to the last commit marker, in steps that begin at entries of the offset index. For a
segment with a sealed commit index, the `.commitsummary` file of the index is enough.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from stablelog.batch.header import HEADER, crc_holds, read_header
from stablelog.batch.markers import read_marker
from stablelog.commit_order.commit_index import CommitIndex
from stablelog.env.disk import Disk, File
from stablelog.errors import DamageError
from stablelog.log.files.names import INDEX, LOG, SUMMARY, SegmentName, log_offsets
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.summary import Summary
from stablelog.log.search.batches import walk
from stablelog.log.segments.log_file import ReadLogFile

NO_COMMIT = -1
STEP_SIZE = 16 << 10  # how many bytes of the log the first step searches; each further step is twice as long


def last_commit_sequence(disk: Disk, directory: Path) -> int:
    """Return the commit sequence in a partition's last commit marker; -1 if no marker has one. The commit sequence is
    the number of the commit, counted over all topics of its transaction group.

    In a damaged partition, this is the last marker that can be read. Nothing is written.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory. No other thread writes to it.

    Raises:
        FileNotFoundError: the directory or a file in it is missing.
        DiskError: a file cannot be read.
    """
    bases = log_offsets(disk.list_dir(directory))
    for base in reversed(bases):
        if base != bases[-1]:
            index = CommitIndex(disk, directory, base)
            with contextlib.suppress(FileNotFoundError, DamageError):
                if index.open_sealed(Summary.decode(disk.read_bytes(index.path(SUMMARY)))):
                    return index.latest_sequence
        found = next(_sequences_in_segment(disk, directory, base), NO_COMMIT)
        if found != NO_COMMIT:
            return found
    return NO_COMMIT


def _sequences_in_segment(disk: Disk, directory: Path, base_offset: int) -> Iterator[int]:
    """Yield the commit sequences (numbers of commits, counted over all topics of their transaction group) of the commit
    markers in a log file, the last one first.
    """
    name = SegmentName.of(directory, base_offset)
    with contextlib.closing(disk.open(name.path(LOG))) as log:
        for begin, end in _steps(disk, name, log):
            yield from _sequences_between(name, log, begin, end)


def _steps(disk: Disk, segment: SegmentName, log: File) -> Iterator[tuple[int, int]]:
    """Yield the steps of the search for the last commit marker: byte ranges of the log file, as (begin, end). The first
    range is at the end of the file, and each further one ends where the one before it begins. Each range begins with a
    batch.
    """
    try:
        index = OffsetIndex(segment.base_offset, disk.read_bytes(segment.path(INDEX)))
    except FileNotFoundError:
        index = OffsetIndex(segment.base_offset)
    end, step = log.size, STEP_SIZE
    while end:
        known = index.position_at_or_before(end - step)
        # After a crash, an offset index that was not synced may contain any bytes, so its entry is checked.
        is_batch = known < end and _is_batch(log, known, segment.base_offset)
        begin = known if is_batch else 0
        yield begin, end
        end, step = begin, step * 2


def _is_batch(log: File, position: int, base_offset: int) -> bool:
    with contextlib.suppress(DamageError):
        header = read_header(log.read(position, HEADER.size))
        is_inside = header.base_offset >= base_offset and position + header.size <= log.size
        return is_inside and crc_holds(log.read(position, header.size), 0, header)
    return False


def _sequences_between(segment: SegmentName, log: File, begin: int, end: int) -> Iterator[int]:
    """Yield the commit sequences (numbers of commits, counted over all topics of their transaction group) of the commit
    markers between two byte positions of a log file, the last one first. The search ends at a damaged or incomplete
    batch.
    """
    # Positions of the control batches; a marker is only decoded when its commit sequence is asked for.
    controls: list[int] = []
    with contextlib.suppress(DamageError):
        for position, header in walk(ReadLogFile(segment.path, lambda: log, log.size), begin):
            if position + header.size > end:
                break
            if header.is_control:
                controls.append(position)
    for position in reversed(controls):
        header = read_header(log.read(position, HEADER.size))
        batch = log.read(position, header.size)
        with contextlib.suppress(DamageError):
            marker = read_marker(batch) if crc_holds(batch, 0, header) else None
            if marker is not None and marker.commit_sequence != NO_COMMIT:
                yield marker.commit_sequence
