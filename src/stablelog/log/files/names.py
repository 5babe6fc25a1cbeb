"""The names of a partition's files. Most are an offset in 20 digits, followed by a suffix for the kind of file.

Format: docs/reference/formats.md, "The data directory".
"""

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

LOG, INDEX, TIMEINDEX, TXNINDEX, SUMMARY = ".log", ".index", ".timeindex", ".txnindex", ".summary"
INDEX_SUFFIXES = (INDEX, TIMEINDEX, TXNINDEX)
COMMIT_SUFFIXES = (
    ".commitindex",
    ".commitextents",
    ".commitsummary",
)  # suffixes of the files of a commit index
SEGMENT_SUFFIXES = (LOG, INDEX, TIMEINDEX, TXNINDEX, SUMMARY, *COMMIT_SUFFIXES)
SNAPSHOT, PRODUCERS = ".snapshot", ".producers"
CUT = ".cut"  # a file with the bytes that recovery or `stablelog repair` has removed from a log file
DELETED = ".deleted"
VIEW_START_FILE = "view-start-offset"  # the file that records the start of the view in commit order
# The file that records the greatest commit sequence before the first segment.
FIRST_SEQUENCE_FILE = "log-start-sequence"
# The copy of the last manifest that was published to the object store.
REMOTE_MANIFEST_FILE = "remote-manifest"
REMOTE_PART_PREFIX = f"{REMOTE_MANIFEST_FILE}-part-"  # the id of the part in 32 hexadecimal digits follows
# The file that records the log start offset of a log with a remote tier.
REMOTE_LOG_START_FILE = "remote-log-start"
RESTORED_FILE = "restored"  # the file that records which offsets a restore did not find
# Names of the files of a partition that belong to no segment and no snapshot.
SINGLE_FILES = (
    "leader-epoch-checkpoint",
    "log-start-offset",
    "partition.metadata",
    VIEW_START_FILE,
    FIRST_SEQUENCE_FILE,
    REMOTE_MANIFEST_FILE,
    REMOTE_LOG_START_FILE,
    RESTORED_FILE,
)

PathOf = Callable[[str], Path]  # returns the path of a segment's file with a given suffix

OFFSET_DIGITS, OFFSET_MAX = 20, f"{2**63 - 1:020d}"
_OFFSET = re.compile(r"[0-9]{20}\.")
_OFFSET_SUFFIXES = "|".join(re.escape(suffix[1:]) for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT, PRODUCERS))
_PARTITION_FILE = re.compile(
    rf"(?:[0-9]{{20}}\.(?:{_OFFSET_SUFFIXES}|cut(?:\.[0-9]+)?)|{'|'.join(map(re.escape, SINGLE_FILES))}"
    rf"|{re.escape(REMOTE_PART_PREFIX)}[0-9a-f]{{32}})"
    r"(?:\.(?:deleted|cleaned|swap|tmp))*"
)


@functools.lru_cache(maxsize=1024)  # cached, because thousands of partitions have files of the same names
def is_partition_file(name: str) -> bool:
    """Whether a file with this name belongs to a partition of stablelog or Apache Kafka."""
    return _PARTITION_FILE.fullmatch(name) is not None and (has_offset(name) or name.startswith(SINGLE_FILES))


def has_offset(name: str) -> bool:
    """Whether a name begins with an offset and a dot: 20 ASCII digits with a value of at most 2^63-1."""
    return _OFFSET.match(name) is not None and name[:OFFSET_DIGITS] <= OFFSET_MAX


def is_snapshot(name: str) -> bool:
    """Whether a file with this name is a producer snapshot."""
    return has_offset(name) and name[OFFSET_DIGITS:] in (SNAPSHOT, PRODUCERS)


def is_log(name: str) -> bool:
    """Whether a file with this name is the log file of a segment."""
    return has_offset(name) and name[OFFSET_DIGITS:] == LOG


def is_summary(name: str) -> bool:
    """Whether a file with this name is the summary of a segment, which has the segment's offsets, file sizes and
    checksums.
    """
    return has_offset(name) and name[OFFSET_DIGITS:] == SUMMARY


def offset_of(name: str) -> int:
    """Return the offset at the beginning of a file name. The name must have one: see `has_offset`."""
    return int(name[:OFFSET_DIGITS])


class SegmentName(NamedTuple):
    """The name of a segment: its base offset, from which the paths of its files follow. The segment need not exist.

    Attributes:
        base_offset: the base offset of the segment.
        path: returns the path of the segment's file with a given suffix.
    """

    base_offset: int
    path: PathOf

    @classmethod
    def of(cls, directory: Path, base_offset: int, mark: str = "") -> "SegmentName":
        """Return the name of a segment in a directory. `mark` is a second suffix that all its files have: `.cleaned`
        while compaction writes them, and empty for a segment of the log.
        """
        return cls(base_offset, lambda suffix: file_path(directory, base_offset, suffix + mark))


def first_segment_path(directory: Path, names: Iterable[str], log_start: int) -> Path:
    """Return the path that the missing log file of the first segment most likely had, for an error message. It is
    derived from the names of the other files.

    Args:
        directory: the partition's directory.
        names: the names in this directory.
        log_start: the log start offset, which lies in the missing segment.
    """
    stems = [
        offset_of(name) for name in names if has_offset(name) and name[OFFSET_DIGITS:] in SEGMENT_SUFFIXES
    ]
    base_offset = max((stem for stem in stems if stem <= log_start), default=log_start)
    return file_path(directory, base_offset, LOG)


def file_path(directory: Path, offset: int, suffix: str) -> Path:
    """Return the path of the partition's file with this offset and suffix."""
    return directory / f"{offset:020d}{suffix}"


def log_offsets(names: Iterable[str]) -> list[int]:
    """Return the base offsets of the log files among the names, ascending."""
    return sorted(offset_of(name) for name in names if is_log(name))


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Return the offsets of the producer snapshots among the names, ascending. A snapshot has two files, `.snapshot`
    and `.producers`; its offset is returned even if only one of them exists.
    """
    return sorted({offset_of(name) for name in names if is_snapshot(name)})
