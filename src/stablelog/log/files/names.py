"""The names of a partition's files: an offset in 20 digits, and a suffix that says what the file is.

Format: docs/formats.md, "The data directory".
"""

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path

LOG, INDEX, TIMEINDEX, TXNINDEX, SUMMARY = ".log", ".index", ".timeindex", ".txnindex", ".summary"
INDEX_SUFFIXES = (INDEX, TIMEINDEX, TXNINDEX)
COMMIT_SUFFIXES = (
    ".commitindex",
    ".commitextents",
    ".commitsummary",
)  # of the view in commit order; see `views`
SEGMENT_SUFFIXES = (LOG, INDEX, TIMEINDEX, TXNINDEX, SUMMARY, *COMMIT_SUFFIXES)
SNAPSHOT, PRODUCERS = ".snapshot", ".producers"
CUT = ".cut"  # what recovery or `stablelog repair` cut off the segment's log file
DELETED = ".deleted"
VIEW_START_FILE = "view-start-offset"  # where the view in commit order begins
# What a partition has beside the files of segments and the snapshots.
SINGLE_FILES = ("leader-epoch-checkpoint", "log-start-offset", "partition.metadata", VIEW_START_FILE)

PathOf = Callable[[str], Path]  # the path of a segment's file with a suffix

OFFSET_DIGITS, OFFSET_MAX = 20, f"{2**63 - 1:020d}"
_OFFSET = re.compile(r"[0-9]{20}\.")
_OFFSET_SUFFIXES = "|".join(re.escape(suffix[1:]) for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT, PRODUCERS))
_PARTITION_FILE = re.compile(
    rf"(?:[0-9]{{20}}\.(?:{_OFFSET_SUFFIXES}|cut(?:\.[0-9]+)?)|{'|'.join(map(re.escape, SINGLE_FILES))})"
    r"(?:\.(?:deleted|cleaned|swap|tmp))*"
)


@functools.lru_cache(maxsize=1024)  # thousands of partitions have files of the same names
def is_partition_file(name: str) -> bool:
    """Whether stablelog or Apache Kafka gives a file of a partition this name."""
    return _PARTITION_FILE.fullmatch(name) is not None and (has_offset(name) or name.startswith(SINGLE_FILES))


def has_offset(name: str) -> bool:
    """Whether a name begins with an offset: 20 ASCII digits, at most 2^63-1, and a point."""
    return _OFFSET.match(name) is not None and name[:OFFSET_DIGITS] <= OFFSET_MAX


def is_snapshot(name: str) -> bool:
    """Whether a file of this name holds producer state."""
    return has_offset(name) and name[OFFSET_DIGITS:] in (SNAPSHOT, PRODUCERS)


def is_log(name: str) -> bool:
    """Whether a file of this name is a segment's log."""
    return has_offset(name) and name[OFFSET_DIGITS:] == LOG


def is_summary(name: str) -> bool:
    """Whether a file of this name is a segment's summary."""
    return has_offset(name) and name[OFFSET_DIGITS:] == SUMMARY


def offset_of(name: str) -> int:
    """The offset that a name begins with; it `has_offset`."""
    return int(name[:OFFSET_DIGITS])


def segment_path(directory: Path, base_offset: int, mark: str, suffix: str) -> Path:
    """The path of a segment's file. `mark` is what compaction puts behind the suffix, or nothing."""
    return directory / f"{base_offset:020d}{suffix}{mark}"


def first_segment_path(directory: Path, names: Iterable[str], log_start: int) -> Path:
    """The log file of a first segment that is gone, as far as the other files of a partition tell its name.

    Args:
        directory: the partition's own.
        names: in it.
        log_start: where the log begins, in that segment.
    """
    stems = [
        offset_of(name) for name in names if has_offset(name) and name[OFFSET_DIGITS:] in SEGMENT_SUFFIXES
    ]
    base_offset = max((stem for stem in stems if stem <= log_start), default=log_start)
    return file_path(directory, base_offset, LOG)


def file_path(directory: Path, offset: int, suffix: str) -> Path:
    """The path of a partition's file with this offset and suffix."""
    return directory / f"{offset:020d}{suffix}"


def log_offsets(names: Iterable[str]) -> list[int]:
    """The base offsets of the segments whose log files are among the names, ascending."""
    return sorted(offset_of(name) for name in names if is_log(name))


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """The offsets of the snapshots that have one file at least among the names, ascending."""
    return sorted({offset_of(name) for name in names if is_snapshot(name)})
