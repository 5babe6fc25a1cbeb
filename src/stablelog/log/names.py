"""The names of a partition's files: an offset in 20 digits, and a suffix that says what the file is.

Format: docs/formats.md, "The data directory".
"""

from collections.abc import Iterable
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


def is_snapshot(name: str) -> bool:
    """Whether a file of this name holds producer state."""
    return name.endswith((SNAPSHOT, PRODUCERS)) and name.partition(".")[0].isdigit()


def is_log(name: str) -> bool:
    """Whether a file of this name is a segment's log."""
    return name.endswith(LOG) and name[: -len(LOG)].isdigit()


def offset_of(name: str) -> int:
    """The offset that a file is named by."""
    return int(name.partition(".")[0])


def first_segment_path(directory: Path, names: Iterable[str], log_start: int) -> Path:
    """The log file of a first segment that is gone, as far as the other files of a partition tell its name.

    Args:
        directory: the partition's own.
        names: in it.
        log_start: where the log begins, in that segment.
    """
    stems = [
        offset_of(name)
        for name in names
        if any(name.endswith(suffix) for suffix in SEGMENT_SUFFIXES) and name.partition(".")[0].isdigit()
    ]
    base_offset = max((stem for stem in stems if stem <= log_start), default=log_start)
    return directory / f"{base_offset:020d}{LOG}"
